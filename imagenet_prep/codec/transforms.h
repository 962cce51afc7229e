/* Computes samples from the coefficients of a block, with the inverse DCT of libjpeg's "slow"
 * integer method, or with libjpeg's transform that halves an image. Plain C, SSE2, AVX2 and NEON
 * have the same results as libjpeg-turbo's vector code.
 *
 * Both transforms are linear, except for a rounding after each of two passes. So a pass is written
 * here as one sum of products per output, with the weights that result from libjpeg's additions.
 * The sums are exact, and fit into 32 bits if the inputs have 16.
 *
 * libjpeg-turbo's vector code adds some inputs of a pass in 16 bits, which may overflow, unlike its
 * plain C. Cameras do not produce such numbers, but damaged files may have them. So if an input of
 * a pass is beyond LIMIT, the block is reported and its file is rejected. The sum of two numbers
 * within LIMIT fits into 16 bits.
 */
#ifndef IMAGENET_PREP_TRANSFORMS_H
#define IMAGENET_PREP_TRANSFORMS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "dct.h"

/* ---- The order of coefficients in memory ---- */

/* The vector code multiplies neighbours by a pair of weights and adds the two products. So rows
 * that are added are interleaved: 0 with 4, 2 with 6, 1 with 3, 5 with 7. Columns have the order
 * 0 4 2 6 1 3 5 7, so that the first pass produces the pairs for the second pass. RANK is the
 * place of a row or column in this order. PLACE is the place of coefficient 8 * row + column in
 * a block. */
#define RANK(i) \
  ((i) == 0 ? 0 : (i) == 4 ? 1 : (i) == 2 ? 2 : (i) == 6 ? 3 \
   : (i) == 1 ? 4 : (i) == 3 ? 5 : (i) == 5 ? 6 : 7)
#define PLACE(n) (RANK((n) / 8) / 2 * 16 + RANK((n) % 8) * 2 + RANK((n) / 8) % 2)
#define PLACES(n) \
  PLACE(n), PLACE(n + 1), PLACE(n + 2), PLACE(n + 3), PLACE(n + 4), PLACE(n + 5), PLACE(n + 6), \
      PLACE(n + 7)
static const uint8_t place_of[64] = {PLACES(0),  PLACES(8),  PLACES(16), PLACES(24),
                                     PLACES(32), PLACES(40), PLACES(48), PLACES(56)};

/* The quantisation table of a component, in the order of a block. */
typedef struct {
  int16_t steps[64], four_steps[64]; /* the steps, and 4 times each step (see `excess`) */
} __attribute__((aligned(32))) quantisation;

/* ---- Numbers that are too large ---- */

enum { LIMIT = 1 << 14 }; /* inputs of a pass must be in [-LIMIT, LIMIT) */

/* Values computed from the inputs of both passes and combined with "or", lane by lane.
 *
 * First pass: the upper 16 bits of coefficient * 4 * step, plus 1. If coefficient * step is within
 * LIMIT, these bits are 0 or -1, so only the lowest bit of the sum may be set.
 * Second pass: input + LIMIT in 16 bits. Its sign bit is 0 if the input is within LIMIT. */
typedef struct { uint16_t first[16], second[16]; } __attribute__((aligned(32))) excess;

static int is_beyond_limit(const excess *e) {
  unsigned bits = 0;
  for (int i = 0; i < 16; i++) bits |= (e->first[i] & ~1u) | (e->second[i] & 0x8000u);
  return bits != 0;
}

/* For plain C: returns a value within LIMIT; notes others, and returns 0 to avoid overflows. */
static int within_limit(int value, excess *e) {
  if (value >= -LIMIT && value < LIMIT) return value;
  e->second[0] = 0x8000;
  return 0;
}

/* ---- Roundings ---- */

/* The first pass keeps two fractional bits. The second pass removes them and divides by 8; its
 * rounding constant also adds 128, because coefficients describe samples minus 128. */
