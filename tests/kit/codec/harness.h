/* What the harnesses share: planes.c itself, the libjpeg that they are given, a corpus of files, and
 * random numbers that are the same everywhere. */
#include <dlfcn.h>

#include "../../../imagenet_prep/codec/planes.c"

static const char *const names[] = {
    "jpeg_std_error", "jpeg_CreateDecompress", "jpeg_CreateCompress", "jpeg_destroy",
    "jpeg_mem_src", "jpeg_read_header", "jpeg_start_decompress", "jpeg_crop_scanline",
    "jpeg_read_scanlines", "jpeg_read_raw_data", "jpeg_finish_decompress", "jpeg_set_defaults",
    "jpeg_set_quality", "jpeg_start_compress", "jpeg_write_scanlines", "jpeg_write_raw_data",
    "jpeg_finish_compress",
};

typedef struct { uint32_t height, width, size; uint8_t *data; } file;
typedef struct { uint32_t num; file *files; } corpus;

static uint64_t state = 88172645463325252u; /* of xorshift */

static _Noreturn void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(2);
}

static uint32_t below(uint32_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 11) % n;
}

static libjpeg load(const char *path) {
  void *library = dlopen(path, RTLD_NOW), *functions[sizeof names / sizeof *names];
  libjpeg api;
  if (!library) fail("no libjpeg");
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(functions[i] = dlsym(library, names[i]))) fail(names[i]);
  memcpy(&api, functions, sizeof api);
  return api;
}

static void get(FILE *stream, void *data, size_t size) {
  if (fread(data, 1, size, stream) != size) fail("short corpus");
}

__attribute__((unused)) static corpus read_corpus(const char *path) {
  FILE *stream = fopen(path, "rb");
  corpus c;
  if (!stream) fail("no corpus");
  get(stream, &c.num, sizeof c.num);
  c.files = calloc(c.num, sizeof *c.files);
  for (file *f = c.files; f < c.files + c.num; f++) {
    get(stream, f, 3 * sizeof f->size);
    get(stream, f->data = malloc(f->size), f->size);
  }
  fclose(stream);
  return c;
}
