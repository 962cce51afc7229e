/* SHA-256 of many pieces of data, two at a time.
 *
 * The processor's instruction for two rounds takes four cycles or more, but a new instruction can
 * start every two cycles. One stream waits half of the time, so a second stream is nearly free.
 * `sha256` returns 0 if the processor does not have these instructions. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define SHA __attribute__((target("sha,sse4.1,ssse3")))
enum { BLOCK = 64, DIGEST = 32 };

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* A piece that is being hashed: its state in the order of the instructions (ABEF and CDGH), its
 * remaining complete blocks, and its last bytes with the padding. */
typedef struct {
  __m128i abef, cdgh;
  const uint8_t *at;
  size_t blocks;
  uint8_t end[2 * BLOCK];
  size_t end_blocks;
  int number; /* of the piece; -1: the lane is idle */
} Lane;

typedef struct {
  const uint8_t *const *data;
  const int64_t *sizes;
  int count, next;
  uint8_t *digests;
} Work;

SHA static void begin(Lane *lane, Work *work) {
  if (work->next == work->count) {
    lane->number = -1;
    lane->blocks = 0;
    return;
  }
  lane->number = work->next++;
  size_t size = (size_t)work->sizes[lane->number], left = size % BLOCK;
  lane->abef = _mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c);
  lane->cdgh = _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19);
  lane->at = work->data[lane->number];
  lane->blocks = size / BLOCK;
  lane->end_blocks = left < BLOCK - 8 ? 1 : 2;
  memset(lane->end, 0, sizeof lane->end);
  memcpy(lane->end, lane->at + size - left, left);
  lane->end[left] = 0x80;
  for (int byte = 0; byte < 8; byte++)
    lane->end[lane->end_blocks * BLOCK - 1 - byte] = (uint8_t)((uint64_t)size * 8 >> 8 * byte);
}

SHA static void finish(const Lane *lane, Work *work) {
  uint32_t abef[4], cdgh[4];
  _mm_storeu_si128((__m128i *)abef, lane->abef);
  _mm_storeu_si128((__m128i *)cdgh, lane->cdgh);
  const uint32_t words[8] = {abef[3], abef[2], cdgh[3], cdgh[2], abef[1], abef[0], cdgh[1], cdgh[0]};
  for (int word = 0; word < 8; word++)
    for (int byte = 0; byte < 4; byte++)
      work->digests[lane->number * DIGEST + 4 * word + byte] = (uint8_t)(words[word] >> (24 - 8 * byte));
}

/* Gives a lane more blocks to hash, unless all pieces are finished. */
SHA static void refill(Lane *lane, Work *work) {
  while (lane->number >= 0 && lane->blocks == 0) {
    if (lane->end_blocks > 0) {
      lane->at = lane->end;
      lane->blocks = lane->end_blocks;
      lane->end_blocks = 0;
    } else {
      finish(lane, work);
      begin(lane, work);
    }
  }
}

#define LOAD(at, i) _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(at) + (i)), swap)
/* Four rounds. The schedule of the message runs ahead of them by a few words. */
#define FIRST(l, i)                                                              \
  m##l = _mm_add_epi32(w##l[(i) % 4], _mm_load_si128((const __m128i *)K + (i))); \
  cdgh##l = _mm_sha256rnds2_epu32(cdgh##l, abef##l, m##l);                       \
  if ((i) >= 3 && (i) <= 14) {                                                   \
    w##l[((i) + 1) % 4] = _mm_add_epi32(                                         \
        w##l[((i) + 1) % 4], _mm_alignr_epi8(w##l[(i) % 4], w##l[((i) + 3) % 4], 4)); \
    w##l[((i) + 1) % 4] = _mm_sha256msg2_epu32(w##l[((i) + 1) % 4], w##l[(i) % 4]); \
  }                                                                              \
  m##l = _mm_shuffle_epi32(m##l, 0x0E)
