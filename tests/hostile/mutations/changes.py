"""Mutations of one file: `PLACES` replaces it, `CONTENTS` changes its bytes.

A mutation gets all its choices and a generator of numbers, so that a case can be repeated by its
number.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import re
import shutil
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile import shards
from tests.hostile.mutations import formats
from tests.kit.arena import SECRETS
from tests.kit.hostile import archives, images, manifests, pickles, xml

MANY = 1_000_000
# The maximum size after 10^6 repetitions; more would test this generator's memory.
REPEATED_BYTES = 64 << 20
SPARSE_BYTES = 8 << 30
# The maximum size of a small file, and a little less.
_MOST_JSON_BYTES = 120 << 20
_WITH_BLANKS = 1 << 20

Tree = Any
Change = Callable[["Victim", random.Random], None]
Edit = Callable[[bytes, str, "Victim", random.Random], bytes]


@dataclass
class Victim:
    """One file that is changed.

    Attributes:
        path: of the file.
        format: see `formats`.
        outside: a folder of the user with `SECRETS`.
        others: bytes of other kinds of files.
    """

    path: Path
    format: str
    outside: Path
    others: list[bytes]


def _instead(make: Callable[[Path, Victim, random.Random], object]) -> Change:
    def change(victim: Victim, rng: random.Random) -> None:
        remove(victim.path)
        make(victim.path, victim, rng)

    return change


def remove(path: Path) -> None:
    """Removes a path of any kind."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _device(path: Path, _: Victim, rng: random.Random) -> None:
    minor = rng.choice((5, 8, 9))  # zero, random, urandom: none has an end
    if os.geteuid():
        path.symlink_to({5: "/dev/zero", 8: "/dev/random", 9: "/dev/urandom"}[minor])
    else:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))


def _link_outside(path: Path, victim: Victim, rng: random.Random) -> None:
    name = rng.choice([name for name in SECRETS if not name.endswith(".jpg")])
    path.symlink_to(victim.outside / name)


def _link_to_a_picture(path: Path, victim: Victim, _: random.Random) -> None:
    path.symlink_to(victim.outside / "home/Pictures/passport.jpg")


def _sparse(victim: Victim, rng: random.Random) -> None:
    if rng.random() < 0.3:
        victim.path.write_bytes(b"")
    with victim.path.open("r+b") as file:
        file.truncate(SPARSE_BYTES)


def _folder(path: Path, _: Victim, rng: random.Random) -> None:
    path.mkdir()
    if rng.random() < 0.5:
        (path / "a").write_bytes(b"x")


PLACES: dict[str, Change] = {
    "fifo": _instead(lambda path, _, __: os.mkfifo(path)),
    "device": _instead(_device),
    "link to a device": _instead(lambda path, _, __: path.symlink_to("/dev/zero")),
    "link outside": _instead(_link_outside),
    "link to a picture": _instead(_link_to_a_picture),
    "link to itself": _instead(lambda path, _, __: path.symlink_to(path.name)),
    "link to nothing": _instead(lambda path, _, __: path.symlink_to("nothing")),
    "folder": _instead(_folder),
    "sparse": _sparse,
    "nothing": _instead(lambda *_: None),
}

NUMBERS = (
    10**400,
    2**63,
    2**63 - 1,
    2**64,
    2**31,
    2**32 - 1,
    10**18,
    10**30,
    -1,
    0,
    -(2**63),
    float("nan"),
    float("inf"),
    -float("inf"),
    1e300,
    1.5,
)
TYPES: tuple[Tree, ...] = (
    None,
    True,
    False,
    "",
    "text",
    [],
    {},
    [[]],
    {"": None},
    1,
    -1.5,
    ["a", 1, None],
    {"name": []},
    "0",
    "\0",
    [0] * 100,
)
TEXTS = (*manifests.NAMES.values(), "<script>alert(1)</script>", "%s%n{0}", "=1+1", "a" * MANY)
# The same values in heads of binary files: of 4, 8 and 12 bytes, of either order, in digits.
_EXTREME_BYTES = (
    b"\xff" * 8,
    b"\xff\xff\xff\x7f",
    b"\x7f" + b"\xff" * 7,
    b"\0" * 8,
    b"\xff" * 4,
    struct.pack("<Q", 1 << 40),
    struct.pack(">I", 1 << 31),
    b"7" * 11,
    b"\x80" + b"\xff" * 11,
)
OBEYED = "\x1b[2J\x1b]0;owned\x07\x9b2J\r\x08"
_MARK = "@deep-6b1f@"
_HUGE = "@huge-6b1f@"


