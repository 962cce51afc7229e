"""The SSH signature of a manifest: who made a dataset, by OpenSSH's own programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from imagenet_prep import replicate, verify
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import naming
from imagenet_prep.storage import signature
from imagenet_prep.storage.opened import open_dataset
from tests.kit.training import make_shades

if shutil.which("ssh-keygen") is None:
    pytest.skip("ssh-keygen is not installed", allow_module_level=True)


def key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True
    )
    return path


def sign(secret: Path, dataset: Path, namespace: str = "imagenet-prep") -> None:
    (dataset / naming.SIGNATURE).unlink(missing_ok=True)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", secret]
    subprocess.run([*words, dataset / naming.MANIFEST], check=True, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed dataset, two keys, and the file of those who may sign."""
    folder = tmp_path_factory.mktemp("signed")
    make_shades(folder / "set")
    good, _ = key(folder, "good"), key(folder, "other")
    sign(good, folder / "set")
    public = good.with_suffix(".pub").read_text()
    (folder / "signers").write_text(f"# the lab\nlab@example.org {public}")
    return folder


@pytest.fixture
def place(signed: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    shutil.copytree(signed, tmp_path / "copy")
    return tmp_path / "copy"


def signer(place: Path) -> str:
    return signature.signer(open_dataset(str(place / "set")), str(place / "signers"))


def test_the_signer_is_named_also_of_a_replica(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "replica"
    assert replicate.run([str(signed / "set"), "--to", str(to)]) == 0
    assert verify.run([str(to), "--level", "manifest", "--signers", str(signed / "signers")]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == "signed by lab@example.org"
    again = replicate.run([str(signed / "set"), "--to", str(to), "--check"])
    assert again == 0


def test_a_signature_that_came_later_is_carried_to_a_finished_replica(place: Path) -> None:
    (place / "set" / naming.SIGNATURE).unlink()
    words = [str(place / "set"), "--to", str(place / "replica"), "--json"]
    assert replicate.run(words) == 0
    sign(place / "good", place / "set")
    assert replicate.run(words) == 0

    ours = (place / "set" / naming.SIGNATURE).read_bytes()
    assert (place / "replica" / naming.SIGNATURE).read_bytes() == ours


def test_an_unsigned_dataset_is_refused_with_the_command(place: Path) -> None:
    (place / "set" / naming.SIGNATURE).unlink()
    with pytest.raises(DataDamagedError, match="not signed.*ssh-keygen -Y sign -n imagenet-prep"):
        signer(place)


@pytest.mark.parametrize("fault", ["other key", "other purpose", "other bytes", "damaged", "empty"])
def test_what_the_author_has_not_signed_is_refused(place: Path, fault: str) -> None:
    dataset = place / "set"
    if fault == "other key":
        sign(place / "other", dataset)
    elif fault == "other purpose":
        sign(place / "good", dataset, "git")
    elif fault == "other bytes":
        manifest = dataset / naming.MANIFEST
        whole = manifest.read_bytes()
        manifest.write_bytes(whole + b"\n")
        sign(place / "good", dataset)
        manifest.write_bytes(whole)
    else:
        text = (dataset / naming.SIGNATURE).read_text()
        made = "" if fault == "empty" else text.replace("A", "B")
        (dataset / naming.SIGNATURE).write_text(made)

    with pytest.raises(DataDamagedError, match="not a valid signature"):
        signer(place)


def test_a_signature_without_end_is_not_read(place: Path) -> None:
    (place / "set" / naming.SIGNATURE).write_bytes(b"A" * (1 << 20))
    with pytest.raises(DataDamagedError):
        signer(place)


def test_signers_that_are_missing_are_a_usage_error(place: Path) -> None:
    (place / "signers").unlink()
    with pytest.raises(UsageError, match="--signers .* there is no such file"):
        signer(place)
