/* Resizes a JPEG to a smaller JPEG: decodes it to planes of Y, Cb and Cr, resizes and encodes them.
 *
 * decoder.c decodes common files, and libjpeg all others, to the same planes. libjpeg encodes the
 * first image of each quality. encoder.c encodes the next ones to the same bytes if it supports the
 * processor. Source and result usually store Cb and Cr at half size, so there is no conversion to
 * RGB, and chroma is never upsampled.
 *
 * The bytes are the same on every processor. All results, including the filters' weights, are
 * computed with integers, and the vector code for AVX2, SSE2 and NEON (kernels.h, pixels.h) has the
 * same results as plain C.
 *
 * This file has more than 400 lines, because it is one algorithm with one workspace.
 *
 * Memory: a workspace must be used by one thread at a time and owns all memory. There is no global
 * state. Errors: libjpeg's error exit is a longjmp, so functions keep memory only in the workspace.
 * If libjpeg reports damage, the image ends with the status DECLINED, and the caller decides how to
 * continue.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "decoder.h"
#include "encoder.h"
#include "filters.h"
#include "libjpeg.h"
#include "kernels.h"
#include "likeness.h"
#include "pixels.h"
#include "square.h"

#define EXPORT __attribute__((visibility("default")))

enum status { DONE = 0, DECLINED = 1, NO_MEMORY = 2, NOT_OURS = 3 };
enum jpeg { LIBJPEG = 0, OWN = 1, ONLY_OWN = 2 };

enum {
  MAX_SIDE = 65500,             /* libjpeg's limit */
  MAX_SCANS = 100,              /* as in dataset/jpeg.py, which checks this before */
  MAX_ROWS = 4 * 8,             /* rows of a component that libjpeg returns at once */
  STRIP = 64,                   /* number of rows that are resized before they are transposed */
  WAYS = 4,                     /* number of cached filters with the same hash, more than two */
  NUM_SETS = 256,
  NUM_FILTERS = WAYS * NUM_SETS,
  MOST_FILTER_BYTES = 8 << 20,  /* about 1,000 filters of crops of 224 pixels take half of this */
  KEPT_BYTES = 4 << 20,         /* larger buffers are freed before the next image */
  NUM_CODES = 256,              /* at least the number of libjpeg's messages */
  /* Our codes for WARNING_EXTRANEOUS in a scan, if the bytes are only fill; and if they are not, or
   * follow a table. The last is for a file whose scans do not have all bits of all coefficients. */
  FILL_IN_SCAN = 253,
  EXTRANEOUS_DATA = 254,
  SCANS_MISSING = 255,
  NOTE_BYTES = ERROR_TEXT_BYTES + 32,
  MOST_VIEWS = 64,              /* views of an image that are decoded together */
  LEFT = 2,                     /* decoding halves the sides only down to twice the target */
};

typedef struct { int top, left, height, width; } window; /* in pixels of the complete image */

typedef struct {
  libjpeg api;
  enum simd simd;
  decoder *decoder; /* NULL: libjpeg decodes everything */
  int only_own;     /* decline files that decoder.c does not accept */
  encoder *encoder; /* NULL: libjpeg encodes everything */
  enum status status;
  char message[ERROR_TEXT_BYTES];
  jmp_buf escape;
  struct error_manager errors;
  struct progress progress;
  struct destination destination;
  struct decompress in;
  struct compress out;
  filter filters[NUM_FILTERS];
  size_t filter_bytes;
  unsigned clock;
  buffer decoded[3], shrunk[3], strip, turned, jpeg;
  squarer square;
  size_t jpeg_bytes;
  uint8_t *noted; /* whether a warning was noted, by its code; NULL: a warning ends an image */
  int ignores_warnings;
  const uint8_t *file, *file_end; /* the file whose warnings are noted */
  unsigned seen_components; /* a bit for each component in the scans of this file */
} workspace;

/* ---- Errors and memory ---- */

static _Noreturn void give_up(workspace *w, enum status status, const char *message) {
  w->status = status;
  if (message) snprintf(w->message, sizeof w->message, "%s", message);
  longjmp(w->escape, 1);
}

static void on_error(jpeg_object *object) {
  workspace *w = object->owner;
  w->errors.format_message(object, w->message);
  give_up(w, w->errors.code == ERROR_OUT_OF_MEMORY ? NO_MEMORY : DECLINED, NULL);
}

/* Returns the first byte that libjpeg has not read or skipped. At the end of the file, libjpeg
 * reads an end marker from memory of its own. */
static const uint8_t *next_byte(const workspace *w) {
  uintptr_t next = (uintptr_t)w->in.source->next;
  int is_in_file = next >= (uintptr_t)w->file && next <= (uintptr_t)w->file_end;
  return is_in_file ? w->in.source->next : w->file_end;
}

/* Returns whether a segment ends at `end`. */
static int ends_segment(const workspace *w, const uint8_t *end) {
  enum { MOST_BYTES = 1 << 16, RST0 = 0xD0, EOI = 0xD9 };
  for (const uint8_t *p = end - 4; p >= w->file && end - p < MOST_BYTES; p--)
    if (p[0] == 0xFF && p[1] >= 0xC0 && !(p[1] >= RST0 && p[1] <= EOI) &&
        p + 2 + (p[2] << 8 | p[3]) == end)
      return 1;
  return 0;
}

/* Returns whether the bytes that libjpeg skips before a marker are only fill: zeros, 0xFF and
 * restart markers. Only the last MOST_FILL bytes are looked at, since libjpeg's count may include
 * bytes before earlier markers, and be late by a marker. damage.py checks what follows the last
 * scan completely. */
static int is_fill(const workspace *w) {
  enum { MOST_FILL = 2 };
  const uint8_t *p = next_byte(w);
  if (w->in.scans > 0 && ends_segment(w, p)) return 1;
  int num = smaller(w->errors.numbers[0], smaller(MOST_FILL, (int)(p - w->file)));
  for (int left = num; left > 0; left--) {
    uint8_t byte = *--p;
    if (byte >= 0xD0 && byte <= 0xD7 && left > 1 && p[-1] == 0xFF) continue;
    if (byte != 0 && byte != 0xFF) return 0;
  }
  return 1;
}

/* Returns whether the segment before the bytes that libjpeg skips is metadata (APP0 to APP15, COM),
 * whose length may be wrong. Behind a table, they are a sign of a byte that was inserted there. */
static int is_behind_metadata(const workspace *w) {
  enum { APP0 = 0xE0, APP15 = 0xEF, COM = 0xFE, MARKER_BYTES = 2 };
  const uint8_t *p = w->file + MARKER_BYTES, *end = next_byte(w);
  int last = APP0;
  while (end - p > 2 * MARKER_BYTES) {
    if (p[0] != 0xFF || p[1] < 0xC0 || p[1] == 0xFF) {
      p++; /* skips bytes between segments */
      continue;
    }
    last = p[1];
    p += MARKER_BYTES + (p[2] << 8 | p[3]);
  }
  return (last >= APP0 && last <= APP15) || last == COM;
}

