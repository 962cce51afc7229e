/* The weights by which samples are resized along one axis. They are made of integers alone, so they
 * are the same on every processor. */
#ifndef IMAGENET_PREP_FILTERS_H
#define IMAGENET_PREP_FILTERS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* How input samples are weighed. The first two are stretched over what an output sample stands
 * for; NEAREST_TWO interpolates between neighbours whatever the scale, as readers that do not
 * filter do. SQUARE is no filter of this file: it is the crop of square.h. */
enum kernel { BICUBIC = 0, TRIANGLE = 1, NEAREST_TWO = 2, SQUARE = 3 };

/* Where the samples of an output lie in those of an input, along one axis: output i lies at
 * (origin + (2 i + 1) * step) / (2 * unit), counted in input samples from the edge of the first. */
typedef struct { int num_in, num_out; int64_t origin, step, unit; enum kernel kernel; } mapping;

typedef struct {
  mapping map;
  int taps;         /* input samples that make an output one */
  unsigned used;    /* when, for eviction */
  int *first;       /* input sample of the first weight, by output */
  int16_t *weights; /* `taps` of them by output */
} filter;

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); } /* b > 0 */

static const int64_t ONE = 1 << 24; /* fixed point of weights before they are rounded */

/* Returns 5 times the bicubic kernel with a = -0.6, of `x` >= 0. Of the values of a it has the
 * highest PSNR after JPEG (benchmarks/README.md); 5 makes its coefficients whole. */
static int64_t bicubic(int64_t x) {
  if (x < ONE) return (7 * x - 12 * ONE) * (x * x / ONE) / ONE + 5 * ONE;
  if (x < 2 * ONE) return -3 * (((x - 5 * ONE) * x / ONE + 8 * ONE) * x / ONE - 4 * ONE);
  return 0;
}

/* Returns a kernel's value at `x` >= 0, as a multiple that is the same for all x. */
static int64_t weight(enum kernel kernel, int64_t x) {
  if (kernel == BICUBIC) return bicubic(x);
  return x < ONE ? ONE - x : 0;
}

/* Half the width of a mapping's kernel times `unit`, in input samples; `*widest` is what 1 stands
 * for, times `unit`. Shrinking stretches the kernel over `step / unit` samples: nothing aliases. */
static int64_t reach_of(const mapping *m, int64_t *widest) {
  *widest = m->step > m->unit && m->kernel != NEAREST_TWO ? m->step : m->unit;
  return (m->kernel == BICUBIC ? 2 : 1) * *widest;
}

/* Makes the weights of one output sample from their running sum, so that they add up exactly,
 * however small each of them is. */
static void round_weights(int16_t *weights, const int64_t *exact, int taps) {
  enum { BITS = 60, DROPPED = BITS - WEIGHT_BITS };
  /* Lifted, so that nothing negative is shifted: running sums reach from -0.2 to 1.2 of the sum. */
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
    int64_t center = m->origin + (2 * (int64_t)i + 1) * m->step; /* times 2 unit, as all below */
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

static void forget_filter(filter *f) {
  free(f->first);
  free(f->weights);
  memset(f, 0, sizeof *f);
}

#endif
