"""`imagenet-prep doctor`: each check, its remedy and the exit code."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import stat
import tomllib
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import pytest

from imagenet_prep import doctor
from imagenet_prep.codec import cage
from imagenet_prep.core import imports
from imagenet_prep.dataset.manifest import DatasetFile, FileProblem
from imagenet_prep.storage.bucket import BucketStore
from imagenet_prep.storage.s3 import CHECK_BY_READING
from tests.kit import command
from tests.kit.installed import Installed
from tests.kit.messages import exactly, says, wording
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, S3Server, objects
from tests.kit.system import System

REPOSITORY = Path(__file__).parents[2]


def found(config: doctor.DoctorConfig) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.checks(config)}


@pytest.fixture
def config(tmp_path: Path) -> doctor.DoctorConfig:
    return doctor.DoctorConfig(dir=str(tmp_path))


def test_working_machine_gives_exit_code_0(tmp_path: Path) -> None:
    finished = command.run("doctor", "--dir", tmp_path)
    shown = command.run("doctor", "--dir", tmp_path, "--json").json

    assert finished.code == 0, finished
    assert shown["ok"]
    assert len(finished.out.splitlines()) == len(shown["checks"])
    assert {line.split()[0] for line in finished.out.splitlines()} <= {"ok", "missing"}
    assert list(tmp_path.iterdir()) == []


def test_missing_extra_is_no_error_but_explained(
    config: doctor.DoctorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_prep.core.imports.version", lambda *_: None)
    checks = found(config)

    assert checks["extra parquet"] == doctor.Check(
        "extra parquet",
        "missing",
        "for Parquet sources and exports: no pyarrow",
        "pip install 'imagenet-prep[parquet]'",
    )
    assert "nvidia-dali-cuda120 or nvidia-dali-cuda130" in checks["extra dali"].found
    assert "wrong" not in {check.state for check in checks.values()}


@pytest.mark.parametrize(
    "package", sorted({name for packages, _ in doctor.EXTRAS.values() for name in packages.split()})
)
def test_extra_without_one_package_is_missing(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of packages that replace each other, both are missing."""
    absent = {*package.split("|")}
    monkeypatch.setattr(
        "imagenet_prep.core.imports.version",
        lambda *names: None if absent & {*names} else f"{names[0]} 1.0",
    )
    checks = {check.name: check for check in doctor._extras()}

    for extra, (packages, use) in doctor.EXTRAS.items():
        check = checks[f"extra {extra}"]
        if package in packages.split():
            what = f"for {use}: no {package.replace('|', ' or ')}"
            assert (check.state, check.found) == ("missing", what)
            assert f"[{extra}]" in check.remedy
        else:
            versions = [f"{name.partition('|')[0]} 1.0" for name in packages.split()]
            assert (check.state, check.found) == ("ok", ", ".join(versions))


def test_extras_of_doctor_match_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]

    assert {*doctor.EXTRAS, "gpu", "dali-cuda13", "test", "all"} == set(extras)
    for extra, (packages, _) in doctor.EXTRAS.items():
        wanted = extras[extra] + (
            extras["report"] if "imagenet-prep[report]" in extras[extra] else []
        )
        for package in packages.split():
            assert any(line.startswith(package.split("|")[0]) for line in wanted), package
        assert len(packages.split()) == len(
            {line.partition(">")[0] for line in wanted if not line.startswith("imagenet-prep")}
        )


def test_codec_without_compiled_code_is_wrong(
    config: doctor.DoctorConfig, installed: Installed
) -> None:
    installed.library("codec.planes")
    check = found(config)["codec"]

    assert check.state == "wrong"
    assert says("cannot-loaded-compiled-when-imagenet-prep").search(check.found)


def test_kernel_without_confinement_is_named(
    config: doctor.DoctorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cage, "missing_means", lambda: ["landlock", "seccomp"])
    check = found(config)[wording("decoders-other-images")]

    assert check.state == "missing"
    assert "landlock and seccomp" in check.found


def test_disk_without_hard_links_is_named(config: doctor.DoctorConfig, system: System) -> None:
    system.fails("link", errno.EPERM)
    check = found(config)["hard links"]

    assert (check.state, "Operation not permitted" in check.found) == ("missing", True)


