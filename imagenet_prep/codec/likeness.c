/* Computes the means of cells and their hash; see likeness.h.
 *
 * The same C is compiled for every processor and again for AVX2. It uses the compiler's vector
 * types, which become the instructions of the processor. The results are the same for both.
 */
#include "likeness.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define BODY static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define FOR_AVX2 __attribute__((target("avx2")))
#endif

enum {
  LANES = 8,
  MARGIN = 2,                   /* cells on each side that are not in the centre window: 3 % */
  WINDOW = CELLS - 2 * MARGIN,
  HIGHEST = 20,                 /* all frequencies of the hash are below this along each axis */
  UNIT = 2048,                  /* amplitude of the basis cosines; more would overflow 32 bits */
  MIDDLE = 128 * SIXTEENTHS,    /* subtracted from means, so that sums stay small */
  STRONG_PARTS = 4,             /* a strong frequency has at least 1 / 4 of a grey level */
};

typedef uint32_t numbers __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t signed_numbers __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1)));

/* ---- Means ---- */

/* Cell i covers [i * size, (i + 1) * size) in units of 1 / CELLS of a sample. Returns the part of
 * sample j that is in the cell [from, to), in these units. */
BODY int64_t weight(int64_t j, int64_t from, int64_t to) {
  int64_t begin = j * CELLS > from ? j * CELLS : from;
  int64_t end = (j + 1) * CELLS < to ? (j + 1) * CELLS : to;
  return end - begin;
}

BODY void means(const uint8_t *samples, ptrdiff_t stride, int width, int height, uint32_t *sums,
                uint16_t *out) {
  uint64_t area = (uint64_t)width * (uint64_t)height;
  for (int i = 0; i < CELLS; i++) {
    int64_t top = (int64_t)i * height, bottom = top + height;
    memset(sums, 0, sizeof *sums * (size_t)((width + LANES - 1) / LANES * LANES));
    for (int64_t y = top / CELLS; y * CELLS < bottom; y++) {
      uint32_t rows = (uint32_t)weight(y, top, bottom);
      const uint8_t *row = samples + y * stride;
      for (int x = 0; x < width; x += LANES)
        *(numbers *)(sums + x) += __builtin_convertvector(*(const bytes *)(row + x), numbers) * rows;
    }
    for (int k = 0; k < CELLS; k++) {
      int64_t left = (int64_t)k * width, right = left + width;
      int64_t x = left / CELLS, last = (right - 1) / CELLS;
      uint64_t sum = (uint64_t)weight(x, left, right) * sums[x], inner = 0;
      for (int64_t j = x + 1; j < last; j++) inner += sums[j];
      sum += inner * CELLS;
      if (last > x) sum += (uint64_t)weight(last, left, right) * sums[last];
      out[i * CELLS + k] = (uint16_t)((2 * SIXTEENTHS * sum + area) / (2 * area));
    }
  }
}

static void means_anywhere(const uint8_t *samples, ptrdiff_t stride, int width, int height,
                           uint32_t *sums, uint16_t *out) {
  means(samples, stride, width, height, sums, out);
}

#if defined(FOR_AVX2)
FOR_AVX2 static void means_avx2(const uint8_t *samples, ptrdiff_t stride, int width, int height,
                                uint32_t *sums, uint16_t *out) {
  means(samples, stride, width, height, sums, out);
}
#endif

EXPORT void likeness_means(enum simd simd, const uint8_t *samples, ptrdiff_t stride, int width,
                           int height, uint32_t *sums, uint16_t *out) {
#if defined(FOR_AVX2)
  if (simd == AVX2) {
    means_avx2(samples, stride, width, height, sums, out);
    return;
  }
#endif
  (void)simd;
  means_anywhere(samples, stride, width, height, sums, out);
}

/* ---- Hash ---- */

/* The cosines for one number of cells, and the frequencies of the hash bits. likeness.py writes
 * this structure. */
typedef struct {
  int32_t cosines[HIGHEST][CELLS];
  uint8_t across[FREQUENCIES], down[FREQUENCIES];
} basis;

/* Transforms `size` x `size` cells, columns first, and writes the signs of the frequencies. */
BODY void transform(const basis *b, const uint16_t *cells, int size, likeness_hash *out) {
  int32_t rows[CELLS][CELLS] = {{0}}, columns[HIGHEST][CELLS];
  for (int y = 0; y < size; y++)
    for (int x = 0; x < size; x++) rows[y][x] = cells[y * CELLS + x] - MIDDLE;
  for (int v = 0; v < HIGHEST; v++)
    for (int x = 0; x < CELLS; x += LANES) {
      signed_numbers sum = {0};
      for (int y = 0; y < size; y++) sum += *(signed_numbers *)(rows[y] + x) * b->cosines[v][y];
      *(signed_numbers *)(columns[v] + x) = sum;
    }
  memset(out->bits, 0, sizeof out->bits);
  out->strong = 0;
  for (int i = 0; i < FREQUENCIES; i++) {
    int u = b->across[i], v = b->down[i];
    int64_t sum = 0;
    for (int x = 0; x < size; x++) sum += (int64_t)columns[v][x] * b->cosines[u][x];
    out->bits[i / 64] |= (uint64_t)(sum > 0) << i % 64;
    /* For a wave of amplitude 1, the sum is a quarter of the number of cells; for a wave along only
     * one axis, it is half. */
    int64_t whole = (int64_t)SIXTEENTHS * UNIT * UNIT * size * size / (u && v ? 4 : 2);
    out->strong += (sum < 0 ? -sum : sum) * STRONG_PARTS >= whole;
  }
}

static void transform_anywhere(const basis *b, const uint16_t *cells, int size, likeness_hash *out) {
  transform(b, cells, size, out);
}

#if defined(FOR_AVX2)
FOR_AVX2 static void transform_avx2(const basis *b, const uint16_t *cells, int size,
                                    likeness_hash *out) {
  transform(b, cells, size, out);
}
#endif

static int count_rough(const uint16_t *m) {
  int rough = 0;
  for (int y = 1; y < CELLS - 1; y++)
    for (int x = 1; x < CELLS - 1; x++) {
      const uint16_t *c = m + y * CELLS + x;
      int nine = 0;
      for (int i = -1; i <= 1; i++) nine += c[i - CELLS] + c[i] + c[i + CELLS];
      int off = 9 * *c - nine;
      rough += (off < 0 ? -off : off) >= 9 * SIXTEENTHS;
    }
  return rough;
}

/* Writes two hashes: of the complete image, and of the image without 3 % on each side. */
EXPORT void likeness_hashes(const basis *two, int simd, const uint16_t *cells, likeness_hash *out) {
  for (int i = 0; i < 2; i++) {
    const uint16_t *from = cells + i * MARGIN * (CELLS + 1);
#if defined(FOR_AVX2)
    if (simd == AVX2) transform_avx2(&two[i], from, i ? WINDOW : CELLS, &out[i]);
    else
#endif
      transform_anywhere(&two[i], from, i ? WINDOW : CELLS, &out[i]);
    out[i].rough = count_rough(cells);
  }
  (void)simd;
}
