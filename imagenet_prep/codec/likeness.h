/* Computes the means of a plane in 64 x 64 cells, and a perceptual hash: the signs of the lowest
 * frequencies of the means' DCT. Only integers are used, so that all processors get the same
 * results.
 */
#ifndef IMAGENET_PREP_LIKENESS_H
#define IMAGENET_PREP_LIKENESS_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

enum {
  CELLS = 64,         /* number of cells along each side of an image of any aspect ratio */
  SIXTEENTHS = 16,    /* means are in sixteenths of a grey level */
  FREQUENCIES = 256,  /* one bit of the hash per frequency */
  HASH_WORDS = FREQUENCIES / 64,
};

/* The hash of an image or of its centre: bits, lowest frequencies first, and measures of detail. */
typedef struct {
  uint64_t bits[HASH_WORDS];
  int32_t strong; /* frequencies whose amplitude is at least a quarter of a grey level */
  int32_t rough;  /* cells that differ from the mean of their 3 x 3 cells by a grey level or more */
} likeness_hash;

/* Writes the exact means of CELLS x CELLS cells, rounded to sixteenths. `sums` and each row of
 * samples must have space for `width` numbers, rounded up to 8. */
void likeness_means(enum simd, const uint8_t *samples, ptrdiff_t stride, int width, int height,
                    uint32_t *sums, uint16_t *means);

#endif
