"""Verifies the roots of a dataset from its CSV files, without our code.

Usage: python samples_root.py DATASET. Prints a root for each split; ends with 1 if a root differs
from dataset.json.
"""

import csv
import hashlib
import json
import sys
from pathlib import Path


def tree(leaves):
    """RFC 6962, section 2.1."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + tree(leaves[:half]) + tree(leaves[half:])).digest()


def leaves(folder, shards):
    """One leaf per row: [key, class index, sha256] as compact JSON, by the bytes of the key."""
    found = []
    for shard in shards:
        path = Path(folder, "samples", f"{shard['name']}.csv")
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, strict=True):
                leaf = [row["key"], int(row["class_index"]), row["sha256"]]
                text = json.dumps(leaf, ensure_ascii=False, separators=(",", ":"))
                found.append((row["key"].encode(), text.encode()))
    return [leaf for _, leaf in sorted(found)]


folder = sys.argv[1]
wrong = 0
for name, split in json.loads(Path(folder, "dataset.json").read_bytes())["splits"].items():
    root = tree(leaves(folder, split["shards"])).hex()
    wrong += root != split["samples_root"]
    print(name, root)
sys.exit(bool(wrong))
