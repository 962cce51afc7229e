/* Kernels that resize and transpose planes. AVX2, SSE2 and NEON give the same results as C. */
#ifndef IMAGENET_PREP_KERNELS_H
#define IMAGENET_PREP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define FOR_AVX2 __attribute__((target("avx2,f16c")))
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef struct { uint8_t *samples; ptrdiff_t stride; int width, height; } plane;

enum {
  WEIGHT_BITS = 14, /* the weights of a filter sum to 1 << 14 */
  VECTOR = 32,      /* number of samples that the widest kernel writes at once */
  TILE = 16,        /* side of the squares that are transposed at once */
};

/* Computes an output row, the weighted sum of `taps` input rows. A kernel reads and writes `width`
 * samples per row, rounded up to the size of its vectors. */
typedef void blend_rows(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const int16_t *weights,
                        int taps, int width);

static void blend_plain(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const int16_t *weights,
                        int taps, int width) {
  for (int x = 0; x < width; x++) {
    int sum = 1 << (WEIGHT_BITS - 1);
    for (int k = 0; k < taps; k++) sum += weights[k] * in[k * stride + x];
    /* A negative sum becomes 0; it is not shifted. */
    out[x] = sum < 0 ? 0 : sum >> WEIGHT_BITS > 255 ? 255 : (uint8_t)(sum >> WEIGHT_BITS);
  }
}

#if defined(__x86_64__)
/* Takes two rows at a time. Their samples are interleaved, so that one multiply-add takes a pair of
 * samples and a pair of weights. Packing saturates, which clamps like the plain code. */
static void blend_sse2(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const int16_t *weights,
                       int taps, int width) {
  const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (WEIGHT_BITS - 1));
  for (int x = 0; x < width; x += 16) {
    __m128i sum0 = half, sum1 = half, sum2 = half, sum3 = half;
    const uint8_t *row = in + x;
    for (int k = 0; k < taps; k += 2, row += 2 * stride) {
      int pair = k + 1 < taps;
      __m128i a = _mm_loadu_si128((const __m128i *)row);
      __m128i b = pair ? _mm_loadu_si128((const __m128i *)(row + stride)) : zero;
      uint32_t both = (uint16_t)weights[k] | (pair ? (uint32_t)(uint16_t)weights[k + 1] << 16 : 0);
      __m128i weight = _mm_set1_epi32((int)both);
      __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
      sum0 = _mm_add_epi32(sum0, _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), weight));
      sum1 = _mm_add_epi32(sum1, _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), weight));
      sum2 = _mm_add_epi32(sum2, _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), weight));
      sum3 = _mm_add_epi32(sum3, _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), weight));
    }
    sum0 = _mm_packs_epi32(_mm_srai_epi32(sum0, WEIGHT_BITS), _mm_srai_epi32(sum1, WEIGHT_BITS));
    sum2 = _mm_packs_epi32(_mm_srai_epi32(sum2, WEIGHT_BITS), _mm_srai_epi32(sum3, WEIGHT_BITS));
    _mm_storeu_si128((__m128i *)(out + x), _mm_packus_epi16(sum0, sum2));
  }
}

/* As blend_sse2, but 32 samples wide. Unpacking and packing both work within the halves of a
 * register, so packing restores the order of the samples. */
