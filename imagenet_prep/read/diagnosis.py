"""Finds the image that made a batch fail; frameworks do not name it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from imagenet_prep.codec import opening
from imagenet_prep.core.errors import BadImageError, DataDamagedError, ImagenetPrepError
from imagenet_prep.read.feed import EncodedBatch, Feed


class Diagnosis:
    """Remembers the batches in a decoder, and rereads their images if it fails."""

    def __init__(
        self, feed: Feed, decode: Callable[[bytes], None], epoch: int, start: int, steps: int
    ) -> None:
        """`decode` is the backend's; it raises any error for an image it cannot decode."""
        self._feed = feed
        self._decode = decode
        self._part = epoch, start, steps
        self._fed: deque[EncodedBatch] = deque()
        self._error: ImagenetPrepError | None = None

    def batches(self) -> Iterator[EncodedBatch]:
        """Yields the batches, and remembers them without images (100 MB per dozen steps)."""
        try:
            for batch in self._feed.batches(*self._part):
                self._fed.append(batch._replace(encoded=[]))
                yield batch
        except ImagenetPrepError as error:
            # Frameworks replace errors of Python callbacks with their own.
            self._error = error
            raise

    def decoded(self) -> EncodedBatch:
        """Returns the next batch that the decoder has finished, without its images."""
        return self._fed.popleft()

    def explain(self, error: Exception) -> None:
        """Skips the images that made a step fail; raises the error if there are none."""
        if self._error is not None:
            raise self._error from None
        has_skipped, records = False, self._feed.records
        for batch in tuple(self._fed):
            for number in batch.numbers.tolist():
                if number < 0:
                    continue
                encoded = records.read(number).encoded
                if why := problem(encoded, self._decode, self._feed.config.backend):
                    self._feed.skip(number, DataDamagedError(f"{records.where(number)}: {why}"))
                    has_skipped = True
        if not has_skipped:
            raise error


def problem(encoded: bytes, decode: Callable[[bytes], None], backend: str) -> str | None:
    """Returns why Pillow or a backend's `decode` cannot decode a JPEG; None if both can."""
    try:
        with opening.opened(encoded, only=("JPEG",)) as image:
            image.load()
    except BadImageError as error:
        return f"does not decode: {error}"
    try:
        decode(encoded)
    except Exception as error:  # noqa: BLE001 - each framework has its own errors
        return (
            f"backend {backend!r} cannot decode it, but Pillow can: {_reason(error)}. Use "
            "backend='native' or on_bad_record='skip'"
        )
    return None


def _reason(error: Exception) -> str:
    """Returns the line with the reason from a framework's error."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return next((line.strip() for line in lines.splitlines() if line.strip()), type(error).__name__)
