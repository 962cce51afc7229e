/* Finds pairs of hashes that differ in few bits, and aligns pictures to verify that they are
 * duplicates.
 *
 * The search ("join") is exact. A hash has four bands of 16 bits. If two hashes differ in at most
 * 4 p + 3 bits, at least one of their bands differs in at most p bits. For each band, the hashes are
 * sorted into 65,536 buckets by the value of the band, and each bucket is compared with the buckets
 * whose number differs in at most p bits. Only the first band that finds a pair reports it.
 *
 * Each kernel is written once and compiled for every processor and for AVX2; the join is also
 * compiled for AVX-512, which counts the bits of eight hashes at once. All versions add floats in the
 * same order and never fuse operations, so their results are equal.
 */
#include <stdint.h>
#include <string.h>

#include "../codec/simd.h"

#if defined(__x86_64__)
#define FOR_AVX2 __attribute__((target("avx2,popcnt")))
#define FOR_AVX512 __attribute__((target("avx512f,avx512vpopcntdq,popcnt")))
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
#define EXPORT __attribute__((visibility("default")))
#define BODY static inline __attribute__((always_inline))

/* ---- Join ---- */

enum { LANES = 8, BAND_BITS = 16, BUCKETS = 1 << BAND_BITS, MOST_NEAR = 697 };

/* Hashes sorted by a band. Bucket i has the hashes from start[i] up to, not including, start[i + 1]. */
typedef struct { const uint64_t *keys; const uint32_t *ids; const int64_t *start; } sorted;

/* The position of a join: a left bucket, the index of a near bucket, and a hash of the left bucket. */
typedef struct { int64_t bucket, near, row; } place;

/* All members have 64 bits, since search.py writes them as an array. */
typedef struct {
  sorted left, right;
  int64_t same; /* both sides are the same list, so each pair is reported once */
  int64_t band, radius, band_radius;
  uint64_t mirror; /* bits that are flipped on the left */
  int64_t end;     /* the bucket to stop before */
  uint32_t *pairs;
  int64_t room; /* the number of pairs that fit into `pairs` */
} join;

BODY uint32_t band_of(uint64_t key, int64_t band) { return key >> (BAND_BITS * band) & (BUCKETS - 1); }

BODY int count_bits(uint64_t x) { return __builtin_popcountll(x); }

/* Writes the pair of left hash i and right hash k if they are near and no earlier band has found the
 * pair. `key` is the left hash, mirrored if needed. */
BODY void compare_one(const join *j, int64_t *found, uint64_t key, int64_t i, int64_t k) {
  uint64_t differing = key ^ j->right.keys[k];
  uint32_t left = j->left.ids[i], right = j->right.ids[k];
  if (count_bits(differing) > j->radius || left == right) return;
  for (int64_t band = 0; band < j->band; band++)
    if (count_bits(band_of(differing, band)) <= j->band_radius) return;
  j->pairs[2 * *found] = left;
  j->pairs[2 * *found + 1] = right;
  ++*found;
}

/* Writes the 16-bit numbers with at most `radius` bits set; returns their count. */
BODY int near_numbers(int64_t radius, uint32_t *near) {
  int num = 0;
  for (uint32_t i = 0; i < BUCKETS; i++)
    if (count_bits(i) <= radius) near[num++] = i;
  return num;
}

BODY int is_any_near(uint64_t key, const uint64_t *others, int64_t radius) {
  uint64_t near = 0;
  for (int lane = 0; lane < LANES; lane++)
    near |= (uint64_t)__builtin_popcountll(key ^ others[lane]) <= (uint64_t)radius;
  return near != 0;
}

