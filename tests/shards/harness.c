/* tables.c as a program: harness FILE prints the root of each table of a file, or -1 if it is
 * refused. The file has the size of each table without its header, and its bytes. All memory has
 * exactly the size that the functions may use. */
#include <stdio.h>

#include "../../imagenet_prep/shards/tables.c"

static int64_t lines_of(const uint8_t *text, int64_t size) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; i++) count += text[i] == '\n';
  return count;
}

/* Returns the root of a table in a new piece of memory, or NULL. */
static uint8_t *root_of(const uint8_t *table, int64_t size) {
  uint8_t *entries = malloc(3 * size);
  int64_t bytes = table_entries(table, size, entries);
  uint8_t *exact = NULL, *sorted = NULL, *hashes = NULL, *tree = NULL;
  if (bytes > 0) {
    exact = malloc(bytes);
    sorted = malloc(bytes);
    memcpy(exact, entries, bytes);
    if (sort_lines(exact, bytes, sorted) != bytes) abort();
    /* The first key cuts the run at its start, and a later one at its end. */
    int64_t key = strlen((char *)sorted) + 1, all = key + 3 + bytes, offsets[2];
    uint8_t *data = malloc(all);
    memcpy(data, sorted, key);
    memcpy(data + key, "\xFF\0\n", 3);
    memcpy(data + key + 3, sorted, bytes);
    if (cut_run(data, all, (uint8_t *)offsets) != 16 || offsets[0] || offsets[1] != bytes) abort();
    free(data);
    int64_t hashed = DIGEST * lines_of(exact, bytes);
    hashes = malloc(hashed);
    if (hash_leaves(exact, bytes, hashes) == hashed) {
      tree = malloc(hashed);
      if (hash_tree(hashes, hashed, tree) != DIGEST) abort();
    }
  }
  free(entries), free(exact), free(sorted), free(hashes);
  return tree;
}

int main(int argc, char **argv) {
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  int64_t size;
  if (file == NULL) return 2;
  if (!can_hash()) return 3;
  while (fread(&size, sizeof size, 1, file)) {
    uint8_t *table = malloc(size);
    if (fread(table, 1, size, file) != (size_t)size) return 2;
    uint8_t *root = root_of(table, size);
    if (root == NULL) printf("-1");
    for (int byte = 0; root && byte < DIGEST; byte++) printf("%02x", root[byte]);
    printf("\n");
    free(root), free(table);
  }
  return fclose(file);
}
