/* See decoder.h. Decoding has four steps: read the segments (segments.h); copy the data between two
 * restart markers, without the stuffed zeros; decode blocks of coefficients from the copy, a batch
 * at a time (huffman.h); compute the samples of a batch (transforms.h).
 *
 * Damaged data cannot cause reads or writes outside the buffers: each segment's length is compared
 * with the rest of the file, and the buffers have space for the largest possible batch. A batch is
 * checked for damage after it is decoded. A rejected file needs no cleanup, because the next file
 * starts from zeros, and reuses only tables that are the same byte for byte.
 */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

#include "huffman.h"
#include "segments.h"
#include "stuffing.h"
#include "transforms.h"

enum { BEHIND_DATA = BATCH_BYTES + 2 * COPIED }; /* space after the data of an interval */

struct decoder {
  enum simd simd;
  segments file;
  table_pair tables[MAX_COMPONENTS];
  const table_pair *tables_of[MAX_COMPONENTS]; /* two components may share tables */
  quantisation quantisations[MAX_COMPONENTS];
  uint8_t *interval;
  size_t interval_size;
  long_value longs[BATCH * 64 + 1];
  int16_t blocks[(BATCH + 1) * 64] __attribute__((aligned(32))); /* set to 0 between batches */
};

/* The part of a scan to decode. Without a window, the scan is only checked for damage. */
typedef struct {
  const mcu_window *window;
  uint8_t *const *planes;
  const ptrdiff_t *strides;
  int block_sides[MAX_COMPONENTS];
  transform *transforms[MAX_COMPONENTS];
} request;

typedef struct { int component, x, y; } mcu_block; /* the position of a block in its MCU */

/* The state of decoding a scan. */
typedef struct {
  int num_mcu_blocks;
  mcu_block mcu_blocks[MAX_MCU_BLOCKS];
  block_tables tables[BATCH + 1];
  bit_stream stream;
  int dc[MAX_COMPONENTS]; /* the DC of the last block of each component */
  int mcu_x, mcu_y;       /* the position of the next MCU */
} scan;

/* ---- The data of an interval ---- */

enum { RST0 = 0xD0, RST7 = 0xD7, EOI = 0xD9 }; /* markers that end an interval */

/* Copies the data up to the next marker, with 0xFF for each 0xFF 0x00. Appends zeros, which a
 * look-up at the end may read. Returns the position of the marker, or NULL if there is none or if
 * the marker cannot end an interval. NULL is returned even if the requested window ends earlier,
 * since libjpeg reads some bytes ahead and may find the same damage. */
static const uint8_t *copy_interval(const uint8_t *in, const uint8_t *end, uint8_t *out,
                                    const uint8_t **out_end, enum simd simd) {
  for (;; in += 2) {
    size_t n = copy_up_to_ff(out, in, (size_t)(end - in), simd);
    in += n, out += n;
    if (end - in < 2) return NULL;
    if (in[1]) break;
    *out++ = 0xFF;
  }
  if (in[1] != EOI && (in[1] < RST0 || in[1] > RST7)) return NULL;
  memset(out, 0, 2 * sizeof(uint64_t));
  *out_end = out;
  return in;
}

/* ---- Batches of blocks ---- */

/* Computes DCs from their differences. Returns whether all fit into 16 bits, as in libjpeg. */
INLINE int add_dcs(decoder *d, scan *s, int num_mcus) {
  int16_t *block = d->blocks;
  unsigned beyond = 0;
  for (int mcu = 0; mcu < num_mcus; mcu++)
    for (int i = 0; i < s->num_mcu_blocks; i++, block += 64) {
      int *dc = &s->dc[s->mcu_blocks[i].component];
      *dc += block[0];
      beyond |= (unsigned)(*dc + 32768) >> 16;
      block[0] = (int16_t)*dc;
    }
  return !beyond;
}

/* Computes the samples of adjacent MCUs. Returns 0 if a number was beyond LIMIT. */
static int make_samples(const decoder *d, const scan *s, const request *r, int num_mcus) {
  excess seen = {{0}, {0}};
  for (int i = 0; i < s->num_mcu_blocks; i++) {
    int number = s->mcu_blocks[i].component, side = r->block_sides[number];
    const jpeg_component *c = &d->file.frame.components[number];
    int x = s->mcu_x * c->mcu_across + s->mcu_blocks[i].x;
    int y = s->mcu_y * c->mcu_down + s->mcu_blocks[i].y;
    if (y >= c->height_in_blocks) continue; /* the block only pads its MCU */
    const int16_t *block = d->blocks + 64 * i;
    uint8_t *out = r->planes[number] + side * (y * r->strides[number] + x);
    for (int mcu = 0; mcu < num_mcus && x < c->width_in_blocks; mcu++) {
      r->transforms[number](block, &d->quantisations[number], out, r->strides[number], &seen);
      block += 64 * s->num_mcu_blocks;
      out += side * c->mcu_across;
      x += c->mcu_across;
    }
  }
  return !is_beyond_limit(&seen);
}

