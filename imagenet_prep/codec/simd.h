/* The instruction sets that C files of this folder have code for, and which of them this processor
 * supports. The code is chosen at run time, so that one build runs on every processor. */
#ifndef IMAGENET_PREP_SIMD_H
#define IMAGENET_PREP_SIMD_H

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum simd { PLAIN = 0, SSE2 = 1, AVX2 = 2, NEON = 3, AVX512 = 4 };

#if defined(__x86_64__)
/* Returns whether the processor has AVX2 and the other extensions that the AVX2 code uses: F16C,
 * MOVBE, BMI1 and BMI2. It does not call __builtin_cpu_supports, which does not work in libraries
 * that are built with zig. */
static inline int has_avx2(void) {
  unsigned a, b, c, d, enabled, high;
  const unsigned movbe = 1u << 22, os_saves_registers = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  const unsigned first = movbe | os_saves_registers | avx | f16c; /* in ecx of leaf 1 */
  const unsigned bmi1 = 1u << 3, avx2 = 1u << 5, bmi2 = 1u << 8;
  const unsigned second = bmi1 | avx2 | bmi2; /* in ebx of leaf 7 */
  const unsigned ymm_state = 6;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & first) != first) return 0;
  __asm__("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
  if ((enabled & ymm_state) != ymm_state) return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & second) == second;
}

/* Returns whether the processor also has the AVX-512 extensions of Ice Lake and Zen 4 that count
 * bits (VPOPCNTDQ) and add products of 16-bit numbers (VNNI), also in 256-bit registers (VL). */
static inline int has_avx512(void) {
  unsigned a, b, c, d, enabled, high;
  const unsigned foundation = 1u << 16 | 1u << 31;     /* F and VL, in ebx of leaf 7 */
  const unsigned additions = 1u << 11 | 1u << 14, zmm_state = 0xE6; /* VNNI and VPOPCNTDQ, in ecx */
  if (!has_avx2()) return 0;
  __asm__("xgetbv" : "=a"(enabled), "=d"(high) : "c"(0));
  if ((enabled & zmm_state) != zmm_state) return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & foundation) == foundation &&
         (c & additions) == additions;
}
#endif

static inline int is_supported(enum simd simd) {
#if defined(__x86_64__)
  return simd == PLAIN || simd == SSE2 || (simd == AVX2 && has_avx2()) ||
         (simd == AVX512 && has_avx512());
#elif defined(__aarch64__)
  return simd == PLAIN || simd == NEON;
#else
  return simd == PLAIN;
#endif
}

#endif
