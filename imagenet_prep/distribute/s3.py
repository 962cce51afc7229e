"""A replica in a bucket: every object proven by the server, the manifest last."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import manifest, naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.dataset.placement import WHOLE
from imagenet_prep.dataset.problem import Problem
from imagenet_prep.distribute.contents import strangers
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.remote import AbsentError


class Bucket:
    """One data set below one prefix; safe for threads.

    Every method raises IncompleteError or StoreError where the server does not answer, or refuses.

    Attributes:
      files: what it must hold, but for the manifest.
    """

    def __init__(self, base: str, data: bytes, *, connections: int, timeout_s: float, retries: int):
        """Begins with the manifest's bytes; nothing is asked of the server.

        Raises:
          ManifestError: it is damaged.
          UsageError: credentials cannot be loaded, or boto3 is not installed.
        """
        self.manifest = manifest.loads(data, naming.MANIFEST)
        self.files = WHOLE.files(self.manifest)
        self._names = {file.name for file in self.files}
        self._data = data
        self._store = BucketStore(
            base, connections=connections, timeout_s=timeout_s, retries=retries
        )

    def where(self, name: str = "") -> str:
        """Returns how messages call the prefix, or an object in it."""
        return self._store.where(name)

    def refuse_others(self) -> None:
        """Refuses a prefix that holds anything but this data set.

        Raises:
          UsageError: another data set, or objects that readers would take for its shards.
        """
        names = self._store.everything()
        if naming.MANIFEST in names and (digest := self._digest()) != self.manifest.digest:
            raise UsageError(
                f"{self.where()} holds another data set (manifest {digest[:16]}, expected "
                f"{self.manifest.digest[:16]}). Remove it, or choose another prefix."
            )
        if odd := strangers(names, self.files):
            raise UsageError(
                f"{self.where()} holds {', '.join(odd[:3])}, which readers would take for shards "
                "and the manifest does not name. Remove them, or choose another prefix."
            )

    def problem(self, file: File, *, prove: bool) -> Problem | None:  # noqa: ARG002 - as for a folder
        """Returns what is wrong with an object, as the server knows it; None where it is right."""
        return self._store.problem(file)

    def manifest_problem(self) -> Problem | None:
        """Returns what is wrong with the manifest there."""
        try:
            digest = self._digest()
        except AbsentError:
            missing = f"{naming.MANIFEST}: missing: the replica is not finished"
            return Problem(missing, is_missing=True)
        known = digest == self.manifest.digest
        return None if known else Problem(f"{naming.MANIFEST}: differs from the source's")

    def check_space(self, lacking: list[File]) -> None:
        """Does nothing: a bucket has no limit."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Removes incomplete uploads if the run fails.

        A bucket has no lock and needs none: an object appears whole or not at all, and two runs
        put the same bytes.
        """
        return self._store.uploads_aborted_on_failure(self._names.__contains__)

    def clear(self) -> None:
        """Removes multipart uploads of this data set that nobody will finish."""
        self._store.abort_uploads(self._names.__contains__)

    def withdraw(self) -> None:
        """Removes the manifest, since the replica is incomplete until it is repaired."""
        self._store.remove(naming.MANIFEST)

    def put(self, file: File, chunks: Callable[[], Iterable[bytes]]) -> None:
        """Uploads an object; the server proves its bytes.

        Args:
          file: one of `files`.
          chunks: begins to read its bytes; called again where an upload has to be begun anew.

        Raises:
          DataDamagedError: the bytes are not the manifest's; no object is made of them.
        """
        self._store.put(file, chunks)

    def commit(self) -> None:
        """Puts the manifest; the caller has put every other object."""
        self._store.write(naming.MANIFEST, self._data)

    def _digest(self) -> str:
        found = self._store.stored(naming.MANIFEST).sha256 or "unknown"
        expected = hashlib.sha256(self._data).hexdigest()
        return self.manifest.digest if found == expected else found
