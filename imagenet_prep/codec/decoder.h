/* Decodes JPEG files of the most common kind to planes of Y, Cb and Cr. The samples are the same as
 * libjpeg-turbo's, in half of its time.
 *
 * The decoder accepts only undamaged sequential files with 8 bits per sample, Huffman codes, one
 * scan, and grey or YCbCr. It rejects all other files without a reason. The caller then passes the
 * file to libjpeg, which decodes it from the start and has error messages.
 *
 * A decoder must be used by one thread at a time. It owns all its memory. It keeps only tables for
 * the next file, and compares them with the tables of that file before it uses them again.
 */
#ifndef IMAGENET_PREP_DECODER_H
#define IMAGENET_PREP_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

enum { MAX_COMPONENTS = 3 };

/* One of Y, Cb, Cr. */
typedef struct {
  int id, quantisation, dc_table, ac_table; /* numbers in the file */
  int h_samp, v_samp;                       /* sampling factors in the file */
  int mcu_across, mcu_down;                 /* blocks per MCU; 1 if it is the only component */
  int width_in_blocks, height_in_blocks;    /* without the blocks that only pad MCUs */
} jpeg_component;

typedef struct {
  int width, height, num_components, max_h_samp, max_v_samp;
  int mcus_across, mcus_down;
  jpeg_component components[MAX_COMPONENTS];
} jpeg_frame;

/* The MCUs in columns [left, right) and rows [top, bottom). */
typedef struct { int left, top, right, bottom; } mcu_window;

typedef struct decoder decoder;

enum answer { TAKEN = 0, NOT_TAKEN = 1, SHORT_OF_MEMORY = 2 };

/* Returns NULL if there is not enough memory. This processor must support `simd`. */
decoder *decoder_new(enum simd simd);
void decoder_free(decoder *);

/* Frees the buffer for a file's data if it has more than `above` bytes. */
void decoder_release(decoder *, size_t above);

/* Reads the segments before the scan, and returns the frame, or NULL if the file is rejected.
 * `data` must remain valid for the following calls. */
const jpeg_frame *decoder_open(decoder *, const uint8_t *data, size_t size);

/* Returns the number of samples along a decoded block of a component, 8 or 4. If sides are halved,
 * blocks of chroma that is stored at half size still have 8. */
int decoder_block_side(const jpeg_frame *, int component, int halved);

/* Returns TAKEN if the opened file is undamaged. Computes no samples. */
enum answer decoder_prove(decoder *);

/* Decodes a window of MCUs of the opened file to its place in the planes of the complete image.
 * A plane has `width_in_blocks` x `height_in_blocks` blocks, and its rows are `strides` apart.
 * Samples outside the window may be written, too. Data below the window is not checked for damage,
 * so only a window with the last row of MCUs verifies the complete file. */
enum answer decoder_read(decoder *, const mcu_window *, int halved,
                         uint8_t *const planes[MAX_COMPONENTS],
                         const ptrdiff_t strides[MAX_COMPONENTS]);

#endif
