/* Reads blocks of coefficients from a stream of Huffman codes, which takes most of a decoder's
 * time.
 *
 * A symbol gives the number of coefficients that are 0 (its run), and the number of bits of the
 * next one (its size). These bits follow the code. A table is indexed by the next INDEX_BITS bits.
 * Its entry combines the complete symbols among these bits: up to two with their values, or up to
 * three if a file is only checked for damage. Other codes are decoded more slowly, one symbol at a
 * time.
 */
#ifndef IMAGENET_PREP_HUFFMAN_H
#define IMAGENET_PREP_HUFFMAN_H

#include "transforms.h"

#define RARELY(x) __builtin_expect(!!(x), 0)

enum {
  INDEX_BITS = 11, /* often has two symbols; each further bit would double the tables, which should
                    * fit into the fastest caches */
  INDEX_SIZE = 1 << INDEX_BITS,
  REFILLED = 56,               /* at least this number of bits is valid after a refill */
  LOOK_UPS = 3,                /* number of look-ups between two refills */
  MOST_BITS = REFILLED / LOOK_UPS, /* the largest number of bits that a look-up may consume */
  MOST_CODE_BITS = 16, MOST_VALUE_BITS = 15,
  BATCH = 64,                  /* number of blocks that are decoded at a time */
};

/* ---- Bits ---- */

/* A stream of bits. The next bits are at the top of `window`; `valid` is their number, modulo 64.
 * The bits after them are either 0 or the following bits of the stream. */
typedef struct { const uint8_t *next; uint64_t window; unsigned valid; } bit_stream;

/* Makes at least REFILLED bits valid. Reads 8 bytes, but advances only by those that were
 * needed. */
