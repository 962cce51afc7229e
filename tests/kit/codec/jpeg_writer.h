/* Writes JPEG files of random coefficients: what no camera makes, and a decoder must know all the
 * same. Any sampling, any Huffman codes, values of up to 15 bits, restarts; some are wrong. */
enum { WRITER_ROOM = 1 << 20 };

typedef struct { uint8_t data[WRITER_ROOM]; size_t size; uint64_t bits; int num_bits; } writer;

typedef struct { uint8_t counts[17], symbols[256]; uint16_t codes[256]; uint8_t lengths[256]; } codebook;

static void write_byte(writer *w, uint32_t value) {
  if (w->size < WRITER_ROOM) w->data[w->size++] = (uint8_t)value;
}

static void write_two(writer *w, uint32_t value) { write_byte(w, value >> 8), write_byte(w, value); }

static void write_bits(writer *w, uint32_t value, int num) {
  w->bits = w->bits << num | (value & ((1u << num) - 1));
  for (w->num_bits += num; w->num_bits >= 8; w->num_bits -= 8) {
    uint8_t byte = (uint8_t)(w->bits >> (w->num_bits - 8));
    write_byte(w, byte);
    if (byte == 0xFF) write_byte(w, 0);
  }
}

/* Fills the last byte, with ones as encoders do, or with anything. */
static void write_padding(writer *w) {
  if (w->num_bits) write_bits(w, below(4) ? 0x7F : below(128), 8 - w->num_bits);
}

/* Makes a random code for the symbols `first` ... `last`: as many as there is room for at each
 * length, and no code of ones alone. */
static void make_codebook(codebook *c, int first, int last) {
  int left = last - first + 1, code = 0, next = 0;
  memset(c, 0, sizeof *c);
  for (int i = 0; i < left; i++) c->symbols[i] = (uint8_t)(first + i);
  for (int i = left - 1; i > 0; i--) {
    int j = (int)below((uint32_t)i + 1);
    uint8_t s = c->symbols[i];
    c->symbols[i] = c->symbols[j], c->symbols[j] = s;
  }
  int generous = 1 + (int)below(3); /* one in so many lengths gets many codes */
  for (int length = 1; length <= 16; length++, code <<= 1) {
    int free_codes = (1 << length) - code, num = (int)below((uint32_t)free_codes + 1);
    if (length < 16 && below((uint32_t)generous)) num = (int)below(3);
    if (length == 16 || num > left) num = left;
    while (num && left - num + 1 > (free_codes - num) << (16 - length)) num--;
    c->counts[length] = (uint8_t)num;
    for (left -= num; num; num--, next++, code++) {
      c->codes[c->symbols[next]] = (uint16_t)code;
      c->lengths[c->symbols[next]] = (uint8_t)length;
    }
  }
}

static void write_symbol(writer *w, const codebook *c, int symbol) {
  write_bits(w, c->codes[symbol], c->lengths[symbol]);
}

static void write_value(writer *w, int size) { write_bits(w, below(1u << size), size); }

/* How large values are, how many there are, and what their DC adds to the last one. */
typedef struct { uint32_t most_bits, fullness, dc_bits; } taste;

static void write_block(writer *w, const codebook *dc, const codebook *ac, const taste *t, int *mean) {
  int size = (int)below(t->dc_bits + 1), value = size ? (int)below(1u << size) : 0;
  int difference = size && value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
  if ((*mean + difference > 32767 || *mean + difference < -32768) && below(100)) size = difference = 0;
  *mean += difference;
  write_symbol(w, dc, size);
  write_bits(w, (uint32_t)(difference < 0 ? difference - 1 : difference), size);
  int k = 1;
  while (k < 64 && below(100) < t->fullness) {
    int run = below(4) ? 0 : (int)below(20);
    if (k + run > 63 && below(1000)) run = 63 - k;
    for (; run > 15; run -= 16, k += 16) write_symbol(w, ac, 0xF0);
    size = 1 + (int)below(t->most_bits);
    write_symbol(w, ac, run << 4 | size);
    write_value(w, size);
    k += run + 1;
  }
  if (k < 64) write_symbol(w, ac, below(5000) ? 0 : (int)(below(15) << 4)); /* no end but 0 is usual */
}