def test_missing_fsync_folder_and_limits_are_wrong(
    config: doctor.DoctorConfig, tmp_path: Path, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = found(doctor.DoctorConfig(dir=str(tmp_path / "absent")))["disk"]
    assert (absent.state, absent.found) == (
        "wrong",
        f"{tmp_path / 'absent'}: No such file or directory",
    )

    system.fails("fsync", errno.EIO)
    monkeypatch.setattr(doctor, "_LEAST_FILES", 1 << 40)
    monkeypatch.setattr(doctor, "_SHARED", tmp_path / "absent")
    checks = found(config)

    assert checks["disk"].found == f"{tmp_path}: Input/output error"
    assert checks["open files"].found.endswith("expected 1,099,511,627,776 or more")
    wrong = {name for name, check in checks.items() if check.state == "wrong"}
    assert wrong == {"disk", "open files", "/dev/shm"}
    assert list(tmp_path.iterdir()) == []


BLOCK = 4096
GIB = 1 << 30
SHARED = 64 << 20


def disk_with(
    system: System, folder: Path, free: int, *, blocks: int, inodes: int = 0, free_inodes: int = 0
) -> None:
    """Replaces the sizes of one disk; half of it is reserved for root."""
    fake = os.statvfs_result(
        (
            BLOCK,
            BLOCK,
            blocks,
            2 * free // BLOCK,
            free // BLOCK,
            inodes,
            inodes,
            free_inodes,
            0,
            255,
        )
    )

    def sizes(real: Callable[..., os.statvfs_result], path: Path) -> os.statvfs_result:
        return fake if Path(path) == folder else real(path)

    system.instead("statvfs", sizes)


@pytest.mark.parametrize(
    ("free", "blocks", "inodes", "free_inodes", "state"),
    [
        (GIB, GIB, 50_000, 10_000, "ok"),
        (GIB - BLOCK, GIB, 50_000, 10_000, "wrong"),  # twice as much is free for root
        (GIB, GIB, 50_000, 9_999, "wrong"),
        (GIB, GIB, 0, 0, "ok"),  # Btrfs, which makes inodes on demand
        (0, 0, 0, 0, "ok"),  # a file system without a size, such as a mounted bucket
    ],
)
def test_free_bytes_and_inodes_decide_about_the_disk(
    config: doctor.DoctorConfig,
    tmp_path: Path,
    system: System,
    free: int,
    blocks: int,
    inodes: int,
    free_inodes: int,
    state: str,
) -> None:
    disk_with(system, tmp_path, free, blocks=blocks, inodes=inodes, free_inodes=free_inodes)

    assert found(config)["disk"].state == state


@pytest.mark.parametrize(
    ("hard", "state"),
    [(4095, "wrong"), (4096, "ok"), (resource.RLIM_INFINITY, "ok")],
)
def test_the_hard_limit_of_open_files_decides(
    config: doctor.DoctorConfig, system: System, hard: int, state: str
) -> None:
    system.instead("getrlimit", lambda _real, _kind: (1024, hard))

    assert found(config)["open files"].state == state


@pytest.mark.parametrize(
    ("free", "is_writable", "state"),
    [(SHARED, True, "ok"), (SHARED - BLOCK, True, "wrong"), (SHARED, False, "wrong")],
)
def test_free_bytes_and_permission_decide_about_shared_memory(
    config: doctor.DoctorConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: System,
    free: int,
    is_writable: bool,
    state: str,
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(doctor, "_SHARED", shared)
    disk_with(system, shared, free, blocks=GIB)
    system.instead(
        "access",
        lambda real, path, mode: is_writable if path == shared else real(path, mode),
    )

    assert found(config)["/dev/shm"].state == state


def test_disk_whose_hard_links_are_copies_is_named(
    config: doctor.DoctorConfig, system: System
) -> None:
    system.instead("link", lambda _real, path, link: shutil.copyfile(path, link))

    assert found(config)["hard links"].state == "missing"


def test_a_disk_that_cannot_sync_folders_is_wrong(
    config: doctor.DoctorConfig, system: System
) -> None:
    def synced(real: Callable[..., None], descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    system.instead("fsync", synced)
    checks = found(config)

    assert "fsync" not in checks
    assert checks["disk"].state == "wrong"


def test_gpus_are_wrong_if_cuda_cannot_use_them(
    config: doctor.DoctorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpus" / "0000:00").mkdir(parents=True)
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path)
    monkeypatch.setattr("imagenet_prep.core.imports.gpus", lambda: 0)
    assert found(config)["GPU"].state == "wrong"

    monkeypatch.setattr("imagenet_prep.core.imports.gpus", lambda: 2)
    monkeypatch.setattr(
        "imagenet_prep.core.imports.version",
        lambda *names: "torch 2.15.0+cpu" if names == ("torch",) else None,
    )
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Open  595.71.05  Release\nGCC\n")
    checks = found(config)
    assert checks["GPU"].found == "2 GPUs, driver 595.71.05"
    assert checks["PyTorch"].state == "wrong"


@pytest.mark.parametrize(
    ("version", "gpus", "state"),
    [
        ("horovod 0.28.1+patch01234567", 2, "wrong"),
        ("horovod 0.28.1+patch01234567.nccl", 2, "ok"),
        ("horovod 0.28.1", 2, "ok"),  # a build of unknown variant
        ("horovod 0.28.1+patch01234567", 0, "ok"),
    ],
)
def test_horovod_without_nccl_is_wrong_if_gpus_exist(
    config: doctor.DoctorConfig,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    gpus: int,
    state: str,
) -> None:
    """For MXNet, Horovod sums gradients on the CPU in any case."""
    versions = {each.packages: f"{each.module} 1.0" for each in imports.FRAMEWORKS.values()}
    versions["horovod",] = version
    monkeypatch.setattr("imagenet_prep.core.imports.gpus", lambda: gpus)
    monkeypatch.setattr("imagenet_prep.core.imports.version", lambda *names: versions.get(names))
    monkeypatch.setattr("imagenet_prep.core.imports.problem_of_horovod", lambda _: None)
    checks = found(config)

    for name, framework in imports.FRAMEWORKS.items():
        check = checks[f"Horovod for {framework.title}"]
        if state == "ok" or name == "mxnet":
            assert (check.state, check.found) == ("ok", version)
        else:
            assert check.state == "wrong"
            assert check.found == f"{version} sums on the CPU, but this host has 2 GPUs"
            assert check.remedy == f"imagenet-prep install-horovod --framework {name}"


@pytest.mark.extras
def test_bucket_is_tested_and_unchanged(s3: S3Server, tmp_path: Path) -> None:
    with proxied(s3.url, seed=1, faults=0, rate=0.0) as proxy:
        settings = {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        words = ("doctor", "--dir", tmp_path, "--json", "--s3")
        good = command.run(*words, f"s3://{BUCKET}/tried", env=settings)
        other = {**settings, "AWS_SECRET_ACCESS_KEY": "other"}
        refused = command.run(*words, f"s3://{BUCKET}/tried", env=other)
        proxy.keeps_checksums = False
        unkept = command.run(*words, f"s3://{BUCKET}/tried", env=settings)
        read = command.run(*words, f"s3://{BUCKET}/tried", env={**settings, CHECK_BY_READING: "1"})

    assert [each.code for each in (good, refused, unkept, read)] == [0, 1, 1, 0]
    last = [each.json["checks"][-1] for each in (good, refused, unkept, read)]
    done = wording("object-two-parts-uploaded-read")
    assert last[0]["found"].endswith(f"{done}; {wording('server-verifies-crc32cs')}")
    assert "SignatureDoesNotMatch. The server does not know this access key" in last[1]["found"]
    assert last[2]["remedy"] == f"export {CHECK_BY_READING}=1"
    assert last[3]["found"].endswith(wording("objects-read-back-compared"))
    assert unkept.err == "imagenet-prep: 1 check wrong: S3\n"
    assert objects(s3.client(), "tried") == {}


@pytest.mark.extras
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("read", b"other bytes"),
        ("read", bytes(200)),
        ("names", ["object", "other"]),
        ("names", []),
    ],
)
def test_bucket_that_answers_with_different_contents_is_wrong(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, answer: object
) -> None:
    monkeypatch.setattr(BucketStore, call, lambda *_: answer)
    check = found(doctor.DoctorConfig(dir=str(tmp_path), s3=prefix))["S3"]

    assert check.state == "wrong"
    assert prefix in check.found
    assert CHECK_BY_READING not in os.environ


@pytest.mark.extras
def test_bucket_that_alters_large_objects_is_wrong(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has confirmed the upload, so only the object's state shows the difference."""
    problem_of = BucketStore.problem

    def problem(store: BucketStore, file: DatasetFile, *more: str) -> FileProblem | None:
        if not file.name.endswith("/object"):
            return problem_of(store, file, *more)
        return FileProblem(f"{file.name}: 7 bytes, expected {file.num_bytes:,}")

    monkeypatch.setattr(BucketStore, "problem", problem)
    check = found(doctor.DoctorConfig(dir=str(tmp_path), s3=prefix))["S3"]

    assert check.state == "wrong"
    assert "/object: 7 bytes, expected 33,555,456" in check.found
    assert CHECK_BY_READING not in os.environ


def refused(method: str, path: str, headers: Message) -> str:
    """Returns the kind of a request to an S3 server."""
    _, _, query = path.partition("?")
    if method == "POST" and "uploadId=" in query:
        return "complete"
    if method == "GET" and "list-type=" in query:
        return "list"
    if method == "GET" and "Range" in headers:
        return "range"
    return method


@pytest.mark.extras
@pytest.mark.parametrize(
    ("kind", "answer", "sentence"),
    [
        (
            "complete",
            (400, "InvalidPart"),
            exactly("400 InvalidPart. If the server stores no checksums"),
        ),
        ("range", (400, "NotHere"), exactly("400 NotHere. Look up this answer to GetObject in")),
        (
            "list",
            (403, "AccessDenied"),
            says("check-aws-variables-aws-credentials", on="403 AccessDenied"),
        ),
        ("HEAD", (405, ""), exactly("405. Look up this answer to HeadObject in")),
        (
            "DELETE",
            (403, "AccessDenied"),
            says("check-aws-variables-aws-credentials", on="403 AccessDenied"),
        ),
        ("PUT", (507, ""), exactly("507. Free some space")),
    ],
)
def test_doctor_tests_all_requests_that_datasets_need(
    s3: S3Server, tmp_path: Path, kind: str, answer: tuple[int, str], sentence: re.Pattern[str]
) -> None:
    with proxied(s3.url, seed=1, faults=0, rate=0.0) as proxy:
        proxy.refusal = lambda *request: answer if refused(*request) == kind else None
        settings = {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        words = ("--dir", tmp_path, "--json", "--s3", f"s3://{BUCKET}/tried-{kind}")
        result = command.run("doctor", *words, env=settings)

    assert result.code == 1
    assert sentence.search(result.json["checks"][-1]["found"])


@pytest.mark.extras
def test_refused_part_checksums_give_the_remedy(s3: S3Server, tmp_path: Path) -> None:
    def refuse(method: str, path: str, headers: Message) -> tuple[int, str] | None:
        has_checksum = any("checksum" in name.lower() for name in headers)
        is_end = refused(method, path, headers) == "complete"
        return (400, "InvalidPart") if is_end and has_checksum else None

    with proxied(s3.url, seed=1, faults=0, rate=0.0) as proxy:
        proxy.refusal = refuse
        settings = {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        words = ("--dir", tmp_path, "--json", "--s3", f"s3://{BUCKET}/parts")
        result = command.run("doctor", *words, env=settings)

    assert result.json["checks"][-1]["remedy"] == f"export {CHECK_BY_READING}=1"
    assert objects(s3.client(), "parts") == {}


def test_each_line_ends_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        doctor.Check("disk", "ok", "9 GB are free"),
        doctor.Check("DALI", "missing", "not installed", "pip install DALI"),
        doctor.Check("ssh", "wrong", "no key", "ssh-keygen"),
    ]
    monkeypatch.setattr(doctor, "checks", lambda _: found)

    assert doctor.run([]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "ok      disk: 9 GB are free",
        "missing DALI: not installed  -> pip install DALI",
        "wrong   ssh: no key  -> ssh-keygen",
    ]
    assert said.err == "imagenet-prep: 1 check wrong: ssh\n"


@pytest.mark.parametrize("program", [None, "/usr/bin/ssh"])
def test_missing_ssh_has_a_remedy(
    installed: Installed, tmp_path: Path, program: str | None
) -> None:
    installed.programs(lambda _: program)
    check = found(doctor.DoctorConfig(dir=str(tmp_path)))["ssh"]
    assert check.state == ("ok" if program else "missing")
    assert bool(check.remedy) == (program is None)
    assert program is None or check.found == program


def test_wrong_bucket_is_wrong_without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further trial could succeed."""
    tried: list[str] = []
    monkeypatch.setenv(CHECK_BY_READING, "1")
    monkeypatch.setattr(doctor, "_trial", lambda base: tried.append(base) or "refused")
    check = doctor._bucket("s3://bucket")
    assert (check.state, check.found, tried) == ("wrong", "refused", ["s3://bucket"])
