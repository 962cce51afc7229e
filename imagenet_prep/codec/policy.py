"""The settings that determine the bytes of a stored image."""

from __future__ import annotations

from dataclasses import dataclass

from imagenet_prep.dataset.jpeg import KEEP, MAX_PIXELS

CHECK_DECODE = "decode"
CHECK_HEADER = "header"

# Each name stands for exact output bytes on every processor and with every library version. If the
# bytes change, the name needs a new number.
PLANES = "planes-1"
PORTABLE = "portable-1"
CODECS = {"auto": PLANES, "planes": PLANES, "portable": PORTABLE}
CODEC_HELP = (
    "the encoder: planes (fast), portable (resizes RGB as Pillow does: slower, different bytes) or "
    "auto (same as planes)"
)


@dataclass(frozen=True)
class Policy:
    """The settings that determine the stored form of images."""

    # Larger images are downscaled to this number of pixels on the shorter side. Smaller images are
    # not enlarged. None keeps all sizes.
    short_side: int | None = 480
    quality: int = 90  # JPEG quality of encoded images, in [1, 100]
    # How images that keep their bytes are checked: "decode" checks all entropy-coded data, "header"
    # only the headers and the end marker.
    check: str = CHECK_DECODE
    max_pixels: int = MAX_PIXELS  # images with more pixels in the header are quarantined
    stretch: bool = False  # stretch every image to a square of `short_side`
    codec: str = PLANES
    orientation: str = KEEP  # the rule for EXIF orientation, one of `jpeg.RULES`
    border: int = 0  # pixels to cut off each side first: ObjectNet's images have a red border of 1

    @property
    def libraries(self) -> dict[str, str]:
        """The entry of the manifest that names the codec."""
        return {"codec": self.codec}

    @property
    def only_copies(self) -> bool:
        """Whether undamaged images are copied without decoding or resizing them."""
        return self.short_side is None and self.check == CHECK_HEADER

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) after resizing; each is at least 1."""
        if self.stretch and self.short_side is not None:
            return self.short_side, self.short_side
        short = min(height, width)
        if self.short_side is None or short <= self.short_side:
            return height, width
        # Divide once, after multiplying: a rounded scale factor would sometimes give 479, not 480.
        return tuple(max(1, round(side * self.short_side / short)) for side in (height, width))  # type: ignore[return-value]
