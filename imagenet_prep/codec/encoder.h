/* Encodes planes of Y, Cb and Cr as JPEG files: the bytes that libjpeg-turbo makes, in 60 % of its
 * time.
 *
 * All files are of one kind: 4:2:0, the Huffman codes of the standard, no restarts. Their headers
 * and tables are not made here, but learnt from a file of libjpeg's; only the data of the scan are.
 *
 * An encoder belongs to one thread at a time, and holds all memory that it uses but the file.
 */
#ifndef IMAGENET_PREP_ENCODER_H
#define IMAGENET_PREP_ENCODER_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

/* What is encoded: planes of whole MCUs, 16 x 16 samples of Y, 8 x 8 of Cb and Cr; what lies outside
 * of the picture repeats its edge. Rows are `strides` apart. */
typedef struct {
  const uint8_t *planes[3];
  ptrdiff_t strides[3];
  int height, width; /* pixels, 1 ... 65500 */
} picture;

typedef struct encoder encoder;

/* Returns NULL where memory is short. There is code for PLAIN and AVX2; this processor must support
 * it. */
encoder *encoder_new(enum simd simd);
void encoder_free(encoder *);

/* Takes headers and tables from a file of this kind, which libjpeg has made at a quality. */
void encoder_learn(encoder *, int quality, const uint8_t *file);

/* Returns whether this quality was the last one that was learnt. */
int encoder_knows(const encoder *, int quality);

/* Returns how many bytes encoder_write_row may touch. */
size_t encoder_row_room(const picture *);

/* Writes what belongs to a row of MCUs, with all that lies before the first one and behind the last
 * one. Rows are written in their order, one behind the other. Returns how many bytes they have. */
size_t encoder_write_row(encoder *, const picture *, int row, uint8_t *out);

#endif
