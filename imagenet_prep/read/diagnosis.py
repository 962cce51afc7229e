"""Finds the image that a backend cannot decode, since errors of frameworks do not name it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from imagenet_prep.codec import decoding
from imagenet_prep.core.errors import BadImageError, DataDamagedError, ImagenetPrepError
from imagenet_prep.read.feed import EncodedBatch, Feed


class Diagnosis:
    """Remembers the batches that a backend is decoding; rereads their images if decoding fails."""

    def __init__(
        self, feed: Feed, decode: Callable[[bytes], None], epoch: int, start: int, steps: int
    ) -> None:
        """`decode` is `Backend.decode`; `epoch`, `start`, `steps`: arguments of `Feed.batches`."""
        self._feed = feed
        self._decode = decode
        self._part = epoch, start, steps
        self._fed: deque[EncodedBatch] = deque()
        self._error: ImagenetPrepError | None = None

    def batches(self) -> Iterator[EncodedBatch]:
        """Yields the batches, and remembers them without their images, to save memory."""
        try:
            for batch in self._feed.batches(*self._part):
                self._fed.append(batch._replace(encoded=[]))
                yield batch
        except ImagenetPrepError as error:
            # A framework raises its own error if a Python callback fails, so keep this one.
            self._error = error
            raise

    def decoded(self) -> EncodedBatch:
        """Returns the oldest remembered batch, which the backend has now decoded."""
        return self._fed.popleft()

    def explain(self, error: Exception) -> None:
        """Masks the images that cannot be decoded; raises `error` if all can be decoded."""
        if self._error is not None:
            raise self._error from None
        has_skipped = False
        records = self._feed.records
        for batch in tuple(self._fed):
            for number in batch.numbers[batch.mask].tolist():
                encoded = records.read(number).encoded
                why = problem(encoded, self._decode, self._feed.config.backend)
                if why:
                    self._feed.skip(number, DataDamagedError(f"{records.where(number)}: {why}"))
                    has_skipped = True
        if not has_skipped:
            raise error


def problem(encoded: bytes, decode: Callable[[bytes], None], backend: str) -> str | None:
    """Returns why Pillow or the backend cannot decode a JPEG; None if both can."""
    try:
        decoding.pixels(encoded, only_jpeg=True)
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
    """Returns the line of a framework's error message that states the reason."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return next((line.strip() for line in lines.splitlines() if line.strip()), type(error).__name__)