BODY int64_t join_all(const join *j, place *p) {
  uint32_t near[MOST_NEAR], mirror = band_of(j->mirror, j->band);
  int num_near = near_numbers(j->band_radius, near);
  int64_t found = 0;
  for (; p->bucket < j->end; p->bucket++, p->near = 0) {
    int64_t first = j->left.start[p->bucket], last = j->left.start[p->bucket + 1];
    for (; first < last && p->near < num_near; p->near++, p->row = 0) {
      int64_t other = (int64_t)((uint32_t)p->bucket ^ mirror ^ near[p->near]);
      if (j->same && other < p->bucket) continue;
      int64_t from = j->right.start[other], to = j->right.start[other + 1];
      for (; from < to && first + p->row < last; p->row++) {
        if (found + (to - from) > j->room) return found;
        int64_t i = first + p->row;
        uint64_t key = j->left.keys[i] ^ j->mirror;
        int64_t k = j->same && other == p->bucket ? i + 1 : from;
        /* Compare eight hashes at a time, which compilers vectorise; a near one is rare. */
        for (; k + LANES <= to; k += LANES)
          if (is_any_near(key, j->right.keys + k, j->radius))
            for (int lane = 0; lane < LANES; lane++) compare_one(j, &found, key, i, k + lane);
        for (; k < to; k++) compare_one(j, &found, key, i, k);
      }
    }
  }
  return found;
}

/* ---- Verification ---- */

enum { LARGEST = 64, COARSEST = 16, UNKNOWNS = 6 };

typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t words __attribute__((vector_size(4 * LANES), aligned(4)));

/* The transform from the first picture to the second: scale and shift of each axis, in half sides,
 * and gain and offset of grey levels. */
typedef struct { float scale_x, shift_x, scale_y, shift_y, gain, offset; } fit;

/* Linear interpolation along one axis: sample i is (1 - part[i]) of sample at[i] and part[i] of the
 * next one. Only samples [begin, end) are inside the picture; for them, `inside` is 1. */
typedef struct { int at[LARGEST], begin, end; float part[LARGEST], inside[LARGEST]; } axis;

/* A picture with up to 64 samples per side, followed by its halved versions down to 16. */
typedef struct { float samples[3][LARGEST * LARGEST]; } pyramid;

BODY float sum_of(const floats *v) {
  float s = 0;
  for (int i = 0; i < LANES; i++) s += (*v)[i];
  return s;
}

BODY void make_axis(axis *a, int side, float scale, float shift) {
  a->begin = side, a->end = 0;
  for (int i = 0; i < side; i++) {
    float x = (scale * ((float)(2 * i + 1) / (float)side - 1) + shift + 1) * (float)side / 2 - 0.5f;
    int is_inside = x >= 0 && x <= (float)(side - 1);
    if (is_inside && a->begin == side) a->begin = i;
    if (is_inside) a->end = i + 1;
    if (!(x > 0)) x = 0; /* also if x is not a number */
    if (x > (float)(side - 1)) x = (float)(side - 1);
    a->at[i] = (int)x < side - 2 ? (int)x : side - 2;
    a->part[i] = x - (float)a->at[i];
    a->inside[i] = is_inside ? 1 : 0;
  }
}

/* Computes a row of the first picture, aligned with the second, and its slopes unless NULL. */
BODY void warp_row(const float *from, int side, const axis *x, const axis *y, int row, float *made,
                   float *slope_x, float *slope_y) {
  const float *a = from + y->at[row] * side, *b = a + side;
  float mixed[LARGEST], steep[LARGEST];
  for (int i = 0; i < side; i += LANES) {
    floats step = *(const floats *)(b + i) - *(const floats *)(a + i);
    *(floats *)(steep + i) = step;
    *(floats *)(mixed + i) = *(const floats *)(a + i) + step * y->part[row];
  }
  for (int i = 0; i < side; i++) {
    const float *m = mixed + x->at[i], *s = steep + x->at[i];
    float step = m[1] - m[0];
    made[i] = m[0] + step * x->part[i];
    if (!slope_x) continue;
    slope_x[i] = step * (float)side / 2;
    slope_y[i] = (s[0] + (s[1] - s[0]) * x->part[i]) * (float)side / 2;
  }
}