static int is_in_window(const scan *s, const mcu_window *w, int num_mcus) {
  return s->mcu_y >= w->top && s->mcu_x < w->right && s->mcu_x + num_mcus > w->left;
}

/* Decodes the next MCUs, which are in one row. Returns 0 if the decoded part is damaged, or if the
 * data end too early. */
INLINE int read_batch(decoder *d, scan *s, const request *r, int num_mcus, const uint8_t *end) {
  int num_blocks = num_mcus * s->num_mcu_blocks;
  if (!r->window) {
    if (!decode_blocks(&s->stream, s->tables, num_blocks, d->blocks, d->longs, PROOF_ONLY))
      return 0;
  } else if (is_in_window(s, r->window, num_mcus)) {
    if (!decode_blocks(&s->stream, s->tables, num_blocks, d->blocks, d->longs, ALL_COEFFICIENTS) ||
        !add_dcs(d, s, num_mcus) || !make_samples(d, s, r, num_mcus))
      return 0;
    memset(d->blocks, 0, sizeof(int16_t) * 64 * (size_t)num_blocks);
  } else {
    if (!decode_blocks(&s->stream, s->tables, num_blocks, d->blocks, d->longs, DC_ONLY) ||
        !add_dcs(d, s, num_mcus))
      return 0;
    for (int i = 0; i < num_blocks; i++) d->blocks[64 * i + 1] = 0;
  }
  return bits_left(&s->stream, end) >= 0;
}

/* ---- Scans ---- */

static void begin_scan(scan *s, const decoder *d) {
  const jpeg_frame *f = &d->file.frame;
  s->num_mcu_blocks = s->mcu_x = s->mcu_y = 0;
  for (int i = 0; i < f->num_components; i++)
    for (int y = 0; y < f->components[i].mcu_down; y++)
      for (int x = 0; x < f->components[i].mcu_across; x++)
        s->mcu_blocks[s->num_mcu_blocks++] = (mcu_block){i, x, y};
  for (int i = 0; i <= BATCH; i++) {
    const table_pair *pair = d->tables_of[s->mcu_blocks[i % s->num_mcu_blocks].component];
    s->tables[i] = (block_tables){&pair->dc, &pair->ac};
  }
}