static void write_note(workspace *w, int code, const char *text) {
  if (code < 0 || code >= NUM_CODES || w->noted[code]) return;
  w->noted[code] = 1;
  w->jpeg_bytes += (size_t)snprintf((char *)w->jpeg.start + w->jpeg_bytes, NOTE_BYTES, "%d %s\n",
                                    code, text);
}

/* Writes a line for a warning, at most once. */
static void note(workspace *w, jpeg_object *object) {
  int code = w->errors.code;
  if (code == WARNING_EXTRANEOUS) {
    int in_scan = w->in.scans > 0, fill = is_fill(w);
    if (fill && in_scan) code = FILL_IN_SCAN;
    if (!fill && (in_scan || !is_behind_metadata(w))) code = EXTRANEOUS_DATA;
  }
  w->errors.format_message(object, w->message);
  write_note(w, code, w->message);
}

static void on_message(jpeg_object *object, int level) {
  workspace *w = object->owner;
  if (level >= 0 || w->ignores_warnings) return;
  if (w->noted) note(w, object);
  else on_error(object);
}

static void on_output(jpeg_object *object) { (void)object; }

static void see_components(workspace *w) {
  for (int i = 0; i < w->in.num_in_scan; i++) w->seen_components |= 1u << w->in.in_scan[i]->index;
}

/* Returns whether the scans have all bits of all coefficients of all components. */
static int has_all_scans(const workspace *w) {
  const struct decompress *d = &w->in;
  for (int i = 0; i < d->num_components; i++) {
    if (!(w->seen_components >> i & 1)) return 0;
    for (int k = 0; d->missing_bits && k < 64; k++)
      if (d->missing_bits[i][k]) return 0;
  }
  return 1;
}

static void on_progress(jpeg_object *object) {
  workspace *w = object->owner;
  if (w->noted) see_components(w);
  if (w->in.scans > MAX_SCANS) give_up(w, DECLINED, "too many scans");
}

/* Returns memory for `size` bytes, with SLACK on both sides. The old content is lost. */
static uint8_t *room(workspace *w, buffer *b, size_t size) {
  uint8_t *start = grown(b, size);
  if (!start) give_up(w, NO_MEMORY, "out of memory");
  return start;
}

static void release_all(workspace *w, size_t above) {
  for (int i = 0; i < 3; i++) release(&w->decoded[i], above), release(&w->shrunk[i], above);
  release(&w->strip, above);
  release(&w->turned, above);
  release(&w->jpeg, above);
  release_square(&w->square, above);
  if (w->decoder) decoder_release(w->decoder, above);
}

/* ---- Cached filters ---- */

/* Forgets all filters but the last one that was used. */
static void forget_filters(workspace *w) {
  w->filter_bytes = 0;
  for (filter *f = w->filters; f < w->filters + NUM_FILTERS; f++) {
    if (f->used != w->clock) forget_filter(f);
    w->filter_bytes += bytes_of_filter(f);
  }
}

/* Returns the filter for a mapping, which is valid until the call after the next one. */
static const filter *filter_for(workspace *w, const mapping *m) {
  uint64_t hash = ((uint64_t)m->origin * 31 + (uint64_t)m->step) * 31 + (uint64_t)m->unit;
  hash *= UINT64_C(0x9E3779B97F4A7C15); /* Fibonacci hashing: the high bits depend on all bits */
  filter *first = &w->filters[(hash >> 32) % NUM_SETS * WAYS], *oldest = first;
  for (filter *f = first; f < first + WAYS; f++) {
    if (f->weights && same_mapping(&f->map, m)) {
      f->used = ++w->clock;
      return f;
    }
    if (f->used < oldest->used) oldest = f;
  }
  if (w->filter_bytes > MOST_FILTER_BYTES) forget_filters(w);
  w->filter_bytes -= bytes_of_filter(oldest);
  forget_filter(oldest);
  int64_t widest, taps = (2 * reach_of(m, &widest) + m->unit - 1) / m->unit;
  filter f = {*m, taps < m->num_in ? (int)taps : m->num_in, ++w->clock, NULL, NULL};
  int64_t *exact = malloc(sizeof *exact * (size_t)f.taps);
  f.first = malloc(sizeof *f.first * (size_t)m->num_out);
  f.weights = malloc(sizeof *f.weights * (size_t)m->num_out * (size_t)f.taps);
  if (exact && f.first && f.weights) fill_filter(&f, exact);
  int complete = exact && f.first && f.weights;
  free(exact);
  if (!complete) {
    forget_filter(&f);
    give_up(w, NO_MEMORY, "out of memory");
  }
  *oldest = f;
  w->filter_bytes += bytes_of_filter(oldest);
  return oldest;
}

/* ---- Resizing a plane ---- */

/* Transposes `rows` x `columns` samples, both rounded up to complete tiles. The inner loop fills
 * complete cache lines: 64 rows of the input are 64 bytes of the output. */
static void transpose_all(const workspace *w, uint8_t *out, ptrdiff_t out_stride, const uint8_t *in,
                          ptrdiff_t stride, int rows, int columns) {
  for (int x = 0; x < columns; x += TILE)
    for (int y = 0; y < rows; y += TILE)
      transpose(w->simd, out + x * out_stride + y, out_stride, in + y * stride + x, stride);
}

/* Computes `rows` rows of a filter's output, from row `top` on. With `mirrored`, the rows are
 * counted from the last one backwards. */
static void blend_strip(const workspace *w, uint8_t *strip, ptrdiff_t strip_stride,
                        const uint8_t *in, ptrdiff_t stride, const filter *f, int top, int rows,
                        int width, int mirrored) {
  blend_rows *blend = blend_of(w->simd);
  for (int y = 0; y < rows; y++) {
    int made = mirrored ? f->map.num_out - 1 - (top + y) : top + y;
    blend(strip + y * strip_stride, in + f->first[made] * stride, stride,
          f->weights + (size_t)made * (size_t)f->taps, f->taps, width);
  }
}

/* Returns whether an axis is not resized: each kernel is 0 at all other samples. */
static int is_equal(const mapping *m) {
  return m->num_in == m->num_out && m->step == m->unit && !m->origin;
}

/* Resizes the height, transposes, resizes the width, and transposes back. So both axes use the
 * same kernel. Intermediate samples have 8 bits and stay in the cache. `out` must have space for
 * complete tiles: width and height are rounded up to 16. An axis of equal size is not filtered. */