enum {
  SHIFT1 = 13 - 2, ROUND1 = 1 << (SHIFT1 - 1),
  SHIFT2 = 13 + 2 + 3, ROUND2 = (1 << (SHIFT2 - 1)) + (128 << SHIFT2),
};

/* The halving transform computes outputs 0 ... 3 from inputs 0 ... 7 without input 4: from an
 * even sum of inputs 0, 2 and 6, an odd sum for outputs 0 and 3, and an odd sum for outputs 1
 * and 2. */
enum {
  HALF_ONE = 1 << 14, HALF_2 = F_1_847, HALF_6 = -F_0_765,
  HALF0_1 = F_2_562, HALF0_3 = F_0_899, HALF0_5 = -4926, HALF0_7 = -4176, /* 0.601, 0.509 */
  HALF1_1 = 8697, HALF1_3 = -17799, HALF1_5 = 11893, HALF1_7 = -1730, /* 1.061 2.172 1.451 0.211 */
  HALF_SHIFT1 = 13 - 2 + 1, HALF_ROUND1 = 1 << (HALF_SHIFT1 - 1),
  HALF_SHIFT2 = 13 + 2 + 3 + 1, HALF_ROUND2 = (1 << (HALF_SHIFT2 - 1)) + (128 << HALF_SHIFT2),
};

/* Computes the samples of a block, 8 x 8, or 4 x 4 if the transform halves. The rows at `out` are
 * `stride` apart. Inputs beyond LIMIT are noted in `seen`. */
typedef void transform(const int16_t *block, const quantisation *q, uint8_t *out, ptrdiff_t stride,
                       excess *seen);

/* ---- Plain C ---- */

static uint8_t to_sample(int v) { return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v; }

static void dequantise_column(const int16_t *block, const quantisation *q, int x, int column[8],
                              excess *seen) {
  for (int y = 0; y < 8; y++) {
    int at = place_of[8 * y + x];
    column[y] = within_limit(block[at] * q->steps[at], seen);
  }
}

static void pass_plain(const int in[8], int out[8], int round, int shift) {
  int plus = (in[0] + in[4]) * ONE + round, minus = (in[0] - in[4]) * ONE + round;
  int two0 = in[2] * EVEN0_2 + in[6] * EVEN0_6, two1 = in[2] * EVEN1_2 + in[6] * EVEN1_6;
  int even[4] = {plus + two0, minus + two1, minus - two1, plus - two0};
  int odd[4] = {in[1] * ODD0_1 + in[3] * ODD0_3 + in[5] * ODD0_5 + in[7] * ODD0_7,
                in[1] * ODD1_1 + in[3] * ODD1_3 + in[5] * ODD1_5 + in[7] * ODD1_7,
                in[1] * ODD2_1 + in[3] * ODD2_3 + in[5] * ODD2_5 + in[7] * ODD2_7,
                in[1] * ODD3_1 + in[3] * ODD3_3 + in[5] * ODD3_5 + in[7] * ODD3_7};
  for (int y = 0; y < 4; y++) {
    out[y] = (even[y] + odd[y]) >> shift;
    out[7 - y] = (even[y] - odd[y]) >> shift;
  }
}

static void whole_plain(const int16_t *block, const quantisation *q, uint8_t *out,
                        ptrdiff_t stride, excess *seen) {
  int column[8], made[8], middle[8][8];
  for (int x = 0; x < 8; x++) {
    dequantise_column(block, q, x, column, seen);
    pass_plain(column, made, ROUND1, SHIFT1);
    for (int y = 0; y < 8; y++) middle[y][x] = within_limit(made[y], seen);
  }
  for (int y = 0; y < 8; y++) {
    pass_plain(middle[y], made, ROUND2, SHIFT2);
    for (int x = 0; x < 8; x++) out[y * stride + x] = to_sample(made[x]);
  }
}

