"""A replica in a bucket: the server verifies every object, and the manifest is written last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from imagenet_prep.dataset.manifest import DatasetFile, FileProblem
from imagenet_prep.distribute.replica import Target
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.remote import as_file


class Bucket(Target):
    """A replica below one prefix of a bucket; thread-safe."""

    store: BucketStore

    def problem(self, file: DatasetFile, *, prove: bool) -> FileProblem | None:  # noqa: ARG002 - as in Replica
        """Returns the problem of an object according to the server's checksums, or None."""
        return self.store.problem(file)

    def require_space(self, lacking: list[DatasetFile]) -> None:
        """Does nothing: a bucket has no limit."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Removes incomplete uploads if the run fails.

        A bucket needs no lock: objects are complete or absent, and two runs write the same bytes.
        """
        return self.store.uploads_aborted_on_failure(self.names.__contains__)

    def clear(self) -> None:
        """Removes unfinished multipart uploads of this dataset."""
        self.store.abort_uploads(self.names.__contains__)

    def put(self, file: DatasetFile, chunks: Callable[[], Iterator[bytes]]) -> None:
        """Uploads an object, which the server verifies; each retry calls `chunks` again."""
        self.store.put(file, lambda: as_file(chunks()))
