/* Buffers that are reused for the next image. */
#ifndef IMAGENET_PREP_BUFFERS_H
#define IMAGENET_PREP_BUFFERS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SLACK = 64 }; /* bytes before and after a buffer that vector code may read or write */

typedef struct { uint8_t *start; size_t size; } buffer;

/* Returns memory for `size` bytes with SLACK on both sides, or NULL if there is not enough memory.
 * The old content is lost. */
static uint8_t *grown(buffer *b, size_t size) {
  size += 2 * SLACK;
  if (b->size < size) {
    free(b->start);
    size = (size + 4095) & ~(size_t)4095;
    b->start = malloc(size);
    b->size = b->start ? size : 0;
    if (!b->start) return NULL;
    memset(b->start, 0, size);
  }
  return b->start + SLACK;
}

static void release(buffer *b, size_t above) {
  if (b->size <= above) return;
  free(b->start);
  *b = (buffer){NULL, 0};
}

static ptrdiff_t round_up(ptrdiff_t n, ptrdiff_t to) { return (n + to - 1) / to * to; }

static int smaller(int a, int b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

#endif