static void half_pass_plain(const int in[8], int out[4], int round, int shift) {
  int one = in[0] * HALF_ONE + round, two = in[2] * HALF_2 + in[6] * HALF_6;
  int odd0 = in[1] * HALF0_1 + in[3] * HALF0_3 + in[5] * HALF0_5 + in[7] * HALF0_7;
  int odd1 = in[1] * HALF1_1 + in[3] * HALF1_3 + in[5] * HALF1_5 + in[7] * HALF1_7;
  out[0] = (one + two + odd0) >> shift, out[3] = (one + two - odd0) >> shift;
  out[1] = (one - two + odd1) >> shift, out[2] = (one - two - odd1) >> shift;
}

static void halve_plain(const int16_t *block, const quantisation *q, uint8_t *out,
                        ptrdiff_t stride, excess *seen) {
  int column[8], made[4], middle[4][8];
  for (int x = 0; x < 8; x++) {
    dequantise_column(block, q, x, column, seen);
    half_pass_plain(column, made, HALF_ROUND1, HALF_SHIFT1);
    for (int y = 0; y < 4; y++) middle[y][x] = within_limit(made[y], seen);
  }
  for (int y = 0; y < 4; y++) {
    half_pass_plain(middle[y], made, HALF_ROUND2, HALF_SHIFT2);
    for (int x = 0; x < 4; x++) out[y * stride + x] = to_sample(made[x]);
  }
}

#if defined(__x86_64__)
/* ---- Vector code ---- */

/* Defines a pass over vectors of pairs of inputs, for the vector type V with the function prefix P.
 * The result in each lane is the same as that of pass_plain. */
#define DEFINE_PASS(name, V, P) \
  INLINE void name(V in04, V in26, V in13, V in57, V out[8], int round, int shift) { \
    V rounding = P##_set1_epi32(round); \
    V plus = P##_add_epi32(P##_madd_epi16(in04, P##_set1_epi32(PAIR(ONE, ONE))), rounding); \
    V minus = P##_add_epi32(P##_madd_epi16(in04, P##_set1_epi32(PAIR(ONE, -ONE))), rounding); \
    V two0 = P##_madd_epi16(in26, P##_set1_epi32(PAIR(EVEN0_2, EVEN0_6))); \
    V two1 = P##_madd_epi16(in26, P##_set1_epi32(PAIR(EVEN1_2, EVEN1_6))); \
    V even[4] = {P##_add_epi32(plus, two0), P##_add_epi32(minus, two1), \
                 P##_sub_epi32(minus, two1), P##_sub_epi32(plus, two0)}; \
    V odd[4] = {P##_add_epi32(P##_madd_epi16(in13, P##_set1_epi32(PAIR(ODD0_1, ODD0_3))), \
                              P##_madd_epi16(in57, P##_set1_epi32(PAIR(ODD0_5, ODD0_7)))), \
                P##_add_epi32(P##_madd_epi16(in13, P##_set1_epi32(PAIR(ODD1_1, ODD1_3))), \
                              P##_madd_epi16(in57, P##_set1_epi32(PAIR(ODD1_5, ODD1_7)))), \
                P##_add_epi32(P##_madd_epi16(in13, P##_set1_epi32(PAIR(ODD2_1, ODD2_3))), \
                              P##_madd_epi16(in57, P##_set1_epi32(PAIR(ODD2_5, ODD2_7)))), \
                P##_add_epi32(P##_madd_epi16(in13, P##_set1_epi32(PAIR(ODD3_1, ODD3_3))), \
                              P##_madd_epi16(in57, P##_set1_epi32(PAIR(ODD3_5, ODD3_7))))}; \
    _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++) { \
      out[y] = P##_srai_epi32(P##_add_epi32(even[y], odd[y]), shift); \
      out[7 - y] = P##_srai_epi32(P##_sub_epi32(even[y], odd[y]), shift); \
    } \
  }
DEFINE_PASS(pass_sse2, __m128i, _mm)
FOR_AVX2 DEFINE_PASS(pass_avx2, __m256i, _mm256)

/* Multiplies the coefficients from place `at` on by their steps. */
INLINE __m128i dequantise_sse2(const int16_t *block, const quantisation *q, int at,
                               __m128i *seen) {
  __m128i coefficients = _mm_load_si128((const __m128i *)(block + at));
  __m128i four_steps = _mm_load_si128((const __m128i *)(q->four_steps + at));
  __m128i upper = _mm_mulhi_epi16(coefficients, four_steps);
  *seen = _mm_or_si128(*seen, _mm_add_epi16(upper, _mm_set1_epi16(1)));
  return _mm_mullo_epi16(coefficients, _mm_load_si128((const __m128i *)(q->steps + at)));
}

FOR_AVX2 INLINE __m256i dequantise_avx2(const int16_t *block, const quantisation *q, int at,
                                        __m256i *seen) {
  __m256i coefficients = _mm256_load_si256((const __m256i *)(block + at));
  __m256i four_steps = _mm256_load_si256((const __m256i *)(q->four_steps + at));
  __m256i upper = _mm256_mulhi_epi16(coefficients, four_steps);
  *seen = _mm256_or_si256(*seen, _mm256_add_epi16(upper, _mm256_set1_epi16(1)));
  return _mm256_mullo_epi16(coefficients, _mm256_load_si256((const __m256i *)(q->steps + at)));
}

/* Packs two vectors of sums to a vector of inputs for the second pass. */
INLINE __m128i pack_sse2(__m128i low, __m128i high, __m128i *seen) {
  __m128i packed = _mm_packs_epi32(low, high);
  *seen = _mm_or_si128(*seen, _mm_add_epi16(packed, _mm_set1_epi16(LIMIT)));
  return packed;
}

FOR_AVX2 INLINE __m256i pack_avx2(__m256i low, __m256i high, __m256i *seen) {
  __m256i packed = _mm256_packs_epi32(low, high);
  *seen = _mm256_or_si256(*seen, _mm256_add_epi16(packed, _mm256_set1_epi16(LIMIT)));
  return packed;
}

/* Stores 8 rows; vector i has rows 2 i and 2 i + 1. */
INLINE void store_rows(const __m128i rows[4], uint8_t *out, ptrdiff_t stride) {
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
    _mm_storel_epi64((__m128i *)(out + 2 * i * stride), rows[i]);
    _mm_storeh_pd((double *)(out + (2 * i + 1) * stride), _mm_castsi128_pd(rows[i]));
  }
}