/* Solves the equations by elimination; returns whether there is a solution. */
static int solve(double m[UNKNOWNS][UNKNOWNS + 1]) {
  for (int i = 0; i < UNKNOWNS; i++) {
    /* The matrix is symmetric and positive, so no rows need to be exchanged. */
    if (!(m[i][i] > 1e-9)) return 0;
    for (int r = 0; r < UNKNOWNS; r++) {
      double factor = r == i ? 0 : m[r][i] / m[i][i];
      for (int c = i; c <= UNKNOWNS; c++) m[r][c] -= factor * m[i][c];
    }
  }
  for (int i = 0; i < UNKNOWNS; i++) m[i][UNKNOWNS] /= m[i][i];
  return 1;
}

/* Makes one Gauss-Newton step towards the least squares; returns whether to continue. */
BODY int improve(const float *a, const float *b, int side, fit *f) {
  axis x, y;
  float made[LARGEST], slope_x[LARGEST], slope_y[LARGEST], places[LARGEST];
  floats sums[UNKNOWNS][UNKNOWNS + 1];
  memset(sums, 0, sizeof sums);
  make_axis(&x, side, f->scale_x, f->shift_x);
  make_axis(&y, side, f->scale_y, f->shift_y);
  if (2 * (x.end - x.begin) * (y.end - y.begin) < side * side) return 0;
  for (int i = 0; i < side; i++) places[i] = (float)(2 * i + 1) / (float)side - 1;
  for (int row = y.begin; row < y.end; row++) {
    warp_row(a, side, &x, &y, row, made, slope_x, slope_y);
    for (int i = 0; i < side; i += LANES) {
      floats in = *(floats *)(x.inside + i), v = *(floats *)(made + i) * in;
      floats gx = *(floats *)(slope_x + i) * f->gain * in, gy = *(floats *)(slope_y + i) * f->gain * in;
      floats error = (*(const floats *)(b + row * side + i) - f->offset) * in - v * f->gain;
      floats j[UNKNOWNS + 1] = {gx * *(floats *)(places + i), gx, gy * places[row], gy, v, in, error};
#pragma GCC unroll 6
      for (int r = 0; r < UNKNOWNS; r++)
#pragma GCC unroll 7
        for (int c = r; c <= UNKNOWNS; c++) sums[r][c] += j[r] * j[c];
    }
  }
  double m[UNKNOWNS][UNKNOWNS + 1];
  for (int r = 0; r < UNKNOWNS; r++)
    for (int c = r; c <= UNKNOWNS; c++) {
      m[r][c] = sum_of(&sums[r][c]);
      if (c < UNKNOWNS) m[c][r] = m[r][c];
    }
  for (int i = 0; i < UNKNOWNS; i++) m[i][i] = m[i][i] * 1.001 + 1e-6;
  /* Damp scale and shift, so that they do not change if the picture does not determine them. */
  for (int i = 0; i < 4; i++) m[i][i] += side * side;
  if (!solve(m)) return 0;
  double step = 0, most = 0.1;
  for (int i = 0; i < 4; i++) step += m[i][UNKNOWNS] < 0 ? -m[i][UNKNOWNS] : m[i][UNKNOWNS];
  double part = step > most ? most / step : 1;
  f->scale_x += (float)(part * m[0][UNKNOWNS]), f->shift_x += (float)(part * m[1][UNKNOWNS]);
  f->scale_y += (float)(part * m[2][UNKNOWNS]), f->shift_y += (float)(part * m[3][UNKNOWNS]);
  f->gain += (float)m[4][UNKNOWNS], f->offset += (float)m[5][UNKNOWNS];
  return step >= 1e-3;
}

/* The sums for a correlation: weights, samples of both pictures, their squares and products. */
typedef struct { floats n, a, b, aa, bb, ab; } moments;

