/* Converts Y, Cb and Cr to the images of a batch: R, G and B as bytes or normalised floats.
 *
 * All processors compute the same bytes. Colours are computed with integers. A float is
 * (value - mean) * factor. Compilers cannot fuse these operations, which would change the rounding.
 * Plain C looks floats up in a table. SSE2 cannot shuffle bytes, so it uses the plain C.
 */
#ifndef IMAGENET_PREP_PIXELS_H
#define IMAGENET_PREP_PIXELS_H

#include <string.h>

#include "kernels.h"

enum item { BYTES = 0, FLOAT32 = 1, FLOAT16 = 2, BFLOAT16 = 3 };

/* The memory and the format of the result. */
typedef struct {
  uint8_t *to;           /* [height, width, 3], or [3, height, width] if `planar` */
  const uint8_t *tables; /* [3, 256] items, by colour and value; aligned to items, as `to` is */
  float mean[3], factor[3];
  int item, planar, mirrored;
} output;

enum {
  PERIOD = 24,            /* a multiple of 8 bytes (a vector) and of 3 bytes (a pixel) */
  COLOURS = 16,           /* number of pixels whose colours are computed at once */
};

static int item_bytes(enum item item) { return item == BYTES ? 1 : item == FLOAT32 ? 4 : 2; }

/* ---- JFIF's conversion to rows of R, G and B, in 16-bit fixed point as in libjpeg ---- */

/* Reads, and may write, `width` samples rounded up to COLOURS. */
typedef void make_colours(const uint8_t *luma, const uint8_t *blues, const uint8_t *reds, int width,
                          uint8_t *r, uint8_t *g, uint8_t *b);

static uint8_t clamp(int v) { return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v; }

static void colours_plain(const uint8_t *luma, const uint8_t *blues, const uint8_t *reds, int width,
                          uint8_t *r, uint8_t *g, uint8_t *b) {
  enum { HALF = 1 << 15, LIFT = 512 << 16 }; /* LIFT avoids shifts of negative numbers */
  for (int x = 0; x < width; x++) {
    int blue = blues[x] - 128, red = reds[x] - 128;
    r[x] = clamp(luma[x] + ((91881 * red + HALF + LIFT) >> 16) - 512);
    g[x] = clamp(luma[x] + ((-22554 * blue - 46802 * red + HALF + LIFT) >> 16) - 512);
    b[x] = clamp(luma[x] + ((116130 * blue + HALF + LIFT) >> 16) - 512);
  }
}

/* Interleaves rows of R, G and B to pixels [width, 3]; may write `width` rounded up to COLOURS. */
typedef void interleave_colours(uint8_t *to, const uint8_t *r, const uint8_t *g, const uint8_t *b,
                                int width);

static void interleave_plain(uint8_t *to, const uint8_t *r, const uint8_t *g, const uint8_t *b,
                             int width) {
  for (int x = 0; x < width; x++, to += 3) to[0] = r[x], to[1] = g[x], to[2] = b[x];
}

/* ---- Conversion of bytes to items, of one colour or of R, G, B in turn ---- */

/* Writes at most `count` items, in multiples of PERIOD, and returns how many. `mean` and `factor`
 * have PERIOD numbers. */
typedef int make_floats(uint8_t *to, const uint8_t *bytes, int count, enum item item,
                        const float *mean, const float *factor);

static int floats_plain(uint8_t *to, const uint8_t *bytes, int count, enum item item,
                        const float *mean, const float *factor) {
  (void)to, (void)bytes, (void)count, (void)item, (void)mean, (void)factor;
  return 0; /* all items are looked up in a table */
}

#define LOOK_UP(type) \
  static void look_up_##type(uint8_t *to, const uint8_t *bytes, int from, int count, int colours, \
                             const uint8_t *tables) { \
    type *out = (type *)(void *)to; \
    for (int c = 0; c < colours; c++) { \
      const type *values = (const type *)(const void *)tables + 256 * c; \
      for (int i = from + c; i < count; i += colours) out[i] = values[bytes[i]]; \
    } \
  }
LOOK_UP(uint16_t)
LOOK_UP(uint32_t)

