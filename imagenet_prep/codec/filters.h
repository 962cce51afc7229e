/* Computes the weights for resizing samples along one axis, only with integers, so that they are
 * the same on every processor. */
#ifndef IMAGENET_PREP_FILTERS_H
#define IMAGENET_PREP_FILTERS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* Resize filters. When downscaling, BICUBIC, TRIANGLE and KEYS are stretched over the input samples
 * that an output sample covers. NEAREST_TWO always interpolates between two neighbours, like
 * readers without antialiasing. SQUARE is not a filter here, but the crop of square.h. BICUBIC makes
 * the stored images, and KEYS the bicubic crops of readers. */
enum kernel { BICUBIC = 0, TRIANGLE = 1, NEAREST_TWO = 2, SQUARE = 3, KEYS = 4 };

/* The positions of output samples among input samples along one axis. The centre of output i is at
 * (origin + (2 i + 1) * step) / (2 * unit), in input samples from the edge of the first one. */
typedef struct { int num_in, num_out; int64_t origin, step, unit; enum kernel kernel; } mapping;

typedef struct {
  mapping map;
  int taps;         /* number of input samples per output sample */
  unsigned used;    /* time of the last use, for eviction */
  int *first;       /* for each output sample, the input sample with the first weight */
  int16_t *weights; /* `taps` weights for each output sample */
} filter;

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); } /* b > 0 */

static const int64_t ONE = 1 << 24; /* 1 in fixed point, for weights before rounding */

/* Returns 5 times the bicubic kernel with a = -0.6 at `x` >= 0. This value of a gives the highest
 * PSNR after JPEG (benchmarks/README.md). The factor 5 makes all coefficients integers. */
static int64_t bicubic(int64_t x) {
  if (x < ONE) return (7 * x - 12 * ONE) * (x * x / ONE) / ONE + 5 * ONE;
  if (x < 2 * ONE) return -3 * (((x - 5 * ONE) * x / ONE + 8 * ONE) * x / ONE - 4 * ONE);
  return 0;
}

/* Returns twice the bicubic kernel of Keys (1981) at `x` >= 0, with a = -0.5, as in Pillow. */
static int64_t keys(int64_t x) {
  if (x < ONE) return (3 * x - 5 * ONE) * (x * x / ONE) / ONE + 2 * ONE;
  if (x < 2 * ONE) return -(((x - 5 * ONE) * x / ONE + 8 * ONE) * x / ONE - 4 * ONE);
  return 0;
}

/* Returns a kernel's value at `x` >= 0, times a constant. */
static int64_t weight(enum kernel kernel, int64_t x) {
  if (kernel == BICUBIC) return bicubic(x);
  if (kernel == KEYS) return keys(x);
  return x < ONE ? ONE - x : 0;
}

/* Returns half the width of a mapping's kernel, in input samples times `unit`. Sets `*widest` to
 * the number of input samples for a distance of 1 in the kernel, times `unit`. When downscaling,
 * this is `step`, which avoids aliasing. */
static int64_t reach_of(const mapping *m, int64_t *widest) {
  *widest = m->step > m->unit && m->kernel != NEAREST_TWO ? m->step : m->unit;
  return (m->kernel == BICUBIC || m->kernel == KEYS ? 2 : 1) * *widest;
}

/* Rounds the weights of one output sample. It rounds their running sum, so that the weights add up
 * exactly, even if each is small. */
static void round_weights(int16_t *weights, const int64_t *exact, int taps) {
  enum { BITS = 60, DROPPED = BITS - WEIGHT_BITS };
  /* `lift` avoids shifts of negative numbers: running sums are between -0.2 and 1.2 of the sum. */
  const int64_t lift = (int64_t)1 << (BITS + 1), half = (int64_t)1 << (DROPPED - 1);
  int64_t sum = 0, running = 0, before = lift >> DROPPED;
  for (int k = 0; k < taps; k++) sum += exact[k];
  int64_t reciprocal = ((int64_t)1 << BITS) / sum;
  for (int k = 0; k < taps; k++) {
    running += exact[k];
    int64_t after = (running * reciprocal + lift + half) >> DROPPED;
    weights[k] = (int16_t)(after - before);
    before = after;
  }
}

static void fill_filter(filter *f, int64_t *exact) {
  const mapping *m = &f->map;
  int64_t widest, reach = reach_of(m, &widest);
  int64_t reciprocal = ((int64_t)1 << 56) / (2 * widest);
  for (int i = 0; i < m->num_out; i++) {
    int64_t center = m->origin + (2 * (int64_t)i + 1) * m->step; /* times 2 * unit, as below */
    int64_t first = floor_div(center - 2 * reach - m->unit, 2 * m->unit) + 1;
    if (first > m->num_in - f->taps) first = m->num_in - f->taps;
    if (first < 0) first = 0;
    for (int k = 0; k < f->taps; k++) {
      int64_t distance = (2 * (first + k) + 1) * m->unit - center;
      if (distance < 0) distance = -distance;
      exact[k] = distance < 2 * reach
                     ? weight(m->kernel, (distance * reciprocal + ((int64_t)1 << 31)) >> 32) : 0;
    }
    f->first[i] = (int)first;
    round_weights(f->weights + (size_t)i * f->taps, exact, f->taps);
  }
}

static int same_mapping(const mapping *a, const mapping *b) {
  return a->num_in == b->num_in && a->num_out == b->num_out && a->origin == b->origin &&
         a->step == b->step && a->unit == b->unit && a->kernel == b->kernel;
}

static size_t bytes_of_filter(const filter *f) {
  return (size_t)f->map.num_out * (sizeof *f->first + (size_t)f->taps * sizeof *f->weights);
}

static void forget_filter(filter *f) {
  free(f->first);
  free(f->weights);
  memset(f, 0, sizeof *f);
}

#endif
