/* Computes quantised coefficients from samples, with the DCT of libjpeg's "slow" integer method and
 * the same quotients. Plain C, AVX2 and NEON have the same results. */
#ifndef IMAGENET_PREP_FORWARD_H
#define IMAGENET_PREP_FORWARD_H

#include <stddef.h>
#include <stdlib.h>

#include "dct.h"

static const uint8_t place_in_block[64] = {
#define AS_IT_IS(n) n
    ZIGZAG(AS_IT_IS)};

/* Divisors of a quantisation table, by place in a block. (n + half) / divisor, rounded down, is
 * computed as (n + half) * reciprocal / 2^16 * scale / 2^16, rounded down after each division. */
typedef struct { uint16_t halves[64], reciprocals[64], scales[64]; } divisors;

/* A divisor is 8 times a quantisation step. It is more than 2^shift and at most 2^(shift + 1).
 * Its reciprocal is 2^(16 + shift) / divisor, rounded up, which fits into 16 bits. Rounding adds
 * less than 1, so a product with n < 2^14 is too large by less than 2^14, and the quotient of
 * this product and 2^(16 + shift) by less than 1 / divisor. So the quotient never reaches the
 * next integer. */
static void make_divisors(divisors *d, const uint8_t *steps) {
  for (int k = 0; k < 64; k++) {
    unsigned divisor = 8u * steps[k], shift = 31 - (unsigned)__builtin_clz(divisor - 1);
    int at = place_in_block[k];
    d->halves[at] = (uint16_t)(divisor / 2);
    d->reciprocals[at] = (uint16_t)(((1u << (16 + shift)) + divisor - 1) / divisor);
    d->scales[at] = (uint16_t)(1u << (16 - shift));
  }
}

/* The samples of two blocks, with rows that are `strides` apart. */
typedef struct { const uint8_t *blocks[2]; ptrdiff_t strides[2]; } sample_pair;

enum { SMALL = 64 /* values -32 ... 31 are small; their bytes are value + 32 */ };

/* Two blocks of coefficients. `values` are by place in a block. `bytes` are value + 32 in zigzag
 * order; for values that are not small, they are 64 or more. A bit of `which` is set if a
 * coefficient in zigzag order, except the DC, is not 0. */
typedef struct {
  int16_t values[2][64];
  uint8_t bytes[2][64];
  uint64_t which[2];
} __attribute__((aligned(32))) block_pair;

/* Shuffles that bring bytes to zigzag order: of[i][j] takes those of zigzag bytes 16 i ... 16 i
 * + 15 that are in vector j, which has two rows. 0x80 sets bytes from other vectors to 0. The
 * results for the four vectors are then combined with "or". */
typedef struct { uint8_t of[4][4][16]; } shuffles;

static void make_shuffles(shuffles *s) {
  for (int k = 0; k < 64; k++)
    for (int from = 0; from < 4; from++) {
      int place = place_in_block[k];
      s->of[k / 16][from][k % 16] = (uint8_t)(place / 16 == from ? place % 16 : 0x80);
    }
}

typedef void make_pair(const sample_pair *from, const divisors *d, const shuffles *s,
                       block_pair *to);

/* The first pass keeps two fractional bits, which the second pass removes. Results are still 8
 * times too large, which the divisors include. */
enum { SHIFT1 = 13 - 2, SHIFT2 = 13 + 2 };