#define SECOND(l, i)                                       \
  abef##l = _mm_sha256rnds2_epu32(abef##l, cdgh##l, m##l); \
  if ((i) >= 1 && (i) <= 12)                               \
  w##l[((i) + 3) % 4] = _mm_sha256msg1_epu32(w##l[((i) + 3) % 4], w##l[(i) % 4])
#define ALL(ROUNDS)                                                                           \
  ROUNDS(0); ROUNDS(1); ROUNDS(2); ROUNDS(3); ROUNDS(4); ROUNDS(5); ROUNDS(6); ROUNDS(7);      \
  ROUNDS(8); ROUNDS(9); ROUNDS(10); ROUNDS(11); ROUNDS(12); ROUNDS(13); ROUNDS(14); ROUNDS(15)
#define BOTH(i) FIRST(0, i); FIRST(1, i); SECOND(0, i); SECOND(1, i)
#define ONE(i) FIRST(0, i); SECOND(0, i)
#define OPEN(l, lane) __m128i abef##l = (lane)->abef, cdgh##l = (lane)->cdgh, w##l[4], m##l
#define READ(l, lane)                                                            \
  const __m128i before_abef##l = abef##l, before_cdgh##l = cdgh##l;              \
  w##l[0] = LOAD((lane)->at, 0), w##l[1] = LOAD((lane)->at, 1);                  \
  w##l[2] = LOAD((lane)->at, 2), w##l[3] = LOAD((lane)->at, 3);                  \
  (lane)->at += BLOCK
#define ADD(l)                                   \
  abef##l = _mm_add_epi32(abef##l, before_abef##l); \
  cdgh##l = _mm_add_epi32(cdgh##l, before_cdgh##l)
#define CLOSE(l, lane, n) (lane)->abef = abef##l, (lane)->cdgh = cdgh##l, (lane)->blocks -= (n)

SHA static void hash_both(Lane *one, Lane *other, size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  OPEN(0, one);
  OPEN(1, other);
  for (size_t block = 0; block < blocks; block++) {
    READ(0, one);
    READ(1, other);
    ALL(BOTH);
    ADD(0);
    ADD(1);
  }
  CLOSE(0, one, blocks);
  CLOSE(1, other, blocks);
}

SHA static void hash_one(Lane *one, size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  OPEN(0, one);
  for (size_t block = 0; block < blocks; block++) {
    READ(0, one);
    ALL(ONE);
    ADD(0);
  }
  CLOSE(0, one, blocks);
}

static int has_sha(void) {
  unsigned a, b, c, d;
  const unsigned ssse3_and_sse41 = 1u << 9 | 1u << 19, sha = 1u << 29;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & ssse3_and_sse41) != ssse3_and_sse41) return 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & sha);
}

/* Hashes `count` pieces; returns 0 if the processor is not supported. digests: [count, 32]. */
EXPORT int sha256(int count, const uint8_t *const *data, const int64_t *sizes, uint8_t *digests) {
  if (!has_sha()) return 0;
  Work work = {data, sizes, count, 0, digests};
  Lane lanes[2];
  for (int lane = 0; lane < 2; lane++) {
    begin(&lanes[lane], &work);
    refill(&lanes[lane], &work);
  }
  while (lanes[0].number >= 0 || lanes[1].number >= 0) {
    if (lanes[0].number >= 0 && lanes[1].number >= 0) {
      size_t most = lanes[0].blocks < lanes[1].blocks ? lanes[0].blocks : lanes[1].blocks;
      hash_both(&lanes[0], &lanes[1], most);
    } else {
      Lane *busy = &lanes[lanes[0].number < 0];
      hash_one(busy, busy->blocks);
    }
    refill(&lanes[0], &work);
    refill(&lanes[1], &work);
  }
  return 1;
}
#else
EXPORT int sha256(int count, const uint8_t *const *data, const int64_t *sizes, uint8_t *digests) {
  (void)count, (void)data, (void)sizes, (void)digests;
  return 0;
}
#endif