static void write_tables(writer *w, const codebook books[2][2], int num) {
  for (int i = 0; i < num; i++) {
    write_two(w, 0xFFDB), write_two(w, 67), write_byte(w, (uint32_t)i);
    uint32_t most = below(3) ? below(20) + 1 : 255;
    for (int k = 0; k < 64; k++) write_byte(w, 1 + below(most));
    for (int kind = 0; kind < 2; kind++) {
      int total = 0;
      for (int length = 1; length <= 16; length++) total += books[kind][i].counts[length];
      write_two(w, 0xFFC4), write_two(w, (uint32_t)(19 + total)), write_byte(w, (uint32_t)(kind << 4 | i));
      for (int length = 1; length <= 16; length++) write_byte(w, books[kind][i].counts[length]);
      for (int s = 0; s < total; s++) write_byte(w, books[kind][i].symbols[s]);
    }
  }
}

/* Writes a file of at most `most` pixels a side. */
static void write_jpeg(writer *w, uint32_t most) {
  static const uint8_t usual[] = {0x11, 0x21, 0x22, 0x12, 0x41, 0x11, 0x22, 0x44};
  codebook books[2][2];
  int num = below(4) ? 3 : 1, num_blocks = 0, max_h = 1, max_v = 1;
  uint8_t factors[3] = {usual[below(8)], 0x11, 0x11};
  for (int i = 1; i < 3 && !below(4); i++) factors[i] = usual[below(8)];
  for (int i = 0; i < num; i++) {
    num_blocks += (factors[i] >> 4) * (factors[i] & 15);
    if (factors[i] >> 4 > max_h) max_h = factors[i] >> 4;
    if ((factors[i] & 15) > max_v) max_v = factors[i] & 15;
  }
  if (num > 1 && num_blocks > 10) factors[0] = 0x21, factors[1] = factors[2] = 0x11, max_h = 2, max_v = 1;
  uint32_t width = 1 + below(most), height = 1 + below(most);
  taste t = {1 + below(below(2) ? 4 : 15), below(102), below(below(2) ? 12 : 16)};
  for (int i = 0; i < 2; i++) make_codebook(&books[0][i], 0, 15), make_codebook(&books[1][i], 0, 255);
  w->size = 0, w->bits = 0, w->num_bits = 0;
  write_two(w, 0xFFD8);
  write_tables(w, books, 2);
  write_two(w, below(2) ? 0xFFC0 : 0xFFC1), write_two(w, (uint32_t)(8 + 3 * num)), write_byte(w, 8);
  write_two(w, height), write_two(w, width), write_byte(w, (uint32_t)num);
  for (int i = 0; i < num; i++)
    write_byte(w, (uint32_t)(i + 1)), write_byte(w, factors[i]), write_byte(w, i != 0);
  uint32_t interval = below(3) ? 0 : 1 + below(below(2) ? 4 : 100);
  if (interval) write_two(w, 0xFFDD), write_two(w, 4), write_two(w, interval);
  write_two(w, 0xFFDA), write_two(w, (uint32_t)(6 + 2 * num)), write_byte(w, (uint32_t)num);
  for (int i = 0; i < num; i++) write_byte(w, (uint32_t)(i + 1)), write_byte(w, i ? 0x11 : 0);
  write_byte(w, 0), write_byte(w, 63), write_byte(w, 0);
  uint32_t across = (width + 8 * (uint32_t)max_h - 1) / (8 * (uint32_t)max_h);
  uint32_t down = (height + 8 * (uint32_t)max_v - 1) / (8 * (uint32_t)max_v);
  if (num == 1) across = (width + 7) / 8, down = (height + 7) / 8;
  int means[3] = {0};
  for (uint32_t mcu = 0; mcu < across * down; mcu++) {
    if (interval && mcu && mcu % interval == 0) {
      write_padding(w), write_two(w, 0xFFD0 + (mcu / interval - 1) % 8);
      memset(means, 0, sizeof means);
    }
    for (int i = 0; i < num; i++)
      for (int b = num == 1 ? 1 : (factors[i] >> 4) * (factors[i] & 15); b; b--)
        write_block(w, &books[0][i != 0], &books[1][i != 0], &t, &means[i]);
  }
  write_padding(w), write_two(w, 0xFFD9);
}
