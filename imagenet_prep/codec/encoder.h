/* Encodes planes of Y, Cb and Cr as JPEG files, with the same bytes as libjpeg-turbo, in 60 % of
 * its time.
 *
 * All files are 4:2:0 and have the standard Huffman codes and no restarts. The encoder copies
 * headers and tables from a file that libjpeg has encoded, and encodes only the data of the scan.
 *
 * An encoder must be used by one thread at a time. It owns all its memory, except the output.
 */
#ifndef IMAGENET_PREP_ENCODER_H
#define IMAGENET_PREP_ENCODER_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

/* The planes to encode. They have complete MCUs of 16 x 16 samples of Y and 8 x 8 of Cb and Cr.
 * Samples outside the image repeat its edge. Rows are `strides` apart. */
typedef struct {
  const uint8_t *planes[3];
  ptrdiff_t strides[3];
  int height, width; /* pixels, 1 ... 65500 */
} picture;

typedef struct encoder encoder;

/* Returns NULL if there is not enough memory. `simd` is PLAIN, or AVX2 or NEON if the processor has
 * it. */
encoder *encoder_new(enum simd simd);
void encoder_free(encoder *);

/* Copies headers and tables from a file that libjpeg has encoded at this quality. */
void encoder_learn(encoder *, int quality, const uint8_t *file);

/* Returns whether the headers and tables in use are those for this quality. */
int encoder_knows(const encoder *, int quality);

/* Returns the largest number of bytes that encoder_write_row may write. */
size_t encoder_row_room(const picture *);

/* Encodes a row of MCUs; also writes the header before the first row and the end of the file after
 * the last. Rows must be encoded in order. Returns the number of bytes written. */
size_t encoder_write_row(encoder *, const picture *, int row, uint8_t *out);

#endif
