/* Reads, sorts and hashes tables of samples without Python's lock.
 *
 * An entry is a line: a key, a zero byte and a value. Functions return the bytes of their output,
 * or -1: for damaged lines, equal keys, or if memory or the processor does not suffice. Then
 * sorted_tables.py does the work again in Python, and reports errors. This code accepts no line
 * that dataset/samples.py would refuse. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST_KEY = 4096, MOST_LINE = 2 * MOST_KEY + 512 }; /* as in dataset/keys.py, samples.py */
enum { DIGEST = 32, NODE = 1 + 2 * DIGEST, TOGETHER = 256 };

/* ---- The lines of a table ---- */

/* Returns the end of a number without leading zeros, or NULL; `least` is its least first digit. */
static const uint8_t *skip_number(const uint8_t *p, uint8_t least) {
  const uint8_t *first = p;
  if (*p < least || *p > '9') return NULL;
  if (*p == '0') return p + 1;
  while (*p >= '0' && *p <= '9') p++;
  return p - first <= 18 ? p : NULL;
}

/* Returns whether no part of a path is empty, . or .. */
static int stays_inside(const uint8_t *key, const uint8_t *stop) {
  const uint8_t *part = key;
  for (;; key++) {
    if (key < stop && *key != '/' && *key != '\\') continue;
    ptrdiff_t size = key - part;
    if (size == 0 || (part[0] == '.' && (size == 1 || (size == 2 && part[1] == '.')))) return 0;
    if (key == stop) return 1;
    part = key + 1;
  }
}

/* Copies the key at the start of a line without its quotes; returns the end of the copy or NULL. */
static uint8_t *copy_key(const uint8_t **line, uint8_t *out) {
  const uint8_t *p = *line, *first = out;
  int is_quoted = *p == '"', needs_quotes = 0;
  for (p += is_quoted;; p++) {
    if (*p < 0x20 || *p == 0x7F) return NULL; /* also at the end of the line */
    if (is_quoted ? *p == '"' && *++p != '"' : *p == ',') break;
    needs_quotes |= *p == '"' || *p == ',';
    *out++ = *p;
  }
  *line = p;
  int is_sound = is_quoted == needs_quotes && out - first <= MOST_KEY && stays_inside(first, out);
  return is_sound ? out : NULL;
}

static uint8_t *put(uint8_t *out, const void *data, size_t size) {
  memcpy(out, data, size);
  return out + size;
}

