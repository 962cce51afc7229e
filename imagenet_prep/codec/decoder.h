/* Decodes JPEG files of the most common kind to planes of Y, Cb and Cr: the samples that
 * libjpeg-turbo makes, in half of its time.
 *
 * A file is taken if it is sound from its first byte to its last, and is sequential, with 8 bits a
 * sample, Huffman codes, one scan, and grey or YCbCr. Every other file is declined, whatever the
 * reason: the caller gives it to libjpeg, which begins anew and has words for what is wrong.
 *
 * A decoder belongs to one thread at a time. It holds all memory that it uses, and keeps nothing of
 * one file for the next but tables, which are compared with those of the next file before use.
 */
#ifndef IMAGENET_PREP_DECODER_H
#define IMAGENET_PREP_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "simd.h"

enum { MAX_COMPONENTS = 3 };

/* One of Y, Cb, Cr. */
typedef struct {
  int id, quantisation, dc_table, ac_table; /* as the file numbers them */
  int h_samp, v_samp;                       /* sampling factors as the file has them */
  int mcu_across, mcu_down;                 /* blocks of an MCU; 1 where there are no others */
  int width_in_blocks, height_in_blocks;    /* without those that only fill up MCUs */
} jpeg_component;

typedef struct {
  int width, height, num_components, max_h_samp, max_v_samp;
  int mcus_across, mcus_down;
  jpeg_component components[MAX_COMPONENTS];
} jpeg_frame;

/* MCUs [left, right) x [top, bottom). */
typedef struct { int left, top, right, bottom; } mcu_window;

typedef struct decoder decoder;

enum answer { TAKEN = 0, NOT_TAKEN = 1, SHORT_OF_MEMORY = 2 };

/* Returns NULL where memory is short. This processor must support `simd`. */
decoder *decoder_new(enum simd simd);
void decoder_free(decoder *);

/* Frees what a large file needed, if that is more than `above` bytes. */
void decoder_release(decoder *, size_t above);

/* Reads a file up to its scan, and returns what it says of itself; NULL where the file is declined.
 * `data` must stay for what is called next. */
const jpeg_frame *decoder_open(decoder *, const uint8_t *data, size_t size);

/* Returns how many samples along a block of a component are made, 8 or 4. Where sides are halved,
 * chroma that is stored at half size keeps its 8. */
int decoder_block_side(const jpeg_frame *, int component, int halved);

/* Answers TAKEN if every bit of the opened file is sound. */
enum answer decoder_prove(decoder *);

/* Makes samples of the opened file's blocks that belong to a window of MCUs, each at its place in
 * the whole planes, whose rows are `strides` apart. They have room for `width_in_blocks` x
 * `height_in_blocks` blocks. What lies outside of the window may get samples, too. What lies below
 * it is not looked at: a window with the last row of MCUs asks for the soundness of the whole. */
enum answer decoder_read(decoder *, const mcu_window *, int halved,
                         uint8_t *const planes[MAX_COMPONENTS],
                         const ptrdiff_t strides[MAX_COMPONENTS]);

#endif
