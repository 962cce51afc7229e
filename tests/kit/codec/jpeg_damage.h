/* Damages a JPEG file where its structure is: segments, tables, lengths, restarts, coefficients. */
enum { MAX_SEGMENTS = 64, DAMAGE_ROOM = 4096 };

typedef struct { size_t start, size; } part; /* of a file: a segment with its marker */

/* Finds the segments before the data of the scan, and where these begin. */
static int find_segments(const uint8_t *data, size_t size, part *found, size_t *scan) {
  int num = 0;
  size_t at = 2;
  for (*scan = size; at + 4 <= size && data[at] == 0xFF && num < MAX_SEGMENTS;) {
    size_t length = (size_t)data[at + 2] << 8 | data[at + 3];
    if (length < 2 || at + 2 + length > size) break;
    found[num++] = (part){at, 2 + length};
    at += 2 + length;
    if (data[found[num - 1].start + 1] == 0xDA) {
      *scan = at;
      break;
    }
  }
  return num;
}

static void erase(uint8_t *data, size_t *size, size_t at, size_t count) {
  if (at > *size) return;
  if (count > *size - at) count = *size - at;
  memmove(data + at, data + at + count, *size - at - count);
  *size -= count;
}

/* Inserts bytes, which must not lie in `data`, as long as there is room. */
static void insert(uint8_t *data, size_t *size, size_t room, size_t at, const uint8_t *bytes,
                   size_t count) {
  if (at > *size || *size + count > room) return;
  memmove(data + at + count, data + at, *size - at);
  memcpy(data + at, bytes, count);
  *size += count;
}

/* Changes the inside of a segment, by what it holds. */
static void damage_inside(uint8_t *p, size_t size) {
  static const uint8_t odd[] = {0, 1, 2, 3, 4, 0x10, 0x11, 0x12, 0x21, 0x22, 0x31, 0x41, 0x44, 0x7F, 0x80, 0xFE, 0xFF};
  size_t at = 4 + below((uint32_t)(size > 5 ? size - 4 : 1));
  if (at >= size) return;
  switch (p[1]) {
    case 0xC4: /* codes: two symbols change places, or one length loses a code to another */
      if (size > 24 && below(2)) {
        size_t a = 21 + below((uint32_t)size - 21), b = 21 + below((uint32_t)size - 21);
        uint8_t s = p[a];
        p[a] = p[b], p[b] = s;
      } else if (size > 21) {
        size_t a = 5 + below(16), b = 5 + below(16);
        if (p[a]) p[a]--, p[b]++;
      }
      break;
    case 0xDB: p[at] = below(2) ? (uint8_t)below(256) : odd[below(sizeof odd)]; break;
    case 0xC0: case 0xC1: /* sizes and factors, small enough to be decoded */
      at = 4 + below(15);
      if (at < size) p[at] = at == 5 || at == 7 ? (uint8_t)below(2) : at == 6 || at == 8 ? (uint8_t)below(256) : odd[below(sizeof odd)];
      break;
    default: p[at] = odd[below(sizeof odd)];
  }
}

static void damage_segments(uint8_t *data, size_t *size, size_t room) {
  part all[MAX_SEGMENTS];
  size_t scan;
  int num = find_segments(data, *size, all, &scan);
  if (!num) return;
  part p = all[below((uint32_t)num)], q = all[below((uint32_t)num)];
  uint8_t *copy = malloc(p.size);
  memcpy(copy, data + p.start, p.size);
  switch (below(8)) {
    case 0: erase(data, size, p.start, p.size); break;
    case 1: insert(data, size, room, q.start, copy, p.size); break; /* twice */
    case 2: /* elsewhere */
      erase(data, size, p.start, p.size);
      insert(data, size, room, q.start > p.start ? q.start - p.size + q.size : q.start, copy, p.size);
      break;
    case 3: data[p.start + 3] ^= (uint8_t)(1 << below(8)); break; /* its length */
    case 4: data[p.start + 1] = (uint8_t)(0xC0 + below(64)); break; /* its marker */
    default: damage_inside(data + p.start, p.size);
  }
  free(copy);
}

static void damage_restarts(uint8_t *data, size_t *size, size_t room) {
  part all[MAX_SEGMENTS];
  size_t scan, marker = 0;
  int num = find_segments(data, *size, all, &scan);
  if (!num) return;
  for (size_t i = scan; i + 1 < *size; i++) /* one of the markers, at random */
    if (data[i] == 0xFF && data[i + 1] >= 0xD0 && data[i + 1] <= 0xD9 && (!marker || !below(3))) marker = i;
  uint8_t interval[6] = {0xFF, 0xDD, 0, 4, 0, (uint8_t)below(16)}, restart[2] = {0xFF, (uint8_t)(0xD0 + below(10))};
  switch (below(5)) {
    case 0: insert(data, size, room, all[num - 1].start, interval, sizeof interval); break;
    case 1: insert(data, size, room, scan + below((uint32_t)(*size - scan) + 1), restart, 2); break;
    case 2: if (marker) erase(data, size, marker, 1 + below(2)); break;
    case 3: if (marker) data[marker + 1] = (uint8_t)(0xCF + below(12)); break;
    case 4: if (marker) insert(data, size, room, marker, restart + 1, 1); break; /* a byte too many */
  }
}

/* Changes the data of the scan: bits and bytes, some of them at the very end. */
static void damage_scan(uint8_t *data, size_t *size, size_t room) {
  part all[MAX_SEGMENTS];
  size_t scan;
  find_segments(data, *size, all, &scan);
  if (scan >= *size) return;
  size_t from_end = below(2) ? below(8) : below((uint32_t)(*size - scan));
  if (from_end >= *size - scan) return;
  size_t at = *size - 1 - from_end;
  uint8_t bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)below(256);
  switch (below(6)) {
    case 0: case 1: data[at] ^= (uint8_t)(1 << below(8)); break;
    case 2: data[at] = below(2) ? 0xFF : bytes[0]; break;
    case 3: erase(data, size, at, 1 + below(8)); break;
    case 4: insert(data, size, room, at, bytes, 1 + below(8)); break;
    case 5: *size = at + 1; break;
  }
}

/* Damages a file of at least 4 bytes in a buffer of `room` bytes. */
static void damage_structure(uint8_t *data, size_t *size, size_t room) {
  for (uint32_t left = below(4) ? 1 : 1 + below(5); left && *size > 4; left--) {
    switch (below(5)) {
      case 0: case 1: damage_segments(data, size, room); break;
      case 2: damage_restarts(data, size, room); break;
      case 3: damage_scan(data, size, room); break;
      case 4: data[below((uint32_t)*size)] ^= (uint8_t)(1 << below(8)); break;
    }
  }
}