/* A half has four columns in the first pass, and four rows in the second. */
static void whole_sse2(const int16_t *block, const quantisation *q, uint8_t *out, ptrdiff_t stride,
                       excess *all) {
  __m128i first = *(__m128i *)all->first, second = *(__m128i *)all->second;
  __m128i sums[2][8], pairs[2][4], column[8];
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
    __m128i in[4];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
      in[i] = dequantise_sse2(block, q, 16 * i + 8 * half, &first);
    pass_sse2(in[0], in[1], in[2], in[3], sums[half], ROUND1, SHIFT1);
  }
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
    __m128i row[4];
    _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++)
      row[y] = pack_sse2(sums[0][4 * half + y], sums[1][4 * half + y], &second);
    __m128i a = _mm_unpacklo_epi32(row[0], row[1]), b = _mm_unpackhi_epi32(row[0], row[1]);
    __m128i c = _mm_unpacklo_epi32(row[2], row[3]), d = _mm_unpackhi_epi32(row[2], row[3]);
    pairs[half][0] = _mm_unpacklo_epi64(a, c), pairs[half][1] = _mm_unpackhi_epi64(a, c);
    pairs[half][2] = _mm_unpacklo_epi64(b, d), pairs[half][3] = _mm_unpackhi_epi64(b, d);
  }
  *(__m128i *)all->first = first, *(__m128i *)all->second = second;
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++)
    pass_sse2(pairs[half][0], pairs[half][1], pairs[half][2], pairs[half][3], sums[half], ROUND2,
              SHIFT2);
  _Pragma("GCC unroll 8") for (int x = 0; x < 8; x++)
    column[x] = _mm_packs_epi32(sums[0][x], sums[1][x]);
  /* Pack the columns to bytes, two per vector, and transpose them to rows. */
  __m128i c04 = _mm_packus_epi16(column[0], column[4]);
  __m128i c15 = _mm_packus_epi16(column[1], column[5]);
  __m128i c26 = _mm_packus_epi16(column[2], column[6]);
  __m128i c37 = _mm_packus_epi16(column[3], column[7]);
  __m128i c01 = _mm_unpacklo_epi8(c04, c15), c45 = _mm_unpackhi_epi8(c04, c15);
  __m128i c23 = _mm_unpacklo_epi8(c26, c37), c67 = _mm_unpackhi_epi8(c26, c37);
  __m128i left0 = _mm_unpacklo_epi16(c01, c23), left4 = _mm_unpackhi_epi16(c01, c23);
  __m128i right0 = _mm_unpacklo_epi16(c45, c67), right4 = _mm_unpackhi_epi16(c45, c67);
  __m128i rows[4] = {_mm_unpacklo_epi32(left0, right0), _mm_unpackhi_epi32(left0, right0),
                     _mm_unpacklo_epi32(left4, right4), _mm_unpackhi_epi32(left4, right4)};
  store_rows(rows, out, stride);
}

