/* Reads the segments of a JPEG file up to its scan (ITU T.81, annex B). Files that are unusual, or
 * about which libjpeg would print a warning, are rejected; libjpeg decodes them. */
#ifndef IMAGENET_PREP_SEGMENTS_H
#define IMAGENET_PREP_SEGMENTS_H

#include "decoder.h"
#include "huffman.h"

enum {
  MAX_SAMPLES = 65500,  /* libjpeg's limit for a side */
  MAX_MCU_BLOCKS = 10,  /* the standard's limit */
  NUM_TABLES = 4,       /* number of tables of each kind that a file may have at once */
};

typedef struct {
  jpeg_frame frame;
  int restart_interval; /* MCUs, 0: no restarts */
  code_lengths codes[2][NUM_TABLES]; /* for DC, for AC */
  uint8_t quantisation[NUM_TABLES][64]; /* in zigzag order */
  uint8_t has_quantisation[NUM_TABLES];
  int has_jfif, has_adobe, adobe_transform;
  const uint8_t *scan, *end;
} segments;

static int two_bytes(const uint8_t *p) { return p[0] << 8 | p[1]; }

static int read_quantisation(segments *s, const uint8_t *p, const uint8_t *end) {
  for (; p < end; p += 65) {
    int number = *p; /* 16 or more for tables of 16-bit steps */
    if (end - p < 65 || number >= NUM_TABLES) return 0;
    memcpy(s->quantisation[number], p + 1, 64);
    s->has_quantisation[number] = 1;
  }
  return 1;
}

static int read_codes(segments *s, const uint8_t *p, const uint8_t *end) {
  while (p < end) {
    int kind = *p >> 4, number = *p & 15, total = 0;
    if (end - p < 17 || kind > 1 || number >= NUM_TABLES) return 0;
    code_lengths *lengths = &s->codes[kind][number];
    memset(lengths, 0, sizeof *lengths);
    for (int i = 1; i <= MOST_CODE_BITS; i++) total += lengths->num_codes[i] = p[i];
    if (total > 256 || total > end - p - 17) return 0;
    memcpy(lengths->symbols, p + 17, (size_t)total);
    lengths->is_defined = 1;
    p += 17 + total;
  }
  return 1;
}

/* Returns whether a sampling factor is common. libjpeg upsamples chroma only by integer factors,
 * and some of its callers do not support the factor 3. */
static int is_usual_factor(int factor) { return factor == 1 || factor == 2 || factor == 4; }

static int read_component(segments *s, int i, const uint8_t *p) {
  jpeg_frame *f = &s->frame;
  jpeg_component *c = &f->components[i];
  c->id = p[0], c->h_samp = p[1] >> 4, c->v_samp = p[1] & 15, c->quantisation = p[2];
  if (!is_usual_factor(c->h_samp) || !is_usual_factor(c->v_samp)) return 0;
  if (c->quantisation >= NUM_TABLES) return 0;
  for (int j = 0; j < i; j++)
    if (f->components[j].id == c->id) return 0;
  if (c->h_samp > f->max_h_samp) f->max_h_samp = c->h_samp;
  if (c->v_samp > f->max_v_samp) f->max_v_samp = c->v_samp;
  return 1;
}

static int divide_up(int a, int b) { return (a + b - 1) / b; }

/* Computes the numbers of blocks and MCUs. In an MCU, a component has h_samp x v_samp blocks; an
 * only component has one block. Returns whether an MCU has at most MAX_MCU_BLOCKS. */
static int lay_out(jpeg_frame *f) {
  int across = 8 * f->max_h_samp, down = 8 * f->max_v_samp; /* pixels of an MCU */
  int is_alone = f->num_components == 1, num_blocks = 0;
  for (int i = 0; i < f->num_components; i++) {
    jpeg_component *c = &f->components[i];
    c->width_in_blocks = divide_up(f->width * c->h_samp, across);
    c->height_in_blocks = divide_up(f->height * c->v_samp, down);
    c->mcu_across = is_alone ? 1 : c->h_samp;
    c->mcu_down = is_alone ? 1 : c->v_samp;
    num_blocks += c->mcu_across * c->mcu_down;
  }
  f->mcus_across = is_alone ? f->components[0].width_in_blocks : divide_up(f->width, across);
  f->mcus_down = is_alone ? f->components[0].height_in_blocks : divide_up(f->height, down);
  return num_blocks <= MAX_MCU_BLOCKS;
}

