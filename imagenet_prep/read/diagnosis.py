"""Finds the image that made a framework fail, which only says that a batch failed."""

from __future__ import annotations

import io
from collections.abc import Iterator

from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError
from imagenet_prep.read.feed import EncodedBatch, Feed

# Steps that a decoder may hold: those that we read ahead, and those that tf.data or DALI prefetch.
_REMEMBERED_STEPS = 12


class Diagnosis:
    """Remembers the examples that a decoder got, and reads them again if it fails."""

    def __init__(self, feed: Feed, epoch: int, start: int, steps: int) -> None:
        """Takes the feed of the decoder.

        Args:
          feed: of this rank.
          epoch: to read.
          start: examples of the epoch that all ranks have already read.
          steps: how many of those that are left.
        """
        self._feed = feed
        self._epoch = epoch
        self._start = start
        self._steps = steps
        self._fed: dict[int, EncodedBatch] = {}
        self._error: ImagenetPrepError | None = None

    def batches(self) -> Iterator[EncodedBatch]:
        """Yields the batches to decode, and remembers the last ones without their images.

        The images of a dozen steps would take 100 MB, and they can be read again.
        """
        try:
            batches = self._feed.batches(self._epoch, self._start, self._steps)
            for step, batch in enumerate(batches):
                self._fed[step] = batch._replace(encoded=[])
                self._fed.pop(step - _REMEMBERED_STEPS, None)
                yield batch
        except ImagenetPrepError as error:
            # Frameworks replace the error of a Python callback by their own.
            self._error = error
            raise

    def explain(self, error: Exception, step: int) -> None:
        """Marks the images that made a step fail, so that they are skipped from now on.

        Args:
          error: of the framework.
          step: that failed, counted from the start of this object's batches.

        Raises:
          ImagenetPrepError: the error of the feed, or of an image if none may be skipped.
          Exception: `error` itself, if every image decodes.
        """
        if self._error is not None:
            raise self._error from None
        found = False
        for number, problem in self._problems(step):
            where = f"{self._feed.records.where(number)}: {problem}"
            if not self._feed.skip_bad:
                raise DataDamagedError(where) from error
            self._feed.skip(number, where)
            found = True
        if not found:
            raise error

    def _problems(self, first_step: int) -> Iterator[tuple[int, str]]:
        """Yields (number, problem) of the remembered examples that cannot be shown."""
        for step in range(first_step, first_step + _REMEMBERED_STEPS):
            batch = self._fed.get(step)
            if batch is None:
                continue
            for number, box in zip(batch.numbers.tolist(), batch.views.boxes.tolist(), strict=True):
                # Where there is no example, the number is negative.
                if number < 0:
                    continue
                problem = _problem(self._feed.records.read(number).encoded, box)
                if problem is not None:
                    yield number, problem


def _problem(encoded: bytes, box: list[int]) -> str | None:
    """Returns why a box (top, left, height, width; pixels) of a JPEG cannot be shown, or None."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
            image.load()
            top, left, height, width = box
            if top + height > image.height or left + width > image.width:
                return f"the image is {image.width} x {image.height}, its record says larger"
    except Exception as error:  # noqa: BLE001 - Pillow raises many kinds for broken files
        return f"does not decode: {error}"
    return None