static int smaller_of(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* Decodes the scan of the opened file. */
INLINE enum answer read_scan(decoder *d, const request *r) {
  const jpeg_frame *f = &d->file.frame;
  const uint8_t *in = d->file.scan, *end;
  scan s;
  begin_scan(&s, d);
  memset(d->blocks, 0, sizeof d->blocks);
  int64_t mcus_left = (int64_t)f->mcus_across * f->mcus_down;
  for (unsigned number = 0;; number++) {
    int64_t interval_left = mcus_left;
    if (d->file.restart_interval) interval_left = smaller_of(mcus_left, d->file.restart_interval);
    mcus_left -= interval_left;
    in = copy_interval(in, d->file.end, d->interval, &end, d->simd);
    if (!in) return NOT_TAKEN;
    s.stream = (bit_stream){d->interval, 0, 0};
    memset(s.dc, 0, sizeof s.dc);
    while (interval_left) {
      if (r->window && s.mcu_y >= r->window->bottom) return TAKEN;
      int num_mcus = smaller_of(BATCH / s.num_mcu_blocks, f->mcus_across - s.mcu_x);
      num_mcus = smaller_of(num_mcus, interval_left);
      if (!read_batch(d, &s, r, num_mcus, end)) return NOT_TAKEN;
      interval_left -= num_mcus;
      s.mcu_x += num_mcus;
      if (s.mcu_x == f->mcus_across) s.mcu_x = 0, s.mcu_y++;
    }
    /* All data must have been used, except for bits that pad the last byte. */
    if (bits_left(&s.stream, end) > 7) return NOT_TAKEN;
    if (!mcus_left) return in[1] == EOI ? TAKEN : NOT_TAKEN;
    if (in[1] != RST0 + number % 8) return NOT_TAKEN;
    in += 2;
  }
}

static enum answer read_scan_anywhere(decoder *d, const request *r) { return read_scan(d, r); }
#if defined(__x86_64__)
/* The same C, compiled to AVX2 and BMI instructions. */
FOR_AVX2 static enum answer read_scan_avx2(decoder *d, const request *r) { return read_scan(d, r); }
#endif

/* Makes the tables that differ from the last file's. Returns whether all tables are valid. */
static int prepare_tables(decoder *d, int for_proof) {
  const jpeg_frame *f = &d->file.frame;
  for (int i = 0; i < f->num_components; i++) {
    const jpeg_component *c = &f->components[i];
    int is_shared = i == 2 && c->dc_table == c[-1].dc_table && c->ac_table == c[-1].ac_table;
    table_pair *pair = &d->tables[is_shared ? 1 : i];
    d->tables_of[i] = pair;
    if (!make_table(&pair->ac, &d->file.codes[1][c->ac_table], &pair->ac) ||
        !make_table(&pair->dc, &d->file.codes[0][c->dc_table], &pair->ac))
      return 0;
    code_table *both[2] = {&pair->ac, &pair->dc};
    for (int k = 0; k < 2; k++) {
      code_table *t = both[k];
      if (for_proof && !t->has_proof_steps) make_proof_steps(t, &pair->ac), t->has_proof_steps = 1;
      if (!for_proof && !t->has_steps) make_steps(t, &pair->ac), t->has_steps = 1;
    }
  }
  return 1;
}

static void prepare_quantisation(decoder *d) {
  const jpeg_frame *f = &d->file.frame;
  for (int c = 0; c < f->num_components; c++)
    for (int i = 0; i < 64; i++) {
      int step = d->file.quantisation[f->components[c].quantisation][i];
      d->quantisations[c].steps[zigzag_place[i]] = (int16_t)step;
      d->quantisations[c].four_steps[zigzag_place[i]] = (int16_t)(4 * step);
    }
}

static enum answer run(decoder *d, const request *r) {
  if (!d->file.scan || !prepare_tables(d, !r->window)) return NOT_TAKEN;
  prepare_quantisation(d);
  size_t size = (size_t)(d->file.end - d->file.scan) + BEHIND_DATA;
  if (d->interval_size < size) {
    free(d->interval);
    size += size / 4; /* the next file may be a little larger */
    d->interval = calloc(size, 1);
    d->interval_size = d->interval ? size : 0;
    if (!d->interval) return SHORT_OF_MEMORY;
  }
#if defined(__x86_64__)
  if (d->simd == AVX2) return read_scan_avx2(d, r);
#endif
  return read_scan_anywhere(d, r);
}

/* ---- Interface ---- */

decoder *decoder_new(enum simd simd) {
  enum { LINE = 64 }; /* bytes of a cache line */
  decoder *d = aligned_alloc(LINE, (sizeof *d + LINE - 1) / LINE * LINE);
  if (!d) return NULL;
  memset(d, 0, sizeof *d);
  d->simd = simd;
  return d;
}

void decoder_free(decoder *d) {
  if (d) free(d->interval);
  free(d);
}

void decoder_release(decoder *d, size_t above) {
  if (d->interval_size <= above) return;
  free(d->interval);
  d->interval = NULL;
  d->interval_size = 0;
}

const jpeg_frame *decoder_open(decoder *d, const uint8_t *data, size_t size) {
  return read_segments(&d->file, data, size) ? &d->file.frame : NULL;
}

/* Like libjpeg, do not halve a component that would have to be doubled afterwards. */
int decoder_block_side(const jpeg_frame *f, int component, int halved) {
  const jpeg_component *c = &f->components[component];
  int is_small = c->h_samp * 2 <= f->max_h_samp && c->v_samp * 2 <= f->max_v_samp;
  return halved && !is_small ? 4 : 8;
}

enum answer decoder_prove(decoder *d) { return run(d, &(request){0}); }

enum answer decoder_read(decoder *d, const mcu_window *window, int halved,
                         uint8_t *const planes[MAX_COMPONENTS],
                         const ptrdiff_t strides[MAX_COMPONENTS]) {
  request r = {.window = window, .planes = planes, .strides = strides};
  for (int i = 0; i < d->file.frame.num_components; i++) {
    int side = r.block_sides[i] = decoder_block_side(&d->file.frame, i, halved);
    r.transforms[i] = side == 8 ? whole_plain : halve_plain;
#if defined(__x86_64__)
    if (d->simd != PLAIN) r.transforms[i] = side == 8 ? whole_sse2 : halve_sse2;
    if (d->simd == AVX2 && side == 8) r.transforms[i] = whole_avx2;
#elif defined(__aarch64__)
    if (d->simd != PLAIN) r.transforms[i] = side == 8 ? whole_neon : halve_neon;
#endif
  }
  return run(d, &r);
}