/* A vector has all eight columns in the first pass, and all eight rows in the second. */
FOR_AVX2 static void whole_avx2(const int16_t *block, const quantisation *q, uint8_t *out,
                                ptrdiff_t stride, excess *all) {
  __m256i first = *(__m256i *)all->first, second = *(__m256i *)all->second;
  __m256i in[4], sums[8];
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    in[i] = dequantise_avx2(block, q, 16 * i, &first);
  pass_avx2(in[0], in[1], in[2], in[3], sums, ROUND1, SHIFT1);
  __m256 rows01 = _mm256_castsi256_ps(pack_avx2(sums[0], sums[1], &second));
  __m256 rows23 = _mm256_castsi256_ps(pack_avx2(sums[2], sums[3], &second));
  __m256 rows45 = _mm256_castsi256_ps(pack_avx2(sums[4], sums[5], &second));
  __m256 rows67 = _mm256_castsi256_ps(pack_avx2(sums[6], sums[7], &second));
  *(__m256i *)all->first = first, *(__m256i *)all->second = second;
  /* Each lane of 128 bits has two rows of four columns, as pairs. Group the first pairs of all
   * rows, then the second, and so on. 0x88 takes pairs 0 and 2 of both operands, 0xDD pairs 1
   * and 3. */
  __m256i even03 = _mm256_castps_si256(_mm256_shuffle_ps(rows01, rows23, 0x88));
  __m256i odd03 = _mm256_castps_si256(_mm256_shuffle_ps(rows01, rows23, 0xDD));
  __m256i even47 = _mm256_castps_si256(_mm256_shuffle_ps(rows45, rows67, 0x88));
  __m256i odd47 = _mm256_castps_si256(_mm256_shuffle_ps(rows45, rows67, 0xDD));
  pass_avx2(_mm256_permute2x128_si256(even03, even47, 0x20),
            _mm256_permute2x128_si256(odd03, odd47, 0x20),
            _mm256_permute2x128_si256(even03, even47, 0x31),
            _mm256_permute2x128_si256(odd03, odd47, 0x31), sums, ROUND2, SHIFT2);
  /* Pack the columns to bytes. Each lane then has four rows of four columns; transpose them. */
  const __m256i transposed =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11,
                                                15));
  __m256i left = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                     _mm256_packs_epi32(sums[2], sums[3]));
  __m256i right = _mm256_packus_epi16(_mm256_packs_epi32(sums[4], sums[5]),
                                      _mm256_packs_epi32(sums[6], sums[7]));
  left = _mm256_shuffle_epi8(left, transposed), right = _mm256_shuffle_epi8(right, transposed);
  __m256i low = _mm256_unpacklo_epi32(left, right), high = _mm256_unpackhi_epi32(left, right);
  __m128i rows[4] = {_mm256_castsi256_si128(low), _mm256_castsi256_si128(high),
                     _mm256_extracti128_si256(low, 1), _mm256_extracti128_si256(high, 1)};
  store_rows(rows, out, stride);
}