BODY void add_row(moments *m, const float *a, const float *b, const float *weights, int side) {
  for (int i = 0; i < side; i += LANES) {
    floats w = *(const floats *)(weights + i);
    floats u = *(const floats *)(a + i) * w, v = *(const floats *)(b + i) * w;
    m->n += w, m->a += u, m->b += v, m->aa += u * u, m->bb += v * v, m->ab += u * v;
  }
}

/* Returns the square of the correlation with the correlation's sign, which avoids a square root. */
BODY float squared_correlation(const moments *m) {
  double n = sum_of(&m->n), a = sum_of(&m->a), b = sum_of(&m->b);
  if (n < 2) return 0;
  double aa = sum_of(&m->aa) - a * a / n, bb = sum_of(&m->bb) - b * b / n;
  double ab = sum_of(&m->ab) - a * b / n;
  if (!(aa > 1e-6 * n) || !(bb > 1e-6 * n)) return 0;
  return (float)(ab * (ab < 0 ? -ab : ab) / (aa * bb));
}

/* Returns the weighted mean of the absolute details; 0 if there are none. */
BODY float mean_amount(const float *details, const float *weights, int rows, int side) {
  floats n = {0}, sum = {0};
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < side; i += LANES) {
      floats d = *(const floats *)(details + row * side + i), w = *(const floats *)(weights + i);
      n += w, sum += (floats)((words)d & 0x7FFFFFFF) * w; /* clears the sign */
    }
  float all = sum_of(&n);
  return all > 0 ? sum_of(&sum) / all : 0;
}

/* Computes two squared correlations of aligned pictures. `whole` is for the complete common part.
 * `fine` is for details finer than three samples, without the outer tenth of the picture, since
 * frames of different pictures are similar. Each detail is limited to twice the mean, so that one
 * sharp edge does not decide. */
BODY void compare(const float *a, const float *b, int side, const fit *f, float *whole, float *fine) {
  enum { FRAME_PARTS = 10 };
  axis x, y;
  make_axis(&x, side, f->scale_x, f->shift_x);
  make_axis(&y, side, f->scale_y, f->shift_y);
  float made[LARGEST * LARGEST], inner[LARGEST], details[2][LARGEST * LARGEST];
  moments coarse, high;
  memset(&coarse, 0, sizeof coarse), memset(&high, 0, sizeof high);
  int frame = side / FRAME_PARTS, rows = 0;
  for (int i = 0; i < side; i++)
    inner[i] = i >= frame && i < side - frame && i > x.begin && i < x.end - 1 ? 1 : 0;
  for (int row = y.begin; row < y.end; row++) {
    warp_row(a, side, &x, &y, row, made + row * side, NULL, NULL);
    add_row(&coarse, made + row * side, b + row * side, x.inside, side);
  }
  for (int row = y.begin + 1; row < y.end - 1; row++) {
    if (row < frame || row >= side - frame) continue;
    const float *pictures[2] = {made + row * side, b + row * side};
    for (int k = 0; k < 2; k++) {
      float *out = details[k] + rows * side;
      out[0] = out[side - 1] = 0;
      for (int i = 1; i < side - 1; i++) {
        const float *c = pictures[k] + i;
        float nine = (c[-1 - side] + c[-side] + c[1 - side]) + (c[-1] + c[0] + c[1]) +
                     (c[-1 + side] + c[side] + c[1 + side]);
        out[i] = c[0] - nine / 9;
      }
    }
    rows++;
  }
  for (int k = 0; k < 2; k++) {
    float most = 2 * mean_amount(details[k], inner, rows, side);
    for (int i = 0; i < rows * side; i++) {
      float d = details[k][i];
      details[k][i] = d > most ? most : d < -most ? -most : d;
    }
  }
  for (int row = 0; row < rows; row++)
    add_row(&high, details[0] + row * side, details[1] + row * side, inner, side);
  *whole = squared_correlation(&coarse);
  *fine = squared_correlation(&high);
}

