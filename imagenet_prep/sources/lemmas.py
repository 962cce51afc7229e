"""Reads the words of WordNet IDs from lists that are often stored next to ImageNet-21K."""

from __future__ import annotations

from collections.abc import Iterable

from imagenet_prep.dataset.keys import WNID
from imagenet_prep.sources import source
from imagenet_prep.storage.remote_path import Location

# Files with "WNID words" per line: image-net.org's (all of WordNet) and timm's.
_LISTS = ("words.txt", "imagenet_synset_to_lemma.txt")
# Big Transfer's files: an ID per line, and its lemma on the same line, with "_" for spaces.
_IDS = "imagenet21k_wordnet_ids.txt"
_LEMMAS = "imagenet21k_wordnet_lemmas.txt"


def beside(folders: Iterable[Location]) -> dict[str, str]:
    """Returns words by WNID from the first list in these folders; invalid lines are ignored."""
    for folder in folders:
        for name in _LISTS:
            if (folder / name).is_file():
                lines = source.read_list(folder / name, lenient=True).splitlines()
                return _words(line.split(None, 1) for line in lines)
        if (folder / _IDS).is_file() and (folder / _LEMMAS).is_file():
            ids, lemmas = (
                source.read_list(folder / n, lenient=True).splitlines() for n in (_IDS, _LEMMAS)
            )
            spaced = (lemma.replace("_", " ") for lemma in lemmas)
            return _words(map(list, zip(ids, spaced, strict=False)))
    return {}


def _words(rows: Iterable[list[str]]) -> dict[str, str]:
    return {
        row[0]: " ".join(row[1].split())
        for row in rows
        if len(row) == 2 and WNID.fullmatch(row[0]) and row[1].strip()
    }