static int read_frame(segments *s, const uint8_t *p, const uint8_t *end) {
  jpeg_frame *f = &s->frame;
  if (f->num_components || end - p < 6 || p[0] != 8) return 0; /* only 8 bits per sample */
  f->height = two_bytes(p + 1), f->width = two_bytes(p + 3);
  int num = p[5];
  if (!f->height || !f->width || f->height > MAX_SAMPLES || f->width > MAX_SAMPLES) return 0;
  if ((num != 1 && num != MAX_COMPONENTS) || end - p != 6 + 3 * num) return 0;
  for (int i = 0; i < num; i++)
    if (!read_component(s, i, p + 6 + 3 * i)) return 0;
  f->num_components = num;
  return lay_out(f);
}

/* Reads a scan header; accepts only a scan of all components in order, with all coefficients. */
static int read_scan_header(segments *s, const uint8_t *p, const uint8_t *end) {
  jpeg_frame *f = &s->frame;
  int num = f->num_components;
  if (!num || end - p != 4 + 2 * num || *p++ != num) return 0;
  for (int i = 0; i < num; i++, p += 2) {
    jpeg_component *c = &f->components[i];
    c->dc_table = p[1] >> 4, c->ac_table = p[1] & 15;
    if (p[0] != c->id || c->dc_table >= NUM_TABLES || c->ac_table >= NUM_TABLES) return 0;
    if (!s->codes[0][c->dc_table].is_defined || !s->codes[1][c->ac_table].is_defined) return 0;
    if (!s->has_quantisation[c->quantisation]) return 0;
  }
  return p[0] == 0 && p[1] == 63 && p[2] == 0;
}

/* Returns whether three components are certainly Y, Cb and Cr by libjpeg's rules. */
static int is_ycbcr(const segments *s) {
  const jpeg_component *c = s->frame.components;
  if (s->has_jfif) return 1;
  if (s->has_adobe) return s->adobe_transform == 1;
  return c[0].id == 1 && c[1].id == 2 && c[2].id == 3;
}

/* libjpeg warns about JFIF with a major version other than 1, so such a file is rejected. */
static int read_jfif(segments *s, const uint8_t *p, const uint8_t *end) {
  if (end - p < 14 || memcmp(p, "JFIF", 5)) return 1; /* not JFIF, and not needed */
  s->has_jfif = 1;
  return p[5] == 1;
}

static int read_adobe(segments *s, const uint8_t *p, const uint8_t *end) {
  if (end - p < 12 || memcmp(p, "Adobe", 5)) return 1;
  s->has_adobe = 1;
  s->adobe_transform = p[11];
  return 1;
}

static int read_segment(segments *s, int marker, const uint8_t *p, const uint8_t *end) {
  enum { SOF0 = 0xC0, SOF1, DHT = 0xC4, SOS = 0xDA, DQT, DRI = 0xDD, APP0 = 0xE0, APP14 = 0xEE,
         APP15, COM = 0xFE };
  switch (marker) {
    case SOF0: case SOF1: return read_frame(s, p, end);
    case DHT: return read_codes(s, p, end);
    case DQT: return read_quantisation(s, p, end);
    case DRI:
      if (end - p != 2) return 0;
      s->restart_interval = two_bytes(p);
      return 1;
    case SOS:
      s->scan = end;
      return read_scan_header(s, p, end) && (s->frame.num_components == 1 || is_ycbcr(s));
    case APP0: return read_jfif(s, p, end);
    case APP14: return read_adobe(s, p, end);
    case COM: return 1;
    default: return marker > APP0 && marker <= APP15;
  }
}

/* Reads all segments before the scan's data, and sets s->scan to these data. Returns whether the
 * file is accepted. */
static int read_segments(segments *s, const uint8_t *data, size_t size) {
  const uint8_t *p = data, *end = data + size;
  memset(s, 0, sizeof *s);
  s->frame.max_h_samp = s->frame.max_v_samp = 1;
  s->end = end;
  if (size < 2 || two_bytes(p) != 0xFFD8) return 0;
  for (p += 2; end - p >= 4 && p[0] == 0xFF && !s->scan;) {
    int length = two_bytes(p + 2); /* includes its own two bytes */
    if (length < 2 || length > end - p - 2) return 0;
    if (!read_segment(s, p[1], p + 4, p + 2 + length)) return 0;
    p += 2 + length;
  }
  return s->scan != NULL;
}

#endif
