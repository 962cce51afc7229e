/* Copies data of a scan. In a file, a stuffed zero follows each data byte of 0xFF. */
#ifndef IMAGENET_PREP_STUFFING_H
#define IMAGENET_PREP_STUFFING_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { COPIED = 32 }; /* number of bytes that vector code copies at once */

/* Copies the bytes before the first 0xFF, and returns their number. May write up to COPIED bytes
 * more. */
static size_t copy_up_to_ff(uint8_t *out, const uint8_t *in, size_t size, enum simd simd) {
  size_t n = 0;
#if defined(__x86_64__)
  const __m128i ones = _mm_set1_epi8(-1);
  for (; simd != PLAIN && size - n >= COPIED; n += COPIED) {
    __m128i low = _mm_loadu_si128((const __m128i *)(in + n));
    __m128i high = _mm_loadu_si128((const __m128i *)(in + n + 16));
    _mm_storeu_si128((__m128i *)(out + n), low);
    _mm_storeu_si128((__m128i *)(out + n + 16), high);
    uint32_t found = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(low, ones)) |
                     (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(high, ones)) << 16;
    if (found) return n + (size_t)__builtin_ctz(found);
  }
#elif defined(__aarch64__)
  for (; simd != PLAIN && size - n >= COPIED / 2; n += COPIED / 2) {
    uint8x16_t bytes = vld1q_u8(in + n);
    vst1q_u8(out + n, bytes);
    uint16x8_t equal = vreinterpretq_u16_u8(vceqq_u8(bytes, vdupq_n_u8(0xFF)));
    uint64_t found = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(equal, 4)), 0); /* 4 bits each */
    if (found) return n + (size_t)__builtin_ctzll(found) / 4;
  }
#endif
  (void)simd;
  for (; n < size && in[n] != 0xFF; n++) out[n] = in[n];
  return n;
}

#endif
