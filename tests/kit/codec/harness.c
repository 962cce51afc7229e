/* Runs planes.c without Python, so that sanitizers and emulators can watch it:
 *
 *   harness fuzz LIBJPEG CORPUS COUNT SEED   damaged files; prints how many were DONE, DECLINED
 *                                            and NO_MEMORY
 *   harness shrink LIBJPEG CORPUS SIMD       writes what all files become; "-" for DECLINED
 *   harness resize SIMD                      the same of planes made here, and what pixels they
 *                                            become: needs no libjpeg
 *
 * CORPUS: a number of files; then, of each, the height and width of what it is to become, its
 * size, and its bytes. Numbers have 32 bits.
 */
#include "harness.h"

static void put(const void *data, size_t size) {
  if (fwrite(data, 1, size, stdout) != size) fail("cannot write");
}

static void damage(uint8_t *data, size_t *size) {
  for (uint32_t left = 1 + below(2); left; left--) {
    size_t at = below((uint32_t)*size), length = below(20);
    uint8_t value = (uint8_t)below(256);
    switch (below(6)) {
      case 0: data[at] = value; break;
      case 1: data[at % 700] ^= (uint8_t)(1 << below(8)); break; /* where headers are */
      case 2: data[at] = 0xFF; break;
      case 3: *size = 1 + at; break;
      case 4:
        if (at + length < *size) memset(data + at, value, length);
        break;
      case 5:
        if (at + length < *size) memmove(data + at, data + at + length, *size - at - length);
        break;
    }
    if (*size < 700) return;
  }
}

/* Returns the size that a file claims, at its first frame header. */
static window frame_of(const uint8_t *data, size_t size) {
  for (size_t i = 0; i + 8 < size; i++)
    if (data[i] == 0xFF && data[i + 1] >= 0xC0 && data[i + 1] <= 0xC2)
      return (window){0, 0, data[i + 5] << 8 | data[i + 6], data[i + 7] << 8 | data[i + 8]};
  return (window){0, 0, 1, 1};
}

/* Decodes a file to RGB, and encodes the pixels. */
static int run_rgb(workspace *w, const uint8_t *data, size_t size) {
  int found[3];
  int code = planes_header(w, data, size, found);
  if (code != DONE || (int64_t)found[0] * found[1] > 1 << 20) return code;
  int eighths = 1 + (int)below(8);
  int height = (found[0] * eighths + 7) / 8, width = (found[1] * eighths + 7) / 8;
  uint8_t *rgb = malloc((size_t)height * (size_t)width * 3);
  code = planes_pixels(w, data, size, eighths, height, width, (int)below(2), below(4) ? rgb : NULL);
  if (code == DONE) planes_encode(w, rgb, height, width, 1 + (int)below(100), 2, 1 + (int)below(2));
  free(rgb);
  return code;
}

static int run_damaged(workspace *w, const uint8_t *data, size_t size) {
  int height = 1 + (int)below(below(2) ? 200 : 20), width = 1 + (int)below(below(2) ? 200 : 20);
  window from = {(int)below(130) - 5, (int)below(170) - 5, (int)below(130), (int)below(170)};
  if (!below(8)) return planes_warnings(w, data, size, 1 << 20);
  if (!below(8)) return run_rgb(w, data, size);
  if (below(2)) return planes_shrink(w, data, size, height, width, 1 + (int)below(100), 1 << 20);
  static uint32_t tables[3 * 256];
  enum item item = (enum item)below(4);
  enum kernel kernel = (enum kernel)below(4);
  if (kernel == SQUARE) width = height, from = below(8) ? frame_of(data, size) : from;
  uint8_t *rgb = malloc((size_t)(3 * height * width * item_bytes(item))); /* exact: a write behind it is seen */
  output to = {rgb, (const uint8_t *)tables, {0, 0, 0}, {1, 1, 1}, (int)item, (int)below(2),
               (int)below(2)};
  int done = planes_decode(w, data, size, below(4) ? &from : NULL, height, width, (int)kernel,
                           1 << 20, &to);
  free(rgb);
  return done;
}

static void fuzz(const libjpeg *api, const corpus *files, long count) {
  workspace *all[AVX512 + 1] = {NULL}, *w;
  for (int simd = PLAIN; simd <= AVX512; simd++) all[simd] = planes_new(api, simd, 1);
  long counts[3] = {0};
  for (; count; count--) {
    const file *from = files->files + below(files->num);
    size_t size = from->size;
    uint8_t *damaged = malloc(size);
    memcpy(damaged, from->data, size);
    damage(damaged, &size);
    uint8_t *exact = malloc(size); /* so that a read behind its end is seen */
    memcpy(exact, damaged, size);
    free(damaged);
    while (!(w = all[below(AVX512 + 1)])) continue;
    counts[run_damaged(w, exact, size)]++;
    free(exact);
  }
  printf("%ld %ld %ld\n", counts[DONE], counts[DECLINED], counts[NO_MEMORY]);
  for (int simd = PLAIN; simd <= AVX512; simd++) planes_free(all[simd]);
}

