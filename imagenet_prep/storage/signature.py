"""SSH signatures of a manifest and of columns, by `ssh-keygen -Y sign`; OpenSSH verifies them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import column, naming
from imagenet_prep.dataset.column import Column
from imagenet_prep.storage import columns
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.store import Readable

# OpenSSH rejects a signature made for a different namespace.
NAMESPACE = "imagenet-prep"
# SSH signatures are under 1 kB, or about 6 kB with an RSA key of 16,384 bits.
_MOST_BYTES = 16 << 10
_LIMIT_S = 30
# Files that commands use. The manifest has their sha256, except that of placement.json.
_SMALL_FILES = (naming.PLACEMENT, naming.LABELS, naming.QUARANTINE, *naming.TFDS_FILES)


def read(store: Readable, name: str) -> bytes | None:
    """Returns the signature next to a file, or None if there is none."""
    signature = naming.signature_name(name)
    if store.size(signature) is None:
        return None
    return store.read(signature, most=_MOST_BYTES)


def check(dataset: Dataset, stored: Mapping[str, Column], signers: str) -> Json:
    """Verifies the signatures of a dataset and of its complete columns, `stored` by name.

    Returns the signer of the manifest and of each column, and the parts without a signature. Raises
    DataDamagedError if the manifest has no valid signature, or a column has an invalid one.
    """
    store = dataset.store
    by = signer(store, naming.MANIFEST, dataset.data, signers)
    by_column: dict[str, str] = {}
    unsigned: list[str] = []
    for name in columns.names(store):
        # An invalid name is never in `stored`.
        if name in stored and read(store, column.record_name(name)) is not None:
            # These are the bytes of column.json that were parsed.
            data = stored[name].dumps()
            by_column[name] = signer(store, column.record_name(name), data, signers)
        else:
            unsigned.append(f"{naming.COLUMNS}/{name}")
    listed = {file.name for file in dataset.manifest.files}
    unsigned += sorted(store.sizes(name for name in _SMALL_FILES if name not in listed))
    return {"signed_by": by, "columns_signed_by": by_column, "not_signed": unsigned}


def signer(store: Readable, name: str, data: bytes, signers: str) -> str:
    """Returns the identity in the file `signers` that signed `data`, the content of a file.

    Raises DataDamagedError if no signature is valid, UsageError if OpenSSH cannot check it.
    """
    signature = naming.signature_name(name)
    where = store.where(signature)
    path = Path(signers).expanduser().absolute()
    remedy = (
        f"Get {name} and {signature} from the author again, or ask the author to sign: "
        f"ssh-keygen -Y sign -n {NAMESPACE} -f KEY {name}"
    )
    if not path.is_file():
        raise UsageError(f"--signers {signers}: there is no such file")
    signed = read(store, name)
    if signed is None:
        raise DataDamagedError(f"{where}: missing, so the dataset is not signed. {remedy}")
    identity, reason = _identity(signed, data, path.read_bytes())
    if identity is None:
        raise DataDamagedError(
            f"{where}: not a valid signature of {name} by a key in {signers} (ssh-keygen: "
            f"{reason}). {remedy}"
        )
    return identity


def _identity(signed: bytes, data: bytes, allowed: bytes) -> tuple[str | None, str]:
    """Returns the identity that signed `data`; or None, and the message of OpenSSH."""
    reason = ""
    # OpenSSH finds only the first line with a key, but another one may allow the namespace.
    for lines in (allowed, *allowed.splitlines(keepends=True)):
        with (
            tempfile.NamedTemporaryFile(prefix="imagenet-prep-", suffix=".sig") as file,
            tempfile.NamedTemporaryFile(prefix="imagenet-prep-", suffix=".signers") as signers,
        ):
            file.write(signed)
            file.flush()
            signers.write(lines)
            signers.flush()
            files = ["-s", file.name, "-f", signers.name]
            result = _keygen("find-principals", files, b"")
            for identity in result.stdout.decode(errors="replace").splitlines():
                words = [*files, "-I", identity, "-n", NAMESPACE]
                result = _keygen("verify", words, data)
                if not result.returncode:
                    return identity, ""
            reason = reason or result.stderr.decode(errors="replace").strip()
    return None, reason or "no matching key"


def _keygen(act: str, words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = ["ssh-keygen", "-Y", act, *words]
    try:
        return subprocess.run(argv, input=data, capture_output=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError:
        raise UsageError(
            "--signers needs ssh-keygen (OpenSSH 8.2 or newer): apt-get install openssh-client"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"ssh-keygen did not finish within {_LIMIT_S} s. Run the same command again"
        ) from None


if __name__ == "__main__":  # `replicate` runs this on a host: FOLDER NAME SIGNATURE ..., in hex.
    target = LocalStore(Path(sys.argv[1]).expanduser())
    for signed_name, signature_hex in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        target.write(naming.signature_name(signed_name), bytes.fromhex(signature_hex))
