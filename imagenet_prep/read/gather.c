/* Reads the records of a batch, verifies them and finds their images, in one call and without
 * Python's lock.
 *
 * This code accepts only undamaged records in the format of `prepare`. records.py reads all other
 * records again, and reports the errors. This code accepts no record that records.py would refuse.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { HEAD_BYTES = 12, CRC_BYTES = 4 }; /* around a payload, as in dataset/tfrecord.py */

/* The offsets of the parts of a record, in bytes from the start of the batch, and the size of its
 * image in pixels, from the image's header. */
typedef struct {
  int64_t first;  /* the entries before the image's entry */
  int64_t entry;  /* the entry of the image */
  int64_t image;
  int64_t behind; /* the end of the image, and the entry of the file name */
  int64_t name;
  int64_t last;   /* the entries after the file name's entry */
  int64_t stop;
  int64_t height, width;
} places;

typedef struct { const uint8_t *at, *stop; } bytes;

/* ---- CRC32C with the processor's instruction ---- */

/* The instruction is written in assembly, so that this file needs no compiler option for it. */
#if defined(__x86_64__)
static int has_crc(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 20 & 1);
}
static uint32_t add_word(uint32_t crc, uint64_t word) {
  uint64_t wide = crc;
  __asm__("crc32q %1, %0" : "+r"(wide) : "rm"(word));
  return (uint32_t)wide;
}
static uint32_t add_byte(uint32_t crc, uint8_t byte) {
  __asm__("crc32b %1, %0" : "+r"(crc) : "qm"(byte));
  return crc;
}
#elif defined(__aarch64__)
static int has_crc(void) { return getauxval(AT_HWCAP) >> 7 & 1; }
static uint32_t add_word(uint32_t crc, uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
static uint32_t add_byte(uint32_t crc, uint8_t byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
  return crc;
}
#else
static int has_crc(void) { return 0; }
static uint32_t add_word(uint32_t crc, uint64_t word) { return crc + (uint32_t)word; }
static uint32_t add_byte(uint32_t crc, uint8_t byte) { return crc + byte; }
#endif

static uint64_t word_at(const uint8_t *p) {
  uint64_t word;
  memcpy(&word, p, sizeof word);
  return word;
}

/* Multiplies CRCs, which are polynomials over GF(2) with the highest power in the lowest bit. */
static uint32_t times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int i = 0; i < 32; i++, a <<= 1) {
    product ^= b & -(a >> 31);
    b = b >> 1 ^ (0x82F63B78 & -(b & 1));
  }
  return product;
}

/* of[i] is the factor by which 1 << i bytes of zeros at the end of the data multiply a CRC. */
typedef struct { uint32_t of[40]; } shifts;

static shifts make_shifts(void) {
  shifts made = {{1u << 23}}; /* x to the power of 8 */
  for (int i = 1; i < 40; i++) made.of[i] = times(made.of[i - 1], made.of[i - 1]);
  return made;
}

/* Computes three thirds in parallel. The instruction takes three cycles, but can start in each. */
static uint32_t crc32c(const uint8_t *p, size_t size, const shifts *shifts) {
  size_t third = size / 24 * 8;
  uint32_t a = ~0u, b = 0, c = 0;
  for (const uint8_t *stop = p + third; p < stop; p += 8) {
    a = add_word(a, word_at(p));
    b = add_word(b, word_at(p + third));
    c = add_word(c, word_at(p + 2 * third));
  }
  if (third) {
    uint32_t shift = 1u << 31;
    for (int i = 0; third >> i; i++)
      if (third >> i & 1) shift = times(shift, shifts->of[i]);
    a = times(shift, times(shift, a) ^ b) ^ c;
    p += 2 * third;
  }
  for (const uint8_t *stop = p + (size - 3 * third); p < stop; p++) a = add_byte(a, *p);
  return ~a;
}

static int is_proven(const uint8_t *p, size_t size, const uint8_t *written, const shifts *shifts) {
  uint32_t crc = crc32c(p, size, shifts), stored;
  memcpy(&stored, written, sizeof stored);
  return stored == (crc >> 15 | crc << 17) + 0xA282EAD8;
}

/* ---- The layout of an example ---- */

