/* See encoder.h. The data of a scan are computed in three steps. First, the samples of two blocks
 * become quantised coefficients. They are stored as 16-bit numbers and as bytes in the order of the
 * file, with a mask of those that are not 0. Second, a loop over the bits of the mask writes the
 * codes. Third, the codes are copied to the file, with a zero after each byte of 0xFF.
 */
#include "encoder.h"

#include <stdlib.h>
#include <string.h>

#include "forward.h"
#include "stuffing.h"

enum {
  PAIRS = 3, /* pairs of blocks per MCU: two of Y, two of Y below them, one of Cb with one of Cr */
  MCUS_AT_ONCE = 32,       /* number of MCUs that are encoded before their codes are copied */
  MOST_BLOCK_BYTES = 208,  /* 22 bits for the DC, and 63 times 16 + 10 bits */
  MOST_HEADER_BYTES = 1024, /* libjpeg writes 623 */
};

/* ---- Tables ---- */

/* A code and the bits that follow it: bits << LENGTH_BITS | length. If a code is used as a number
 * of bits, only its lowest 6 bits matter, so the other bits need not be removed. */
typedef uint32_t code;

enum {
  LENGTH_BITS = 6,
  RUNS = 16,
  ZERO_RUN = 0xF0, END_OF_BLOCK = 0 /* symbols */
};

typedef struct {
  code of_small[RUNS * SMALL]; /* by run and small value: the code with the bits of the value */
  code ac[256], dc[16];        /* by symbol, without the bits of the value */
} code_table;

struct encoder {
  enum simd simd;
  int quality; /* quality of header and tables; 0 if there are none yet */
  uint8_t header[MOST_HEADER_BYTES];
  size_t header_bytes, place_of_height;
  divisors divisors[2]; /* for Y; for Cb and Cr. `codes` has the same order */
  code_table codes[2];
  shuffles shuffles;
  /* The state of the current file: */
  uint64_t bits; /* the lowest `num_bits` bits are not written yet */
  unsigned num_bits;
  int dc[3]; /* the DC of the last block of each component */
  uint8_t data[MCUS_AT_ONCE * 2 * PAIRS * MOST_BLOCK_BYTES + COPIED]; /* codes of some MCUs */
};

/* ---- Coefficients to codes ---- */

/* A bit buffer, which is written to `next` in complete bytes. */
typedef struct { uint64_t bits; unsigned num; uint8_t *next; } bit_sink;

INLINE void put(bit_sink *s, code c) {
  s->bits = s->bits << (c & 63) | c >> LENGTH_BITS;
  s->num += c; /* modulo 64 */
}

/* Writes 8 bytes, and advances by the number of complete ones. At most 7 bits remain. */
INLINE void flush(bit_sink *s) {
  uint64_t bytes = s->bits << (-s->num & 63);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  bytes = __builtin_bswap64(bytes);
#endif
  memcpy(s->next, &bytes, 8);
  s->next += (s->num & 63) >> 3;
  s->num &= 7;
}

/* Returns the number of bits that JPEG uses for a value. */
INLINE unsigned size_of(int value) {
  return value ? 32 - (unsigned)__builtin_clz((unsigned)abs(value)) : 0;
}

/* Appends the bits of a value to its code; a negative value is written as value - 1. */
INLINE code with_value(code c, int value, unsigned size) {
  unsigned bits = (unsigned)(value - (value < 0)) & ((1u << size) - 1);
  return ((c >> LENGTH_BITS) << size | bits) << LENGTH_BITS | ((c & 63) + size);
}

INLINE void put_any(bit_sink *s, const code_table *t, unsigned run, int value) {
  flush(s);
  for (; run >= RUNS; run -= RUNS) put(s, t->ac[ZERO_RUN]), flush(s);
  put(s, with_value(t->ac[run << 4 | size_of(value)], value, size_of(value)));
  flush(s);
}

/* Puts the next coefficient that is not 0. A small value takes at most 22 bits, so two of them and
 * an END_OF_BLOCK fit between two flushes. */