#if defined(__x86_64__)
/* Returns (weight * value + HALF) >> 16, given twice the 16-bit values. Rounding twice is exact,
 * because mulhi rounds down. */
FOR_AVX2 static inline __m256i weigh(__m256i twice, int weight) {
  __m256i product = _mm256_mulhi_epi16(twice, _mm256_set1_epi16((int16_t)weight));
  return _mm256_srai_epi16(_mm256_add_epi16(product, _mm256_set1_epi16(1)), 1);
}

/* As weigh, for sums of two products, given pairs of values and weights in the unpacked order. */
FOR_AVX2 static inline __m256i weigh_two(__m256i low, __m256i high, __m256i weights) {
  const __m256i half = _mm256_set1_epi32(1 << 15);
  low = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(low, weights), half), 16);
  high = _mm256_srai_epi32(_mm256_add_epi32(_mm256_madd_epi16(high, weights), half), 16);
  return _mm256_packs_epi32(low, high);
}

FOR_AVX2 static inline void store_bytes(uint8_t *to, __m256i sums) {
  __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(sums, sums), 0x08);
  _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(bytes));
}

FOR_AVX2 static inline __m256i load_words(const uint8_t *p) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

/* Weights must fit into 16 bits, so multiples of 65536 are added separately: 91881 = 65536 + 26345,
 * -46802 = -65536 + 18734, 116130 = 2 * 65536 - 14942. */
FOR_AVX2 static void colours_avx2(const uint8_t *luma, const uint8_t *blues, const uint8_t *reds,
                                  int width, uint8_t *r, uint8_t *g, uint8_t *b) {
  const __m256i middle = _mm256_set1_epi16(128);
  const __m256i of_blue_and_red = _mm256_set1_epi32((int)((uint32_t)(uint16_t)-22554 | 18734u << 16));
  for (int x = 0; x < width; x += COLOURS) {
    __m256i y = load_words(luma + x);
    __m256i blue = _mm256_sub_epi16(load_words(blues + x), middle);
    __m256i red = _mm256_sub_epi16(load_words(reds + x), middle);
    __m256i low = _mm256_unpacklo_epi16(blue, red), high = _mm256_unpackhi_epi16(blue, red);
    __m256i of_g = _mm256_sub_epi16(weigh_two(low, high, of_blue_and_red), red);
    __m256i two_blue = _mm256_add_epi16(blue, blue), two_red = _mm256_add_epi16(red, red);
    __m256i of_r = _mm256_add_epi16(weigh(two_red, 26345), red);
    __m256i of_b = _mm256_add_epi16(weigh(two_blue, -14942), two_blue);
    store_bytes(r + x, _mm256_add_epi16(y, of_r));
    store_bytes(g + x, _mm256_add_epi16(y, of_g));
    store_bytes(b + x, _mm256_add_epi16(y, of_b));
  }
}

FOR_AVX2 static void interleave_avx2(uint8_t *to, const uint8_t *r, const uint8_t *g,
                                     const uint8_t *b, int width) {
/* The position in a row of colour c of byte i of the pixels; -1 gives 0. */
#define AT(c, i) ((i) % 3 == (c) ? (i) / 3 : -1)
#define FOUR(c, i) AT(c, i), AT(c, i + 1), AT(c, i + 2), AT(c, i + 3)
#define MASK(c, i) \
  _mm_setr_epi8(FOUR(c, (i)), FOUR(c, (i) + 4), FOUR(c, (i) + 8), FOUR(c, (i) + 12))
#define SIXTEEN(i) \
  _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(red, MASK(0, i)), _mm_shuffle_epi8(green, MASK(1, i))), \
               _mm_shuffle_epi8(blue, MASK(2, i)))
  for (int x = 0; x < width; x += COLOURS, to += 3 * COLOURS) {
    __m128i red = _mm_loadu_si128((const __m128i *)(r + x));
    __m128i green = _mm_loadu_si128((const __m128i *)(g + x));
    __m128i blue = _mm_loadu_si128((const __m128i *)(b + x));
    _mm_storeu_si128((__m128i *)to, SIXTEEN(0));
    _mm_storeu_si128((__m128i *)(to + 16), SIXTEEN(16));
    _mm_storeu_si128((__m128i *)(to + 32), SIXTEEN(32));
  }
