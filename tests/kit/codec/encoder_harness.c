/* Holds encoder.c against libjpeg: the same file, byte for byte, of planes that are made here.
 *
 *   encoder_harness LIBJPEG COUNT SEED   random pictures, each at a random quality
 *
 * Prints how many files were equal; ends with an error at the first that is not.
 */
#include "harness.h"

#include <math.h>

enum { MOST_SIDE = 200, NUM_KINDS = 3 };

static int any_sample(int kind, int x, int y) {
  switch (kind) {
    case 0: return (int)below(256);
    case 1: return (int)below(2) * 255;
    case 2: return (x / 8 + y / 8) % 2 * 255; /* DCs as far apart as they can be */
    case 3: return (x + y) % 2 * 255;
    case 4: return (x * 3 + y) / 4 % 256;
    default: return below(20) ? 128 : (int)below(256);
  }
}

/* Fills a block with few frequencies, so that there are runs of all lengths between them. */
static void add_waves(uint8_t *samples, ptrdiff_t stride) {
  double sums[8][8] = {{0}};
  for (uint32_t left = 1 + below(6); left; left--) {
    uint32_t u = below(8), v = below(8), size = 1u << below(10);
    double amplitude = ((double)below(2 * size) - size) / 8;
    for (int y = 0; y < 8; y++)
      for (int x = 0; x < 8; x++)
        sums[y][x] += amplitude * cos((2 * x + 1) * u * M_PI / 16) * cos((2 * y + 1) * v * M_PI / 16);
  }
  for (int y = 0; y < 8; y++)
    for (int x = 0; x < 8; x++) {
      double value = 128 + sums[y][x];
      samples[y * stride + x] = value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
    }
}

/* Fills planes of whole MCUs, exactly as large as they must be, so that a read beyond is seen. */
static void make_planes(plane planes[3], int height, int width) {
  int kind = (int)below(12);
  for (int i = 0; i < 3; i++) {
    int side = i ? 8 : 16, wide = (width + 15) / 16 * side, high = (height + 15) / 16 * side;
    planes[i] = (plane){malloc((size_t)(wide * high)), wide, i ? (width + 1) / 2 : width, i ? (height + 1) / 2 : height};
    for (int y = 0; y < high; y += 8)
      for (int x = 0; x < wide; x += 8)
        if (kind > 5) add_waves(planes[i].samples + y * wide + x, wide);
    for (int y = 0; y < high && kind <= 5; y++)
      for (int x = 0; x < wide; x++) planes[i].samples[y * wide + x] = (uint8_t)any_sample(kind, x, y);
  }
}

/* Writes a file into pieces that are as large as a row may be, and compares it. */
static void compare(encoder *e, const plane planes[3], const uint8_t *expected, size_t size) {
  picture p = {.height = planes[0].height, .width = planes[0].width};
  for (int i = 0; i < 3; i++) p.planes[i] = planes[i].samples, p.strides[i] = planes[i].stride;
  size_t at = 0, room = encoder_row_room(&p);
  for (int row = 0; 16 * row < p.height; row++) {
    uint8_t *piece = malloc(room);
    size_t written = encoder_write_row(e, &p, row, piece);
    if (written > room || written > size - at || memcmp(piece, expected + at, written)) fail("other bytes");
    at += written;
    free(piece);
  }
  if (at != size) fail("a shorter file");
}

static void encode_as_libjpeg(workspace *w, const plane planes[3], int quality) {
  begin(w);
  if (setjmp(w->escape)) fail("libjpeg declines it");
  encode(w, planes, quality);
  end(w);
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  libjpeg api = load(argv[1]);
  long count = atol(argv[2]), equal = 0;
  state ^= strtoull(argv[3], NULL, 10) * 0x9E3779B97F4A7C15u;
  static const enum simd kinds[NUM_KINDS] = {PLAIN, AVX2, NEON};
  workspace *reference = planes_new(&api, PLAIN, 0);
  encoder *encoders[NUM_KINDS] = {NULL};
  for (int i = 0; i < NUM_KINDS; i++)
    if (is_supported(kinds[i])) encoders[i] = encoder_new(kinds[i]);
  for (; count; count--) {
    int height = 1 + (int)below(MOST_SIDE), width = 1 + (int)below(MOST_SIDE);
    int quality = 1 + (int)below(below(2) ? 100 : 10);
    if (below(2)) quality = 101 - quality;
    plane planes[3];
    make_planes(planes, height, width);
    encode_as_libjpeg(reference, planes, quality);
    for (int i = 0; i < NUM_KINDS; i++) {
      if (!encoders[i]) continue;
      encoder_learn(encoders[i], quality, reference->jpeg.start);
      if (!encoder_knows(encoders[i], quality)) fail("nothing was learnt");
      compare(encoders[i], planes, reference->jpeg.start, reference->jpeg_bytes);
      equal++;
    }
    for (int i = 0; i < 3; i++) free(planes[i].samples);
  }
  printf("%ld\n", equal);
  for (int i = 0; i < NUM_KINDS; i++) encoder_free(encoders[i]);
  planes_free(reference);
  return fflush(stdout) ? 2 : 0;
}
