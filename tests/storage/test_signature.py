"""SSH signatures of manifests and columns, made and verified by OpenSSH's programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_prep import export, replicate, verify
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.dataset import column, schema
from imagenet_prep.storage import columns
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.columns import make_column
from tests.kit.dataset import all_files
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.training import make_shades

if shutil.which("ssh-keygen") is None:
    pytest.skip("ssh-keygen is not installed", allow_module_level=True)


def key(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True
    )
    return path


def sign(
    secret: Path, dataset: Path, namespace: str = "imagenet-prep", name: str = schema.MANIFEST
) -> None:
    (dataset / schema.signature_name(name)).unlink(missing_ok=True)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", secret]
    subprocess.run([*words, dataset / name], check=True, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed dataset, two keys, and the file of allowed signers."""
    folder = tmp_path_factory.mktemp("signed")
    make_shades(folder / "set")
    good = key(folder, "good")
    _ = key(folder, "other")
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
    dataset = open_dataset(str(place / "set"))
    return columns.signer(dataset.store, schema.MANIFEST, dataset.data, str(place / "signers"))


def run_verify(place: Path, *more: str, dataset: str = "set") -> int:
    words = ["--level", "manifest", "--signers", str(place / "signers"), *more]
    try:
        return verify.run([str(place / dataset), *words])
    except ImagenetPrepError as error:
        print(error, file=sys.stderr)
        return error.exit_code


@pytest.fixture
def with_column(place: Path) -> Path:
    """The copy; its dataset has a column without a signature."""
    make_column(place / "set")
    return place


RECORD = column.record_name("latents")