static void resize_plane(workspace *w, const plane *in, const mapping *across, const mapping *down,
                         const plane *out, int mirrored) {
  int equal_width = is_equal(across) && !mirrored, equal_height = is_equal(down);
  if (equal_width && equal_height) {
    for (int y = 0; y < out->height; y++)
      memcpy(out->samples + y * out->stride, in->samples + y * in->stride, (size_t)out->width);
    return;
  }
  /* The second filter does not evict the first, since WAYS is more than two. */
  const filter *fy = filter_for(w, down), *fx = filter_for(w, across);
  ptrdiff_t wide = round_up(in->width, VECTOR), high = round_up(out->height, VECTOR);
  if (equal_width) {
    blend_strip(w, out->samples, out->stride, in->samples, in->stride, fy, 0, out->height,
                in->width, 0);
    return;
  }
  uint8_t *turned = room(w, &w->turned, (size_t)(high * wide));
  uint8_t *strip = room(w, &w->strip, (size_t)((wide > high ? wide : high) * STRIP));
  for (int top = 0; top < out->height; top += STRIP) {
    int rows = smaller(STRIP, out->height - top);
    if (equal_height && rows == STRIP) { /* else tiles may leave the input */
      transpose_all(w, turned + top, high, in->samples + top * in->stride, in->stride, rows, in->width);
      continue;
    }
    blend_strip(w, strip, wide, in->samples, in->stride, fy, top, rows, in->width, 0);
    transpose_all(w, turned + top, high, strip, wide, rows, in->width);
  }
  for (int left = 0; left < out->width; left += STRIP) {
    int rows = smaller(STRIP, out->width - left);
    blend_strip(w, strip, high, turned, high, fx, left, rows, out->height, mirrored);
    transpose_all(w, out->samples + left, out->stride, strip, high, rows, out->height);
  }
}

static plane new_plane(workspace *w, buffer *b, int width, int height) {
  ptrdiff_t stride = round_up(width, TILE);
  return (plane){room(w, b, (size_t)(stride * round_up(height, TILE))), stride, width, height};
}

/* ---- Decoding ---- */

/* The samples [begin, end) of a component along one axis that a window of the image needs, and
 * their mapping to output samples. */
typedef struct { int begin, end; mapping map; } span;

/* Returns the span for the pixels [begin, begin + length). The component has samples_num /
 * samples_denom samples per pixel. The result has `target` pixels, and one output sample per `sub`
 * pixels. A chroma sample is in the centre of its pixels. */
static span span_of(int begin, int length, int samples_num, int samples_denom, int num_samples,
                    int target, int sub, enum kernel kernel) {
  int64_t num = samples_num, denom = samples_denom;
  span s;
  s.begin = (int)(begin * num / denom);
  int64_t end = ((begin + (int64_t)length) * num + denom - 1) / denom;
  s.end = end < num_samples ? (int)end : num_samples;
  s.map = (mapping){
      .num_in = s.end - s.begin,
      .num_out = (target + sub - 1) / sub,
      .origin = 2 * target * (begin * num - s.begin * denom),
      .step = (int64_t)length * sub * num,
      .unit = target * denom,
      .kernel = kernel,
  };
  return s;
}

/* The requested result: a window of an image, or the complete image, as height x width pixels, with
 * one chroma sample for `sub` x `sub` pixels. */
typedef struct {
  const window *from; /* NULL: the complete image, which must be undamaged to its end */
  int height, width, sub;
  enum kernel kernel;
  int64_t max_pixels; /* limit for the size in the header */
  int like_others; /* decline images that other readers decode differently */
  int near; /* additional pixels on each side of `from`, if the image has them */
} request;

/* The size and resolution of a component of an image. */
typedef struct {
  int h_samp, v_samp, max_h_samp, max_v_samp;
  int block_side; /* samples along a block after decoding */
  int width, height; /* in samples, without padding */
} sampling;

/* The decoded samples of each component, and the spans that a request needs. */
typedef struct {
  int num_components;
  plane samples[3];
  span across[3], down[3];
  sampling sampled[3];
} planes_of_image;

/* Returns the requested part of an image, or a window of height 0 if it exceeds the image. */
static window part_of(const request *r, int rows, int columns) {
  window part = r->from ? *r->from : (window){0, 0, rows, columns};
  if (part.top < 0 || part.left < 0 || part.height < 1 || part.width < 1 ||
      part.height > rows - part.top || part.width > columns - part.left)
    return (window){0, 0, 0, 0};
  int bottom = smaller(part.top + part.height + r->near, rows);
  int right = smaller(part.left + part.width + r->near, columns);
  part.top = larger(part.top - r->near, 0), part.left = larger(part.left - r->near, 0);
  part.height = bottom - part.top, part.width = right - part.left;
  return part;
}

/* Returns the number of samples along a block that decoding should compute: 8, 4, 2 or 1.
 * Decoding at half size is faster, but may not go below LEFT times the target. NEAREST_TWO
 * always needs 8, since halving is also a filter. */
static int eighths_of(const request *r, const window *part) {
  int eighths = 8;
  while (r->kernel != NEAREST_TWO && eighths > 1 &&
         (int64_t)part->height * (eighths / 2) >= (int64_t)8 * LEFT * r->height &&
         (int64_t)part->width * (eighths / 2) >= (int64_t)8 * LEFT * r->width)
    eighths /= 2;
  return eighths;
}

/* Returns whether libjpeg, and so every other reader, upsamples a component by repeating its
 * samples. libjpeg interpolates only for the factor 2, and not horizontally if the width is 2 or
 * less. */
static int is_repeated(const sampling *s) {
  int across = s->max_h_samp / s->h_samp, down = s->max_v_samp / s->v_samp;
  return across > 2 || down > 2 || (across == 2 && s->width <= 2);
}

static void set_spans(workspace *w, planes_of_image *p, int i, const request *r,
                      const window *part, const sampling *s) {
  int sub = i ? r->sub : 1;
  p->sampled[i] = *s;
  if (r->like_others && is_repeated(s)) give_up(w, DECLINED, "samples that libjpeg repeats");
  p->across[i] = span_of(part->left, part->width, s->h_samp * s->block_side, s->max_h_samp * 8,
                         s->width, r->width, sub, r->kernel);
  p->down[i] = span_of(part->top, part->height, s->v_samp * s->block_side, s->max_v_samp * 8,
                       s->height, r->height, sub, r->kernel);
}

static plane room_for_blocks(workspace *w, int i, int columns, int rows, int block_side) {
  ptrdiff_t stride = round_up((ptrdiff_t)columns * block_side, VECTOR) + VECTOR;
  size_t size = (size_t)stride * (size_t)rows * (size_t)block_side;
  return (plane){room(w, &w->decoded[i], size), stride, 0, 0};
}

/* ---- Decoding by decoder.c ---- */

/* Extends a window to include the spans of a component, given the size of its MCUs in samples. */
static void include_spans(mcu_window *window, const span *across, int mcu_width, const span *down,
                          int mcu_height) {
  window->left = smaller(window->left, across->begin / mcu_width);
  window->right = larger(window->right, (across->end - 1) / mcu_width + 1);
  window->top = smaller(window->top, down->begin / mcu_height);
  window->bottom = larger(window->bottom, (down->end - 1) / mcu_height + 1);
}

/* Decodes a file with decoder.c, once for `count` requests; writes the planes of each to `p`.
 * Returns whether decoder.c accepts the file, and all requests need the same scale. If not, libjpeg
 * decodes the file from the start, and reports the reason for an error. */