#undef AT
#undef FOUR
#undef MASK
#undef SIXTEEN
}

/* Rounds to nearest, ties to even, like the conversion to float16. */
FOR_AVX2 static inline __m128i to_bfloat16(__m256 v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  bits = _mm256_srli_epi32(bits, 16);
  bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  return _mm256_castsi256_si128(bits);
}

FOR_AVX2 static int floats_avx2(uint8_t *to, const uint8_t *bytes, int count, enum item item,
                                const float *mean, const float *factor) {
  int done = 0;
  for (; done + PERIOD <= count; done += PERIOD)
    for (int k = 0; k < PERIOD; k += 8) {
      __m128i eight = _mm_loadl_epi64((const __m128i *)(bytes + done + k));
      __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
      v = _mm256_mul_ps(_mm256_sub_ps(v, _mm256_loadu_ps(mean + k)), _mm256_loadu_ps(factor + k));
      if (item == FLOAT32)
        _mm256_storeu_ps((float *)(void *)to + done + k, v);
      else
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * (done + k)),
                         item == FLOAT16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)
                                         : to_bfloat16(v));
    }
  return done;
}

#elif defined(__aarch64__)
static void colours_neon(const uint8_t *luma, const uint8_t *blues, const uint8_t *reds, int width,
                         uint8_t *r, uint8_t *g, uint8_t *b) {
  const uint8x8_t middle = vdup_n_u8(128);
/* The weighted sum of two colours, rounded; see AVX2 for the weights. */
#define WEIGH(of_blue, of_red) \
  vcombine_s16( \
      vrshrn_n_s32(vmlal_n_s16(vmull_n_s16(vget_low_s16(blue), of_blue), vget_low_s16(red), of_red), \
                   16), \
      vrshrn_n_s32(vmlal_n_s16(vmull_n_s16(vget_high_s16(blue), of_blue), vget_high_s16(red), of_red), \
                   16))
  for (int x = 0; x < width; x += 8) {
    int16x8_t y = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(luma + x)));
    int16x8_t blue = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(blues + x), middle));
    int16x8_t red = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(reds + x), middle));
    int16x8_t of_r = vaddq_s16(WEIGH(0, 26345), red);
    int16x8_t of_g = vsubq_s16(WEIGH(-22554, 18734), red);
    int16x8_t of_b = vaddq_s16(WEIGH(-14942, 0), vaddq_s16(blue, blue));
    vst1_u8(r + x, vqmovun_s16(vaddq_s16(y, of_r)));
    vst1_u8(g + x, vqmovun_s16(vaddq_s16(y, of_g)));
    vst1_u8(b + x, vqmovun_s16(vaddq_s16(y, of_b)));
  }
#undef WEIGH
}

static void interleave_neon(uint8_t *to, const uint8_t *r, const uint8_t *g, const uint8_t *b,
                            int width) {
  for (int x = 0; x < width; x += COLOURS, to += 3 * COLOURS) {
    uint8x16x3_t three = {{vld1q_u8(r + x), vld1q_u8(g + x), vld1q_u8(b + x)}};
    vst3q_u8(to, three);
  }
}

static inline void store_four(uint8_t *to, float32x4_t v, enum item item) {
  if (item == FLOAT32) {
    vst1q_f32((float *)(void *)to, v);
  } else if (item == FLOAT16) {
    vst1_u16((uint16_t *)(void *)to, vreinterpret_u16_f16(vcvt_f16_f32(v)));
  } else {
    uint32x4_t bits = vreinterpretq_u32_f32(v);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    vst1_u16((uint16_t *)(void *)to, vshrn_n_u32(bits, 16));
  }
}

static int floats_neon(uint8_t *to, const uint8_t *bytes, int count, enum item item,
                       const float *mean, const float *factor) {
  int done = 0, size = item_bytes(item);
  for (; done + PERIOD <= count; done += PERIOD)
    for (int k = 0; k < PERIOD; k += 8) {
      uint16x8_t words = vmovl_u8(vld1_u8(bytes + done + k));
      float32x4_t low = vcvtq_f32_u32(vmovl_u16(vget_low_u16(words)));
      float32x4_t high = vcvtq_f32_u32(vmovl_u16(vget_high_u16(words)));
      low = vmulq_f32(vsubq_f32(low, vld1q_f32(mean + k)), vld1q_f32(factor + k));
      high = vmulq_f32(vsubq_f32(high, vld1q_f32(mean + k + 4)), vld1q_f32(factor + k + 4));
      store_four(to + (done + k) * size, low, item);
      store_four(to + (done + k + 4) * size, high, item);
    }
  return done;
}
#endif

