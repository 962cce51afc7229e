/* The square crop on which image generators are trained (`center_crop_arr` of guided-diffusion),
 * with the same bytes as Pillow. BOX halves both sides while the shorter side is at least twice the
 * target. Then BICUBIC resizes the shorter side to the target, and the central square is kept.
 *
 * Chroma is upsampled like libjpeg's "fancy upsampling". Images are resampled as in Pillow: across,
 * then down, with bytes between the two passes. Weights are doubles, normalised and rounded to 22
 * bits; sums are 32-bit integers. Only pixels that the crop needs are computed.
 *
 * The vector code for AVX2 and AVX-512 computes the same bytes as the plain C for other processors.
 * Only weights are floats. setup.py forbids the compiler to fuse their products and sums, because
 * the compiler of Pillow's x86-64 wheels does not fuse them either.
 */
#ifndef IMAGENET_PREP_SQUARE_H
#define IMAGENET_PREP_SQUARE_H

#include "buffers.h"
#include "kernels.h"
#include "pixels.h"

enum {
  PRECISION = 22,    /* fractional bits of a weight */
  LOW_BITS = 15,     /* of these in `low`, since pmaddwd takes signed 16-bit numbers */
  LANES = 32,        /* number of rows that are resampled across at once */
  COLUMN = 3 * LANES,
  MOST_STAGES = 16,  /* more than are needed to halve 65,500 pixels to 1 */
  MOST_SQUARE = 8192, /* pixels per side; the product of two sides fits into an int */
  NUM_TAPS = 256,    /* number of cached taps; photographs have few sizes */
};

/* The input samples and weights for outputs [first, last) of a resampling along one axis. */
typedef struct {
  int is_box, num_in, num_out, first, last;
  int room;            /* even number of weights per output: `count`, then zeros */
  unsigned used;       /* time of the last use, for eviction */
  int *begin, *count;  /* all four arrays share the memory block at begin */
  int16_t *low, *high; /* a weight is high * 2^LOW_BITS + low */
} taps;
/* A resampling to columns [left, right) and rows [top, bottom); NULL if a side is unchanged. For
 * pictures that are more than 100 times as high as wide, Pillow resamples down first. */
typedef struct { const taps *across, *down; int left, right, top, bottom, down_first; } stage;
/* The stages of a resampling, and the source pixels that they need. */
typedef struct { stage stages[MOST_STAGES]; int num, left, right, top, bottom; } route;
/* Columns [left, right) and rows [top, bottom) of a picture; a row has all R, then all G, all B. */
typedef struct { uint8_t *pixels; ptrdiff_t width; int left, right, top, bottom; } colours;

/* Computes output row i of `t`; reads and writes `width` samples, rounded up to LANES. */
typedef void weigh_rows(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const taps *t, int i,
                        int width);

typedef struct {
  enum simd simd;
  weigh_rows *weigh;
  taps kept[NUM_TAPS];
  unsigned clock;
  buffer pictures[2], turned, made, row;
} squarer;

/* A chroma plane, starting at the sample of the picture's first pixel. */
typedef struct {
  const uint8_t *samples;
  ptrdiff_t stride;
  int wide, high;         /* pixels per sample: 1 or 2 */
  int num_left, num_down; /* number of samples to the right and bottom edges of the image */
  int is_left, is_top;    /* whether the first sample is at the image's left or top edge */
} chroma;

/* ---- Weights ---- */

