/* The part of libjpeg's binary interface, version 62, that planes.c uses on 64-bit Linux.
 *
 * libjpeg-turbo is in Pillow's wheel, without headers, and most machines have no headers either.
 * Version 62 has not changed since 1998. For each new object, libjpeg compares the version and the
 * sizes of these structures with its own. Unused fields are arrays of
 * `offset_of_next - offset_of_this` bytes.
 */
#ifndef IMAGENET_PREP_LIBJPEG_H
#define IMAGENET_PREP_LIBJPEG_H

#include <stddef.h>
#include <stdint.h>

enum { LIBJPEG_VERSION = 62 };

enum { COLORS_GREY = 1, COLORS_RGB = 2, COLORS_YCBCR = 3, COLORS_CMYK = 4, COLORS_YCCK = 5 };
enum { COLORS_EXTENDED_RGB = 6 }; /* RGB in libjpeg-turbo's order of bytes, whatever its build */
/* Both use integers, so they are the same on every processor. */
enum { DCT_ACCURATE = 0, DCT_FAST = 1 };
enum { ERROR_OUT_OF_MEMORY = 54, WARNING_EXTRANEOUS = 116, ERROR_TEXT_BYTES = 200 };

typedef uint8_t **sample_rows;

struct compress;
struct progress;
struct error_manager;

/* The first fields of `decompress` and `compress`. */
typedef struct {
  struct error_manager *errors;
  void *memory;
  struct progress *progress;
  void *owner; /* for the caller; libjpeg does not use it */
  int is_decompressor;
  int state;
} jpeg_object;

struct error_manager {
  void (*error_exit)(jpeg_object *);
  void (*emit_message)(jpeg_object *, int level); /* -1: a warning about damage; >= 0: a trace */
  void (*output_message)(jpeg_object *);
  void (*format_message)(jpeg_object *, char *text);
  void (*reset)(jpeg_object *);
  int code; /* number of the last message */
  int numbers[8]; /* the numbers in the last message */
  uint8_t unused[168 - 76];
};

struct source {
  const uint8_t *next; /* the next byte to read */
};

/* libjpeg calls `monitor` repeatedly while it reads the scans of a progressive file. */
struct progress {
  void (*monitor)(jpeg_object *);
  long counter, limit;
  int completed_passes, total_passes;
};

struct destination {
  uint8_t *next;
  size_t room;
  void (*begin)(struct compress *);
  int (*grow)(struct compress *);
  void (*end)(struct compress *);
};

/* One of Y, Cb, Cr. */
typedef struct {
  int id, index;
  int h_samp, v_samp; /* sampling factors, 1 ... 4 */
  int tables[3];
  unsigned width_in_blocks, height_in_blocks;
  int block_side;         /* samples along a block after decoding: 8, or fewer if scaled */
  unsigned width, height; /* in samples, without padding */
  int needed;             /* 0: do not compute samples of this component */
  uint8_t unused[96 - 52];
} component;

struct decompress {
  jpeg_object common;
  struct source *source;
  unsigned image_width, image_height;
  int num_components;
  int file_colors, output_colors;
  unsigned scale_num, scale_denom;
  double gamma;
  int buffered;
  int planes_out; /* return planes in their stored size, without upsampling */
  int dct;
  int smooth_upsampling;
  uint8_t unused_a[136 - 104];
  unsigned output_width, output_height;
  int output_color_components, output_components; /* bytes per pixel of scanlines */
  uint8_t unused_b[168 - 152];
  unsigned output_row;
  int scans; /* number of scans that were started */
  uint8_t unused_c[192 - 176];
  int (*missing_bits)[64]; /* of each component's coefficients, -1: all; NULL if not progressive */
  uint8_t unused_d[296 - 200];
  int bits; /* per sample */
  component *components;
  uint8_t unused_e[408 - 312];
  int max_h_samp, max_v_samp, min_block_side;
  unsigned num_mcu_rows;
  uint8_t unused_f[432 - 424];
  int num_in_scan; /* components of the current scan */
  component *in_scan[4];
  uint8_t unused_g[632 - 472];
};

struct compress {
  jpeg_object common;
  struct destination *destination;
  unsigned image_width, image_height;
  int input_components, input_colors;
  uint8_t unused_a[88 - 64];
  component *components;
  uint8_t unused_b[256 - 96];
  int planes_in;
  uint8_t unused_c[276 - 260];
  int dct;
  uint8_t unused_d[520 - 280];
};

/* The library's functions, in the order in which the caller of planes_new passes them. */
typedef struct {
  struct error_manager *(*std_error)(struct error_manager *);
  void (*create_decompress)(struct decompress *, int version, size_t size);
  void (*create_compress)(struct compress *, int version, size_t size);
  void (*destroy)(void *object);
  void (*mem_src)(struct decompress *, const uint8_t *data, unsigned long size);
  int (*read_header)(struct decompress *, int require_image);
  int (*start_decompress)(struct decompress *);
  void (*crop_scanline)(struct decompress *, unsigned *left, unsigned *width);
  unsigned (*read_scanlines)(struct decompress *, sample_rows rows, unsigned num_rows);
  unsigned (*read_raw_data)(struct decompress *, sample_rows *planes, unsigned num_rows);
  int (*finish_decompress)(struct decompress *);
  void (*set_defaults)(struct compress *);
  void (*set_quality)(struct compress *, int quality, int force_baseline);
  void (*start_compress)(struct compress *, int write_all_tables);
  unsigned (*write_scanlines)(struct compress *, sample_rows rows, unsigned num_rows);
  unsigned (*write_raw_data)(struct compress *, sample_rows *planes, unsigned num_rows);
  void (*finish_compress)(struct compress *);
} libjpeg;

/* libjpeg checks only sizes, so compilation must fail if a compiler uses different offsets. */
_Static_assert(sizeof(struct error_manager) == 168, "jpeg_error_mgr");
_Static_assert(sizeof(component) == 96, "jpeg_component_info");
_Static_assert(sizeof(struct decompress) == 632, "jpeg_decompress_struct");
_Static_assert(sizeof(struct compress) == 520, "jpeg_compress_struct");
_Static_assert(offsetof(struct error_manager, numbers) == 44, "msg_parm");
_Static_assert(offsetof(component, needed) == 48, "component_needed");
_Static_assert(offsetof(struct decompress, planes_out) == 92, "raw_data_out");
_Static_assert(offsetof(struct decompress, output_components) == 148, "output_components");
_Static_assert(offsetof(struct decompress, scans) == 172, "input_scan_number");
_Static_assert(offsetof(struct decompress, components) == 304, "comp_info");
_Static_assert(offsetof(struct decompress, num_mcu_rows) == 420, "total_iMCU_rows");
_Static_assert(offsetof(struct decompress, missing_bits) == 192, "coef_bits");
_Static_assert(offsetof(struct decompress, num_in_scan) == 432, "comps_in_scan");
_Static_assert(offsetof(struct decompress, in_scan) == 440, "cur_comp_info");
_Static_assert(offsetof(struct compress, components) == 88, "comp_info");
_Static_assert(offsetof(struct compress, dct) == 276, "dct_method");

#endif