static int decode_ourselves(workspace *w, const uint8_t *data, size_t size, const request *r,
                            int count, planes_of_image *p) {
  const jpeg_frame *f = w->decoder ? decoder_open(w->decoder, data, size) : NULL;
  if (!f || (int64_t)f->width * f->height > r->max_pixels) return 0;
  window parts[MOST_VIEWS];
  int eighths = 0;
  for (int k = 0; k < count; k++) {
    parts[k] = part_of(&r[k], f->height, f->width);
    int needed = eighths_of(&r[k], &parts[k]);
    if (!parts[k].height || needed < 4 || (k && needed != eighths)) return 0;
    eighths = needed;
  }
  int halved = eighths == 4;
  mcu_window reached = {f->mcus_across, f->mcus_down, 0, 0};
  uint8_t *starts[3];
  ptrdiff_t strides[3];
  for (int i = 0; i < f->num_components; i++) {
    const jpeg_component *c = &f->components[i];
    int side = decoder_block_side(f, i, halved);
    sampling s = {c->h_samp, c->v_samp, f->max_h_samp, f->max_v_samp, side, 0, 0};
    s.width = (f->width * c->h_samp * side + f->max_h_samp * 8 - 1) / (f->max_h_samp * 8);
    s.height = (f->height * c->v_samp * side + f->max_v_samp * 8 - 1) / (f->max_v_samp * 8);
    plane samples = room_for_blocks(w, i, c->width_in_blocks, c->height_in_blocks, side);
    starts[i] = samples.samples;
    strides[i] = samples.stride;
    for (int k = 0; k < count; k++) {
      const span *across = &p[k].across[i], *down = &p[k].down[i];
      set_spans(w, &p[k], i, &r[k], &parts[k], &s);
      include_spans(&reached, across, side * c->mcu_across, down, side * c->mcu_down);
      p[k].samples[i] = samples;
    }
  }
  /* libjpeg decodes and checks complete rows of MCUs. In decoder.h, the MCUs of an only component
   * have one block; in libjpeg, they have v_samp rows of blocks. */
  int rows = f->num_components == 1 ? f->max_v_samp : 1;
  reached.bottom = smaller((int)round_up(reached.bottom, rows), f->mcus_down);
  for (int k = 0; k < count; k++) p[k].num_components = f->num_components;
  enum answer answer = decoder_read(w->decoder, &reached, halved, starts, strides);
  if (answer == SHORT_OF_MEMORY) give_up(w, NO_MEMORY, "out of memory");
  return answer == TAKEN;
}

/* ---- Decoding by libjpeg ---- */

static void read_header(workspace *w, const uint8_t *data, size_t size) {
  struct decompress *d = &w->in;
  if (w->only_own) give_up(w, NOT_OURS, "decoder.c does not accept this file");
  /* Create a new object for each image. Otherwise, an image without tables would be decoded with
   * the tables of the image before. */
  w->api.create_decompress(d, LIBJPEG_VERSION, sizeof *d);
  d->common.owner = w;
  d->common.progress = &w->progress;
  w->api.mem_src(d, data, size);
  w->api.read_header(d, 1);
}

static void begin_decoding(workspace *w, const uint8_t *data, size_t size) {
  struct decompress *d = &w->in;
  read_header(w, data, size);
  int grey = d->file_colors == COLORS_GREY && d->num_components == 1;
  if (!grey && !(d->file_colors == COLORS_YCBCR && d->num_components == 3))
    give_up(w, DECLINED, "neither grey nor YCbCr");
  if (d->bits != 8) give_up(w, DECLINED, "not 8 bits a sample");
}

/* Makes libjpeg compute samples only for the columns of MCUs that a window needs, and changes
 * `across` to count from the first of them. libjpeg's function for this is only for scanlines,
 * and refuses to be called when planes are read. But its settings have an effect in the code
 * that computes samples for both. So the state is changed during the call. */
static void crop_columns(workspace *w, span *across) {
  enum { STATE_SCANLINES = 205, STATE_PLANES = 206, LEAST = 8 };
  struct decompress *d = &w->in;
  unsigned side = (unsigned)d->min_block_side, first = d->output_width, last = 0;
  int samples_of[3]; /* width of a column of MCUs in samples */
  if (d->num_components > 1) side *= (unsigned)d->max_h_samp;
  for (int i = 0; i < d->num_components; i++) {
    const component *c = &d->components[i];
    samples_of[i] = c->block_side * (d->num_components > 1 ? c->h_samp : 1);
    unsigned begin = (unsigned)(across[i].begin / samples_of[i]);
    unsigned end = (unsigned)((across[i].end - 1) / samples_of[i]) + 1;
    if (begin < first) first = begin;
    if (end > last) last = end;
  }
  /* For fewer columns, libjpeg would reset its upsampler, which does not exist here. */
  while (first && last * side - first * side < LEAST + side) first--;
  unsigned left = first * side, width = last * side - left;
  if (width > d->output_width - left) width = d->output_width - left;
  if (width < LEAST || d->common.state != STATE_PLANES) return;
  d->common.state = STATE_SCANLINES;
  d->planes_out = 0;
  w->api.crop_scanline(d, &left, &width);
  d->common.state = STATE_PLANES;
  d->planes_out = 1;
  for (int i = 0; i < d->num_components; i++) {
    across[i].begin -= (int)first * samples_of[i];
    across[i].end -= (int)first * samples_of[i];
  }
}

/* Decodes the planes. Rows of blocks above the window are decompressed, as the format requires,
 * but no samples are computed for them. The part below the window is not read, unless `whole` is
 * set: to detect damage, a file must be read to its end. */
static void read_planes(workspace *w, planes_of_image *p, int whole) {
  struct decompress *d = &w->in;
  int rows_of[3], first = (int)d->num_mcu_rows, last = 0;
  for (int i = 0; i < d->num_components; i++) {
    const component *c = &d->components[i];
    rows_of[i] = c->v_samp * c->block_side;
    if (rows_of[i] < 1 || rows_of[i] > MAX_ROWS) give_up(w, DECLINED, "unknown sampling");
    p->samples[i] = room_for_blocks(w, i, (int)c->width_in_blocks,
                                    (int)d->num_mcu_rows * c->v_samp, c->block_side);
    first = smaller(first, p->down[i].begin / rows_of[i]);
    last = larger(last, (p->down[i].end - 1) / rows_of[i]);
  }
  uint8_t *row_starts[3][MAX_ROWS];
  sample_rows planes[3] = {row_starts[0], row_starts[1], row_starts[2]};
  int end = whole ? (int)d->num_mcu_rows : last + 1;
  for (int mcu_row = 0; mcu_row < end; mcu_row++) {
    for (int i = 0; i < d->num_components; i++) {
      const plane *to = &p->samples[i];
      d->components[i].needed = mcu_row >= first && mcu_row <= last;
      uint8_t *start = to->samples + (ptrdiff_t)mcu_row * rows_of[i] * to->stride;
      for (int y = 0; y < rows_of[i]; y++) row_starts[i][y] = start + y * to->stride;
    }
    if (!w->api.read_raw_data(d, planes, (unsigned)(d->max_v_samp * d->min_block_side)))
      give_up(w, DECLINED, "suspended");
  }
  if (whole) w->api.finish_decompress(d);
}