static void shrink_files(workspace *w, const corpus *files) {
  for (const file *f = files->files; f < files->files + files->num; f++)
    if (planes_shrink(w, f->data, f->size, (int)f->height, (int)f->width, 90, 1 << 24) == DONE)
      put(planes_result(w), planes_result_bytes(w));
    else
      put("-", 1);
}

static void resize_planes(workspace *w) {
  static uint8_t samples[(300 + 64) * 400];
  for (size_t i = 0; i < sizeof samples; i++) samples[i] = (uint8_t)below(below(2) ? 256 : 2) * 255;
  if (setjmp(w->escape)) fail("no memory");
  for (int i = 0; i < 300; i++) {
    plane in = {samples, 364, 1 + (int)below(300), 1 + (int)below(398)};
    int height = 1 + (int)below(200), width = 1 + (int)below(200);
    span across = span_of(0, in.width, 1, 1, in.width, width, 1, BICUBIC);
    span down = span_of(0, in.height, 1, 1, in.height, height, 1, BICUBIC);
    plane out = new_plane(w, &w->shrunk[0], width, height);
    resize_plane(w, &in, &across.map, &down.map, &out, i % 2);
    for (int y = 0; y < height; y++) put(out.samples + y * out.stride, (size_t)width);
  }
}

static void square_planes(squarer *s) {
  static uint8_t samples[3][400 * 400], pixels[90 * 90 * 3];
  for (size_t i = 0; i < sizeof samples; i++) samples[0][i] = (uint8_t)below(below(2) ? 256 : 2) * 255;
  for (int i = 0; i < 200; i++) {
    int height = 1 + (int)below(below(4) ? 20 : 300), width = 1 + (int)below(below(4) ? 40 : 300);
    int side = 1 + (int)below(90), wide = 1 + (int)below(2), high = 1 + (int)below(2);
    route r;
    if (!find_route(s, width, height, side, &r)) fail("no memory");
    plane luma = {samples[0] + (40 + r.top) * 400 + 40 + r.left, 400, 0, 0};
    chroma chromas[2];
    for (int c = 0; c < 2; c++) {
      int left = r.left / wide, top = r.top / high;
      chromas[c] = (chroma){samples[1 + c] + (40 + top) * 400 + 40 + left, 400, wide, high,
                            (width + wide - 1) / wide - left, (height + high - 1) / high - top, !left,
                            !top};
    }
    output o = {pixels, NULL, {0, 0, 0}, {1, 1, 1}, BYTES, i % 2, i / 2 % 2};
    if (!square_of(s, &r, &luma, i % 8 ? chromas : NULL, &o)) fail("no memory");
    put(pixels, (size_t)(3 * side * side));
  }
}

static void fill_table(enum item item, const output *o, void *table) {
  for (int c = 0; c < 3; c++)
    for (int v = 0; v < 256; v++) {
      float f = ((float)v - o->mean[c]) * o->factor[c];
      uint32_t bits;
      memcpy(&bits, &f, sizeof bits);
      if (item == FLOAT32) ((uint32_t *)table)[256 * c + v] = bits;
      if (item == FLOAT16) ((_Float16 *)table)[256 * c + v] = (_Float16)f;
      if (item == BFLOAT16)
        ((uint16_t *)table)[256 * c + v] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

static void paint_planes(enum simd simd) {
  static uint8_t samples[3 * 40 * 256], pixels[40 * 250 * 3 * 4], room[6 * 300];
  static uint32_t table[3 * 256];
  for (size_t i = 0; i < sizeof samples; i++) samples[i] = (uint8_t)below(256);
  for (int i = 0; i < 200; i++) {
    plane p[3];
    int height = 1 + (int)below(40), width = 1 + (int)below(250), item = i % 4;
    for (int c = 0; c < 3; c++) p[c] = (plane){samples + c * 40 * 256, 256, width, height};
    output o = {pixels, (uint8_t *)table, {123.675f, 116.28f, 103.53f},
                {0.0171247538f, 0.0175070036f, 0.0174291935f}, item, i / 4 % 2, 0};
    fill_table((enum item)item, &o, table);
    write_pixels(simd, &o, p, room);
    put(pixels, (size_t)(height * width * 3 * item_bytes((enum item)item)));
  }
}

int main(int argc, char **argv) {
  if (argc == 6 && !strcmp(argv[1], "fuzz")) {
    libjpeg api = load(argv[2]);
    corpus files = read_corpus(argv[3]);
    state ^= strtoull(argv[5], NULL, 10) * 0x9E3779B97F4A7C15u;
    fuzz(&api, &files, atol(argv[4]));
    for (uint32_t i = 0; i < files.num; i++) free(files.files[i].data);
    free(files.files);
    return 0;
  }
  int whole = argc == 5 && !strcmp(argv[1], "shrink");
  if (!whole && !(argc == 3 && !strcmp(argv[1], "resize"))) return 2;
  libjpeg api = {0};
  if (whole) api = load(argv[2]);
  workspace *w = planes_new(&api, atoi(argv[argc - 1]), 1);
  if (!w) fail("this processor lacks that");
  if (whole) {
    corpus files = read_corpus(argv[3]);
    shrink_files(w, &files);
  } else {
    resize_planes(w);
    square_planes(&w->square);
    paint_planes(w->simd);
  }
  return fflush(stdout) ? 2 : 0;
}