/* Reads a picture and halves it until 16 samples per side are left; returns the number of levels. */
BODY int load(const uint16_t *cells, int side, int divisor, int mirrored, pyramid *out) {
  for (int y = 0; y < side; y++)
    for (int x = 0; x < side; x++)
      out->samples[0][y * side + x] =
          (float)cells[y * side + (mirrored ? side - 1 - x : x)] / (float)divisor - 128;
  int levels = 1;
  for (; side > COARSEST; side /= 2, levels++)
    for (int y = 0; y < side / 2; y++)
      for (int x = 0; x < side / 2; x++) {
        const float *p = out->samples[levels - 1] + 2 * y * side + 2 * x;
        float four = (p[0] + p[1]) + (p[side] + p[side + 1]);
        out->samples[levels][y * side / 2 + x] = four / 4;
      }
  return levels;
}

/* Aligns each pair of pictures from coarse to fine and compares them. Stops at the first level at
 * which they are clearly different. */
BODY void prove_all(const uint16_t *a, const uint16_t *b, int mirrored, int64_t num, int side,
                    int divisor, float *out) {
  static const int steps_of[] = {6, 5, 4};
  pyramid first, second;
  for (int64_t i = 0; i < num; i++, a += side * side, b += side * side, out += 8) {
    load(a, side, divisor, mirrored, &first);
    int levels = load(b, side, divisor, 0, &second);
    fit f = {1, 0, 1, 0, 1, 0};
    for (int k = 0; k < levels; k++) {
      const float *p = first.samples[levels - 1 - k], *q = second.samples[levels - 1 - k];
      int at = COARSEST << k;
      for (int step = 0; step < steps_of[k] && improve(p, q, at, &f); step++) continue;
      compare(p, q, at, &f, &out[6], &out[7]);
      if (out[6] < 0.36f) break;
    }
    memcpy(out, &f, sizeof f);
  }
}

/* ---- Exported functions ---- */

#if defined(FOR_AVX2)
FOR_AVX2 static int64_t join_avx2(const join *j, place *p) { return join_all(j, p); }

FOR_AVX512 static int64_t join_avx512(const join *j, place *p) { return join_all(j, p); }

FOR_AVX2 static void prove_avx2(const uint16_t *a, const uint16_t *b, int mirrored, int64_t num,
                                int side, int divisor, float *out) {
  prove_all(a, b, mirrored, num, side, divisor, out);
}
#endif

/* Writes pairs, starting at the position `p`, until the end or until `pairs` may be too small for the
 * next row. Moves `p` to the next position; returns the number of pairs. `room` must be at least the
 * size of the largest bucket. */
EXPORT int64_t matching_join(const join *j, place *p, int simd) {
#if defined(FOR_AVX2)
  if (simd == AVX512) return join_avx512(j, p);
  if (simd == AVX2) return join_avx2(j, p);
#endif
  (void)simd;
  return join_all(j, p);
}

/* Aligns and compares pairs of pictures with 16, 32 or 64 samples per side and `divisor` units per
 * grey level. If `mirrored`, the first pictures are flipped. Writes 8 numbers per pair: the fit and
 * two squared correlations with their signs. */
EXPORT void matching_prove(const uint16_t *a, const uint16_t *b, int mirrored, int64_t num, int side,
                           int divisor, float *out, int simd) {
#if defined(FOR_AVX2)
  if (simd == AVX2 || simd == AVX512) {
    prove_avx2(a, b, mirrored, num, side, divisor, out);
    return;
  }
#endif
  (void)simd;
  prove_all(a, b, mirrored, num, side, divisor, out);
}

/* Returns the highest SIMD level that this processor supports. */
EXPORT int matching_best(void) {
  return is_supported(AVX512) ? AVX512 : is_supported(AVX2) ? AVX2 : PLAIN;
}
