/* What says which pictures are alike: the means of a plane on 64 x 64 cells, and a hash of them, the
 * signs of the lowest frequencies of their DCT. Only integers decide: all processors make the same.
 */
#ifndef IMAGENET_PREP_LIKENESS_H
#define IMAGENET_PREP_LIKENESS_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

enum {
  CELLS = 64,         /* along each side of a picture, whatever its shape */
  SIXTEENTHS = 16,    /* a mean is a number of these parts of a grey level */
  FREQUENCIES = 256,  /* a bit of the hash each */
  HASH_WORDS = FREQUENCIES / 64,
};

/* Of one form of a picture: its bits, lowest frequencies first, and how much there is to see. */
typedef struct {
  uint64_t bits[HASH_WORDS];
  int32_t strong; /* frequencies whose amplitude is at least a quarter of a grey level */
  int32_t rough;  /* cells that are at least one grey level off the mean of the nine around them */
} likeness_hash;

/* Writes the exact means of CELLS x CELLS cells, rounded to sixteenths. `sums` has room for `width` numbers,
 * rounded up to 8, and so has each row of samples. */
void likeness_means(enum simd, const uint8_t *samples, ptrdiff_t stride, int width, int height,
                    uint32_t *sums, uint16_t *means);

#endif
