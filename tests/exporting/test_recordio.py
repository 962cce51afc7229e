"""The lists next to a RecordIO file."""

from __future__ import annotations

from imagenet_prep.exporting.examples import Example, ExportPart
from imagenet_prep.exporting.formats import RecordIOFormat


def test_lists_have_the_lines_of_im2rec() -> None:
    example = Example(4, "n1/a b.JPEG", 17, "n1", b"image", "", {})
    pieces = [*RecordIOFormat().pieces(ExportPart("train", 0, 1, range(2)), [example, example])]

    size = len(pieces[2].data)
    assert [(piece.name, piece.data.decode()) for piece in pieces if piece.name != "train.rec"] == [
        ("train.lst", "0\t17.000000\tn1/a b.JPEG\n"),
        ("train.idx", "0\t0\n"),
        ("train.lst", "1\t17.000000\tn1/a b.JPEG\n"),
        ("train.idx", f"1\t{size}\n"),
    ]