INLINE void put_next(bit_sink *s, const code_table *t, const uint8_t *bytes, const int16_t *values,
                     uint64_t *which, unsigned *last) {
  unsigned k = (unsigned)__builtin_ctzll(*which), run = k - *last - 1, byte = bytes[k];
  *which &= *which - 1;
  *last = k;
  if (__builtin_expect((run << 2 | byte) >= SMALL, 0)) /* a long run, or a large value */
    put_any(s, t, run, values[place_in_block[k]]);
  else
    put(s, t->of_small[run * SMALL + byte]);
}

_Static_assert(RUNS << 2 == SMALL, "see put_next");

INLINE void put_block(bit_sink *s, const code_table *t, const block_pair *from, int i, int *dc) {
  uint64_t which = from->which[i];
  const uint8_t *bytes = from->bytes[i];
  const int16_t *values = from->values[i];
  int difference = values[0] - *dc;
  unsigned last = 0;
  *dc = values[0];
  put(s, with_value(t->dc[size_of(difference)], difference, size_of(difference)));
  if (which) put_next(s, t, bytes, values, &which, &last);
  flush(s);
  while (which) {
    put_next(s, t, bytes, values, &which, &last);
    if (!which) break;
    put_next(s, t, bytes, values, &which, &last);
    flush(s);
  }
  if (last < 63) put(s, t->ac[END_OF_BLOCK]);
  flush(s);
}

/* Makes a block that only pads its MCU: it has the last block's DC, and no other coefficient. */
static void fill_up(block_pair *p, int i, int dc) { p->which[i] = 0, p->values[i][0] = (int16_t)dc; }

INLINE void put_mcu(encoder *e, bit_sink *s, const picture *p, int x, int y, make_pair *make) {
  block_pair pairs[PAIRS];
  const ptrdiff_t *strides = p->strides, below = 8 * strides[0];
  const uint8_t *luma = p->planes[0] + 2 * y * below + 16 * x;
  sample_pair from[PAIRS] = {
      {{luma, luma + 8}, {strides[0], strides[0]}},
      {{luma + below, luma + below + 8}, {strides[0], strides[0]}},
      {{p->planes[1] + 8 * (y * strides[1] + x), p->planes[2] + 8 * (y * strides[2] + x)},
       {strides[1], strides[2]}}};
  for (int i = 0; i < PAIRS; i++) make(&from[i], &e->divisors[i == 2], &e->shuffles, &pairs[i]);
  if (16 * x + 8 >= p->width)
    for (int i = 0; i < 2; i++) fill_up(&pairs[i], 1, pairs[i].values[0][0]);
  if (16 * y + 8 >= p->height)
    for (int i = 0; i < 2; i++) fill_up(&pairs[1], i, pairs[0].values[1][0]);
  for (int i = 0; i < 2 * PAIRS; i++)
    put_block(s, &e->codes[i >= 4], &pairs[i / 2], i % 2, &e->dc[i < 4 ? 0 : i - 3]);
}

/* ---- Codes to a file ---- */

/* Copies data, with a zero after each 0xFF. Returns the end of the copy. */
static uint8_t *copy_stuffed(uint8_t *out, const uint8_t *in, const uint8_t *end, enum simd simd) {
  for (;; *out++ = 0xFF, *out++ = 0, in++) {
    size_t n = copy_up_to_ff(out, in, (size_t)(end - in), simd);
    in += n, out += n;
    if (in == end) return out;
  }
}

INLINE uint8_t *write_row(encoder *e, const picture *p, int row, uint8_t *out, make_pair *make) {
  int end = (p->width + 15) / 16;
  for (int x = 0; x < end;) {
    bit_sink s = {e->bits, e->num_bits, e->data};
    for (int i = 0; i < MCUS_AT_ONCE && x < end; i++, x++) put_mcu(e, &s, p, x, row, make);
    out = copy_stuffed(out, e->data, s.next, e->simd);
    e->bits = s.bits, e->num_bits = s.num;
  }
  return out;
}

static uint8_t *write_row_plain(encoder *e, const picture *p, int row, uint8_t *out) {
  return write_row(e, p, row, out, make_pair_plain);
}
#if defined(__x86_64__)
/* The same C, except for make_pair_avx2, compiled to AVX2 and BMI instructions. */
FOR_AVX2 static uint8_t *write_row_avx2(encoder *e, const picture *p, int row, uint8_t *out) {
  return write_row(e, p, row, out, make_pair_avx2);
}
#elif defined(__aarch64__)
static uint8_t *write_row_neon(encoder *e, const picture *p, int row, uint8_t *out) {
  return write_row(e, p, row, out, make_pair_neon);
}
#endif