/* Like pass_sse2, for the halving transform. */
INLINE void half_pass_sse2(__m128i in04, __m128i in26, __m128i in13, __m128i in57, __m128i out[4],
                           int round, int shift) {
  __m128i one = _mm_add_epi32(_mm_madd_epi16(in04, _mm_set1_epi32(PAIR(HALF_ONE, 0))),
                              _mm_set1_epi32(round));
  __m128i two = _mm_madd_epi16(in26, _mm_set1_epi32(PAIR(HALF_2, HALF_6)));
  __m128i odd0 = _mm_add_epi32(_mm_madd_epi16(in13, _mm_set1_epi32(PAIR(HALF0_1, HALF0_3))),
                               _mm_madd_epi16(in57, _mm_set1_epi32(PAIR(HALF0_5, HALF0_7))));
  __m128i odd1 = _mm_add_epi32(_mm_madd_epi16(in13, _mm_set1_epi32(PAIR(HALF1_1, HALF1_3))),
                               _mm_madd_epi16(in57, _mm_set1_epi32(PAIR(HALF1_5, HALF1_7))));
  __m128i even0 = _mm_add_epi32(one, two), even1 = _mm_sub_epi32(one, two);
  out[0] = _mm_srai_epi32(_mm_add_epi32(even0, odd0), shift);
  out[3] = _mm_srai_epi32(_mm_sub_epi32(even0, odd0), shift);
  out[1] = _mm_srai_epi32(_mm_add_epi32(even1, odd1), shift);
  out[2] = _mm_srai_epi32(_mm_sub_epi32(even1, odd1), shift);
}

/* There is no AVX2 form: four rows of four columns fill an SSE2 vector. */
static void halve_sse2(const int16_t *block, const quantisation *q, uint8_t *out, ptrdiff_t stride,
                       excess *all) {
  __m128i first = *(__m128i *)all->first, second = *(__m128i *)all->second;
  __m128i sums[4], pairs[2][2];
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
    __m128i in[4];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
      in[i] = dequantise_sse2(block, q, 16 * i + 8 * half, &first);
    half_pass_sse2(in[0], in[1], in[2], in[3], sums, HALF_ROUND1, HALF_SHIFT1);
    __m128 rows01 = _mm_castsi128_ps(pack_sse2(sums[0], sums[1], &second));
    __m128 rows23 = _mm_castsi128_ps(pack_sse2(sums[2], sums[3], &second));
    pairs[half][0] = _mm_castps_si128(_mm_shuffle_ps(rows01, rows23, 0x88));
    pairs[half][1] = _mm_castps_si128(_mm_shuffle_ps(rows01, rows23, 0xDD));
  }
  *(__m128i *)all->first = first, *(__m128i *)all->second = second;
  half_pass_sse2(pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1], sums, HALF_ROUND2,
                 HALF_SHIFT2);
  __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]),
                                   _mm_packs_epi32(sums[2], sums[3]));
  /* Transpose four columns of four rows. */
  bytes = _mm_unpacklo_epi8(bytes, _mm_srli_si128(bytes, 8));
  bytes = _mm_unpacklo_epi8(bytes, _mm_srli_si128(bytes, 8));
  _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++, bytes = _mm_srli_si128(bytes, 4)) {
    int four = _mm_cvtsi128_si32(bytes);
    memcpy(out + y * stride, &four, 4);
  }
}

#elif defined(__aarch64__)
/* ---- Vector code ---- */

/* A vector has all eight columns of a row in the first pass, and all eight rows of a column in the
 * second. Rows and columns are in the order of RANK: 0 4 2 6 1 3 5 7. Sums have 32 bits, so a pass
 * computes four lanes. */

