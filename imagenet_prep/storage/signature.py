"""The SSH signature of a manifest, made by `ssh-keygen -Y sign` and verified by OpenSSH."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import naming
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.store import Readable

# OpenSSH rejects a signature made for a different namespace.
NAMESPACE = "imagenet-prep"
# SSH signatures are under 1 kB, or about 6 kB with an RSA key of 16,384 bits.
_MOST_BYTES = 16 << 10
_LIMIT_S = 30


def read(store: Readable) -> bytes | None:
    """Returns the signature next to a manifest, or None if there is none."""
    if store.size(naming.SIGNATURE) is None:
        return None
    return store.read(naming.SIGNATURE, most=_MOST_BYTES)


def signer(dataset: Dataset, signers: str) -> str:
    """Returns the identity in the file `signers` whose key signed the manifest.

    Raises DataDamagedError if no signature is valid, UsageError if OpenSSH cannot check it.
    """
    where, allowed = dataset.store.where(naming.SIGNATURE), Path(signers).expanduser().absolute()
    if not allowed.is_file():
        raise UsageError(f"--signers {signers}: there is no such file")
    remedy = (
        f"Get {naming.MANIFEST} and {naming.SIGNATURE} from the author again, or ask the author to "
        f"sign: ssh-keygen -Y sign -n {NAMESPACE} -f KEY {naming.MANIFEST}"
    )
    if (data := read(dataset.store)) is None:
        raise DataDamagedError(f"{where}: missing, so the dataset is not signed. {remedy}")
    with tempfile.NamedTemporaryFile(prefix="imagenet-prep-", suffix=".sig") as file:
        file.write(data)
        file.flush()
        files = ["-s", file.name, "-f", str(allowed)]
        result = _keygen("find-principals", files, b"")
        # Take the first line: a key may belong to several identities.
        identity = result.stdout.decode(errors="replace").partition("\n")[0]
        if not result.returncode:
            words = [*files, "-I", identity, "-n", NAMESPACE]
            result = _keygen("verify", words, dataset.data)
        if result.returncode:
            reason = result.stderr.decode(errors="replace").strip() or "no matching key"
            raise DataDamagedError(
                f"{where}: not a valid signature of {naming.MANIFEST} by a key in {signers} "
                f"(ssh-keygen: {reason}). {remedy}"
            )
    return identity


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


if __name__ == "__main__":  # `replicate` runs this on a host, with FOLDER and the bytes in hex.
    LocalStore(Path(sys.argv[1]).expanduser()).write(naming.SIGNATURE, bytes.fromhex(sys.argv[2]))
