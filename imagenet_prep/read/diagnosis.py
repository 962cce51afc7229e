"""Names the image behind the error of a framework, which only says that a batch failed."""

from __future__ import annotations

import io
from collections.abc import Iterator

from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError
from imagenet_prep.read.feed import EncodedBatch, Feed

# What a decoder holds at most: our own steps ahead, and the prefetching of tf.data or DALI.
_REMEMBERED_STEPS = 12


class Diagnosis:
    """Remembers which examples a decoder was fed, and reads them again where it fails."""

    def __init__(self, feed: Feed, epoch: int, start: int) -> None:
        """Begins.

        Args:
          feed: what the decoder is fed from.
          epoch: to feed.
          start: examples of the epoch that all ranks have read before.
        """
        self._feed = feed
        self._epoch = epoch
        self._start = start
        self._fed: dict[int, EncodedBatch] = {}
        self._error: ImagenetPrepError | None = None

    def batches(self) -> Iterator[EncodedBatch]:
        """Yields the batches to decode, and remembers the last ones without their images.

        A dozen steps of images would be 100 MB, and they are quickly read again.
        """
        try:
            for step, batch in enumerate(self._feed.batches(self._epoch, self._start)):
                self._fed[step] = batch._replace(encoded=[])
                self._fed.pop(step - _REMEMBERED_STEPS, None)
                yield batch
        except ImagenetPrepError as error:
            # Frameworks wrap what a Python callback raises into errors of their own.
            self._error = error
            raise

    def explain(self, error: Exception, step: int) -> None:
        """Skips the images that made a step fail, from now on; returns where there were some.

        Args:
          error: of the framework.
          step: that failed, counted from where this began.

        Raises:
          ImagenetPrepError: what the feed has raised, or an image that may not be skipped.
          Exception: `error` itself, where every image decodes.
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