/* Returns eight inputs of a pass, and notes in `seen` those beyond LIMIT. In both passes, NEON
 * saturates the inputs to 16 bits, so the check of the second pass is enough for the first, too. */
INLINE int16x8_t checked_neon(int16x4_t low, int16x4_t high, uint16x8_t *seen) {
  int16x8_t v = vcombine_s16(low, high);
  *seen = vorrq_u16(*seen, vaddq_u16(vreinterpretq_u16_s16(v), vdupq_n_u16(LIMIT)));
  return v;
}

/* Multiplies the coefficients of a block by their steps. Two rows are interleaved in memory. */
INLINE void dequantise_neon(const int16_t *block, const quantisation *q, int16x8_t out[8],
                            uint16x8_t *seen) {
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
    int16x8x2_t rows = vld2q_s16(block + 16 * i), steps = vld2q_s16(q->steps + 16 * i);
    _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) {
      int32x4_t low = vmull_s16(vget_low_s16(rows.val[j]), vget_low_s16(steps.val[j]));
      int32x4_t high = vmull_high_s16(rows.val[j], steps.val[j]);
      out[2 * i + j] = checked_neon(vqmovn_s32(low), vqmovn_s32(high), seen);
    }
  }
}

typedef struct { int16x4_t of[8]; } half_inputs; /* four lanes of the inputs of a pass */

INLINE half_inputs half_of(const int16x8_t v[8], int is_high) {
  half_inputs in;
  _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++)
    in.of[i] = is_high ? vget_high_s16(v[i]) : vget_low_s16(v[i]);
  return in;
}

/* Like pass_plain, without rounding and shift. */
INLINE void pass_neon(half_inputs in, int16x8x3_t w, int32x4_t out[8]) {
  int16x4_t in0 = in.of[0], in4 = in.of[1], in2 = in.of[2], in6 = in.of[3];
  int16x4_t in1 = in.of[4], in3 = in.of[5], in5 = in.of[6], in7 = in.of[7];
  int32x4_t plus = vshlq_n_s32(vaddl_s16(in0, in4), 13); /* times ONE */
  int32x4_t minus = vshlq_n_s32(vsubl_s16(in0, in4), 13);
  int32x4_t two0 = WEIGH(in2, in6, w, EVEN0), two1 = WEIGH(in2, in6, w, EVEN1);
  int32x4_t even[4] = {vaddq_s32(plus, two0), vaddq_s32(minus, two1), vsubq_s32(minus, two1),
                       vsubq_s32(plus, two0)};
#define ODD(i) ADD_WEIGHED(WEIGH(in1, in3, w, i), in5, in7, w, i + 2)
  int32x4_t odd[4] = {ODD(ODD0), ODD(ODD1), ODD(ODD2), ODD(ODD3)};
  _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++) {
    out[y] = vaddq_s32(even[y], odd[y]);
    out[7 - y] = vsubq_s32(even[y], odd[y]);
  }
}

/* Rounds sums of the second pass to samples. The upper halves of the sums are shifted by SHIFT - 16
 * bits, since NEON cannot shift and narrow by more than 16. Rounding does not include the 128. */
#define SAMPLES_NEON(upper_halves, SHIFT) \
  veor_u8(vreinterpret_u8_s8(vqrshrn_n_s16(upper_halves, SHIFT - 16)), vdup_n_u8(128))

static void whole_neon(const int16_t *block, const quantisation *q, uint8_t *out, ptrdiff_t stride,
                       excess *all) {
  uint16x8_t seen = vld1q_u16(all->second);
  int16x8x3_t w = vld1q_s16_x3(dct_weights);
  int16x8_t v[8];
  int16x4_t made[2][8];
  int32x4_t sums[8];
  dequantise_neon(block, q, v, &seen);
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
    pass_neon(half_of(v, half), w, sums);
    _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++)
      made[half][y] = vqrshrn_n_s32(sums[y], SHIFT1);
  }
  _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++)
    v[y] = checked_neon(made[0][y], made[1][y], &seen);
  vst1q_u16(all->second, seen);
  transpose_neon(v);
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
    pass_neon(half_of(v, half), w, sums);
    _Pragma("GCC unroll 8") for (int x = 0; x < 8; x++) made[half][x] = vshrn_n_s32(sums[x], 16);
  }
  _Pragma("GCC unroll 8") for (int x = 0; x < 8; x++) v[x] = vcombine_s16(made[0][x], made[1][x]);
  transpose_neon(v);
  _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++)
    vst1_u8(out + y * stride, SAMPLES_NEON(v[y], SHIFT2));
}

