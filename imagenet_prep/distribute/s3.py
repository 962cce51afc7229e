"""A replica in a bucket: every object proven by the server, the manifest last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from imagenet_prep.dataset.manifest import File, Problem
from imagenet_prep.distribute.target import Target
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.fetch import as_file


class Bucket(Target):
    """One data set below one prefix; safe for threads."""

    store: BucketStore

    def problem(self, file: File, *, prove: bool) -> Problem | None:  # noqa: ARG002 - as for a folder
        """Returns what is wrong with an object, as the server knows it; None where it is right."""
        return self.store.problem(file)

    def check_space(self, lacking: list[File]) -> None:
        """Does nothing: a bucket has no limit."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Removes incomplete uploads if the run fails.

        A bucket has no lock and needs none: an object appears whole or not at all, and two runs
        put the same bytes.
        """
        return self.store.uploads_aborted_on_failure(self.names.__contains__)

    def clear(self) -> None:
        """Removes multipart uploads of this data set that nobody will finish."""
        self.store.abort_uploads(self.names.__contains__)

    def put(self, file: File, chunks: Callable[[], Iterator[bytes]]) -> None:
        """Uploads an object, verified by the server; `chunks` is called again to start over."""
        self.store.put(file, lambda: as_file(chunks()))