INLINE void refill(bit_stream *s) {
  uint64_t more;
  memcpy(&more, s->next, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  more = __builtin_bswap64(more);
#endif
  s->window |= more >> (s->valid & 63);
  s->next += (~s->valid & 63) >> 3;
  s->valid = (s->valid & 63) | REFILLED;
}

INLINE void consume(bit_stream *s, unsigned bits) {
  s->window <<= bits & 63;
  s->valid -= bits;
}

/* Returns the number of bits before `end`; negative if bits after `end` were consumed. */
INLINE int64_t bits_left(const bit_stream *s, const uint8_t *end) {
  return (end - s->next) * 8 + (int64_t)(s->valid & 63);
}

/* Returns the value of the `size` bits at the top of `window`. In JPEG, a value is negative if its
 * first bit is 0. */
INLINE int value_of(uint64_t window, int size) {
  int64_t negative = ~(int64_t)window >> 63;
  return (int)((window >> 1) >> (63 - size)) + (int)(negative & (1 - (1 << size)));
}

/* ---- Tables ---- */

/* A DHT segment's table. Tables are compared by all their bytes, so unused symbols must be 0. */
typedef struct { uint8_t is_defined, num_codes[MOST_CODE_BITS + 1], symbols[256]; } code_lengths;

/* A step describes the effect of a look-up. Its lowest 6 bits are the number of consumed bits. Its
 * upper byte is added to k, the number of the next coefficient. If bit 6 of k is then set, the
 * look-up is invalid: the block is full, or the code is not in the table. */
enum {
  VALUE_IS_LONG = 1 << 6, /* in a step: the look-up has only a part of the value's bits */
  GROWTH_SHIFT = 8,
  BLOCK_IS_FULL = 64,     /* in k */
  END_OF_BLOCK = 128,     /* in growth: makes a step negative as a 16-bit number */
  NOT_IN_TABLE = 64 + 128 /* in growth: sets bit 6 of every k below 64 */
};

/* The values of a look-up, and the run of the first one. Without a second value, `second` is 0. */
typedef struct { int16_t first; int8_t second; uint8_t run; } found_values;

typedef struct {
  uint16_t steps[INDEX_SIZE];
  uint16_t proof_steps[INDEX_SIZE]; /* for up to three symbols without their values */
  found_values values[INDEX_SIZE];
  uint16_t codes[INDEX_SIZE]; /* the first symbol: length << 8 | symbol; 0 for longer codes */
  uint32_t first_beyond[MOST_CODE_BITS + 1]; /* by length: upper bound of codes, as 16 bits */
  int symbol_offset[MOST_CODE_BITS + 1];     /* by length: index in `symbols` minus code */
  code_lengths made_of, followed_by;
  int has_steps, has_proof_steps;
} code_table;

/* The tables of a component. */
typedef struct { code_table dc, ac; } table_pair;

/* The tables of a block. */
typedef struct { const code_table *dc, *ac; } block_tables;

/* Makes the codes of a table. Returns whether they form a tree without a code of only ones, which
 * the standard forbids and libjpeg refuses. */
static int make_codes(code_table *t, const code_lengths *lengths) {
  uint32_t code = 0;
  int next = 0;
  memset(t->codes, 0, sizeof t->codes);
  for (int length = 1; length <= MOST_CODE_BITS; length++, code <<= 1) {
    t->symbol_offset[length] = next - (int)code;
    for (int i = 0; i < lengths->num_codes[length]; i++, code++, next++) {
      if (code >= (1u << length) - 1) return 0;
      if (length > INDEX_BITS) continue;
      uint16_t *same = t->codes + (code << (INDEX_BITS - length));
      for (int rest = 0; rest < 1 << (INDEX_BITS - length); rest++)
        same[rest] = (uint16_t)(length << 8 | lengths->symbols[next]);
    }
    t->first_beyond[length] = code << (MOST_CODE_BITS - length);
  }
  return 1;
}

/* Returns length << 8 | symbol of the code at the top of `window`; 0 if it is not a code. */
static int find_code(const code_table *t, uint64_t window) {
  uint32_t top = (uint32_t)(window >> (64 - MOST_CODE_BITS));
  for (int length = 1; length <= MOST_CODE_BITS; length++)
    if (top < t->first_beyond[length]) {
      int code = (int)(top >> (MOST_CODE_BITS - length));
      return length << 8 | t->made_of.symbols[t->symbol_offset[length] + code];
    }
  return 0;
}

static int length_of(int code) { return code >> 8; }
static int run_of(int code) { return code >> 4 & 15; }
static int size_of(int code) { return code & 15; }

/* Returns whether a code of an AC table ends its block. A run of 15 with size 0 means 16 zeros. */
static int ends_block(int code) { return !size_of(code) && run_of(code) < 15; }

/* Returns the number of indices from `i` on that begin with the same code. If the code of `i` is
 * longer than an index, these are all remaining indices, since longer codes come last. */
static int num_alike(const code_table *t, int i) {
  int length = length_of(t->codes[i]);
  return length ? 1 << (INDEX_BITS - length) : INDEX_SIZE - i;
}

/* The part of a look-up for a second symbol, by the bits after the first one: its number of bits
 * (64 if it does not fit), the growth of k, and its value. */
typedef struct { uint8_t bits, growth; int8_t value; } second_symbol;

static void make_seconds(const code_table *ac, second_symbol seconds[INDEX_SIZE]) {
  for (int i = 0; i < INDEX_SIZE;) {
    int code = ac->codes[i], size = size_of(code), bits = length_of(code) + size;
    int next = i + num_alike(ac, i);
    int fits = length_of(code) && bits <= INDEX_BITS && size < 8; /* `second` has 8 bits */
    int same = fits ? 1 << (INDEX_BITS - bits) : next - i; /* number of indices with this value */
    for (uint64_t value = 0; i < next; value++) {
      second_symbol s = {64, 0, 0};
      if (fits) {
        s.bits = (uint8_t)bits;
        s.growth = (uint8_t)(ends_block(code) ? END_OF_BLOCK : run_of(code) + 1);
        s.value = (int8_t)(size ? value_of(value << (64 - size), size) : 0);
      }
      for (int end = i + same; i < end; i++) seconds[i] = s;
    }
  }
}

/* Fills in steps and values for the indices `i` to `end` - 1, which begin with the same code. */
static void make_steps_of_code(code_table *t, int is_dc, const second_symbol *seconds, int i,
                               int end) {
  int code = t->codes[i], run = run_of(code), size = size_of(code);
  int bits = length_of(code) + size, growth = run + 1;
  found_values found = {0, 0, (uint8_t)run};
  if (!code || bits > MOST_BITS || bits > INDEX_BITS || (!is_dc && ends_block(code))) {
    unsigned step;
    if (!code || bits > MOST_BITS) step = NOT_IN_TABLE << GROWTH_SHIFT, found.run = 0;
    else if (bits > INDEX_BITS) step = (unsigned)(bits | VALUE_IS_LONG | growth << GROWTH_SHIFT);
    else step = (unsigned)(bits | END_OF_BLOCK << GROWTH_SHIFT), found.run = 0;
    for (; i < end; i++) t->steps[i] = (uint16_t)step, t->values[i] = found;
    return;
  }
  /* For each value of the symbol, all combinations of the following bits occur. */
  int num_rests = 1 << (INDEX_BITS - bits);
  for (int first = i; i < end; i += num_rests) {
    uint64_t value = (uint64_t)(i - first) >> (INDEX_BITS - bits);
    found.first = (int16_t)(size ? value_of(value << (64 - size), size) : 0);
    for (int rest = 0; rest < num_rests; rest++) {
      const second_symbol *s = &seconds[rest << bits];
      int fits = bits + s->bits <= INDEX_BITS;
      int all_bits = bits + (fits ? s->bits : 0), all_growth = growth + (fits ? s->growth : 0);
      found.second = fits ? s->value : 0;
      t->steps[i + rest] = (uint16_t)(all_bits | all_growth << GROWTH_SHIFT);
      t->values[i + rest] = found;
    }
  }
}

/* Fills in all steps and values. `ac` is the table of the following symbols: for AC, `t` itself. */
static void make_steps(code_table *t, const code_table *ac) {
  second_symbol seconds[INDEX_SIZE];
  make_seconds(ac, seconds);
  for (int i = 0, end; i < INDEX_SIZE; i = end) {
    end = i + num_alike(t, i);
    make_steps_of_code(t, t != ac, seconds, i, end);
  }
}

/* Fills in the steps for damage checks. The look-up must have all bits of the last symbol's
 * code, but not those of its value. */
static void make_proof_steps(code_table *t, const code_table *ac) {
  enum { MOST_SYMBOLS = 3 };
  for (int i = 0; i < INDEX_SIZE;) {
    int first = t->codes[i], first_bits = length_of(first) + size_of(first);
    int end = i + num_alike(t, i);
    /* Steps do not depend on the bits of the first value, so they are computed once and copied. */
    int num_rests = first && first_bits < INDEX_BITS ? 1 << (INDEX_BITS - first_bits) : 1;
    for (int rest = 0; rest < num_rests; rest++) {
      int code = first, bits = 0, growth = 0;
      for (int n = 0; n < MOST_SYMBOLS && code; n++) {
        int is_end = (t == ac || n) && ends_block(code);
        int more = length_of(code) + size_of(code);
        if (bits + more > MOST_BITS) break;
        bits += more;
        growth += is_end ? END_OF_BLOCK : run_of(code) + 1;
        if (is_end || bits >= INDEX_BITS) break;
        code = ac->codes[rest << bits & (INDEX_SIZE - 1)];
        if (bits + length_of(code) > INDEX_BITS) break;
      }
      unsigned step = (unsigned)(bits ? bits | growth << GROWTH_SHIFT : NOT_IN_TABLE << GROWTH_SHIFT);
      t->proof_steps[i + rest] = (uint16_t)step;
    }
    for (int to = i + num_rests; to < end; to++) t->proof_steps[to] = t->proof_steps[to - num_rests];
    i = end;
  }
}

/* Makes a table of codes, unless it is the same as for the last file, as is common for files of one
 * encoder. Returns whether the table is valid. */
static int make_table(code_table *t, const code_lengths *lengths, const code_table *ac) {
  const code_lengths *following = t == ac ? lengths : &ac->made_of;
  if (t->made_of.is_defined && !memcmp(&t->made_of, lengths, sizeof *lengths) &&
      !memcmp(&t->followed_by, following, sizeof *lengths))
    return 1;
  t->made_of.is_defined = t->has_steps = t->has_proof_steps = 0;
  if (!make_codes(t, lengths)) return 0;
  for (int i = 0; t != ac && i < 256; i++)
    if (lengths->symbols[i] > MOST_VALUE_BITS) return 0; /* no DC symbol has a run */
  t->made_of = *lengths, t->followed_by = *following;
  return 1;
}

/* ---- Blocks ---- */

/* The place in a block of each coefficient, by its number in the file (in zigzag order). Numbers
 * from 64 on occur if a look-up goes beyond the end of a block. Their values are written after
 * the block, where the DC of the next block is written later. */
enum { BEHIND = 64 };
static const uint8_t zigzag_place[256] = {ZIGZAG(PLACE), [64 ... 255] = BEHIND};

/* A value of which a look-up has only a part: the bits from its code on, and the place of the
 * value, counted in coefficients from the first block. */
typedef struct { uint64_t window; size_t place; } long_value;

/* The wanted parts of blocks: all coefficients, written into zeros; or only the DCs, while the
 * second place of a block gets undefined values; or only a check for damage. */
enum wanted { ALL_COEFFICIENTS, DC_ONLY, PROOF_ONLY };

/* The position of decoding. `at` is the index of the block times sizeof(block_tables), from
 * which the addresses of tables and coefficients are computed. */
typedef struct {
  bit_stream stream;
  const code_table *table; /* for the next look-up */
  size_t k, at;
  long_value *next_long;
} progress;

INLINE const block_tables *tables_at(const block_tables *first, size_t at) {
  return (const block_tables *)((const char *)first + at);
}

enum { PLACES_PER_AT = 64 / sizeof(block_tables) }; /* coefficients per unit of `at` */
_Static_assert(sizeof(block_tables) == 16, "two pointers");
_Static_assert(sizeof(long_value) == VALUE_IS_LONG >> 2, "see take_step");

/* Sets `to` to `from` if a step ends its block. Compilers would use a jump, which processors cannot
 * predict, since the lengths of blocks vary. */
#if defined(__x86_64__)
#define MOVE_AT_END(step, to, from) \
  __asm__("testw %w1, %w1\n\tcmovs %2, %0" : "+r"(to) : "r"(step), "r"(from) : "cc")
#else
#define MOVE_AT_END(step, to, from) (to) = (int16_t)(step) < 0 ? (from) : (to)
#endif

/* Advances after a step: to the next block and its DC table, or to the rest of this block. */
INLINE void advance(progress *p, const block_tables *tables, unsigned step) {
  const code_table *next_table = tables_at(tables, p->at)[1].dc;
  size_t next_at = p->at + sizeof *tables, zero = 0;
  p->table = tables_at(tables, p->at)->ac;
  MOVE_AT_END(step, p->table, next_table);
  MOVE_AT_END(step, p->k, zero);
  MOVE_AT_END(step, p->at, next_at);
}

/* Looks up once. Returns 0 if the look-up is invalid. No bit is consumed then, and the values were
 * written only to places of coefficients that are decoded later, or to BEHIND.
 *
 * This function avoids branches. If there is no second value, its place is that of the first value,
 * or BEHIND, so it is written before the first value. Every first value is stored as a long value,
 * but the next one overwrites it unless the step has VALUE_IS_LONG. */
INLINE int take_step(progress *p, const block_tables *tables, int16_t *blocks, enum wanted wanted) {
  size_t index = p->stream.window >> (64 - INDEX_BITS);
  unsigned step = wanted == PROOF_ONLY ? p->table->proof_steps[index] : p->table->steps[index];
  if (wanted != PROOF_ONLY) {
    const found_values *found = &p->table->values[index];
    size_t place = p->k != 0;
    int16_t *block = blocks + PLACES_PER_AT * p->at;
    if (wanted == ALL_COEFFICIENTS) {
      block[zigzag_place[p->k + (step >> GROWTH_SHIFT) - 1]] = found->second;
      place = zigzag_place[p->k + found->run];
    }
    block[place] = found->first;
    p->next_long->window = p->stream.window;
    p->next_long->place = PLACES_PER_AT * p->at + place;
    p->next_long = (long_value *)((char *)p->next_long + ((step & VALUE_IS_LONG) >> 2));
  }
  p->k += step >> GROWTH_SHIFT;
  if (RARELY(p->k & BLOCK_IS_FULL)) {
    p->k -= step >> GROWTH_SHIFT;
    return 0;
  }
  consume(&p->stream, step);
  advance(p, tables, step);
  return 1;
}

/* Decodes one symbol without the tables of steps. Returns whether it is valid. */
INLINE int take_symbol(progress *p, const block_tables *tables, int16_t *blocks,
                       enum wanted wanted) {
  int is_dc = p->k == 0;
  refill(&p->stream);
  int code = p->table->codes[p->stream.window >> (64 - INDEX_BITS)];
  if (!code) code = find_code(p->table, p->stream.window);
  if (!code) return 0;
  unsigned step = END_OF_BLOCK << GROWTH_SHIFT;
  if (is_dc || !ends_block(code)) {
    p->k += (size_t)run_of(code);
    if (p->k > 63) return 0;
    int16_t *block = blocks + PLACES_PER_AT * p->at;
    int value = value_of(p->stream.window << length_of(code), size_of(code));
    if (wanted == ALL_COEFFICIENTS) block[zigzag_place[p->k]] = (int16_t)value;
    if (wanted == DC_ONLY) block[!is_dc] = (int16_t)value;
    if (++p->k < 64) step = 0;
  }
  consume(&p->stream, (unsigned)(length_of(code) + size_of(code)));
  advance(p, tables, step);
  return 1;
}

/* Decodes at most BATCH blocks into `blocks`, which must be zeros and have space for one more
 * block. DCs are the differences in the file. `tables` has the tables of each block and of one
 * more; `longs` has space for 64 values per block, and one more. Returns 0 if the data are
 * damaged. The caller must check whether the data have ended before the blocks; BATCH_BYTES
 * after the data must be readable. */
enum { BATCH_BYTES = BATCH * 64 * (MOST_CODE_BITS + MOST_VALUE_BITS) / 8 + 2 * 8 };

INLINE int decode_blocks(bit_stream *stream, const block_tables *tables, int num_blocks,
                         int16_t *blocks, long_value *longs, enum wanted wanted) {
  progress p = {*stream, tables->dc, 0, 0, longs};
  const size_t end = (size_t)num_blocks * sizeof *tables;
  while (p.at != end) {
    refill(&p.stream);
    int is_believed = take_step(&p, tables, blocks, wanted);
    /* A look-up ends at most one block. */
    if (end - p.at >= (LOOK_UPS - 1) * sizeof *tables && is_believed)
      is_believed = take_step(&p, tables, blocks, wanted) && take_step(&p, tables, blocks, wanted);
    if (RARELY(!is_believed) && !take_symbol(&p, tables, blocks, wanted)) return 0;
  }
  for (const long_value *v = longs; v < p.next_long; v++) {
    const block_tables *of = &tables[v->place / 64];
    int code = (v->place % 64 ? of->ac : of->dc)->codes[v->window >> (64 - INDEX_BITS)];
    blocks[v->place] = (int16_t)value_of(v->window << length_of(code), size_of(code));
  }
  *stream = p.stream;
  return 1;
}

#endif
