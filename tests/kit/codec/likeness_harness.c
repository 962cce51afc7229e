/* Runs likeness.c and matching.c without Python, so that sanitizers can watch them:
 *
 *   likeness_harness COUNT SEED   pictures, hashes and pairs of random numbers, each by plain code and
 *                                 by the best of this processor; prints a digest of all results
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../imagenet_prep/codec/likeness.h"

enum { BASIS_BYTES = 4 * 20 * CELLS + 2 * FREQUENCIES, BUCKETS = 65536, BANDS = 4 };

/* As in matching.c. */
typedef struct { const uint64_t *keys; const uint32_t *ids; const int64_t *start; } sorted;
typedef struct { int64_t bucket, near, row; } place;
typedef struct {
  sorted left, right;
  int64_t same, band, radius, band_radius;
  uint64_t mirror;
  int64_t end;
  uint32_t *pairs;
  int64_t room;
} join;

void likeness_hashes(const void *two, int simd, const uint16_t *cells, likeness_hash *out);
int64_t matching_join(const join *, place *, int simd);
void matching_prove(const uint16_t *, const uint16_t *, int, int64_t, int side, int divisor, float *,
                    int simd);
int matching_best(void);

static uint64_t state, digest = 14695981039346656037u;
static int kinds[2];

static _Noreturn void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(2);
}

static uint32_t below(uint32_t n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (uint32_t)(state >> 11) % n;
}

static void *room(size_t size) {
  void *p = malloc(size ? size : 1);
  if (!p) fail("no memory");
  return p;
}

/* Both kinds of code must have made the same bytes. */
static void agree(const void *one, const void *other, size_t size, const char *what) {
  if (memcmp(one, other, size)) fail(what);
  for (size_t i = 0; i < size; i++) digest = (digest ^ ((const uint8_t *)one)[i]) * 1099511628211u;
}

/* likeness.c has no code of its own for AVX-512. */
static int of_likeness(int kind) { return kind == AVX512 ? AVX2 : kind; }

static void look(const void *bases) {
  int width = 1 + (int)below(200), height = 1 + (int)below(200), wide = (width + 7) / 8 * 8;
  ptrdiff_t stride = wide + (ptrdiff_t)below(3);
  /* No byte more than the header says. */
  size_t size = (size_t)(stride * (height - 1) + wide);
  uint8_t *samples = room(size);
  uint32_t *sums = room(sizeof *sums * (size_t)wide);
  uint8_t value = (uint8_t)below(256);
  for (size_t i = 0; i < size; i++) samples[i] = below(2) ? value : (uint8_t)below(256);
  uint16_t *means[2];
  likeness_hash hashes[2][2];
  for (int k = 0; k < 2; k++) {
    means[k] = room(sizeof(uint16_t) * CELLS * CELLS);
    likeness_means((enum simd)of_likeness(kinds[k]), samples, stride, width, height, sums, means[k]);
    likeness_hashes(bases, of_likeness(kinds[k]), means[k], hashes[k]);
  }
  agree(means[0], means[1], sizeof(uint16_t) * CELLS * CELLS, "other means");
  agree(hashes[0], hashes[1], sizeof hashes[0], "other hashes");
  free(samples), free(sums), free(means[0]), free(means[1]);
}

static int64_t of_band(uint64_t key, int band) { return key >> 16 * band & (BUCKETS - 1); }

static void pair_up(void) {
  enum { MOST = 60 };
  int num = (int)below(MOST);
  uint64_t *hashes = room(sizeof *hashes * (size_t)num), *keys = room(sizeof *keys * (size_t)num);
  uint32_t *ids = room(sizeof *ids * (size_t)num);
  int64_t *start = room(sizeof *start * (BUCKETS + 1));
  for (int i = 0; i < num; i++)
    hashes[i] = i && below(4) ? hashes[below((uint32_t)i)] ^ (1ull << below(64)) : state;
  int radius = (int)below(16);
  uint64_t mirror = below(2) ? 0x5A5A0F0F33335555u : 0;
  for (int band = 0; band < BANDS; band++) {
    for (int i = 0; i < num; i++) {
      int to = i;
      for (; to > 0 && of_band(keys[to - 1], band) > of_band(hashes[i], band); to--)
        keys[to] = keys[to - 1], ids[to] = ids[to - 1];
      keys[to] = hashes[i], ids[to] = (uint32_t)i;
    }
    for (int64_t bucket = 0, at = 0; bucket <= BUCKETS; bucket++) {
      while (at < num && of_band(keys[at], band) < bucket) at++;
      start[bucket] = at;
    }
    sorted side = {keys, ids, start};
    uint32_t *pairs[2];
    int64_t found[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
      pairs[k] = room(sizeof(uint32_t) * 2 * MOST * MOST);
      join j = {side, side, 1, band, radius, radius / 4, mirror, BUCKETS, room(8 * MOST), MOST};
      place on = {0, 0, 0};
      while (on.bucket < j.end) {
        int64_t more = matching_join(&j, &on, kinds[k]);
        memcpy(pairs[k] + 2 * found[k], j.pairs, sizeof(uint32_t) * 2 * (size_t)more);
        found[k] += more;
      }
      free(j.pairs);
    }
    if (found[0] != found[1]) fail("other number of pairs");
    agree(pairs[0], pairs[1], sizeof(uint32_t) * 2 * (size_t)found[0], "other pairs");
    free(pairs[0]), free(pairs[1]);
  }
  free(hashes), free(keys), free(ids), free(start);
}

static void compare(void) {
  int side = 16 << below(3), most = below(8) ? 4080 : 65535;
  size_t num = (size_t)side * (size_t)side;
  uint16_t *one = room(2 * num), *other = room(2 * num);
  int mirrored = (int)below(2);
  for (size_t i = 0; i < num; i++) {
    one[i] = below(4) && i ? one[i - 1] : (uint16_t)below((uint32_t)most + 1);
    other[i] = below(6) ? one[i] : (uint16_t)below((uint32_t)most + 1);
  }
  float found[2][8];
  for (int k = 0; k < 2; k++) matching_prove(one, other, mirrored, 1, side, 16, found[k], kinds[k]);
  agree(found[0], found[1], sizeof found[0], "other proof");
  free(one), free(other);
}

int main(int argc, char **argv) {
  if (argc != 3) fail("likeness_harness COUNT SEED");
  state = 88172645463325252u ^ strtoull(argv[2], NULL, 10);
  kinds[1] = matching_best();
  uint8_t *bases = calloc(2, BASIS_BYTES);
  /* Any cosines do: the sums stay small. */
  for (int b = 0; b < 2; b++) {
    int32_t *cosines = (int32_t *)(bases + b * BASIS_BYTES);
    for (int i = 0; i < 20 * CELLS; i++) cosines[i] = (int32_t)below(4097) - 2048;
    for (int i = 0; i < 2 * FREQUENCIES; i++)
      bases[b * BASIS_BYTES + 4 * 20 * CELLS + i] = (uint8_t)below(20);
  }
  for (long i = strtol(argv[1], NULL, 10); i > 0; i--) {
    if (i % 8 == 0) pair_up();
    look(bases);
    compare();
  }
  free(bases);
  printf("%016llx\n", (unsigned long long)digest);
  return 0;
}
