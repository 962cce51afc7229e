/* Holds decoder.c against libjpeg: a file that it takes must be one that libjpeg decodes without a
 * warning, to the same planes; whole, halved, and in windows.
 *
 *   decoder_harness equal LIBJPEG CORPUS WINDOWS  sound files, with all vector code, and so many
 *                                                 windows of each
 *   decoder_harness fuzz LIBJPEG CORPUS COUNT SEED   files of the corpus with damage, and files of
 *                                                 random coefficients, with and without
 *
 * Prints how many files there were, how many were taken, and how many planes were compared; it ends
 * with an error at the first difference, and `fuzz` leaves the file in the current folder.
 * CORPUS is as for harness.c.
 */
#include "harness.h"

#include "jpeg_damage.h"
#include "jpeg_writer.h"

static int64_t most_pixels = 64000000; /* as the codec has it */

typedef struct { const uint8_t *data; size_t size; } bytes;

static struct { long files, taken, sound_but_declined, planes; } counts;
static workspace *own[NEON + 1], *reference; /* by kind of vector code; without decoder.c */
static bytes present;

static _Noreturn void differ(const char *what) {
  FILE *f = fopen("differs.jpg", "wb");
  if (f) fwrite(present.data, 1, present.size, f), fclose(f);
  fprintf(stderr, "file %ld, in differs.jpg: %s\n", counts.files, what);
  abort();
}

static int is_decoded(workspace *w, bytes b, const request *r, planes_of_image *p) {
  begin(w);
  if (setjmp(w->escape)) {
    if (end(w) == NO_MEMORY) fail("no memory");
    return 0;
  }
  if (w->decoder) return decode_ourselves(w, b.data, b.size, r, 1, p);
  decode_by_libjpeg(w, b.data, b.size, r, p);
  end(w);
  return 1;
}

static void compare(const planes_of_image *a, const planes_of_image *b) {
  if (a->num_components != b->num_components) differ("other components");
  for (int i = 0; i < a->num_components; i++) {
    if (!same_mapping(&a->across[i].map, &b->across[i].map) || !same_mapping(&a->down[i].map, &b->down[i].map))
      differ("other sizes");
    const plane *p = &a->samples[i], *q = &b->samples[i];
    for (int y = 0; y < a->down[i].map.num_in; y++)
      if (memcmp(p->samples + (a->down[i].begin + y) * p->stride + a->across[i].begin,
                 q->samples + (b->down[i].begin + y) * q->stride + b->across[i].begin,
                 (size_t)a->across[i].map.num_in))
        differ("other samples");
    counts.planes++;
  }
}

/* Returns whether a file is taken so, and compares it with libjpeg's then. */
static int is_taken(workspace *w, bytes b, const request *r) {
  planes_of_image ours, theirs;
  if (!is_decoded(w, b, r, &ours)) return 0;
  if (!is_decoded(reference, b, r, &theirs)) differ("libjpeg declines it");
  compare(&ours, &theirs);
  return 1;
}

/* Checks a file with one kind of vector code. Returns whether it is taken. */
static int check(workspace *w, bytes b, int num_windows) {
  present = b;
  const jpeg_frame *f = decoder_open(w->decoder, b.data, b.size);
  if (!f || (int64_t)f->width * f->height > most_pixels) return 0;
  int width = f->width, height = f->height;
  request whole = {NULL, height, width, 2, BICUBIC, most_pixels}, half = whole;
  half.height = height < 4 ? 1 : height / 4, half.width = width < 4 ? 1 : width / 4;
  int is_proven = planes_prove(w, b.data, b.size) == DONE;
  int taken = is_taken(w, b, &whole), halved = is_taken(w, b, &half);
  if ((taken || halved) && !is_proven) differ("planes without a proof");
  planes_of_image theirs;
  int sound = taken || is_decoded(reference, b, &whole, &theirs);
  if (is_proven && !sound) differ("proven, but libjpeg declines it");
  counts.sound_but_declined += sound && !taken;
  for (int i = 0; i < num_windows; i++) {
    window part = {(int)below((uint32_t)height), (int)below((uint32_t)width), 0, 0};
    part.height = 1 + (int)below((uint32_t)(height - part.top));
    part.width = 1 + (int)below((uint32_t)(width - part.left));
    request r = {&part, part.height, part.width, 1, TRIANGLE, most_pixels};
    if (below(3) == 0) r.height = 1 + part.height / 5, r.width = 1 + part.width / 5;
    if (!is_taken(w, b, &r) && taken && eighths_of(&r, &part) > 2) differ("a window is declined");
  }
  return taken;
}

static void check_all(const corpus *files, int num_windows) {
  for (const file *f = files->files; f < files->files + files->num; f++, counts.files++) {
    int taken = 0;
    for (int simd = PLAIN; simd <= NEON; simd++)
      if (own[simd]) taken += 2 * check(own[simd], (bytes){f->data, f->size}, num_windows) - 1;
    int num = 0;
    for (int simd = PLAIN; simd <= NEON; simd++) num += own[simd] != 0;
    if (taken != num && taken != -num) differ("taken by some vector code only");
    counts.taken += taken > 0;
  }
}

static void fuzz(const corpus *files, long count) {
  static writer made;
  workspace *w;
  most_pixels = 1 << 22; /* that damage makes up would take all time */
  for (; counts.files < count; counts.files++) {
    const file *from = files->files + below(files->num);
    bytes source = {from->data, from->size};
    int is_made = below(2) == 0;
    if (is_made) {
      write_jpeg(&made, below(4) ? 40 : 200);
      source = (bytes){made.data, made.size};
    }
    size_t size = source.size, room = size + DAMAGE_ROOM;
    uint8_t *damaged = malloc(room);
    memcpy(damaged, source.data, size);
    if (!is_made || below(2)) damage_structure(damaged, &size, room);
    uint8_t *exact = malloc(size ? size : 1); /* so that a read behind its end is seen */
    memcpy(exact, damaged, size);
    free(damaged);
    while (!(w = own[below(NEON + 1)])) continue;
    int taken = check(w, (bytes){exact, size}, 1);
    if (w != own[PLAIN] && check(own[PLAIN], (bytes){exact, size}, 0) != taken)
      differ("taken by some vector code only");
    counts.taken += taken;
    free(exact);
  }
}

int main(int argc, char **argv) {
  int is_fuzz = argc == 6 && !strcmp(argv[1], "fuzz");
  if (!is_fuzz && !(argc == 5 && !strcmp(argv[1], "equal"))) return 2;
  libjpeg api = load(argv[2]);
  corpus files = read_corpus(argv[3]);
  for (int simd = PLAIN; simd <= NEON; simd++) own[simd] = planes_new(&api, simd, 1);
  reference = planes_new(&api, PLAIN, 0);
  if (is_fuzz) state ^= strtoull(argv[5], NULL, 10) * 0x9E3779B97F4A7C15u;
  if (is_fuzz) fuzz(&files, atol(argv[4]));
  else check_all(&files, atoi(argv[4]));
  printf("%ld %ld %ld %ld\n", counts.files, counts.taken, counts.sound_but_declined, counts.planes);
  for (int simd = PLAIN; simd <= NEON; simd++) planes_free(own[simd]);
  planes_free(reference);
  for (uint32_t i = 0; i < files.num; i++) free(files.files[i].data);
  free(files.files);
  return fflush(stdout) ? 2 : 0;
}