static void decode_by_libjpeg(workspace *w, const uint8_t *data, size_t size, const request *r,
                              planes_of_image *p) {
  struct decompress *d = &w->in;
  begin_decoding(w, data, size);
  int rows = (int)d->image_height, columns = (int)d->image_width;
  if ((int64_t)rows * columns > r->max_pixels) give_up(w, DECLINED, "too many pixels");
  window part = part_of(r, rows, columns);
  if (!part.height) give_up(w, DECLINED, "the window leaves the image");
  d->scale_num = (unsigned)eighths_of(r, &part);
  d->scale_denom = 8;
  d->output_colors = d->file_colors;
  d->dct = DCT_ACCURATE;
  d->planes_out = 1;
  d->smooth_upsampling = 0; /* it would need additional rows, and nothing is upsampled here */
  w->api.start_decompress(d);
  /* libjpeg decodes frames that cannot be scaled at full size. */
  if (d->min_block_side != (int)d->scale_num) give_up(w, DECLINED, "a frame that cannot be scaled");
  p->num_components = d->num_components;
  for (int i = 0; i < d->num_components; i++) {
    const component *c = &d->components[i];
    sampling s = {c->h_samp, c->v_samp, d->max_h_samp, d->max_v_samp, c->block_side,
                  (int)c->width, (int)c->height};
    set_spans(w, p, i, r, &part, &s);
  }
  if (r->from) crop_columns(w, p->across);
  read_planes(w, p, r->from == NULL);
}

static void decode(workspace *w, const uint8_t *data, size_t size, const request *r,
                   planes_of_image *p) {
  if (!decode_ourselves(w, data, size, r, 1, p)) decode_by_libjpeg(w, data, size, r, p);
}

/* Resizes the part of decoded planes that a request needs. Returns whether there is chroma. */
static int resize(workspace *w, const planes_of_image *p, int mirrored, plane *resized) {
  for (int i = 0; i < p->num_components; i++) {
    const mapping *across = &p->across[i].map, *down = &p->down[i].map;
    plane in = p->samples[i];
    in.samples += p->down[i].begin * in.stride + p->across[i].begin;
    in.width = across->num_in;
    in.height = down->num_in;
    resized[i] = new_plane(w, &w->shrunk[i], across->num_out, down->num_out);
    resize_plane(w, &in, across, down, &resized[i], mirrored);
  }
  return p->num_components == 3;
}

/* Returns a plane of chroma from the route's first pixel on. `part` is the window that was
 * decoded. */
static chroma chroma_of(workspace *w, const planes_of_image *p, int i, const window *part,
                        const route *r) {
  const sampling *s = &p->sampled[i], *first = &p->sampled[1];
  int wide = s->max_h_samp / s->h_samp, high = s->max_v_samp / s->v_samp;
  if (s->h_samp != first->h_samp || s->v_samp != first->v_samp || wide * s->h_samp != s->max_h_samp ||
      high * s->v_samp != s->max_v_samp)
    give_up(w, DECLINED, "unusual sampling");
  const plane *in = &p->samples[i];
  int left = r->left / wide, top = r->top / high;
  ptrdiff_t across = p->across[i].begin + left - part->left / wide;
  ptrdiff_t down = p->down[i].begin + top - part->top / high;
  return (chroma){in->samples + down * in->stride + across, in->stride, wide, high,
                  s->width - left, s->height - top, !left, !top};
}

/* Writes the result of a route. With `whole`, this must be the size of the image. */
static void write_route(workspace *w, const uint8_t *data, size_t size, const window *whole,
                        const route *r, int64_t max_pixels, const output *to) {
  enum { NEAR = 2 }; /* the interpolation of chroma needs pixels around those of the route */
  planes_of_image p;
  /* `top` is even, so that all planes begin with the same pixel. */
  int top = r->top & ~1;
  window needed = {top, r->left, r->bottom - top, r->right - r->left};
  request asked = {&needed, needed.height, needed.width, 1, NEAREST_TWO, max_pixels, 1, NEAR};
  decode(w, data, size, &asked, &p);
  const sampling *s = &p.sampled[0];
  if (s->h_samp != s->max_h_samp || s->v_samp != s->max_v_samp)
    give_up(w, DECLINED, "unusual sampling");
  if (whole && (s->width != whole->width || s->height != whole->height))
    give_up(w, DECLINED, "an image of another size");
  window part = part_of(&asked, s->height, s->width);
  plane luma = p.samples[0];
  luma.samples += (p.down[0].begin + r->top - part.top) * luma.stride;
  luma.samples += p.across[0].begin + r->left - part.left;
  chroma chromas[2];
  for (int i = 1; i < p.num_components; i++) chromas[i - 1] = chroma_of(w, &p, i, &part, r);
  if (!square_of(&w->square, r, &luma, p.num_components == 3 ? chromas : NULL, to))
    give_up(w, NO_MEMORY, "out of memory");
}

/* Returns whether a window has the size of the result, and so needs no resizing. */
static int is_unchanged(const window *from, int height, int width) {
  return from && from->height == height && from->width == width &&
         larger(height, width) <= MOST_SQUARE && from->top >= 0 && from->left >= 0 &&
         larger(from->top, from->left) <= MAX_SIDE;
}

/* Writes the square crop of an image; `whole` must be the complete image. */
static void write_square(workspace *w, const uint8_t *data, size_t size, const window *whole,
                         int side, int64_t max_pixels, const output *to) {
  route r;
  if (!whole || whole->top || whole->left || whole->width < 1 || whole->height < 1 ||
      whole->width > MAX_SIDE || whole->height > MAX_SIDE || side > MOST_SQUARE)
    give_up(w, DECLINED, "not a square of the complete image");
  if (!find_route(&w->square, whole->width, whole->height, side, &r))
    give_up(w, NO_MEMORY, "out of memory");
  write_route(w, data, size, whole, &r, max_pixels, to);
}

/* ---- Encoding ---- */

static void begin_output(struct compress *c) {
  workspace *w = c->common.owner;
  w->destination.next = w->jpeg.start;
  w->destination.room = w->jpeg.size;
}

/* Makes the buffer for the file at least twice as large, plus `more` bytes. */
static void grow_file(workspace *w, size_t more) {
  size_t size = 2 * w->jpeg.size + more;
  uint8_t *larger = realloc(w->jpeg.start, size);
  if (!larger) give_up(w, NO_MEMORY, "out of memory");
  w->jpeg = (buffer){larger, size};
}

static int grow_output(struct compress *c) {
  workspace *w = c->common.owner;
  size_t full = w->jpeg.size;
  grow_file(w, 0);
  w->destination.next = w->jpeg.start + full;
  w->destination.room = w->jpeg.size - full;
  return 1;
}

static void end_output(struct compress *c) {
  workspace *w = c->common.owner;
  w->jpeg_bytes = w->jpeg.size - w->destination.room;
}

/* Repeats the last column and row up to complete blocks, which the encoder reads. */
static void repeat_edges(const plane *p, int width, int height) {
  for (int y = 0; y < p->height; y++) {
    uint8_t *row = p->samples + y * p->stride;
    memset(row + p->width, row[p->width - 1], (size_t)(width - p->width));
  }
  for (int y = p->height; y < height; y++)
    memcpy(p->samples + y * p->stride, p->samples + (p->height - 1) * p->stride, (size_t)width);
}