def _leaves(tree: Tree, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Returns the paths of the values of a JSON text, with its containers."""
    found = [path] if path else []
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            found += _leaves(value, (*path, key))
    return found


def _at(tree: Tree, path: tuple[str | int, ...]) -> Tree:
    for part in path:
        tree = tree[part]
    return tree


def _json_edit(change: Callable[[Tree, random.Random], Tree]) -> Edit:
    """Returns a function that changes a value of a JSON text, or of one of its lines."""

    def edit(data: bytes, form: str, _: Victim, rng: random.Random) -> bytes:
        lines = data.splitlines() if form == "jsonl" else [data]
        number = rng.randrange(len(lines)) if lines else 0
        try:
            tree = json.loads(lines[number])
        except (ValueError, IndexError):
            return data + json.dumps(change(1, rng)).encode(errors="surrogatepass")
        tree = change(copy.deepcopy(tree), rng)
        if form == "manifest" and isinstance(tree, dict) and rng.random() < 0.8:
            return _deepened(_with_digest(tree), rng)
        lines[number] = _deepened(
            json.dumps(tree, ensure_ascii=False).encode(errors="surrogatepass"), rng
        )
        return b"\n".join(lines) + b"\n"

    return edit


def _with_digest(tree: Tree) -> bytes:
    """Returns a manifest with a matching digest; a large one without blanks, which takes long."""
    tree.pop("digest", None)
    compact = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    if len(compact) < _WITH_BLANKS:
        return manifests.render(tree)
    data = compact.encode(errors="surrogatepass")
    return b'{"digest":"%s",' % manifests.sha256(data).encode() + data[1:]


def _deepened(data: bytes, rng: random.Random) -> bytes:
    """Replaces marks by JSON text that json.dumps does not write; digests then do not match."""
    data = data.replace(json.dumps(_HUGE).encode(), b"1e999")
    mark = json.dumps(_MARK).encode()
    if mark not in data:
        return data
    depth = rng.choice((100, 900, 5_000, 100_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"":', b"}")))
    return data.replace(mark, opening * depth + b"1" + closing * depth)


def _replaced(values: Callable[[Tree, random.Random], Tree], of: type) -> Edit:
    def change(tree: Tree, rng: random.Random) -> Tree:
        places = _leaves(tree) if isinstance(tree, dict | list) else []
        wanted = [p for p in places if isinstance(_at(tree, p), of)] or places
        if not wanted:
            return values(tree, rng)
        path = rng.choice(wanted)
        _at(tree, path[:-1])[path[-1]] = values(_at(tree, path), rng)
        return tree

    return _json_edit(change)


def _repeated_value(value: Tree, rng: random.Random) -> Tree:
    if isinstance(value, dict):
        some = next(iter(value.values()), 0)
        return {str(number): some for number in range(_times(len(json.dumps(some)) + 12))}
    one = value[0] if isinstance(value, list) and value else value
    if isinstance(value, str) and rng.random() < 0.5:
        return (value or "a") * MANY if len(value) < 16 else value * 10_000
    return [one] * _times(len(json.dumps(one)) + 2)


def _times(num_bytes: int) -> int:
    return min(MANY, REPEATED_BYTES // max(1, num_bytes))


def _without(tree: Tree, rng: random.Random) -> Tree:
    places = _leaves(tree) if isinstance(tree, dict | list) else []
    if not places:
        return {}
    path = rng.choice(places)
    del _at(tree, path[:-1])[path[-1]]
    return tree


_JSON_EDITS: dict[str, Edit] = {
    "huge number": _replaced(lambda _, rng: rng.choice((*NUMBERS, _HUGE)), int),
    "wrong type": _replaced(lambda _, rng: rng.choice(TYPES), object),
    "deep": _replaced(lambda *_: _MARK, object),
    "repeated": _replaced(_repeated_value, list),
    "control characters": _replaced(lambda *_: OBEYED, str),
    "hostile text": _replaced(lambda _, rng: rng.choice(TEXTS), str),
    "removed": _json_edit(_without),
}


def _huge_number(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in formats.JSON:
        return _JSON_EDITS["huge number"](data, form, victim, rng)
    if form in formats.LINES:
        numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data)) or list(re.finditer(rb"\S+", data))
        value = str(rng.choice(NUMBERS)).encode()
        if not numbers:
            return value
        place = rng.choice(numbers)
        return data[: place.start()] + value + data[place.end() :]
    value = rng.choice(_EXTREME_BYTES)
    # Heads have numbers at the start of the bytes that are read, and rarely after it.
    starts = [place for place in formats.borders(form, data) if place + len(value) <= len(data)]
    head = starts[:24] if rng.random() < 0.7 else starts
    place = rng.choice(head or [0])
    return data[:place] + value + data[place + len(value) :]


def _wrong_type(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in formats.JSON:
        return _JSON_EDITS["wrong type"](data, form, victim, rng)
    if form in formats.LINES:
        words = list(re.finditer(rb"[^\s,<>]+", data))
        value = rng.choice((b"", b"words", b"1.5", b"-", b'"', b"[]", b"\t\t", b",,,", b"<a>"))
        if not words:
            return value
        place = rng.choice(words)
        return data[: place.start()] + value + data[place.end() :]
    place = rng.randrange(min(len(data), 300)) if data else 0
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _deep(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in formats.JSON:
        return _JSON_EDITS["deep"](data, form, victim, rng)
    depth = rng.choice((30, 1000, 100_000))
    if form == "xml":
        return xml.nested(depth)
    if form == "pickle":
        return rng.choice((pickles.nested_tuples(depth), b"]" * depth + b"a" * depth + b"."))
    if form == "mat":
        return archives.mat_nested(min(depth, 2000))
    if form == "example":
        return _nested_messages(min(depth, 3000))
    if form == "tar":
        for _ in range(min(depth, 40)):
            data = archives.tar(archives.tar_member("n01440764.tar", data))
        return data
    if form.endswith("gz"):
        for _ in range(min(depth, 100)):
            data = gzip.compress(data, 1)
        return data
    return b"[(" * depth + data


def _nested_messages(depth: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = formats.CONTAINERS["example"].join([formats.Part("10", "example", data)])
    return data


def _repeated(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in ("json", "manifest") or (form == "jsonl" and rng.random() < 0.3):
        return _JSON_EDITS["repeated"](data, form, victim, rng)
    if form in (*formats.LINES, "jsonl"):
        lines = data.splitlines(keepends=True) or [b"\n"]
        number = rng.randrange(len(lines))
        one = rng.choice((lines[number], b"\n", lines[number].rstrip() + b" "))
        return b"".join(lines[:number]) + one * _times(len(one)) + b"".join(lines[number:])
    if form == "tfrecord" and rng.random() < 0.5:
        empty = formats.CONTAINERS["tfrecord"].join([formats.Part("", "example", b"")])
        return data + empty * MANY
    if members := formats.parts(form, data):
        one = min(members, key=lambda part: len(part.data))
        if len(members) > 1 or form == "example":
            unit = formats.CONTAINERS[form].join([one])
            if form in ("tfrecord", "example"):
                return data + unit * _times(len(unit))
            return formats.CONTAINERS[form].join([*members, *[one] * 2_000])
        inner = _repeated(one.data, one.format, victim, rng)
        return formats.CONTAINERS[form].join([one._replace(data=inner)])
    place = rng.choice(formats.borders(form, data))
    one = data[place : place + rng.choice((1, 8, 16, 60))] or b"\0"
    return data[:place] + one * MANY + data[place:]


def _truncated(data: bytes, form: str, _: Victim, rng: random.Random) -> bytes:
    return data[: rng.choice(formats.borders(form, data))]


def _bits(data: bytes, _: str, __: Victim, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _number in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(min(len(changed), rng.choice((16, 128, 600))))] ^= 1 << rng.randrange(
            8
        )
    return bytes(changed)


def _inserted(text: Callable[[random.Random], bytes]) -> Edit:
    def edit(data: bytes, form: str, _: Victim, rng: random.Random) -> bytes:
        place = rng.choice(formats.borders(form, data))
        return data[:place] + text(rng) + data[place:]

    return edit


_INSERTED_CONTROL = _inserted(lambda _: OBEYED.encode())


def _control(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in formats.JSON:
        return _JSON_EDITS["control characters"](data, form, victim, rng)
    return _INSERTED_CONTROL(data, form, victim, rng)


def _hostile_text(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in formats.JSON:
        return _JSON_EDITS["hostile text"](data, form, victim, rng)
    text = rng.choice(TEXTS).encode(errors="surrogatepass")
    words = list(re.finditer(rb"[\w./-]{3,}", data[:100_000]))
    if not words:
        return data + text
    place = rng.choice(words)
    return data[: place.start()] + text + data[place.end() :]


def _removed(data: bytes, form: str, victim: Victim, rng: random.Random) -> bytes:
    if form in formats.JSON:
        return _JSON_EDITS["removed"](data, form, victim, rng)
    begin, end = sorted((rng.choice(formats.borders(form, data)), rng.randrange(len(data) + 1)))
    return data[:begin] + data[end:]


def _swapped(_: bytes, __: str, victim: Victim, rng: random.Random) -> bytes:
    return rng.choice(victim.others)


def _extreme(data: bytes, form: str, _: Victim, rng: random.Random) -> bytes:
    """Returns an object that is known to be as expensive as its format allows."""
    return rng.choice(_EXTREMES.get(form, _EXTREMES["bytes"]))(data)


def _with_a_large_dictionary(data: bytes) -> bytes:
    """Returns a tar packed with xz; zeros behind it would fill the dictionary."""
    return archives.xz_with_dictionary(data + bytes(600 << 20), 36)


def _with_many_long_names(data: bytes) -> bytes:
    """Returns a packed tar of empty images with paths of the maximum length."""
    long = archives.tar_header("././@LongLink", 4000, b"L")
    names = (b"fog/1/%08d" % number + b"a" * 3900 for number in range(20_000))
    empty = archives.tar_header("a", 0)
    return gzip.compress(b"".join(long + name.ljust(4096, b"\0") + empty for name in names), 1)


def _with_a_product_of_objects(data: bytes) -> bytes:
    """Returns ObjectNet's zip, in which each of many folders is an object of many classes."""
    folders = json.dumps({f"{number:x}": "X" for number in range(40_000)}).encode()
    objects = json.dumps({"X": "tench, Tinca tinca;" * 40_000}).encode()
    instead = {"folder_to_objectnet_label.json": folders, "objectnet_to_imagenet_1k.json": objects}
    parts = formats.parts("zip", data)
    return formats.CONTAINERS["zip"].join(
        [part._replace(data=instead.get(part.name.split("/")[-1], part.data)) for part in parts]
    )


def _with_long_keys(data: bytes) -> bytes:
    """Returns a table of samples whose last line is repeated with many long keys."""
    *lines, last = data.splitlines(keepends=True) or [b"key,class\r\n"]
    key, _, rest = last.partition(b",")
    long = (b"%b%05d%b,%b" % (key, number, b"\\" * 4000, rest) for number in range(14_000))
    return b"".join([*lines, *long])


_EXTREMES: dict[str, list[Callable[[bytes], bytes]]] = {
    "tar": [
        lambda _: archives.tar_with_a_pax_size_of_many_digits(),
        lambda _: archives.tar_with_a_pax_length_of_many_digits(),
        lambda _: archives.tar_with_many_small_pax_records(),
        lambda _: archives.tar_of_negative_size(),
        lambda _: archives.tar_of_odd_octal_size(),
        lambda data: data + data,
        lambda _: archives.tar(archives.tar_header("n01440764.tar", b"\x80" + b"\xff" * 11)),
        _with_a_large_dictionary,
        _with_many_long_names,
    ],
    "zip": [
        lambda _: archives.zip_of_empty_files(2_000_000),
        lambda _: archives.zip_of_empty_files(350_000),
        lambda _: archives.zip_of_empty_files(8_000, b"objectnet-1.0/images/" + b"a" * 1_900),
        _with_a_product_of_objects,
    ],
    "tar.gz": [
        lambda _: archives.devkit_of_zeros(3 << 30),
        lambda _: archives.devkit_with_extra_zeros(3 << 30),
        lambda _: archives.nested_box_archives(40, b"x"),
        lambda _: archives.box_archives_of_zeros(3 << 30),
    ],
    "idx.gz": [lambda _: archives.gzip_of_zeros(3 << 30, struct.pack(">4I", 0x803, 9, 28, 28))],
    "mat": [
        lambda _: archives.mat_of_zeros(1 << 28),
        lambda _: archives.mat_with_cells(2**31 - 1),
        lambda _: archives.mat_with_blanks(2**31 - 1),
        lambda _: archives.mat_with_structs(2**31 - 1),
    ],
    "xml": [
        lambda _: xml.billion_laughs(),
        lambda _: xml.external_entity(),
        lambda _: xml.many_boxes(20_000),
        lambda _: xml.number_of_many_digits(),
    ],
    "pickle": [
        *(lambda _, made=made: made for made in pickles.SMALL.values()),
        lambda _: pickles.repeated_encodings_of_a_text(100_000, 100_000),
        lambda _: pickles.many_empty_dicts(20_000_000),
        lambda _: _shared_tuples_as_a_key(64),
    ],
    "image": [
        lambda _: images.progressive_jpeg(500),
        lambda _: images.many_scans_without_interleaving(500),
        lambda _: images.scans_behind_garbage(300),
        lambda _: images.scans_behind_an_end_in_a_comment(300),
        lambda _: images.jpeg_with_many_comments(200_000),
        lambda _: images.jpeg_that_claims(),
        lambda _: images.png_that_claims(),
        lambda _: images.gif_that_claims(),
        lambda _: images.apng_that_claims(),
        lambda _: images.lossless_jpeg(),
        lambda _: images.lossless_jpeg(components=1),
        lambda _: images.eps(),
        lambda _: images.transparent_png(3000),
    ],
    "tfrecord": [lambda _, made=made: made for _, made in shards.hostile()],
    "json": [
        lambda _: _filled(b"{}", b'{"a":[', b"[],", b"[]]}"),
        lambda _: _filled(b"{}", b'{"a":[', b"{},", b"{}]}"),
        lambda data: _filled(data, b', "a": [', b'[""],', b"0]}"),
        lambda data: _filled(data, b', "a": "', b"\\u00e9", b'"}'),
        lambda data: _filled(data, b"", b" ", b"}"),
        lambda _: b'{"a": ' + b"1" * MANY + b"}",
    ],
    "lines": [
        lambda data: data + b"\n" * _MOST_JSON_BYTES,
        lambda data: data + b"a " * (_MOST_JSON_BYTES // 2),
        lambda data: data + b"0 0\n" * (_MOST_JSON_BYTES // 4),
        lambda data: data + b"x" * _MOST_JSON_BYTES,
        lambda data: data + b"".join(b"%x\n" % number for number in range(4_000_000)),
        lambda data: data + b"".join(b"%x,1\n" % number for number in range(4_000_000)),
    ],
    "bytes": [
        lambda data: data * 2,
        lambda data: b"\xff" * len(data),
        lambda data: bytes(len(data)),
    ],
}


_EXTREMES["manifest"] = _EXTREMES["json"]
_EXTREMES["jsonl"] = [*_EXTREMES["json"], *_EXTREMES["lines"]]
_EXTREMES["csv"] = [*_EXTREMES["lines"], *[_with_long_keys] * 3]


def _filled(data: bytes, before: bytes, unit: bytes, after: bytes) -> bytes:
    """Returns an object with one value more, as large as a small file may be."""
    times = (_MOST_JSON_BYTES - len(data)) // len(unit)
    return data.rstrip().removesuffix(b"}") * (data != b"{}") + before + unit * times + after


def _shared_tuples_as_a_key(depth: int) -> bytes:
    """Returns a pickle of a dict; its key has 2^depth leaves, but only `depth` tuples."""
    return b"}N" + b"2\x86" * depth + b"Ns."


CONTENTS: dict[str, Edit] = {
    "empty": lambda *_: b"",
    "truncated": _truncated,
    "doubled": lambda data, *_: data * 2,
    "repeated": _repeated,
    "swapped": _swapped,
    "bits": _bits,
    "huge number": _huge_number,
    "wrong type": _wrong_type,
    "deep": _deep,
    "not text": _inserted(lambda rng: rng.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xc3"))),
    "control characters": _control,
    "hostile text": _hostile_text,
    "removed": _removed,
    "extreme": _extreme,
}
# Parts of a container can have these too; the container is then packed again around the part.
INSIDE_CHANCE = 0.6

MUTATIONS = (*PLACES, *CONTENTS)


def apply(mutation: str, victim: Victim, rng: random.Random) -> str:
    """Applies a mutation; returns its description."""
    if mutation in PLACES:
        PLACES[mutation](victim, rng)
        return mutation
    data = victim.path.read_bytes()
    changed, where = _inside(mutation, data, victim.format, victim, rng)
    remove(victim.path)
    victim.path.write_bytes(changed)
    return f"{mutation}{where}: {len(data)} bytes become {len(changed)}"


def _inside(
    mutation: str, data: bytes, form: str, victim: Victim, rng: random.Random, depth: int = 0
) -> tuple[bytes, str]:
    members = formats.parts(form, data) if rng.random() < INSIDE_CHANCE else []
    if not members:
        return CONTENTS[mutation](data, form, victim, rng), ""
    number = rng.randrange(len(members))
    part = members[number]
    inner, where = _inside(mutation, part.data, part.format, victim, rng, depth + 1)
    members[number] = part._replace(data=inner)
    name = part.name or part.format
    return formats.CONTAINERS[form].join(members), f" in {name}{where}"
