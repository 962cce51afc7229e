"""The settings that decide an image's bytes."""

from __future__ import annotations

from dataclasses import dataclass

from imagenet_prep.dataset.jpeg import MAX_PIXELS
from imagenet_prep.dataset.orientation import KEEP

CHECK_DECODE = "decode"
CHECK_HEADER = "header"

# Each names the bytes that it makes of an image, on every processor and with every version of
# the libraries below it. Other bytes are another number.
PLANES = "planes-1"
PORTABLE = "portable-1"
# The codec for each value of `--codec`.
CODECS = {"auto": PLANES, "planes": PLANES, "portable": PORTABLE}
CODEC_HELP = (
    "the encoder; planes: fast, in C; portable: slower, other bytes, if planes cannot be had; auto "
    "is planes"
)


@dataclass(frozen=True)
class Policy:
    """How images are transformed.

    Attributes:
      short_side: pixels of the smaller edge after resize; larger images are shrunk to it,
        none is enlarged. None keeps every size.
      quality: JPEG quality of images that are encoded, in [1, 100].
      check: "decode" proves the whole entropy-coded data of images that pass through;
        "header" looks at the headers and the end marker only.
      max_pixels: images that claim more are quarantined undecoded.
      stretch: make every image a square of `short_side`, whatever its size and aspect.
      codec: PLANES or PORTABLE: what encodes images, and so names their bytes.
      orientation: one of `orientation.RULES`: what is done where an EXIF tag says that the image
        is to be turned.
      border: pixels that are cut off at each side of every image first: ObjectNet marks its own.
    """

    short_side: int | None = 480
    quality: int = 90
    check: str = CHECK_DECODE
    max_pixels: int = MAX_PIXELS
    stretch: bool = False
    codec: str = PLANES
    orientation: str = KEEP
    border: int = 0

    @property
    def libraries(self) -> dict[str, str]:
        """The libraries that made the bytes of images, for the manifest."""
        return {"codec": self.codec}

    @property
    def only_copies(self) -> bool:
        """Whether sound images are neither decoded nor resized."""
        return self.short_side is None and self.check == CHECK_HEADER

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) in pixels after resize; aspect kept, rounded, at least 1."""
        if self.stretch and self.short_side is not None:
            return self.short_side, self.short_side
        short = min(height, width)
        if self.short_side is None or short <= self.short_side:
            return height, width
        # One division is rounded correctly. A product in float32 would drift, and make 479 of the
        # 480 that were asked for.
        return tuple(max(1, round(side * self.short_side / short)) for side in (height, width))  # type: ignore[return-value]
