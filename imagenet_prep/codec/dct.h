/* Shared by decoder.c and encoder.c: the weights of libjpeg's "slow" integer DCT, the order of
 * coefficients in a file, the attributes of functions for AVX2, and sums of products for NEON. */
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
#elif defined(__aarch64__)
#include <arm_neon.h>

/* The sum of a times weight i and b times weight i + 1 of `w`. i is even, and a constant. */
#define WEIGH(a, b, w, i) \
  vmlal_laneq_s16(vmull_laneq_s16(a, (w).val[(i) / 8], (i) % 8), b, (w).val[(i) / 8], (i) % 8 + 1)
#define ADD_WEIGHED(sum, a, b, w, i) \
  vmlal_laneq_s16(vmlal_laneq_s16(sum, a, (w).val[(i) / 8], (i) % 8), b, (w).val[(i) / 8], \
                  (i) % 8 + 1)

/* Transposes eight rows of eight numbers. */
INLINE void transpose_neon(int16x8_t v[8]) {
  _Pragma("GCC unroll 3") for (int round = 0; round < 3; round++) {
    int16x8_t zipped[8];
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
      zipped[2 * i] = vzip1q_s16(v[i], v[i + 4]);
      zipped[2 * i + 1] = vzip2q_s16(v[i], v[i + 4]);
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) v[i] = zipped[i];
  }
}
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

#if defined(__aarch64__)
/* The weights for NEON, in three registers, so that a product needs no register for its weight. The
 * matrices of even and odd weights are symmetric, so the forward transform uses the same order. */
static const int16_t dct_weights[24] = {
    EVEN0_2, EVEN0_6, EVEN1_2, EVEN1_6, ODD0_1, ODD0_3, ODD0_5, ODD0_7, ODD1_1, ODD1_3,
    ODD1_5,  ODD1_7,  ODD2_1,  ODD2_3,  ODD2_5, ODD2_7, ODD3_1, ODD3_3, ODD3_5, ODD3_7,
};
enum { EVEN0 = 0, EVEN1 = 2, ODD0 = 4, ODD1 = 8, ODD2 = 12, ODD3 = 16 }; /* places of weights */
#endif
#endif