static struct compress *begin_encoding(workspace *w, int height, int width, int colors,
                                       int quality) {
  struct compress *c = &w->out;
  room(w, &w->jpeg, (size_t)height * (size_t)width / 2);
  w->api.create_compress(c, LIBJPEG_VERSION, sizeof *c);
  c->common.owner = w;
  c->destination = &w->destination;
  c->image_width = (unsigned)width;
  c->image_height = (unsigned)height;
  c->input_components = 3;
  c->input_colors = colors;
  w->api.set_defaults(c);
  w->api.set_quality(c, quality, 1);
  return c;
}

static void encode_by_libjpeg(workspace *w, const plane *planes, int quality) {
  int height = planes[0].height, width = planes[0].width;
  struct compress *c = begin_encoding(w, height, width, COLORS_YCBCR, quality);
  c->dct = DCT_ACCURATE;
  c->planes_in = 1;
  w->api.start_compress(c, 1);
  uint8_t *row_starts[3][16];
  sample_rows rows[3] = {row_starts[0], row_starts[1], row_starts[2]};
  for (int top = 0; top < height; top += 16) {
    for (int i = 0; i < 3; i++)
      for (int y = 0; y < (i ? 8 : 16); y++)
        row_starts[i][y] = planes[i].samples + (top / (i ? 2 : 1) + y) * planes[i].stride;
    w->api.write_raw_data(c, rows, 16);
  }
  w->api.finish_compress(c);
}

static void encode_ourselves(workspace *w, const plane *planes) {
  picture p = {.height = planes[0].height, .width = planes[0].width};
  for (int i = 0; i < 3; i++) p.planes[i] = planes[i].samples, p.strides[i] = planes[i].stride;
  size_t most = encoder_row_room(&p);
  for (int row = 0; 16 * row < p.height; row++) {
    if (w->jpeg.size - w->jpeg_bytes < most) grow_file(w, most);
    w->jpeg_bytes += encoder_write_row(w->encoder, &p, row, w->jpeg.start + w->jpeg_bytes);
  }
}

/* Encodes planes as 4:2:0 into w->jpeg. */
static void encode(workspace *w, const plane *planes, int quality) {
  int height = planes[0].height, width = planes[0].width;
  for (int i = 0; i < 3; i++)
    repeat_edges(&planes[i], (int)round_up(width, 16) / (i ? 2 : 1),
                 (int)round_up(height, 16) / (i ? 2 : 1));
  if (w->encoder && encoder_knows(w->encoder, quality)) {
    room(w, &w->jpeg, (size_t)height * (size_t)width / 2);
    encode_ourselves(w, planes);
    return;
  }
  encode_by_libjpeg(w, planes, quality);
  if (w->encoder) encoder_learn(w->encoder, quality, w->jpeg.start);
}

static plane no_chroma(workspace *w, int i, int height, int width) {
  plane p = new_plane(w, &w->shrunk[i], width, height);
  for (int y = 0; y < height; y++) memset(p.samples + y * p.stride, 128, (size_t)width);
  return p;
}

/* ---- Interface ---- */

EXPORT void planes_free(workspace *w) {
  if (!w) return;
  for (int i = 0; i < NUM_FILTERS; i++) forget_filter(&w->filters[i]);
  forget_taps(&w->square);
  release_all(w, 0);
  decoder_free(w->decoder);
  encoder_free(w->encoder);
  free(w);
}

/* Returns the best vector instruction set of this processor, except AVX-512, which only square.h
 * uses. */
EXPORT int planes_best(void) {
  static const enum simd best[] = {AVX2, NEON, SSE2, PLAIN};
  int i = 0;
  while (!is_supported(best[i])) i++;
  return (int)best[i];
}

/* Returns a workspace, or NULL if there is not enough memory or the processor does not support
 * `simd` (-1: its best). `functions` are pointers to libjpeg's functions, in the order of
 * `libjpeg`. `jpeg` is LIBJPEG (it decodes and encodes all files), OWN (decoder.c, and libjpeg for
 * the files that decoder.c does not accept) or ONLY_OWN (these files have the status NOT_OURS).
 * With OWN, libjpeg also encodes for SSE2, since its vector code is faster than plain C. */
EXPORT workspace *planes_new(const libjpeg *functions, int simd, int jpeg) {
  if (simd < 0) simd = is_supported(AVX512) ? AVX512 : planes_best();
  if (simd > AVX512 || !is_supported((enum simd)simd)) return NULL;
  workspace *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  w->api = *functions;
  w->square.weigh = weigh_of((enum simd)simd);
  if (simd == AVX512) simd = AVX2;
  w->simd = w->square.simd = (enum simd)simd;
  w->only_own = jpeg == ONLY_OWN;
  int own = jpeg != LIBJPEG;
  int encodes = own && simd != SSE2;
  if (own) w->decoder = decoder_new(w->simd);
  if (encodes) w->encoder = encoder_new(w->simd);
  if ((own && !w->decoder) || (encodes && !w->encoder)) {
    planes_free(w);
    return NULL;
  }
  w->progress.monitor = on_progress;
  w->destination = (struct destination){NULL, 0, begin_output, grow_output, end_output};
  return w;
}

static void begin(workspace *w) {
  /* With these fields, libjpeg's objects can be destroyed even if they were never created. */
  memset(&w->in, 0, sizeof w->in);
  memset(&w->out, 0, sizeof w->out);
  w->in.common.errors = w->out.common.errors = w->api.std_error(&w->errors);
  w->in.common.owner = w->out.common.owner = w;
  w->errors.error_exit = on_error;
  w->errors.emit_message = on_message;
  w->errors.output_message = on_output;
  w->status = DONE;
  w->ignores_warnings = 0;
  w->message[0] = 0;
  w->jpeg_bytes = 0;
}

static int end(workspace *w) {
  w->api.destroy(&w->in);
  w->api.destroy(&w->out);
  w->noted = NULL;
  return (int)w->status;
}

/* Resizes a JPEG to height x width pixels, each 1 ... 65500, with a JPEG quality of 1 ... 100.
 * Returns DONE, and the file is at planes_result; or DECLINED or NO_MEMORY, and the reason is at
 * planes_message. */
EXPORT int planes_shrink(workspace *w, const uint8_t *data, size_t size, int height, int width,
                         int quality, int64_t max_pixels) {
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE)
    give_up(w, DECLINED, "no size of a JPEG");
  plane planes[3];
  request r = {NULL, height, width, 2, BICUBIC, max_pixels, 0, 0};
  planes_of_image p;
  decode(w, data, size, &r, &p);
  if (!resize(w, &p, 0, planes))
    for (int i = 1; i < 3; i++) planes[i] = no_chroma(w, i, (height + 1) / 2, (width + 1) / 2);
  encode(w, planes, quality);
  return end(w);
}

/* Writes the result of a request as RGB pixels, given the decoded planes. */
static void write_view(workspace *w, const request *r, const planes_of_image *p, const output *to) {
  plane planes[3];
  if (!resize(w, p, to->mirrored, planes))
    for (int i = 1; i < 3; i++) planes[i] = no_chroma(w, i, r->height, r->width);
  write_pixels(w->simd, to, planes, room(w, &w->strip, room_of_row(r->width)));
}

