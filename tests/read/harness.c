/* gather.c as a program: harness SHARD INDEX prints the places of each record of a shard, in as
 * many calls as there are numbers of records, so that each record lies at the end of a batch. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../imagenet_prep/read/gather.c"

enum { MOST = 1000 };

int main(int argc, char **argv) {
  static int64_t offsets[MOST], sizes[MOST];
  static int descriptors[MOST];
  static places found[MOST];
  long long offset, size, total = 0;
  int count = 0;
  FILE *index = argc == 3 ? fopen(argv[2], "r") : NULL;
  int shard = index ? open(argv[1], O_RDONLY) : -1;
  if (shard < 0) return 2;
  while (count < MOST && fscanf(index, "%lld %lld", &offset, &size) == 2) {
    offsets[count] = offset, sizes[count] = size, descriptors[count++] = shard;
    total += size;
    uint8_t *batch = malloc(total);
    if (!gather(count, descriptors, offsets, sizes, 64000000, batch, found)) return 3;
    free(batch);
  }
  for (places *each = found; each < found + count; each++) {
    if (each->first < 0)
      printf("-1\n");
    else
      printf("%lld %lld %lld %lld %lld %lld %lld %lld %lld\n", (long long)each->first,
             (long long)each->entry, (long long)each->image, (long long)each->behind,
             (long long)each->name, (long long)each->last, (long long)each->stop,
             (long long)each->height, (long long)each->width);
  }
  return 0;
}