static void pass_plain(const int in[8], int out[8], int shift) {
  int sums[4], differences[4], round = 1 << (shift - 1);
  for (int i = 0; i < 4; i++) sums[i] = in[i] + in[7 - i], differences[i] = in[i] - in[7 - i];
  int plus0 = sums[0] + sums[3], plus1 = sums[1] + sums[2];
  int minus0 = sums[0] - sums[3], minus1 = sums[1] - sums[2];
  out[0] = ((plus0 + plus1) * ONE + round) >> shift;
  out[4] = ((plus0 - plus1) * ONE + round) >> shift;
  out[2] = (minus0 * EVEN0_2 + minus1 * EVEN1_2 + round) >> shift;
  out[6] = (minus0 * EVEN0_6 + minus1 * EVEN1_6 + round) >> shift;
#define ODD(i) \
  out[i] = (differences[0] * ODD0_##i + differences[1] * ODD1_##i + differences[2] * ODD2_##i + \
            differences[3] * ODD3_##i + round) >> shift
  ODD(1), ODD(3), ODD(5), ODD(7);
#undef ODD
}

static void make_block_plain(const uint8_t *samples, ptrdiff_t stride, const divisors *d,
                             int16_t values[64]) {
  int columns[8][8], in[8], out[8];
  for (int y = 0; y < 8; y++) {
    for (int x = 0; x < 8; x++) in[x] = samples[y * stride + x] - 128;
    pass_plain(in, out, SHIFT1);
    for (int x = 0; x < 8; x++) columns[x][y] = out[x];
  }
  for (int x = 0; x < 8; x++) {
    pass_plain(columns[x], out, SHIFT2);
    for (int y = 0; y < 8; y++) {
      int at = 8 * y + x;
      unsigned n = (unsigned)abs(out[y]) + d->halves[at];
      int quotient = (int)((n * d->reciprocals[at] >> 16) * d->scales[at] >> 16);
      values[at] = (int16_t)(out[y] < 0 ? -quotient : quotient);
    }
  }
}

static void make_pair_plain(const sample_pair *from, const divisors *d, const shuffles *s,
                            block_pair *to) {
  (void)s;
  for (int i = 0; i < 2; i++) {
    make_block_plain(from->blocks[i], from->strides[i], d, to->values[i]);
    to->which[i] = 0;
    for (int k = 0; k < 64; k++) {
      int value = to->values[i][place_in_block[k]];
      int is_small = value >= -SMALL / 2 && value < SMALL / 2;
      to->bytes[i][k] = (uint8_t)(is_small ? value + SMALL / 2 : SMALL);
      if (k) to->which[i] |= (uint64_t)(value != 0) << k;
    }
  }
}

#if defined(__x86_64__)
/* Vectors have 16 numbers of 16 bits: eight of the first block, then eight of the second. */

/* The weighted sums of two vectors; `low` and `high` are in the order of the unpack
 * instructions. */
typedef struct { __m256i low, high; } wide_sums;

FOR_AVX2 INLINE wide_sums weigh(__m256i a, __m256i b, int weights) {
  __m256i pair = _mm256_set1_epi32(weights);
  return (wide_sums){_mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair),
                     _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair)};
}

FOR_AVX2 INLINE __m256i narrow(wide_sums s, int shift) {
  const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
  return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(s.low, round), shift),
                            _mm256_srai_epi32(_mm256_add_epi32(s.high, round), shift));
}

FOR_AVX2 INLINE __m256i narrow_sum(wide_sums s, wide_sums t, int shift) {
  s.low = _mm256_add_epi32(s.low, t.low), s.high = _mm256_add_epi32(s.high, t.high);
  return narrow(s, shift);
}

/* All sums fit into 16 bits: samples have 8, each of the two passes adds 3, and the first 2
 * more. */