/* Writes a window (top, left, height, width) of a JPEG as height x width RGB pixels. With
 * SQUARE, the window must be the complete image, and the result is the crop of square.h. A window of
 * the size of the result has the pixels that libjpeg decodes, except with BICUBIC. Damage
 * outside the window is usually not noticed, since the rest is decoded only as far as necessary.
 * Returns the same as planes_shrink. */
EXPORT int planes_decode(workspace *w, const uint8_t *data, size_t size, const window *from,
                         int height, int width, int kernel, int64_t max_pixels,
                         const output *to) {
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE)
    give_up(w, DECLINED, "no size of a JPEG");
  if (kernel == SQUARE) {
    if (height != width) give_up(w, DECLINED, "not a square");
    write_square(w, data, size, from, height, max_pixels, to);
    return end(w);
  }
  /* `prepare` stores images that are resized with BICUBIC, so their bytes must not change. */
  if (kernel != BICUBIC && is_unchanged(from, height, width)) {
    route unchanged = route_of_window(from->top, from->left, height, width);
    write_route(w, data, size, NULL, &unchanged, max_pixels, to);
    return end(w);
  }
  request r = {from, height, width, 1, (enum kernel)kernel, max_pixels, kernel != BICUBIC, 0};
  planes_of_image p;
  decode(w, data, size, &r, &p);
  write_view(w, &r, &p, to);
  return end(w);
}

/* One view of an image for planes_decode_many, which sets `status` to the result of planes_decode.
 * The views of an image are next to each other. */
typedef struct {
  const uint8_t *data;
  size_t size;
  uint8_t *to;
  window from;
  int height, width, kernel;
  int mirrored, status;
} job;

enum { WAITING = -1 }; /* the status of a job that has not run */

static output output_of(const job *j, const output *how) {
  output to = *how;
  to.to = j->to;
  to.mirrored = j->mirrored;
  return to;
}

/* Decodes an image once for several views. All of them must need the same scale, and must not be
 * `is_alone`. */
static int decode_together(workspace *w, job *const *jobs, int count, int64_t max_pixels,
                           const output *how) {
  request requests[MOST_VIEWS];
  planes_of_image planes[MOST_VIEWS];
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  for (int k = 0; k < count; k++) {
    const job *j = jobs[k];
    requests[k] = (request){&j->from, j->height, j->width, 1, (enum kernel)j->kernel, max_pixels,
                            1, 0};
  }
  if (!decode_ourselves(w, jobs[0]->data, jobs[0]->size, requests, count, planes))
    give_up(w, DECLINED, "not decoded together");
  for (int k = 0; k < count; k++) {
    output to = output_of(jobs[k], how);
    write_view(w, &requests[k], &planes[k], &to);
  }
  return end(w);
}

/* Returns whether a job's result is not resized from planes that other jobs can share. */
static int is_alone(const job *j) {
  return j->kernel == BICUBIC || j->kernel == SQUARE || j->height < 1 || j->width < 1 ||
         j->height > MAX_SIDE || j->width > MAX_SIDE || is_unchanged(&j->from, j->height, j->width);
}

/* Decodes an image once for all jobs that need a scale. */
static void decode_views(workspace *w, job *jobs, int count, int eighths, int64_t max_pixels,
                         const output *how) {
  job *group[MOST_VIEWS];
  int members = 0;
  for (job *j = jobs; j < jobs + count; j++) {
    if (is_alone(j)) continue;
    request r = {&j->from, j->height, j->width, 1, (enum kernel)j->kernel, max_pixels, 1, 0};
    if (eighths_of(&r, &j->from) == eighths) group[members++] = j;
  }
  if (members < 2 || decode_together(w, group, members, max_pixels, how) != DONE) return;
  for (int k = 0; k < members; k++) group[k]->status = DONE;
}

/* Calls planes_decode for `count` jobs, but decodes an image only once for all of its views that
 * need the same scale. The results are the same. A caller that must take a lock after each call,
 * like Python's interpreter, takes it only once for all jobs. */
EXPORT void planes_decode_many(workspace *w, job *jobs, int64_t count, int64_t max_pixels,
                               const output *how) {
  for (int64_t first = 0, num; first < count; first += num) {
    job *views = jobs + first;
    num = 1;
    while (first + num < count && num < MOST_VIEWS && views[num].data == views->data) num++;
    for (int k = 0; k < num; k++) views[k].status = WAITING;
    /* decoder.c has these two scales. */
    for (int eighths = 8; num > 1 && eighths >= 4; eighths /= 2)
      decode_views(w, views, (int)num, eighths, max_pixels, how);
    for (job *j = views; j < views + num; j++) {
      if (j->status != WAITING) continue;
      output to = output_of(j, how);
      j->status = planes_decode(w, j->data, j->size, &j->from, j->height, j->width, j->kernel,
                                max_pixels, &to);
    }
  }
}

/* Writes the means of a JPEG's luma in the cells of likeness.h. Returns the same as
 * planes_shrink. */
EXPORT int planes_means(workspace *w, const uint8_t *data, size_t size, int64_t max_pixels,
                        uint16_t *means) {
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  planes_of_image p;
  request r = {NULL, 1, 1, 1, NEAREST_TWO, max_pixels, 0, 0}; /* decodes at full size */
  decode(w, data, size, &r, &p);
  int width = p.across[0].end, height = p.down[0].end;
  uint32_t *sums = (uint32_t *)room(w, &w->strip, sizeof *sums * (size_t)round_up(width, VECTOR));
  likeness_means(w->simd, p.samples[0].samples, p.samples[0].stride, width, height, sums, means);
  return end(w);
}

/* Returns DONE if a JPEG is undamaged from its first byte to its last, without computing samples.
 * DECLINED means unknown: the JPEG may be undamaged. */
EXPORT int planes_prove(workspace *w, const uint8_t *data, size_t size) {
  if (!w->decoder || !decoder_open(w->decoder, data, size)) return DECLINED;
  enum answer answer = decoder_prove(w->decoder);
  decoder_release(w->decoder, KEPT_BYTES);
  return answer == TAKEN ? DONE : answer == SHORT_OF_MEMORY ? NO_MEMORY : DECLINED;
}

typedef struct { int h, v; } factors;

static int are_equal(factors a, factors b) { return a.h == b.h && a.v == b.v; }

/* Whether TurboJPEG has a name for the sampling factors of `num` components, such as 4:2:0. Other
 * programs may not read files with other factors. A fourth component, black, is sampled as the
 * first. */