FOR_AVX2 static void blend_avx2(uint8_t *out, const uint8_t *in, ptrdiff_t stride,
                                const int16_t *weights, int taps, int width) {
  const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (WEIGHT_BITS - 1));
  for (int x = 0; x < width; x += 32) {
    __m256i sum0 = half, sum1 = half, sum2 = half, sum3 = half;
    const uint8_t *row = in + x;
    for (int k = 0; k < taps; k += 2, row += 2 * stride) {
      int pair = k + 1 < taps;
      __m256i a = _mm256_loadu_si256((const __m256i *)row);
      __m256i b = pair ? _mm256_loadu_si256((const __m256i *)(row + stride)) : zero;
      uint32_t both = (uint16_t)weights[k] | (pair ? (uint32_t)(uint16_t)weights[k + 1] << 16 : 0);
      __m256i weight = _mm256_set1_epi32((int)both);
      __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weight));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weight));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weight));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weight));
    }
    sum0 = _mm256_packs_epi32(_mm256_srai_epi32(sum0, WEIGHT_BITS),
                              _mm256_srai_epi32(sum1, WEIGHT_BITS));
    sum2 = _mm256_packs_epi32(_mm256_srai_epi32(sum2, WEIGHT_BITS),
                              _mm256_srai_epi32(sum3, WEIGHT_BITS));
    _mm256_storeu_si256((__m256i *)(out + x), _mm256_packus_epi16(sum0, sum2));
  }
}

typedef __m128i bytes16;
static bytes16 load16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static void store16(uint8_t *p, bytes16 v) { _mm_storeu_si128((__m128i *)p, v); }
static bytes16 zip_low(bytes16 a, bytes16 b) { return _mm_unpacklo_epi8(a, b); }
static bytes16 zip_high(bytes16 a, bytes16 b) { return _mm_unpackhi_epi8(a, b); }
#define ZIPS 1

#elif defined(__aarch64__)
static void blend_neon(uint8_t *out, const uint8_t *in, ptrdiff_t stride, const int16_t *weights,
                       int taps, int width) {
  for (int x = 0; x < width; x += 16) {
    int32x4_t sum0 = vdupq_n_s32(1 << (WEIGHT_BITS - 1)), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    const uint8_t *row = in + x;
    for (int k = 0; k < taps; k++, row += stride) {
      uint8x16_t v = vld1q_u8(row);
      int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(v)));
      int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(v)));
      sum0 = vmlal_n_s16(sum0, vget_low_s16(low), weights[k]);
      sum1 = vmlal_n_s16(sum1, vget_high_s16(low), weights[k]);
      sum2 = vmlal_n_s16(sum2, vget_low_s16(high), weights[k]);
      sum3 = vmlal_n_s16(sum3, vget_high_s16(high), weights[k]);
    }
    int16x8_t low = vcombine_s16(vqmovn_s32(vshrq_n_s32(sum0, WEIGHT_BITS)),
                                 vqmovn_s32(vshrq_n_s32(sum1, WEIGHT_BITS)));
    int16x8_t high = vcombine_s16(vqmovn_s32(vshrq_n_s32(sum2, WEIGHT_BITS)),
                                  vqmovn_s32(vshrq_n_s32(sum3, WEIGHT_BITS)));
    vst1q_u8(out + x, vcombine_u8(vqmovun_s16(low), vqmovun_s16(high)));
  }
}

typedef uint8x16_t bytes16;
static bytes16 load16(const uint8_t *p) { return vld1q_u8(p); }
static void store16(uint8_t *p, bytes16 v) { vst1q_u8(p, v); }
static bytes16 zip_low(bytes16 a, bytes16 b) { return vzip1q_u8(a, b); }
static bytes16 zip_high(bytes16 a, bytes16 b) { return vzip2q_u8(a, b); }
#define ZIPS 1
#endif

static void transpose_plain(uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                            ptrdiff_t stride) {
  for (int y = 0; y < TILE; y++)
    for (int x = 0; x < TILE; x++) out[x * out_stride + y] = in[y * stride + x];
}

#if defined(ZIPS)
/* Four rounds transpose 16 x 16 bytes; each round zips rows i and i + 8. The rounds are unrolled,
 * because compilers would keep an array of vectors in memory, not in registers. */
#define EACH(f) \
  f(0); f(1); f(2); f(3); f(4); f(5); f(6); f(7); f(8); f(9); f(10); f(11); f(12); f(13); f(14); \
  f(15)
#define ZIP(V, LOW, HIGH, to, low, high, from, i, j) \
  V to##low = LOW(from##i, from##j), to##high = HIGH(from##i, from##j)
