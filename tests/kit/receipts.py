"""Receipts of tasks, changed as their author could in a planted `.work`."""

from __future__ import annotations

import hashlib
import json

from imagenet_prep.storage.folder import LocalStore


def plant_hashes(store: LocalStore, stage: str) -> None:
    """Writes the hashes of the current outputs into the receipts of a stage's folder."""
    for path in store.path(f"{stage}/receipts").iterdir():
        receipt = json.loads(path.read_bytes())
        for output in receipt["outputs"]:
            output["sha256"] = hashlib.sha256(store.read(output["name"])).hexdigest()
        path.write_bytes(json.dumps(receipt).encode())