static double box_weight(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static double cubic_weight(double x) {
  if (x < 0.0) x = -x;
  if (x < 1.0) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * -0.5;
  return 0.0;
}

static void fill_taps(taps *t, double scale, double support) {
  double (*weight)(double) = t->is_box ? box_weight : cubic_weight;
  double inverse = 1.0 / (scale < 1.0 ? 1.0 : scale);
  for (int i = 0; i < t->last - t->first; i++) {
    double center = (t->first + i + 0.5) * scale, sum = 0.0;
    int begin = larger((int)(center - support + 0.5), 0);
    int count = smaller((int)(center + support + 0.5), t->num_in) - begin;
    int16_t *low = t->low + (size_t)i * (size_t)t->room, *high = t->high + (low - t->low);
    t->begin[i] = begin, t->count[i] = count;
    for (int k = 0; k < count; k++) sum += weight((k + begin - center + 0.5) * inverse);
    for (int k = 0; k < count; k++) {
      double w = weight((k + begin - center + 0.5) * inverse);
      if (sum != 0.0) w /= sum;
      int fixed = (int)((w < 0 ? -0.5 : 0.5) + w * (1 << PRECISION));
      const int half = 1 << (LOW_BITS - 1);
      low[k] = (int16_t)(((fixed + half) & (2 * half - 1)) - half);
      high[k] = (int16_t)((fixed - low[k]) / (2 * half));
    }
  }
}

/* Returns the taps of a resampling, cached or computed now; NULL if there is not enough memory. A
 * route needs far fewer than NUM_TAPS taps, so its taps do not evict each other. */
static const taps *taps_for(squarer *s, taps wanted) {
  taps *oldest = &s->kept[0];
  for (taps *t = s->kept; t < s->kept + NUM_TAPS; t++) {
    if (t->begin && t->is_box == wanted.is_box && t->num_in == wanted.num_in &&
        t->num_out == wanted.num_out && t->first == wanted.first && t->last == wanted.last) {
      t->used = ++s->clock;
      return t;
    }
    if (t->used < oldest->used) oldest = t;
  }
  free(oldest->begin);
  *oldest = (taps){0};
  double scale = (double)wanted.num_in / wanted.num_out;
  double support = (wanted.is_box ? 0.5 : 2.0) * (scale < 1.0 ? 1.0 : scale);
  wanted.room = 2 * ((int)support + 2); /* no output has more inputs within `support` */
  size_t num = (size_t)(wanted.last - wanted.first), weights = num * (size_t)wanted.room;
  wanted.begin = calloc(2 * num * sizeof *wanted.begin + 2 * weights * sizeof *wanted.low, 1);
  if (!wanted.begin) return NULL;
  wanted.count = wanted.begin + num;
  wanted.low = (int16_t *)(void *)(wanted.count + num);
  wanted.high = wanted.low + weights;
  fill_taps(&wanted, scale, support);
  wanted.used = ++s->clock;
  *oldest = wanted;
  return oldest;
}

/* ---- The route: stages from a picture to its square ---- */

/* Rounds x to the nearest integer, ties to even, like Python's `round`; 0 <= x < 2^31. It does not
 * use libm, so that this library does not depend on another library. */
static int rounded(double x) {
  int below = (int)x;
  double above = x - below;
  return below + (above > 0.5 || (above == 0.5 && below % 2));
}

/* Sets *axis to the taps for outputs [*first, *last), then *first, *last to the inputs needed. */
static int add_axis(squarer *s, const taps **axis, int is_box, int num_in, int num_out, int *first,
                    int *last) {
  if (num_in == num_out) return 1;
  const taps *t = taps_for(s, (taps){is_box, num_in, num_out, *first, *last, 0, 0, 0, 0, 0, 0});
  if (!t) return 0;
  int end = *last - *first - 1;
  *axis = t, *first = t->begin[0], *last = t->begin[end] + t->count[end];
  return 1;
}

/* Finds the route from width x height pixels to the square; returns 0 if memory is short. All sides
 * are at least 1; `side` is at most MOST_SQUARE, width and height are at most 65,535. */
static int find_route(squarer *s, int width, int height, int side, route *r) {
  int widths[MOST_STAGES + 1] = {width}, heights[MOST_STAGES + 1] = {height}, num = 0;
  for (; smaller(width, height) >= 2 * side; num++)
    widths[num + 1] = width /= 2, heights[num + 1] = height /= 2;
  double scale = (double)side / smaller(width, height);
  widths[++num] = rounded(width * scale), heights[num] = rounded(height * scale);
  *r = (route){.num = num};
  r->left = (widths[num] - side) / 2, r->right = r->left + side;
  r->top = (heights[num] - side) / 2, r->bottom = r->top + side;
  for (int i = num - 1; i >= 0; i--) {
    stage *g = &r->stages[i];
    int down_first = heights[i] > 100 * widths[i] && heights[i + 1] < heights[i];
    *g = (stage){NULL, NULL, r->left, r->right, r->top, r->bottom, down_first};
    int is_box = i < num - 1;
    if (!add_axis(s, &g->across, is_box, widths[i], widths[i + 1], &r->left, &r->right) ||
        !add_axis(s, &g->down, is_box, heights[i], heights[i + 1], &r->top, &r->bottom))
      return 0;
  }
  r->left &= ~1; /* a chroma sample begins at an even column */
  return 1;
}

/* Returns the route of a window that is not resized. */
static route route_of_window(int top, int left, int height, int width) {
  route r = {.num = 1, .left = left & ~1, .top = top, .right = left + width, .bottom = top + height};
  r.stages[0] = (stage){NULL, NULL, left, left + width, top, top + height, 0};
  return r;
}

/* ---- Resampling ---- */

static void weigh_plain(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const taps *t, int i,
                        int width) {
  const int16_t *low = t->low + (ptrdiff_t)i * t->room, *high = t->high + (ptrdiff_t)i * t->room;
  for (int x = 0; x < width; x++) {
    int sum = 1 << (PRECISION - 1);
    for (int k = 0; k < t->count[i]; k++)
      sum += (high[k] * (1 << LOW_BITS) + low[k]) * in[k * stride + x];
    out[x] = clamp(sum < 0 ? -1 : sum >> PRECISION);
  }
}

#if defined(__x86_64__)
/* Takes two rows at a time, like blend_avx2. If the number of rows is odd, one more row is read,
 * with weight 0. Sums of `low` may wrap, because only the total must fit. ADD adds the products of
 * two pairs of 16-bit numbers to a sum. */
#define DEFINE_WEIGH(name, ADD) \
  static void name(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const taps *t, int i, \
                   int width) { \
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (PRECISION - 1)); \
    const int16_t *lows = t->low + (ptrdiff_t)i * t->room, *highs = t->high + (lows - t->low); \
    int num = t->count[i]; \
    for (int x = 0; x < width; x += LANES) { \
      __m256i l0 = half, l1 = half, l2 = half, l3 = half; \
      __m256i h0 = zero, h1 = zero, h2 = zero, h3 = zero; \
      const uint8_t *row = in + x; \
      int k = 0; \
      do { \
        __m256i a = _mm256_loadu_si256((const __m256i *)row); \
        __m256i b = _mm256_loadu_si256((const __m256i *)(row + stride)); \
        int32_t two_low, two_high; \
        memcpy(&two_low, lows + k, sizeof two_low), memcpy(&two_high, highs + k, sizeof two_high); \
        __m256i low = _mm256_set1_epi32(two_low), high = _mm256_set1_epi32(two_high); \
        __m256i ab = _mm256_unpacklo_epi8(a, b), more = _mm256_unpackhi_epi8(a, b); \
        __m256i pairs = _mm256_unpacklo_epi8(ab, zero); \
        l0 = ADD(l0, pairs, low), h0 = ADD(h0, pairs, high); \
        pairs = _mm256_unpackhi_epi8(ab, zero); \
        l1 = ADD(l1, pairs, low), h1 = ADD(h1, pairs, high); \
        pairs = _mm256_unpacklo_epi8(more, zero); \
        l2 = ADD(l2, pairs, low), h2 = ADD(h2, pairs, high); \
        pairs = _mm256_unpackhi_epi8(more, zero); \
        l3 = ADD(l3, pairs, low), h3 = ADD(h3, pairs, high); \
        k += 2, row += 2 * stride; \
      } while (k < num); \
      l0 = _mm256_packs_epi32(TOTAL(l0, h0), TOTAL(l1, h1)); \
      l2 = _mm256_packs_epi32(TOTAL(l2, h2), TOTAL(l3, h3)); \
      _mm256_storeu_si256((__m256i *)(void *)(out + x), _mm256_packus_epi16(l0, l2)); \
    } \
  }