/* Enters a length-delimited field of a message; returns whether there is one that fits. */
static int enter(bytes *in, uint8_t tag, bytes *field) {
  if (in->at == in->stop || *in->at++ != tag) return 0;
  uint64_t size = 0;
  for (int shift = 0;; shift += 7) {
    if (in->at == in->stop || shift > 28) return 0;
    uint8_t byte = *in->at++;
    size |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  if (size > (uint64_t)(in->stop - in->at)) return 0;
  *field = (bytes){in->at, in->at + size};
  in->at += size;
  return 1;
}

/* Like `enter`, but the field must be the rest of the message. */
static int enter_last(bytes *in, uint8_t tag, bytes *field) {
  return enter(in, tag, field) && in->at == in->stop;
}

/* Finds the only value of an entry of type bytes; returns whether the entry has this key. */
static int has_value(bytes entry, const char *key, bytes *value) {
  bytes found, feature, list;
  return enter(&entry, 0x0A, &found) && found.stop - found.at == (ptrdiff_t)strlen(key) &&
         !memcmp(found.at, key, strlen(key)) && enter_last(&entry, 0x12, &feature) &&
         enter_last(&feature, 0x0A, &list) && enter_last(&list, 0x0A, value);
}

enum { MAX_SEGMENTS = 10000 }; /* as in dataset/jpeg.py */

/* Returns whether an image is a JPEG with one scan and at most max_pixels; see dataset/jpeg.py. */
static int is_harmless(bytes jpeg, int64_t max_pixels, places *found) {
  const uint8_t *p = jpeg.at;
  if (jpeg.stop - p < 3 || memcmp(p, "\xFF\xD8\xFF", 3)) return 0;
  int has_frame = 0, components = 0, segments = 0;
  for (p += 2; jpeg.stop - p > 10 && segments < MAX_SEGMENTS; segments++) {
    int marker = p[1];
    if (p[0] != 0xFF || marker < 0xC0 || marker == 0xFF || (marker >= 0xD0 && marker <= 0xD9))
      return 0;
    if (marker == 0xC0 || marker == 0xC1) {
      found->height = p[5] << 8 | p[6], found->width = p[7] << 8 | p[8];
      if (found->height * found->width > max_pixels) return 0;
      components = p[9];
      has_frame = 1;
    } else if (marker == 0xDA) {
      return has_frame && p[4] >= components;
    } else if (marker < 0xD0 && marker != 0xC4) {
      return 0; /* progressive, or a rare kind of JPEG */
    }
    p += 2 + (p[2] << 8 | p[3]);
  }
  return 0;
}

static int find(const uint8_t *batch, bytes payload, int64_t max_pixels, places *found) {
  bytes features, entry, image, name;
  if (!enter_last(&payload, 0x0A, &features)) return 0;
  found->first = features.at - batch;
  do {
    found->entry = features.at - batch;
    if (!enter(&features, 0x0A, &entry)) return 0;
  } while (!has_value(entry, "image/encoded", &image));
  if (!enter(&features, 0x0A, &entry) || !has_value(entry, "image/filename", &name)) return 0;
  found->image = image.at - batch;
  found->behind = image.stop - batch;
  found->name = name.at - batch;
  found->last = features.at - batch;
  found->stop = features.stop - batch;
  return is_harmless(image, max_pixels, found);
}

/* ---- Records ---- */

static int is_read(int descriptor, uint8_t *to, int64_t size, int64_t offset) {
  while (size) {
    ssize_t done = pread(descriptor, to, size, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return 0;
    to += done, offset += done, size -= done;
  }
  return 1;
}

static int is_sound(const uint8_t *record, int64_t size, const shifts *shifts) {
  uint64_t payload = size - HEAD_BYTES - CRC_BYTES;
  return word_at(record) == payload && is_proven(record, 8, record + 8, shifts) &&
         is_proven(record + HEAD_BYTES, payload, record + size - CRC_BYTES, shifts);
}

/* Reads `count` records one after the other into `batch`, which has space for all of them.
 *
 * The arguments give the open file, offset and size in bytes of each record. The offsets of its
 * parts are written to `found`; `first` is -1 if the record is not accepted. Returns 0 without
 * reading if this processor has no CRC32C instruction.
 */
EXPORT int gather(int count, const int *descriptors, const int64_t *offsets, const int64_t *sizes,
                  int64_t max_pixels, uint8_t *batch, places *found) {
  if (!has_crc()) return 0;
  shifts shifts = make_shifts();
  uint8_t *record = batch;
  for (int i = 0; i < count; record += sizes[i++]) {
    bytes payload = {record + HEAD_BYTES, record + sizes[i] - CRC_BYTES};
    if (sizes[i] < HEAD_BYTES + CRC_BYTES ||
        !is_read(descriptors[i], record, sizes[i], offsets[i]) ||
        !is_sound(record, sizes[i], &shifts) ||
        !find(batch, payload, max_pixels, &found[i]))
      found[i].first = -1;
  }
  return 1;
}