#define ROUND(V, L, H, to, from) \
  ZIP(V, L, H, to, 0, 1, from, 0, 8); ZIP(V, L, H, to, 2, 3, from, 1, 9); \
  ZIP(V, L, H, to, 4, 5, from, 2, 10); ZIP(V, L, H, to, 6, 7, from, 3, 11); \
  ZIP(V, L, H, to, 8, 9, from, 4, 12); ZIP(V, L, H, to, 10, 11, from, 5, 13); \
  ZIP(V, L, H, to, 12, 13, from, 6, 14); ZIP(V, L, H, to, 14, 15, from, 7, 15)
#define TRANSPOSE(V, L, H) \
  EACH(LOAD); \
  ROUND(V, L, H, b, a); ROUND(V, L, H, c, b); ROUND(V, L, H, d, c); ROUND(V, L, H, e, d); \
  EACH(STORE)

static void transpose_zips(uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                           ptrdiff_t stride) {
#define LOAD(i) bytes16 a##i = load16(in + i * stride)
#define STORE(i) store16(out + i * out_stride, e##i)
  TRANSPOSE(bytes16, zip_low, zip_high);
#undef LOAD
#undef STORE
}
#endif

#if defined(__x86_64__)
/* Transposes two squares: 32 rows of 16 bytes become 16 rows of 32 bytes. */
FOR_AVX2 static void stand_two(uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                               ptrdiff_t stride) {
#define LOAD(i) \
  __m256i a##i = _mm256_set_m128i(load16(in + (i + TILE) * stride), load16(in + i * stride))
#define STORE(i) _mm256_storeu_si256((__m256i *)(void *)(out + i * out_stride), e##i)
  TRANSPOSE(__m256i, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8);
#undef LOAD
#undef STORE
}

/* The inverse of stand_two: 16 rows of 32 bytes become 32 rows of 16 bytes. */
FOR_AVX2 static void lay_two(uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                             ptrdiff_t stride) {
#define LOAD(i) __m256i a##i = _mm256_loadu_si256((const __m256i *)(const void *)(in + i * stride))
#define STORE(i) \
  store16(out + i * out_stride, _mm256_castsi256_si128(e##i)), \
      store16(out + (i + TILE) * out_stride, _mm256_extracti128_si256(e##i, 1))
  TRANSPOSE(__m256i, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8);
#undef LOAD
#undef STORE
}
#endif

static blend_rows *blend_of(enum simd simd) {
#if defined(__x86_64__)
  if (simd != PLAIN) return simd == AVX2 ? blend_avx2 : blend_sse2;
#elif defined(__aarch64__)
  if (simd != PLAIN) return blend_neon;
#endif
  (void)simd;
  return blend_plain;
}

static void transpose(enum simd simd, uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                      ptrdiff_t stride) {
#if defined(ZIPS)
  if (simd != PLAIN) {
    transpose_zips(out, out_stride, in, stride);
    return;
  }
#endif
  (void)simd;
  transpose_plain(out, out_stride, in, stride);
}

/* Transposes 32 rows of 16 bytes into 16 rows of 32 bytes. */
static void stand(enum simd simd, uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                  ptrdiff_t stride) {
#if defined(__x86_64__)
  if (simd == AVX2) {
    stand_two(out, out_stride, in, stride);
    return;
  }
#endif
  transpose(simd, out, out_stride, in, stride);
  transpose(simd, out + TILE, out_stride, in + TILE * stride, stride);
}

/* Transposes 16 rows of 32 bytes into 32 rows of 16 bytes. */
static void lay(enum simd simd, uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                ptrdiff_t stride) {
#if defined(__x86_64__)
  if (simd == AVX2) {
    lay_two(out, out_stride, in, stride);
    return;
  }
#endif
  transpose(simd, out, out_stride, in, stride);
  transpose(simd, out + TILE * out_stride, out_stride, in + TILE, stride);
}

#endif