typedef struct {
  const output *o;
  int bytes, colours;       /* bytes per item; colours in a row: 3 if interleaved, else 1 */
  float mean[3][PERIOD], factor[3][PERIOD]; /* for rows that begin with colour 0, 1 or 2 */
  make_colours *make;
  interleave_colours *interleave;
  make_floats *floats;
} painter;

static painter painter_of(enum simd simd, const output *o) {
  painter p = {.o = o, .bytes = item_bytes((enum item)o->item), .colours = o->planar ? 1 : 3,
               .make = colours_plain, .interleave = interleave_plain, .floats = floats_plain};
  for (int c = 0; c < (o->planar ? 3 : 1); c++)
    for (int i = 0; i < PERIOD; i++) {
      p.mean[c][i] = o->mean[c + i % p.colours];
      p.factor[c][i] = o->factor[c + i % p.colours];
    }
#if defined(__x86_64__)
  if (simd == AVX2)
    p.make = colours_avx2, p.interleave = interleave_avx2, p.floats = floats_avx2;
#elif defined(__aarch64__)
  if (simd == NEON)
    p.make = colours_neon, p.interleave = interleave_neon, p.floats = floats_neon;
#endif
  (void)simd;
  return p;
}

/* Writes `count` items, starting at the picture's item `first`; bytes[0] has colour c. */
static void write_items(const painter *p, ptrdiff_t first, const uint8_t *bytes, int count, int c) {
  uint8_t *to = p->o->to + first * p->bytes;
  if (p->o->item == BYTES) {
    memcpy(to, bytes, (size_t)count);
    return;
  }
  const uint8_t *tables = p->o->tables + (ptrdiff_t)c * 256 * p->bytes;
  int done = p->floats(to, bytes, count, (enum item)p->o->item, p->mean[c], p->factor[c]);
  (p->bytes == 4 ? look_up_uint32_t : look_up_uint16_t)(to, bytes, done, count, p->colours, tables);
}

/* Returns the number of bytes that write_pixels needs as `room`. */
static size_t room_of_row(int width) { return 6 * ((size_t)width + COLOURS); }

/* Writes row `y` of a picture from rows of R, G, B; `pixels` is memory for the interleaved row. */
static void write_row(const painter *p, ptrdiff_t y, int height, int width, uint8_t *const *colours,
                      uint8_t *pixels) {
  if (p->o->planar) {
    for (int c = 0; c < 3; c++)
      write_items(p, (c * (ptrdiff_t)height + y) * width, colours[c], width, c);
  } else if (p->o->item == BYTES && (height - 1 - y) * width >= COLOURS) {
    /* More than a row is written, but the next rows replace the rest. */
    p->interleave(p->o->to + 3 * y * width, colours[0], colours[1], colours[2], width);
  } else {
    p->interleave(pixels, colours[0], colours[1], colours[2], width);
    write_items(p, 3 * y * width, pixels, 3 * width, 0);
  }
}

/* Writes a picture from planes of its size; reads `width` samples a row, rounded up to COLOURS. */
static void write_pixels(enum simd simd, const output *o, const plane *planes, uint8_t *room) {
  int height = planes[0].height, width = planes[0].width;
  ptrdiff_t stride = width + COLOURS;
  uint8_t *made[3] = {room, room + stride, room + 2 * stride};
  const painter p = painter_of(simd, o);
  for (ptrdiff_t y = 0; y < height; y++) {
    const uint8_t *rows[3];
    for (int i = 0; i < 3; i++) rows[i] = planes[i].samples + y * planes[i].stride;
    p.make(rows[0], rows[1], rows[2], width, made[0], made[1], made[2]);
    write_row(&p, y, height, width, made, room + 3 * stride);
  }
}

#endif