static const int16_t half_weights[16] = {HALF0_1, HALF0_3, HALF0_5, HALF0_7, HALF1_1,
                                         HALF1_3, HALF1_5, HALF1_7, HALF_2,  HALF_6};

/* Like half_pass_plain, without rounding and shift. */
INLINE void half_pass_neon(half_inputs in, int16x8x2_t w, int32x4_t out[4]) {
  int16x4_t in0 = in.of[0], in2 = in.of[2], in6 = in.of[3];
  int16x4_t in1 = in.of[4], in3 = in.of[5], in5 = in.of[6], in7 = in.of[7];
  int32x4_t one = vshll_n_s16(in0, 14), two = WEIGH(in2, in6, w, 8); /* HALF_ONE is 2^14 */
  int32x4_t odd0 = ODD(0), odd1 = ODD(4);
  int32x4_t even0 = vaddq_s32(one, two), even1 = vsubq_s32(one, two);
  out[0] = vaddq_s32(even0, odd0), out[3] = vsubq_s32(even0, odd0);
  out[1] = vaddq_s32(even1, odd1), out[2] = vsubq_s32(even1, odd1);
}
#undef ODD

static void halve_neon(const int16_t *block, const quantisation *q, uint8_t *out, ptrdiff_t stride,
                       excess *all) {
  static const uint8_t transposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  uint16x8_t seen = vld1q_u16(all->second);
  int16x8x2_t w = vld1q_s16_x2(half_weights);
  int16x8_t v[8];
  int16x4_t made[2][4];
  int32x4_t sums[4];
  dequantise_neon(block, q, v, &seen);
  _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
    half_pass_neon(half_of(v, half), w, sums);
    _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++)
      made[half][y] = vqrshrn_n_s32(sums[y], HALF_SHIFT1);
  }
  _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++)
    v[y] = checked_neon(made[0][y], made[1][y], &seen);
  vst1q_u16(all->second, seen);
  /* Each vector becomes two columns of four rows. */
  int16x8_t rows02 = vzip1q_s16(v[0], v[2]), more02 = vzip2q_s16(v[0], v[2]);
  int16x8_t rows13 = vzip1q_s16(v[1], v[3]), more13 = vzip2q_s16(v[1], v[3]);
  int16x8_t pairs[4] = {vzip1q_s16(rows02, rows13), vzip2q_s16(rows02, rows13),
                        vzip1q_s16(more02, more13), vzip2q_s16(more02, more13)};
  half_inputs in;
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
    in.of[2 * i] = vget_low_s16(pairs[i]);
    in.of[2 * i + 1] = vget_high_s16(pairs[i]);
  }
  half_pass_neon(in, w, sums);
  int16x8_t left = vcombine_s16(vshrn_n_s32(sums[0], 16), vshrn_n_s32(sums[1], 16));
  int16x8_t right = vcombine_s16(vshrn_n_s32(sums[2], 16), vshrn_n_s32(sums[3], 16));
  uint8x16_t columns =
      vcombine_u8(SAMPLES_NEON(left, HALF_SHIFT2), SAMPLES_NEON(right, HALF_SHIFT2));
  uint8_t samples[16];
  vst1q_u8(samples, vqtbl1q_u8(columns, vld1q_u8(transposed)));
  _Pragma("GCC unroll 4") for (int y = 0; y < 4; y++) memcpy(out + y * stride, samples + 4 * y, 4);
}
#endif

#endif