/* ---- Headers and tables of libjpeg ---- */

static void learn_codes(code_table *t, int is_ac, const uint8_t *counts, const uint8_t *symbols) {
  unsigned bits = 0;
  for (unsigned length = 1; length <= 16; length++, bits <<= 1)
    for (int i = 0; i < counts[length - 1]; i++, bits++, symbols++)
      *(is_ac ? &t->ac[*symbols] : &t->dc[*symbols & 15]) = bits << LENGTH_BITS | length;
  for (unsigned run = 0; is_ac && run < RUNS; run++)
    for (int value = -SMALL / 2; value < SMALL / 2; value++) {
      unsigned size = size_of(value);
      code *c = &t->of_small[run * SMALL + SMALL / 2];
      c[value] = with_value(t->ac[run << 4 | size], value, size);
    }
}

void encoder_learn(encoder *e, int quality, const uint8_t *file) {
  enum { SOF0 = 0xC0, DHT = 0xC4, SOS = 0xDA, DQT };
  const uint8_t *p = file + 2, *next;
  for (int marker = 0; marker != SOS; p = next) {
    marker = p[1], next = p + 2 + (p[2] << 8 | p[3]);
    if (marker == SOF0) e->place_of_height = (size_t)(p + 5 - file);
    if (marker == DQT) make_divisors(&e->divisors[p[4] & 1], p + 5);
    if (marker == DHT) learn_codes(&e->codes[p[4] & 1], p[4] >> 4, p + 5, p + 21);
  }
  e->header_bytes = (size_t)(p - file);
  e->quality = e->header_bytes <= MOST_HEADER_BYTES ? quality : 0;
  if (e->quality) memcpy(e->header, file, e->header_bytes);
}

/* ---- Interface ---- */

encoder *encoder_new(enum simd simd) {
  enum { LINE = 64 }; /* bytes of a cache line */
  encoder *e = aligned_alloc(LINE, (sizeof *e + LINE - 1) / LINE * LINE);
  if (!e) return NULL;
  memset(e, 0, sizeof *e);
  e->simd = simd;
  make_shuffles(&e->shuffles);
  return e;
}

void encoder_free(encoder *e) { free(e); }

int encoder_knows(const encoder *e, int quality) { return e->quality == quality; }

size_t encoder_row_room(const picture *p) {
  size_t num_blocks = (size_t)(p->width + 15) / 16 * 2 * PAIRS;
  return MOST_HEADER_BYTES + num_blocks * 2 * MOST_BLOCK_BYTES + COPIED;
}

static uint8_t *begin_file(encoder *e, const picture *p, uint8_t *out) {
  e->bits = e->num_bits = 0;
  memset(e->dc, 0, sizeof e->dc);
  memcpy(out, e->header, e->header_bytes);
  uint8_t *size = out + e->place_of_height;
  size[0] = (uint8_t)(p->height >> 8), size[1] = (uint8_t)p->height;
  size[2] = (uint8_t)(p->width >> 8), size[3] = (uint8_t)p->width;
  return out + e->header_bytes;
}

/* Pads the last byte with ones, and writes the marker EOI. */
static uint8_t *end_file(encoder *e, uint8_t *out) {
  bit_sink s = {e->bits, e->num_bits, e->data};
  put(&s, 0x7F << LENGTH_BITS | 7);
  flush(&s);
  out = copy_stuffed(out, e->data, s.next, e->simd);
  *out++ = 0xFF, *out++ = 0xD9;
  return out;
}

size_t encoder_write_row(encoder *e, const picture *p, int row, uint8_t *out) {
  const uint8_t *start = out;
  if (!row) out = begin_file(e, p, out);
#if defined(__x86_64__)
  if (e->simd == AVX2) out = write_row_avx2(e, p, row, out);
  else
#elif defined(__aarch64__)
  if (e->simd == NEON) out = write_row_neon(e, p, row, out);
  else
#endif
    out = write_row_plain(e, p, row, out);
  if (16 * (row + 1) >= p->height) out = end_file(e, out);
  return (size_t)(out - start);
}
