/* Shared by decoder.c and encoder.c: the weights of libjpeg's "slow" integer DCT, the order of
 * coefficients in a file, and the attributes of functions for AVX2. */
#ifndef IMAGENET_PREP_DCT_H
#define IMAGENET_PREP_DCT_H

#include <stdint.h>

#include "simd.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#include <immintrin.h>
#define FOR_AVX2 __attribute__((target("avx2,bmi,bmi2,movbe")))
/* Packs two 16-bit weights for the multiply-add instruction. */
#define PAIR(a, b) ((int)((uint32_t)(uint16_t)(a) | (uint32_t)(uint16_t)(b) << 16))
#endif

/* Lists OF(n) for all coefficients in the order of a file; n is 8 * row + column. */
#define ZIGZAG_8(OF, a, b, c, d, e, f, g, h) OF(a), OF(b), OF(c), OF(d), OF(e), OF(f), OF(g), OF(h)
#define ZIGZAG(OF) \
  ZIGZAG_8(OF, 0, 1, 8, 16, 9, 2, 3, 10), ZIGZAG_8(OF, 17, 24, 32, 25, 18, 11, 4, 5), \
      ZIGZAG_8(OF, 12, 19, 26, 33, 40, 48, 41, 34), ZIGZAG_8(OF, 27, 20, 13, 6, 7, 14, 21, 28), \
      ZIGZAG_8(OF, 35, 42, 49, 56, 57, 50, 43, 36), ZIGZAG_8(OF, 29, 22, 15, 23, 30, 37, 44, 51), \
      ZIGZAG_8(OF, 58, 59, 52, 45, 38, 31, 39, 46), ZIGZAG_8(OF, 53, 60, 61, 54, 47, 55, 62, 63)

/* Cosines and their sums times 2^13, with libjpeg's rounding. */
enum {
  F_0_298 = 2446,  F_0_390 = 3196,  F_0_541 = 4433,  F_0_765 = 6270,
  F_0_899 = 7373,  F_1_175 = 9633,  F_1_501 = 12299, F_1_847 = 15137,
  F_1_961 = 16069, F_2_053 = 16819, F_2_562 = 20995, F_3_072 = 25172,
};
/* The weights of frequencies in samples, in a pass of the inverse transform. Samples y and 7 - y
 * are an even sum plus or minus an odd sum. Frequencies 0 and 4 have the weight ONE in every even
 * sum. EVENy_i is the weight of frequency i in the even sum of sample y; sample 2 has the negative
 * weights of sample 1, and sample 3 those of sample 0. ODDy_i is the weight of frequency i in the
 * odd sum of sample y. The forward transform uses the same weights. */
enum {
  ONE = 1 << 13,
  EVEN0_2 = F_0_541 + F_0_765, EVEN0_6 = F_0_541,
  EVEN1_2 = F_0_541,           EVEN1_6 = F_0_541 - F_1_847,
  ODD0_1 = F_1_501 - F_0_899 + F_1_175 - F_0_390, ODD0_3 = F_1_175,
  ODD0_5 = F_1_175 - F_0_390,                     ODD0_7 = F_1_175 - F_0_899,
  ODD1_1 = F_1_175,           ODD1_3 = F_3_072 - F_2_562 + F_1_175 - F_1_961,
  ODD1_5 = F_1_175 - F_2_562, ODD1_7 = F_1_175 - F_1_961,
  ODD2_1 = F_1_175 - F_0_390, ODD2_3 = F_1_175 - F_2_562,
  ODD2_5 = F_2_053 - F_2_562 + F_1_175 - F_0_390, ODD2_7 = F_1_175,
  ODD3_1 = F_1_175 - F_0_899, ODD3_3 = F_1_175 - F_1_961,
  ODD3_5 = F_1_175,           ODD3_7 = F_0_298 - F_0_899 + F_1_175 - F_1_961,
};
#endif