/* Writes the entry of a line: its key and its leaf of the Merkle tree. Returns its end or NULL. */
static uint8_t *write_entry(const uint8_t *line, uint8_t *out) {
  uint8_t *key = out;
  uint8_t *stop = out = copy_key(&line, out);
  if (out == NULL || *line++ != ',') return NULL;
  out = put(out, "\0[\"", 3);
  for (; key < stop; *out++ = *key++)
    if (*key == '"' || *key == '\\') *out++ = '\\';
  const uint8_t *label = line, *p = skip_number(line, '0');
  if (p == NULL || *p != ',') return NULL;
  out = put(out, "\",", 2);
  out = put(out, label, p - label);
  for (int column = 0; column < 3; column++) {
    p = skip_number(p + 1, '1');
    if (p == NULL || *p != ',') return NULL;
  }
  const uint8_t *sha256 = ++p;
  while ((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f')) p++;
  if (p - sha256 != 2 * DIGEST || *p != ',') return NULL;
  out = put(out, ",\"", 2);
  out = put(out, sha256, 2 * DIGEST);
  return put(out, "\"]\n", 3);
}

/* Writes the entries of lines of UTF-8 text. `out`: [3 * size]. */
EXPORT int64_t table_entries(const uint8_t *lines, int64_t size, uint8_t *out) {
  const uint8_t *stop = lines + size, *first = out;
  if (size == 0 || stop[-1] != '\n') return -1;
  while (lines < stop) {
    const uint8_t *next = (const uint8_t *)memchr(lines, '\n', stop - lines) + 1;
    out = next - lines <= MOST_LINE ? write_entry(lines, out) : NULL;
    if (out == NULL) return -1;
    lines = next;
  }
  return out - first;
}

/* ---- Sorting ---- */

typedef struct { const uint8_t *at; int64_t size; } entry;

static int compare(const entry *a, const entry *b) {
  int order = memcmp(a->at, b->at, a->size < b->size ? a->size : b->size);
  return order ? order : (a->size > b->size) - (a->size < b->size);
}

/* Sorts by merging; skips parts that are in order, such as pieces of sorted runs. */
static void sort(entry *entries, entry *spare, int64_t count) {
  if (count < 2) return;
  int64_t half = count / 2;
  sort(entries, spare, half);
  sort(entries + half, spare, count - half);
  if (compare(&entries[half - 1], &entries[half]) <= 0) return;
  memcpy(spare, entries, half * sizeof *entries);
  const entry *left = spare, *left_stop = spare + half;
  const entry *right = entries + half, *right_stop = entries + count;
  while (left < left_stop && right < right_stop)
    *entries++ = compare(right, left) < 0 ? *right++ : *left++;
  memcpy(entries, left, (left_stop - left) * sizeof *left);
}

/* Returns the sorted lines of a text, to be freed, or NULL if there is not enough memory. */
static entry *sorted_entries(const uint8_t *lines, int64_t size, int64_t *count) {
  const uint8_t *stop = lines + size, *end;
  *count = 0;
  for (const uint8_t *p = lines; (end = memchr(p, '\n', stop - p)); p = end + 1) ++*count;
  entry *entries = malloc((*count + *count / 2 + 1) * sizeof *entries);
  if (entries == NULL) return NULL;
  for (int64_t i = 0; i < *count; i++, lines = end + 1) {
    end = memchr(lines, '\n', stop - lines);
    entries[i] = (entry){lines, end + 1 - lines};
  }
  sort(entries, entries + *count, *count);
  return entries;
}

/* Sorts lines, each with its line end. `out`: [size]. */
EXPORT int64_t sort_lines(const uint8_t *lines, int64_t size, uint8_t *out) {
  int64_t count;
  entry *entries = sorted_entries(lines, size, &count);
  if (entries == NULL) return -1;
  for (int64_t i = 0; i < count; i++) out = put(out, entries[i].at, entries[i].size);
  free(entries);
  return size;
}

/* Finds where sorted keys divide a sorted run: the offsets of the first lines that are not less.
 * The data are the keys, each with a zero byte, a line end and the run. `out`: an int64 per key. */
EXPORT int64_t cut_run(const uint8_t *data, int64_t size, uint8_t *out) {
  const uint8_t *stop = data + size, *run = (const uint8_t *)memchr(data, '\n', size) + 1;
  const uint8_t *first = out, *line = run;
  while (*data != '\n') {
    int64_t key = strlen((const char *)data) + 1;
    while (line < stop && memcmp(line, data, key < stop - line ? key : stop - line) < 0)
      line = (const uint8_t *)memchr(line, '\n', stop - line) + 1;
    int64_t offset = line - run;
    out = put(out, &offset, sizeof offset);
    data += key;
  }
  return out - first;
}

/* ---- Hashing ---- */

/* See digests.c. */
int sha256(int count, const uint8_t *const *data, const int64_t *sizes, uint8_t *digests);

static int can_hash(void) { return sha256(0, NULL, NULL, NULL); }

/* Sorts entries and hashes their values as leaves of RFC 6962. `out`: [lines, 32]. */
EXPORT int64_t hash_leaves(const uint8_t *lines, int64_t size, uint8_t *out) {
  int64_t count, done = 0;
  entry *entries = can_hash() ? sorted_entries(lines, size, &count) : NULL;
  if (entries == NULL) return -1;
  entry key = {lines, 0};
  while (done < count) {
    const uint8_t *data[TOGETHER];
    int64_t sizes[TOGETHER];
    int few = 0;
    for (; few < TOGETHER && done + few < count; few++) {
      entry *now = &entries[done + few], previous = key;
      const uint8_t *value = memchr(now->at, 0, now->size);
      if (value == NULL) break;
      key = (entry){now->at, value + 1 - now->at};
      if (compare(&previous, &key) == 0) break;
      /* The zero byte before the value is the prefix of a leaf. */
      data[few] = value;
      sizes[few] = now->at + now->size - 1 - value;
    }
    sha256(few, data, sizes, out + done * DIGEST);
    done += few;
    if (few < TOGETHER) break;
  }
  free(entries);
  return done == count ? count * DIGEST : -1;
}

/* Hashes the tree of RFC 6962 over hashes of leaves or of complete subtrees of one size, of which
 * the last may be smaller. Needs at least one hash. `out`: [size], which begins with the root. */
EXPORT int64_t hash_tree(const uint8_t *hashes, int64_t size, uint8_t *out) {
  if (!can_hash()) return -1;
  memcpy(out, hashes, size);
  uint8_t nodes[TOGETHER * NODE];
  const uint8_t *data[TOGETHER];
  int64_t sizes[TOGETHER];
  for (int i = 0; i < TOGETHER; i++) {
    data[i] = nodes + i * NODE;
    sizes[i] = NODE;
    nodes[i * NODE] = 1;
  }
  for (int64_t count = size / DIGEST; count > 1; count = (count + 1) / 2) {
    for (int64_t done = 0; done < count / 2;) {
      int few = count / 2 - done < TOGETHER ? (int)(count / 2 - done) : TOGETHER;
      for (int i = 0; i < few; i++)
        memcpy(nodes + i * NODE + 1, out + 2 * (done + i) * DIGEST, 2 * DIGEST);
      sha256(few, data, sizes, out + done * DIGEST);
      done += few;
    }
    /* A hash without a neighbour belongs to the next level. */
    if (count % 2) memcpy(out + count / 2 * DIGEST, out + (count - 1) * DIGEST, DIGEST);
  }
  return DIGEST;
}