#define TOTAL(l, h) \
  _mm256_srai_epi32(_mm256_add_epi32(l, _mm256_slli_epi32(h, LOW_BITS)), PRECISION)
#define MULTIPLY_ADD(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
FOR_AVX2 DEFINE_WEIGH(weigh_avx2, MULTIPLY_ADD)
#define FOR_AVX512 __attribute__((target("avx2,avx512vl,avx512vnni")))
/* Inline assembly, because compilers add register copies to the intrinsic _mm256_dpwssd_epi32. */
FOR_AVX512 static inline __m256i add_dot(__m256i sum, __m256i a, __m256i b) {
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
FOR_AVX512 DEFINE_WEIGH(weigh_avx512, add_dot)
#endif

static weigh_rows *weigh_of(enum simd simd) {
#if defined(__x86_64__)
  if (simd == AVX512) return weigh_avx512;
  if (simd == AVX2) return weigh_avx2;
#endif
  return (void)simd, weigh_plain;
}

static ptrdiff_t row_of(const colours *c) { return 3 * c->width; }

/* Allocates a picture, with at least one extra row; returns 0 if there is not enough memory. */
static int place(buffer *b, colours *c) {
  c->width = round_up(c->right - c->left, LANES);
  ptrdiff_t rows = round_up(c->bottom - c->top + 1, LANES);
  return (c->pixels = grown(b, (size_t)(row_of(c) * rows))) != NULL;
}

/* Resamples across, by transposing strips of rows for the kernel that combines rows. If `mirrored`,
 * the outputs are written in reverse order. Returns 0 if there is not enough memory. */
static int go_across(squarer *s, const colours *in, const colours *out, const taps *t,
                     int mirrored) {
  int wide = in->right - in->left, num = out->right - out->left;
  uint8_t *turned = grown(&s->turned, (size_t)round_up(wide + 1, TILE) * COLUMN);
  uint8_t *made = grown(&s->made, (size_t)round_up(num, TILE) * COLUMN);
  if (!turned || !made) return 0;
  for (int y = 0; y < in->bottom - in->top; y += LANES) {
    const uint8_t *from = in->pixels + y * row_of(in);
    uint8_t *to = out->pixels + y * row_of(out);
    for (int c = 0; c < 3; c++)
      for (int x = 0; x < wide; x += TILE)
        stand(s->simd, turned + x * COLUMN + c * LANES, COLUMN, from + c * in->width + x,
              row_of(in));
    for (int i = 0; i < num; i++)
      s->weigh(made + (mirrored ? num - 1 - i : i) * COLUMN,
               turned + (t->begin[i] - in->left) * COLUMN, COLUMN, t, i, COLUMN);
    for (int c = 0; c < 3; c++)
      for (int x = 0; x < num; x += TILE)
        lay(s->simd, to + c * out->width + x, row_of(out), made + x * COLUMN + c * LANES, COLUMN);
  }
  return 1;
}

static void go_down(squarer *s, const colours *in, const colours *out, const taps *t) {
  for (int i = 0; i < out->bottom - out->top; i++)
    s->weigh(out->pixels + i * row_of(out), in->pixels + (t->begin[i] - in->top) * row_of(in),
             row_of(in), t, i, (int)row_of(in));
}

static void mirror(uint8_t *row, int width) {
  for (uint8_t *left = row, *right = row + width - 1; left < right; left++, right--) {
    uint8_t other = *right;
    *right = *left, *left = other;
  }
}

/* Writes row `y` of the last stage from the same row of `in`; may change it. */
static void paint_row(const painter *p, const stage *last, int y, uint8_t *row, const colours *in,
                      int mirrored, uint8_t *room) {
  int height = last->bottom - last->top, width = last->right - last->left;
  uint8_t *rows[3];
  for (int c = 0; c < 3; c++) {
    rows[c] = row + c * in->width + (last->left - in->left);
    if (mirrored) mirror(rows[c], width);
  }
  write_row(p, y - last->top, height, width, rows, room);
}

/* Resamples the picture in pictures[0] by all stages, and writes the result. */
static int go_route(squarer *s, const route *r, colours now, const output *to) {
  int at = 0, is_mirrored = !to->mirrored;
  for (const stage *g = r->stages; g < r->stages + r->num; g++)
    for (int pass = 0; pass < 2; pass++) {
      int is_down = g->down_first ? pass == 0 : pass == 1;
      if (!(is_down ? g->down : g->across)) continue;
      colours next = now;
      if (is_down)
        next.top = g->top, next.bottom = g->bottom;
      else
        next.left = g->left, next.right = g->right;
      if (!place(&s->pictures[at = !at], &next)) return 0;
      if (is_down) {
        go_down(s, &now, &next, g->down);
      } else {
        int mirrored = !is_mirrored && g == r->stages + r->num - 1;
        if (!go_across(s, &now, &next, g->across, mirrored)) return 0;
        is_mirrored |= mirrored;
      }
      now = next;
    }
  const stage *last = &r->stages[r->num - 1];
  uint8_t *room = grown(&s->row, room_of_row(last->right - last->left));
  const painter p = painter_of(s->simd, to);
  for (int y = last->top; room && y < last->bottom; y++)
    paint_row(&p, last, y, now.pixels + (y - now.top) * row_of(&now), &now, !is_mirrored, room);
  return room != NULL;
}

/* ---- Conversion of planes to colours ---- */

/* Upsamples a chroma row to `width` pixels. `near` is the nearest other row: above for even `y`,
 * below for odd `y`. */
static void enlarge_plain(uint8_t *out, const uint8_t *row, const uint8_t *near, const chroma *c,
                          int y, int width) {
  for (int x = 0; x < width; x++) {
    int odd = x & 1, i = c->wide == 2 ? x >> 1 : x, j = odd ? i + 1 : i - 1;
    if ((j < 0 && c->is_left) || j >= c->num_left) j = i;
    int v = c->high == 2 ? 3 * row[i] + near[i] : row[i];
    int other = c->wide == 1 ? 0 : c->high == 2 ? 3 * row[j] + near[j] : row[j];
    if (c->wide == 2) v = (3 * v + other + (c->high == 2 ? 8 - odd : 1 + odd)) >> (c->high == 2 ? 4 : 2);
    else if (c->high == 2) v = (v + (y & 1 ? 2 : 1)) >> 2;
    out[x] = (uint8_t)v;
  }
}

#if defined(__x86_64__)
/* As enlarge_plain, if samples are two pixels wide; `sums` has space for width / 2 + 64 numbers. */
FOR_AVX2 static void enlarge_avx2(uint8_t *out, const uint8_t *row, const uint8_t *near,
                                  const chroma *c, int width, int16_t *sums) {
  const __m256i three = _mm256_set1_epi16(3);
  int num = (width + 1) / 2, tall = c->high == 2;
  for (int i = 0; i < num + 2; i += 16) { /* sums[i] is the sum of sample i - 1 */
    __m256i sum = load_words(row + i - 1);
    if (tall) sum = _mm256_add_epi16(_mm256_mullo_epi16(sum, three), load_words(near + i - 1));
    _mm256_storeu_si256((__m256i *)(void *)(sums + i), sum);
  }
  if (c->is_left) sums[0] = sums[1];
  if (num >= c->num_left) sums[c->num_left + 1] = sums[c->num_left];
  const __m256i evens = _mm256_set1_epi16(tall ? 8 : 1), odds = _mm256_set1_epi16(tall ? 7 : 2);
  const __m128i shift = _mm_cvtsi32_si128(tall ? 4 : 2);
  for (int i = 0; i < num; i += 16) {
#define AT(k) _mm256_loadu_si256((const __m256i *)(const void *)(sums + i + (k)))
    __m256i before = AT(0), middle = _mm256_mullo_epi16(AT(1), three), after = AT(2);
#undef AT
    __m256i even = _mm256_srl_epi16(_mm256_add_epi16(_mm256_add_epi16(middle, before), evens), shift);
    __m256i odd = _mm256_srl_epi16(_mm256_add_epi16(_mm256_add_epi16(middle, after), odds), shift);
    even = _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
    _mm256_storeu_si256((__m256i *)(void *)(out + 2 * i), even);
  }
}
#endif

/* As square_of, for row `y`, which is not resized; `rows` has space for 4 rows of `room` bytes. */
static void make_row(const painter *p, enum simd simd, const route *r, int y, const plane *luma,
                     const chroma *chromas, uint8_t *out, ptrdiff_t out_width, uint8_t *rows,
                     ptrdiff_t room) {
  int width = r->right - r->left;
  const uint8_t *bright = luma->samples + (y - r->top) * luma->stride, *wide[2];
  if (!chromas) {
    for (int i = 0; i < 3; i++) memcpy(out + i * out_width, bright, (size_t)width);
    return;
  }
  for (int i = 0; i < 2; i++) {
    const chroma *h = &chromas[i];
    int at = y / h->high - r->top / h->high, by = y & 1 ? at + 1 : at - 1;
    if (h->high == 1 || (by < 0 && h->is_top) || by >= h->num_down) by = at;
    const uint8_t *row = h->samples + at * h->stride, *near = h->samples + by * h->stride;
    uint8_t *made = rows + i * room;
    wide[i] = h->wide == 1 && h->high == 1 ? row : made;
    if (wide[i] == row) continue;
#if defined(__x86_64__)
    if (simd == AVX2 && h->wide == 2) {
      enlarge_avx2(made, row, near, h, width, (int16_t *)(void *)(rows + 2 * room));
      continue;
    }
#endif
    enlarge_plain(made, row, near, h, y, width);
  }
  p->make(bright, wide[0], wide[1], width, out, out + out_width, out + 2 * out_width);
}

/* Computes the colours of the pixels that the route needs, and writes its result. `luma` starts at
 * these pixels; `chromas` has two planes, or is NULL. Returns 0 if there is not enough memory. */
static int square_of(squarer *s, const route *r, const plane *luma, const chroma *chromas,
                     const output *to) {
  int is_resized = r->num > 1 || r->stages[0].across || r->stages[0].down;
  /* Without a resize, each row is written at once, so memory for one row is enough. */
  colours c = {NULL, 0, r->left, r->right, r->top, is_resized ? r->bottom : r->top + 1};
  int width = c.right - c.left;
  ptrdiff_t room = round_up(width, LANES) + 2 * LANES;
  uint8_t *rows = grown(&s->row, (size_t)(4 * room) + room_of_row(width));
  if (!place(&s->pictures[0], &c) || !rows) return 0;
  const painter p = painter_of(s->simd, to);
  for (int y = r->top; y < r->bottom; y++) {
    uint8_t *out = c.pixels + (is_resized ? y - c.top : 0) * row_of(&c);
    make_row(&p, s->simd, r, y, luma, chromas, out, c.width, rows, room);
    if (!is_resized) paint_row(&p, r->stages, y, out, &c, to->mirrored, rows + 4 * room);
  }
  return is_resized ? go_route(s, r, c, to) : 1;
}

static void release_square(squarer *s, size_t above) {
  buffer *all[] = {&s->pictures[0], &s->pictures[1], &s->turned, &s->made, &s->row};
  for (int i = 0; i < 5; i++) release(all[i], above);
}

static void forget_taps(squarer *s) {
  for (int i = 0; i < NUM_TAPS; i++) free(s->kept[i].begin);
}

#endif
