/* Reads the records of a batch, proves them and finds their images, in one call and without
 * Python's lock.
 *
 * What `prepare` has written and is sound is found. All else, whether damaged or only unusual, is
 * left to records.py, which reads it again and knows what is wrong with it. So nothing here has to
 * be said in words, and nothing is accepted here that would not be accepted there.
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

/* Where the parts of a record lie, in bytes from the beginning of the batch, and how large its image
 * says that it is, in pixels. */
typedef struct {
  int64_t first;  /* entries before the image's */
  int64_t entry;  /* of the image */
  int64_t image;
  int64_t behind; /* the image; entry of the file name */
  int64_t name;
  int64_t last;   /* entries behind the file name's */
  int64_t stop;
  int64_t height, width;
} places;

typedef struct { const uint8_t *at, *stop; } bytes;

/* ---- CRC32C, by the processor's own instruction ---- */

/* In assembly, so that nothing has to be compiled for a processor that has it. */
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

/* A CRC is a polynomial over GF(2), its highest power in the lowest bit. */
static uint32_t times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int i = 0; i < 32; i++, a <<= 1) {
    product ^= b & -(a >> 31);
    b = b >> 1 ^ (0x82F63B78 & -(b & 1));
  }
  return product;
}

/* What a CRC is multiplied by for 1 << i bytes of zeros behind it. */
typedef struct { uint32_t of[40]; } shifts;

static shifts make_shifts(void) {
  shifts made = {{1u << 23}}; /* x to the power of 8 */
  for (int i = 1; i < 40; i++) made.of[i] = times(made.of[i - 1], made.of[i - 1]);
  return made;
}

/* In three thirds side by side: the instruction is done after three cycles, but begins in each. */
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

/* The same where it must be all that is left. */
static int enter_last(bytes *in, uint8_t tag, bytes *field) {
  return enter(in, tag, field) && in->at == in->stop;
}

/* Finds the one value of an entry of type bytes; returns whether it has this key. */
static int has_value(bytes entry, const char *key, bytes *value) {
  bytes found, feature, list;
  return enter(&entry, 0x0A, &found) && found.stop - found.at == (ptrdiff_t)strlen(key) &&
         !memcmp(found.at, key, strlen(key)) && enter_last(&entry, 0x12, &feature) &&
         enter_last(&feature, 0x0A, &list) && enter_last(&list, 0x0A, value);
}

enum { MAX_SEGMENTS = 10000 }; /* as in dataset/jpeg.py */

/* Whether an image is a JPEG of one scan and of so many pixels at most; see dataset/jpeg.py. */
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
      return 0; /* progressive, or one that hardly anyone makes */
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

/* Reads records one behind the other into `batch`, which has room for all of them.
 *
 * Of each: an open file, offset and size in bytes, and where its parts are found; its `first` is
 * -1 where they are not. Returns 0 where this processor has no instruction for CRC32C: then
 * nothing was read.
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