FOR_AVX2 INLINE void pass_avx2(__m256i v[8], int shift) {
  __m256i sum0 = _mm256_add_epi16(v[0], v[7]), sum1 = _mm256_add_epi16(v[1], v[6]);
  __m256i sum2 = _mm256_add_epi16(v[2], v[5]), sum3 = _mm256_add_epi16(v[3], v[4]);
  __m256i d0 = _mm256_sub_epi16(v[0], v[7]), d1 = _mm256_sub_epi16(v[1], v[6]);
  __m256i d2 = _mm256_sub_epi16(v[2], v[5]), d3 = _mm256_sub_epi16(v[3], v[4]);
  __m256i plus0 = _mm256_add_epi16(sum0, sum3), plus1 = _mm256_add_epi16(sum1, sum2);
  __m256i minus0 = _mm256_sub_epi16(sum0, sum3), minus1 = _mm256_sub_epi16(sum1, sum2);
  v[0] = _mm256_add_epi16(plus0, plus1), v[4] = _mm256_sub_epi16(plus0, plus1);
  /* A multiplication by ONE is only a shift. */
  _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    v[i] = shift == SHIFT1 ? _mm256_slli_epi16(v[i], 2)
                           : _mm256_srai_epi16(_mm256_add_epi16(v[i], _mm256_set1_epi16(2)), 2);
  v[2] = narrow(weigh(minus0, minus1, PAIR(EVEN0_2, EVEN1_2)), shift);
  v[6] = narrow(weigh(minus0, minus1, PAIR(EVEN0_6, EVEN1_6)), shift);
#define ODD(i) \
  v[i] = narrow_sum(weigh(d0, d1, PAIR(ODD0_##i, ODD1_##i)), \
                    weigh(d2, d3, PAIR(ODD2_##i, ODD3_##i)), shift)
  ODD(1), ODD(3), ODD(5), ODD(7);
#undef ODD
}

FOR_AVX2 INLINE void transpose_avx2(__m256i v[8]) {
  _Pragma("GCC unroll 3") for (int round = 0; round < 3; round++) {
    __m256i zipped[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
      zipped[2 * i] = _mm256_unpacklo_epi16(v[i], v[i + 4]);
      zipped[2 * i + 1] = _mm256_unpackhi_epi16(v[i], v[i + 4]);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) v[i] = zipped[i];
  }
}

FOR_AVX2 INLINE __m256i load_twice(const void *p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
}

FOR_AVX2 INLINE void store_halves(void *first, void *second, __m256i v) {
  _mm_storeu_si128(first, _mm256_castsi256_si128(v));
  _mm_storeu_si128(second, _mm256_extracti128_si256(v, 1));
}

FOR_AVX2 static void make_pair_avx2(const sample_pair *from, const divisors *d, const shuffles *s,
                                    block_pair *to) {
  __m256i v[8], rows[4];
  _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++) {
    __m128i first = _mm_loadl_epi64((const void *)(from->blocks[0] + y * from->strides[0]));
    __m128i second = _mm_loadl_epi64((const void *)(from->blocks[1] + y * from->strides[1]));
    __m128i both = _mm_xor_si128(_mm_unpacklo_epi64(first, second), _mm_set1_epi8(-128));
    v[y] = _mm256_cvtepi8_epi16(both);
  }
  transpose_avx2(v);
  pass_avx2(v, SHIFT1);
  transpose_avx2(v);
  pass_avx2(v, SHIFT2);
  _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++) {
    __m256i n = _mm256_add_epi16(_mm256_abs_epi16(v[y]), load_twice(d->halves + 8 * y));
    n = _mm256_mulhi_epu16(n, load_twice(d->reciprocals + 8 * y));
    v[y] = _mm256_sign_epi16(_mm256_mulhi_epu16(n, load_twice(d->scales + 8 * y)), v[y]);
    store_halves(to->values[0] + 8 * y, to->values[1] + 8 * y, v[y]);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    rows[i] = _mm256_packs_epi16(v[2 * i], v[2 * i + 1]);
  to->which[0] = to->which[1] = 0;
  _Pragma("GCC unroll 4") for (int k = 0; k < 64; k += 16) {
    __m256i zero = _mm256_setzero_si256(), bytes = zero;
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
      __m256i some = _mm256_shuffle_epi8(rows[i], load_twice(s->of[k / 16][i]));
      bytes = _mm256_or_si256(bytes, some);
    }
    uint32_t which = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, zero));
    if (!k) which &= ~0x10001u; /* DCs */
    to->which[0] |= (uint64_t)(which & 0xFFFF) << k, to->which[1] |= (uint64_t)(which >> 16) << k;
    bytes = _mm256_add_epi8(bytes, _mm256_set1_epi8(SMALL / 2));
    store_halves(to->bytes[0] + k, to->bytes[1] + k, bytes);
  }
}

#elif defined(__aarch64__)
/* Rounds sums. `shift` is SHIFT1 or SHIFT2, and must be constant. */
INLINE int16x8_t narrow(int32x4_t low, int32x4_t high, int shift) {
  return shift == SHIFT1 ? vcombine_s16(vrshrn_n_s32(low, SHIFT1), vrshrn_n_s32(high, SHIFT1))
                         : vcombine_s16(vrshrn_n_s32(low, SHIFT2), vrshrn_n_s32(high, SHIFT2));
}

/* All sums of inputs fit into 16 bits, as in pass_avx2. */
INLINE void pass_neon(int16x8_t v[8], int16x8x3_t w, int shift) {
  int16x8_t sums[4], differences[4];
  int16x4_t low[4], high[4];
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
    sums[i] = vaddq_s16(v[i], v[7 - i]), differences[i] = vsubq_s16(v[i], v[7 - i]);
    low[i] = vget_low_s16(differences[i]), high[i] = vget_high_s16(differences[i]);
  }
  int16x8_t plus0 = vaddq_s16(sums[0], sums[3]), plus1 = vaddq_s16(sums[1], sums[2]);
  int16x8_t minus0 = vsubq_s16(sums[0], sums[3]), minus1 = vsubq_s16(sums[1], sums[2]);
  v[0] = vaddq_s16(plus0, plus1), v[4] = vsubq_s16(plus0, plus1);
  /* A multiplication by ONE is only a shift. */
  _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4)
    v[i] = shift == SHIFT1 ? vshlq_n_s16(v[i], 2) : vrshrq_n_s16(v[i], 2);
  int16x4_t low0 = vget_low_s16(minus0), high0 = vget_high_s16(minus0);
  int16x4_t low1 = vget_low_s16(minus1), high1 = vget_high_s16(minus1);
  v[2] = narrow(WEIGH(low0, low1, w, EVEN0), WEIGH(high0, high1, w, EVEN0), shift);
  v[6] = narrow(WEIGH(low0, low1, w, EVEN1), WEIGH(high0, high1, w, EVEN1), shift);