static int is_named_sampling(const factors *f, int num) {
  enum { MOST_BLOCKS = 3 }; /* per component in an MCU, if three components have equal factors */
  if (num == 1) return 1;
  if (!are_equal(f[2], f[1]) || (num == 4 && !are_equal(f[3], f[0]))) return 0;
  int is_wide = f[0].v == 1 && (f[0].h == 1 || f[0].h == 2 || f[0].h == 4);
  if (are_equal(f[1], (factors){1, 1}) && (is_wide || (f[0].v == 2 && f[0].h <= 2))) return 1;
  /* 4:2:2, 4:4:0 and 4:4:4 with other factors. */
  if (are_equal(f[0], (factors){2, 2}) && f[1].h * f[1].v == 2) return 1;
  return are_equal(f[1], f[0]) && f[0].h * f[0].v <= MOST_BLOCKS;
}

/* Reads the headers of a JPEG, and writes its height, width and colors. Warnings of libjpeg are
 * ignored. DECLINED means that the headers are damaged, or that the colors or the sampling factors
 * have no name. */
EXPORT int planes_header(workspace *w, const uint8_t *data, size_t size, int *found) {
  factors all[4];
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  const jpeg_frame *f = w->decoder ? decoder_open(w->decoder, data, size) : NULL;
  if (f) {
    for (int i = 0; i < f->num_components; i++)
      all[i] = (factors){f->components[i].h_samp, f->components[i].v_samp};
    if (!is_named_sampling(all, f->num_components)) give_up(w, DECLINED, "unknown sampling");
    found[0] = f->height, found[1] = f->width;
    found[2] = f->num_components == 1 ? COLORS_GREY : COLORS_YCBCR;
    return end(w);
  }
  struct decompress *d = &w->in;
  w->ignores_warnings = 1;
  read_header(w, data, size);
  if (d->file_colors < COLORS_GREY || d->file_colors > COLORS_YCCK)
    give_up(w, DECLINED, "unknown colors");
  for (int i = 0; i < d->num_components; i++)
    all[i] = (factors){d->components[i].h_samp, d->components[i].v_samp};
  if (!is_named_sampling(all, d->num_components)) give_up(w, DECLINED, "unknown sampling");
  found[0] = (int)d->image_height, found[1] = (int)d->image_width, found[2] = d->file_colors;
  return end(w);
}

/* Converts pixels from CMYK, which is inverted in files, to RGB. */
static void write_rgb_of_cmyk(uint8_t *rgb, const uint8_t *cmyk, size_t num_pixels) {
  for (size_t i = 0; i < num_pixels; i++)
    for (int k = 0; k < 3; k++) {
      int black = cmyk[4 * i + 3];
      rgb[3 * i + k] = (uint8_t)(black - ((255 - cmyk[4 * i + k]) * black >> 8));
    }
}

/* Decodes a JPEG of any kind at `eighths` / 8 of its size, and writes height x width RGB pixels.
 * Another size has the status DECLINED. If `rgb` is NULL, the JPEG is only read to its end. With
 * `ignores_damage`, warnings behind the headers are ignored. The pixels are those of TurboJPEG. */
EXPORT int planes_pixels(workspace *w, const uint8_t *data, size_t size, int eighths, int height,
                         int width, int ignores_damage, uint8_t *rgb) {
  enum { ROWS = 4 };
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  struct decompress *d = &w->in;
  read_header(w, data, size);
  w->ignores_warnings = ignores_damage;
  int has_black = d->file_colors == COLORS_CMYK || d->file_colors == COLORS_YCCK;
  int colors = rgb ? COLORS_EXTENDED_RGB : COLORS_GREY;
  d->output_colors = has_black ? COLORS_CMYK : colors;
  d->scale_num = (unsigned)eighths;
  d->scale_denom = 8;
  d->dct = DCT_ACCURATE;
  w->api.start_decompress(d);
  if ((int)d->output_height != height || (int)d->output_width != width)
    give_up(w, DECLINED, "an image of another size");
  size_t row_bytes = (size_t)width * (size_t)d->output_components;
  uint8_t *strip = room(w, &w->strip, ROWS * row_bytes);
  while (d->output_row < d->output_height) {
    uint8_t *to = rgb ? rgb + 3 * (size_t)width * d->output_row : NULL;
    uint8_t *first = rgb && !has_black ? to : strip;
    uint8_t *rows[ROWS];
    for (int y = 0; y < ROWS; y++) rows[y] = first + (size_t)y * row_bytes;
    unsigned left = d->output_height - d->output_row;
    unsigned num = w->api.read_scanlines(d, rows, left < ROWS ? left : ROWS);
    if (!num) give_up(w, DECLINED, "suspended");
    if (rgb && has_black) write_rgb_of_cmyk(to, strip, num * (size_t)width);
  }
  w->api.finish_decompress(d);
  return end(w);
}

/* Encodes height x width RGB pixels as TurboJPEG does by default. One chroma sample is stored for
 * h_samp x v_samp pixels. The file is at planes_result. */
EXPORT int planes_encode(workspace *w, const uint8_t *rgb, int height, int width, int quality,
                         int h_samp, int v_samp) {
  enum { LEAST_ACCURATE = 96, ROWS = 16 };
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  struct compress *c = begin_encoding(w, height, width, COLORS_EXTENDED_RGB, quality);
  c->dct = quality >= LEAST_ACCURATE ? DCT_ACCURATE : DCT_FAST;
  c->components[0].h_samp = h_samp;
  c->components[0].v_samp = v_samp;
  w->api.start_compress(c, 1);
  for (int top = 0; top < height; top += ROWS) {
    uint8_t *rows[ROWS];
    int num = smaller(ROWS, height - top);
    for (int y = 0; y < num; y++) rows[y] = (uint8_t *)rgb + (size_t)(top + y) * (size_t)width * 3;
    w->api.write_scanlines(c, rows, (unsigned)num);
  }
  w->api.finish_compress(c);
  return end(w);
}

/* Decodes a JPEG of any kind at full size, and writes libjpeg's warnings to planes_result. A
 * line has the code and the text. Returns DECLINED if the JPEG cannot be decoded. */
EXPORT int planes_warnings(workspace *w, const uint8_t *data, size_t size, int64_t max_pixels) {
  uint8_t noted[NUM_CODES] = {0};
  release_all(w, KEPT_BYTES);
  begin(w);
  if (setjmp(w->escape)) return end(w);
  struct decompress *d = &w->in;
  room(w, &w->jpeg, sizeof noted * NOTE_BYTES);
  w->noted = noted;
  w->file = data;
  w->file_end = data + size;
  w->seen_components = 0;
  read_header(w, data, size);
  if ((int64_t)d->image_height * d->image_width > max_pixels) give_up(w, DECLINED, "too many pixels");
  d->output_colors = d->file_colors;
  w->api.start_decompress(d);
  uint8_t *row = room(w, &w->strip, (size_t)d->output_width * (size_t)d->output_components);
  while (d->output_row < d->output_height)
    if (!w->api.read_scanlines(d, &row, 1)) give_up(w, DECLINED, "suspended");
  see_components(w);
  if (!has_all_scans(w)) write_note(w, SCANS_MISSING, "scans are missing");
  w->api.finish_decompress(d);
  return end(w);
}

EXPORT const uint8_t *planes_result(const workspace *w) { return w->jpeg.start; }

EXPORT size_t planes_result_bytes(const workspace *w) { return w->jpeg_bytes; }

EXPORT const char *planes_message(const workspace *w) { return w->message; }