def test_signer_is_named_for_datasets_and_replicas(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "replica"
    assert replicate.run([str(signed / "set"), "--to", str(to)]) == 0
    assert verify.run([str(to), "--level", "manifest", "--signers", str(signed / "signers")]) == 0

    assert capsys.readouterr().out.splitlines()[-1] == "signed by lab@example.org"
    again = replicate.run([str(signed / "set"), "--to", str(to), "--check"])
    assert again == 0


def test_later_signature_is_copied_to_a_finished_replica(place: Path) -> None:
    (place / "set" / schema.SIGNATURE).unlink()
    words = [str(place / "set"), "--to", str(place / "replica"), "--json"]
    assert replicate.run(words) == 0
    sign(place / "good", place / "set")
    assert replicate.run(words) == 0

    ours = (place / "set" / schema.SIGNATURE).read_bytes()
    assert (place / "replica" / schema.SIGNATURE).read_bytes() == ours


def test_unsigned_dataset_is_refused_with_the_command(place: Path) -> None:
    (place / "set" / schema.SIGNATURE).unlink()
    with pytest.raises(
        DataDamagedError, match=says("get-author-again-ask-author", on="not signed")
    ):
        signer(place)


@pytest.mark.parametrize("fault", ["other key", "other purpose", "other bytes", "damaged", "empty"])
def test_dataset_without_a_valid_signature_is_refused(place: Path, fault: str) -> None:
    dataset = place / "set"
    if fault == "other key":
        sign(place / "other", dataset)
    elif fault == "other purpose":
        sign(place / "good", dataset, "git")
    elif fault == "other bytes":
        manifest = dataset / schema.MANIFEST
        whole = manifest.read_bytes()
        manifest.write_bytes(whole + b"\n")
        sign(place / "good", dataset)
        manifest.write_bytes(whole)
    else:
        text = (dataset / schema.SIGNATURE).read_text()
        made = "" if fault == "empty" else text.replace("A", "B")
        (dataset / schema.SIGNATURE).write_text(made)

    with pytest.raises(DataDamagedError, match=says("not-valid-signature-key-ssh-keygen")):
        signer(place)


def test_column_without_a_signature_is_named(
    with_column: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verify(with_column) == 3
    out, err = capsys.readouterr()
    assert "signed by lab@example.org\nnot signed: columns/latents\n" in out
    assert says("no-signature-covers-ask-author", "set", "columns/latents").search(err)
    assert says("no-signature-covers-ask-author", ..., ..., "columns").search(err)
    assert says("no-signature-covers-ask-author", ..., ..., ..., "columns/latents").search(err)
    assert run_verify(with_column, "--json") == 3
    result = json.loads(capsys.readouterr().out)
    assert (result["not_signed"], result["problems"]) == (["columns/latents"], [])
    assert verify.run([str(with_column / "set"), "--level", "manifest"]) == 0


@pytest.mark.parametrize("accepted", ["columns", "columns/latents", "placement.json,columns"])
def test_parts_without_a_signature_can_be_accepted(with_column: Path, accepted: str) -> None:
    assert run_verify(with_column, "--allow-unsigned", accepted) == 0


@pytest.mark.parametrize("accepted", ["columns/latent", "columns/latents/", "latents", "column"])
def test_only_accepted_parts_may_lack_a_signature(with_column: Path, accepted: str) -> None:
    assert run_verify(with_column, "--allow-unsigned", accepted) == 3


def test_accepting_parts_needs_signers(with_column: Path) -> None:
    with pytest.raises(UsageError, match=says("allow-unsigned-only-used-signers")):
        verify.run([str(with_column / "set"), "--allow-unsigned", "columns"])


def test_signed_column_is_also_reported_in_a_replica(
    with_column: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_column(with_column / "set", "other")
    sign(with_column / "good", with_column / "set", name=RECORD)
    sign(with_column / "good", with_column / "set", name=column.record_name("other"))
    to = with_column / "replica"
    assert replicate.run([str(with_column / "set"), "--to", str(to), "--columns", "latents"]) == 0
    assert not (to / column.folder_name("other")).exists()
    capsys.readouterr()
    assert run_verify(with_column, dataset="replica") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["signed by lab@example.org", "column latents: signed by lab@example.org"]


def test_later_signature_of_a_column_is_copied(with_column: Path) -> None:
    words = [str(with_column / "set"), "--to", str(with_column / "replica"), "--json"]
    assert replicate.run(words) == 0
    sign(with_column / "good", with_column / "set", name=RECORD)
    assert replicate.run(words) == 0

    name = schema.signature_name(RECORD)
    ours = (with_column / "set" / name).read_bytes()
    assert (with_column / "replica" / name).read_bytes() == ours


@pytest.mark.parametrize("fault", ["other rows", "other key", "other purpose", "other column"])
def test_column_without_a_valid_signature_is_refused(
    with_column: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = with_column / "set"
    sign(with_column / "good", dataset, name=RECORD)
    assert run_verify(with_column) == 0
    if fault == "other rows":
        make_column(dataset, seed=1)
    elif fault == "other key":
        sign(with_column / "other", dataset, name=RECORD)
    elif fault == "other purpose":
        sign(with_column / "good", dataset, "git", RECORD)
    else:
        other = column.record_name("other")
        make_column(dataset, "other")
        sign(with_column / "good", dataset, name=other)
        (dataset / schema.signature_name(RECORD)).write_bytes(
            (dataset / schema.signature_name(other)).read_bytes()
        )

    assert run_verify(with_column, "--allow-unsigned", "columns") == 3
    reason = says("not-valid-signature-key-ssh-keygen", ..., RECORD)
    assert reason.search(capsys.readouterr().err)


def test_incomplete_column_is_not_covered(
    with_column: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = with_column / "set"
    sign(with_column / "good", dataset, name=RECORD)
    stored = column.loads((dataset / RECORD).read_bytes(), "", "latents")
    (dataset / column.begun_name("latents")).write_bytes(stored.begun().dumps())

    assert run_verify(with_column) == 3
    assert says("no-signature-covers-ask-author", ..., "columns/latents").search(
        capsys.readouterr().err
    )


def test_older_column_with_its_signature_is_accepted(with_column: Path) -> None:
    dataset = with_column / "set"
    folder = dataset / column.folder_name("latents")
    sign(with_column / "good", dataset, name=RECORD)
    shutil.copytree(folder, with_column / "older")
    make_column(dataset, seed=1)
    sign(with_column / "good", dataset, name=RECORD)
    shutil.rmtree(folder)
    shutil.copytree(with_column / "older", folder)

    assert run_verify(with_column) == 0


def test_signed_column_of_a_different_dataset_is_refused(
    with_column: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other dataset has shards with the same names."""
    other = with_column / "other-set"
    make_shades(other, classes=(1, 2))
    make_column(other)
    sign(with_column / "good", other, name=RECORD)
    folder = with_column / "set" / column.folder_name("latents")
    shutil.rmtree(folder)
    shutil.copytree(other / column.folder_name("latents"), folder)

    assert run_verify(with_column) == 3
    assert "columns/latents: was not made for the records of" in capsys.readouterr().out


def test_work_files_are_not_covered(place: Path) -> None:
    work = place / "set" / schema.WORK
    work.mkdir(exist_ok=True)
    (work / "note").write_text("not signed")

    assert run_verify(place) == 0


def test_columns_of_a_web_server_are_not_found(
    with_column: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--level", "manifest", "--signers", str(with_column / "signers")]
    with serve(all_files(with_column / "set")) as server:
        assert verify.run([server.url, *words]) == 0

    assert "signed by lab@example.org" in capsys.readouterr().out.splitlines()


def test_export_has_no_signatures(with_column: Path) -> None:
    sign(with_column / "good", with_column / "set", name=RECORD)
    out = with_column / "tars"
    words = ["--to", "webdataset", "--columns", "latents", "--out", str(out)]
    assert export.run([str(with_column / "set"), *words]) == 0

    names = [path.name for path in out.rglob("*")]
    assert names
    assert not [name for name in names if name.endswith(".sig")]


def test_placement_of_a_node_is_not_covered(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        str(place / "set"),
        "--to",
        str(place / "part"),
        "--mode",
        "partition",
        "--part",
        "0/2",
    ]
    assert replicate.run(words) == 0
    capsys.readouterr()

    assert run_verify(place, dataset="part") == 3
    assert says("no-signature-covers-ask-author", ..., "placement.json").search(
        capsys.readouterr().err
    )
    assert run_verify(place, "--allow-unsigned", "placement.json", dataset="part") == 0
    assert "not signed: placement.json" in capsys.readouterr().out


def test_file_outside_the_manifest_is_not_covered(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorFlow Datasets finds the shards by this file."""
    (place / "set" / schema.TFDS_INFO).write_text("{}")

    assert run_verify(place) == 3
    assert says("no-signature-covers-ask-author", ..., schema.TFDS_INFO).search(
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "lines",
    [
        'a@example.org namespaces="git" KEY\nb@example.org namespaces="imagenet-prep" KEY',
        'a@example.org namespaces="git" KEY\n# b\n\n"b@example.org" KEY',
        'a@example.org valid-before="20200101" KEY\nb@example.org,c@example.org KEY',
    ],
)
def test_each_line_with_the_key_is_tried(place: Path, lines: str) -> None:
    public = " ".join((place / "good.pub").read_text().split()[:2])
    (place / "signers").write_text(lines.replace("KEY", public) + "\n")

    assert signer(place) == "b@example.org"


def test_key_without_permission_for_this_purpose_is_refused(place: Path) -> None:
    public = (place / "good.pub").read_text()
    (place / "signers").write_text(
        f'a@example.org namespaces="git" {public}b@example.org namespaces="file" {public}'
    )
    with pytest.raises(DataDamagedError, match=says("not-valid-signature-key-ssh-keygen")):
        signer(place)


def test_endless_signature_is_not_read(place: Path) -> None:
    (place / "set" / schema.SIGNATURE).write_bytes(b"A" * (1 << 20))
    with pytest.raises(DataDamagedError):
        signer(place)


def test_missing_signers_are_a_usage_error(place: Path) -> None:
    (place / "signers").unlink()
    with pytest.raises(UsageError, match=says("signers-no-such-file")):
        signer(place)
    (place / "signers").mkdir()
    with pytest.raises(UsageError, match=says("signers-folder-pipe-device-expected")):
        signer(place)


@pytest.mark.parametrize("name", ["good.pub", "other.pub"])
def test_public_key_without_a_name_is_explained(place: Path, name: str) -> None:
    shutil.copy(place / name, place / "signers")
    with pytest.raises(UsageError, match=says("signers-line-no-name-before", ..., 1)):
        signer(place)


@pytest.mark.parametrize("text", [b"", b"\n", b"# the lab\n", b"lab@example.org\n", None])
def test_file_without_signers_is_a_usage_error(place: Path, text: bytes | None) -> None:
    private_key = (place / "good").read_bytes()
    (place / "signers").write_bytes(private_key if text is None else text)
    with pytest.raises(UsageError, match=says("signers-no-line-name-public")):
        signer(place)


def test_signature_above_16_kb_is_not_read(place: Path) -> None:
    """OpenSSH ignores blanks after a signature."""
    path = place / "set" / schema.SIGNATURE
    whole = path.read_bytes()
    path.write_bytes(whole + b"\n" * ((16 << 10) - len(whole)))
    assert signer(place) == "lab@example.org"

    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DataDamagedError, match="16,384"):
        signer(place)


def test_signatures_of_a_wrong_size_are_not_read(place: Path) -> None:
    path = place / "set" / schema.SIGNATURE
    assert signer(place) == "lab@example.org"
    signature = path.read_bytes()
    path.write_bytes(signature + b"\n" * ((16 << 10) - len(signature)))
    assert signer(place) == "lab@example.org"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ImagenetPrepError):
        signer(place)


def test_a_program_that_never_ends_is_stopped(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh-keygen").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(columns, "_KEYGEN_LIMIT_S", 0.2)
    with pytest.raises(UsageError):
        signer(place)


def test_each_identity_of_a_key_is_tried(place: Path) -> None:
    """The first identity with the key may only sign for a different purpose."""
    public = (place / "good.pub").read_text()
    (place / "signers").write_text(
        f'git@example.org namespaces="git" {public}lab@example.org {public}'
    )
    assert signer(place) == "lab@example.org"


def test_missing_program_for_signatures_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=says("signers-needs-ssh-keygen-openssh-8.2")):
        signer(place)