#define HALF(d, i) ADD_WEIGHED(WEIGH(d[0], d[1], w, i), d[2], d[3], w, i + 2)
#define ODD(i) narrow(HALF(low, i), HALF(high, i), shift)
  v[1] = ODD(ODD0), v[3] = ODD(ODD1), v[5] = ODD(ODD2), v[7] = ODD(ODD3);
#undef ODD
#undef HALF
}

/* Returns the upper halves of products. */
INLINE uint16x8_t multiply_high(uint16x8_t a, uint16x8_t b) {
  uint32x4_t low = vmull_u16(vget_low_u16(a), vget_low_u16(b)), high = vmull_high_u16(a, b);
  return vcombine_u16(vshrn_n_u32(low, 16), vshrn_n_u32(high, 16));
}

INLINE int16x8_t quantise(int16x8_t v, const divisors *d, int at) {
  uint16x8_t n = vaddq_u16(vreinterpretq_u16_s16(vabsq_s16(v)), vld1q_u16(d->halves + at));
  n = multiply_high(n, vld1q_u16(d->reciprocals + at));
  n = multiply_high(n, vld1q_u16(d->scales + at));
  int16x8_t sign = vshrq_n_s16(v, 15); /* -1 or 0 */
  return vsubq_s16(veorq_s16(vreinterpretq_s16_u16(n), sign), sign);
}

/* Returns a bit for each byte of four vectors, which is set if the byte is not 0. */
INLINE uint64_t which_of(const uint8x16_t v[4]) {
  const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  uint8x16_t found[4];
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
    found[i] = vandq_u8(vtstq_u8(v[i], v[i]), bits);
  /* Three rounds add the eight bits of each eight bytes. */
  uint8x16_t sum = vpaddq_u8(vpaddq_u8(found[0], found[1]), vpaddq_u8(found[2], found[3]));
  return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

/* Does not use `shuffles`: NEON looks up bytes in four vectors at once, by their place. */
static void make_pair_neon(const sample_pair *from, const divisors *d, const shuffles *s,
                           block_pair *to) {
  (void)s;
  int16x8x3_t w = vld1q_s16_x3(dct_weights);
  for (int i = 0; i < 2; i++) {
    int16x8_t v[8];
    uint8x16x4_t rows;
    uint8x16_t bytes[4];
    _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++) {
      uint8x8_t samples = vld1_u8(from->blocks[i] + y * from->strides[i]);
      v[y] = vreinterpretq_s16_u16(vsubl_u8(samples, vdup_n_u8(128)));
    }
    transpose_neon(v);
    pass_neon(v, w, SHIFT1);
    transpose_neon(v);
    pass_neon(v, w, SHIFT2);
    _Pragma("GCC unroll 8") for (int y = 0; y < 8; y++) {
      v[y] = quantise(v[y], d, 8 * y);
      vst1q_s16(to->values[i] + 8 * y, v[y]);
    }
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
      int8x16_t two_rows = vcombine_s8(vqmovn_s16(v[2 * j]), vqmovn_s16(v[2 * j + 1]));
      rows.val[j] = vreinterpretq_u8_s8(two_rows);
    }
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
      bytes[j] = vqtbl4q_u8(rows, vld1q_u8(place_in_block + 16 * j));
      vst1q_u8(to->bytes[i] + 16 * j, vaddq_u8(bytes[j], vdupq_n_u8(SMALL / 2)));
    }
    to->which[i] = which_of(bytes) & ~UINT64_C(1); /* without the DC */
  }
}
#endif

#endif
