"""Check this machine: Python, codec, extras, frameworks, Horovod, GPUs, disk, limits and ssh.

Each result is ok, missing or wrong, with a remedy unless ok. The exit code is 1 if one is wrong.

Examples:
  imagenet-prep doctor
  imagenet-prep doctor --dir /data --s3 s3://bucket/prefix
  imagenet-prep run-on-hosts hosts -- imagenet-prep doctor --json
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from imagenet_prep.core import imports, program, terminal
from imagenet_prep.core.errors import ImagenetPrepError, install_line
from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.core.version import version
from imagenet_prep.dataset import schema

# The packages and the purpose of each extra. A bar separates packages of which one is enough.
EXTRAS = {
    "beam": ("apache-beam", "prepare on a cluster"),
    "parquet": ("pyarrow", "Parquet sources and exports"),
    "s3": ("boto3", "s3:// addresses"),
    "heif": ("pillow-heif", "photographs in HEIC"),
    "report": ("jinja2 matplotlib scikit-image", "report and plots"),
    "demo": ("jinja2 matplotlib scikit-image scikit-learn scipy", "demo"),
    "tf": ("tensorflow-cpu|tensorflow keras", "train with TensorFlow"),
    "torch": ("torch", "train --framework pytorch"),
    "dali": ("nvidia-dali-cuda120|nvidia-dali-cuda130", "decoding by DALI"),
    "tensorboard": ("tensorboard", "train --tensorboard-dir"),
}
_LEAST_FILES = 4096
_LEAST_SHARED = 64 << 20
_LEAST_FREE = 1 << 30
_LEAST_INODES = 10_000
_SERVER_S = 10.0
_DRIVER = Path("/proc/driver/nvidia")
_SHARED = Path("/dev/shm")


class Check(NamedTuple):
    """The result of one check, with a remedy if it is not ok."""

    name: str
    state: Literal["ok", "missing", "wrong"]
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class DoctorConfig(Settings):
    """Settings of one run; see the help of each flag."""

    dir: str = flag(".", place=AddressKind.FOLDER, help="folder on the disk to check")
    s3: str | None = optional(
        place=AddressKind.BUCKET,
        help="also write, read, list and delete an object of 32 MiB below this prefix",
    )
    json: bool = switch(help="print the checks as JSON")


def checks(config: DoctorConfig) -> Iterator[Check]:
    """Performs all checks of this machine and yields their results."""
    yield _python()
    yield _codec()
    yield _cage()
    yield from _extras()
    for name, framework in imports.FRAMEWORKS.items():
        found = imports.version(*framework.packages)
        if found:
            yield _framework(name, framework, found)
            yield _horovod(name, framework)
    yield _gpus()
    yield from _disk(Path(config.dir).expanduser().absolute())
    yield _limit()
    yield _shared_memory()
    ssh = shutil.which("ssh")
    if ssh:
        yield Check("ssh", "ok", ssh)
    else:
        found = "needed by launch and replicate to reach remote hosts"
        yield Check("ssh", "missing", found, "apt-get install openssh-client")
    if config.s3 is not None:
        yield _bucket(config.s3)


def _python() -> Check:
    python = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    package = f"imagenet-prep {version()}"
    if imports.version("imagenet-prep") is None:
        package += " (not installed by pip)"
    return Check("Python", "ok", f"{python}; {package}")


def _codec() -> Check:
    from imagenet_prep.codec import planes

    try:
        loaded = planes.load()
    except planes.CodecUnavailableError as error:
        return Check("codec", "wrong", error.why)
    from PIL import features

    simd = planes.INSTRUCTION_SETS[loaded.kernel.planes_best()]
    jpeg = features.version_feature("libjpeg_turbo")
    return Check("codec", "ok", f"compiled C with {simd}, libjpeg-turbo {jpeg}")


def _cage() -> Check:
    from imagenet_prep.codec import cage

    name = "decoders of other images"
    missing = cage.missing_means()
    if missing:
        found = f"run without {' and '.join(missing)}, which this kernel lacks"
        return Check(name, "missing", found, "use a kernel with Landlock and seccomp (Linux 5.13)")
    return Check(name, "ok", "run in a process without access to files and sockets")


def _extras() -> Iterator[Check]:
    for extra, (packages, use) in EXTRAS.items():
        versions = {name: imports.version(*name.split("|")) for name in packages.split()}
        missing = [name for name, version in versions.items() if version is None]
        if missing:
            found = f"for {use}: no {', '.join(missing).replace('|', ' or ')}"
            yield Check(f"extra {extra}", "missing", found, install_line(extra))
        else:
            yield Check(f"extra {extra}", "ok", ", ".join(filter(None, versions.values())))


def _framework(name: str, framework: imports.Framework, found: str) -> Check:
    if imports.on_cpu_only(name) and imports.gpus():
        remedy = install_line("gpu") if framework.module == "tensorflow" else framework.remedy
        remedy = f"pip uninstall {found.split()[0]}; {remedy}"
        return Check(framework.title, "wrong", f"{found} does not use the GPUs", remedy)
    return Check(framework.title, "ok", found)


def _horovod(name: str, framework: imports.Framework) -> Check:
    title = f"Horovod for {framework.title}"
    remedy = imports.horovod_remedy(name)
    problem = imports.problem_of_horovod(name)
    if problem is not None:
        return Check(title, *problem, remedy)
    found = imports.version("horovod") or ""
    if imports.sums_on_cpu() and imports.gpus() and name != "mxnet":
        found += f" sums on the CPU, but this host has {counted(imports.gpus(), 'GPU')}"
        return Check(title, "wrong", found, remedy)
    return Check(title, "ok", found)


_NO_DRIVER = "for training on GPUs, install NVIDIA's driver; nvidia-smi shows whether it works"


def _gpus() -> Check:
    count = imports.gpus()
    listed = list(_DRIVER.glob("gpus/*"))
    if count:
        version = _DRIVER / "version"
        words = version.read_text("utf-8").split() if version.is_file() else []
        driver = next((word for word in words if word[:1].isdigit()), "unknown")
        return Check("GPU", "ok", f"{counted(count, 'GPU')}, driver {driver}")
    if listed:
        found = f"the driver lists {counted(len(listed), 'GPU')}, but CUDA finds none"
        remedy = "nvidia-smi; check CUDA_VISIBLE_DEVICES; in a container: docker run --gpus all"
        return Check("GPU", "wrong", found, remedy)
    return Check("GPU", "missing", "no NVIDIA driver: training uses the CPU", _NO_DRIVER)


def _judged(name: str, is_ok: bool, found: str, remedy: str) -> Check:
    return Check(name, "ok", found) if is_ok else Check(name, "wrong", found, remedy)


def _disk(folder: Path) -> Iterator[Check]:
    from imagenet_prep.storage.local_file import new_file, sync_folder

    try:
        disk = os.statvfs(folder)
        free, space = _free(folder)
        # File systems such as Btrfs create inodes on demand, and report 0 of them.
        inodes = f"{disk.f_favail:,} inodes" if disk.f_files else "unlimited inodes"
        enough = not disk.f_files or disk.f_favail >= _LEAST_INODES
        found = f"{folder}: {space} and {inodes} free"
        enough = enough and free >= _LEAST_FREE
        yield _judged("disk", enough, found, f"df -h {folder}; df -i {folder}")
        with tempfile.TemporaryDirectory(prefix=".imagenet-prep-doctor-", dir=folder) as scratch:
            with new_file(Path(scratch) / "file") as file:
                file.write(b"imagenet-prep")
            sync_folder(Path(scratch))
            yield Check("fsync", "ok", f"{folder}: a file and its folder were synced")
            yield _link(Path(scratch) / "file")
    except OSError as error:
        yield Check("disk", "wrong", f"{folder}: {error.strerror}", f"ls -ld {folder}")


def _free(folder: Path) -> tuple[int, str]:
    from imagenet_prep.storage.folder import UNKNOWN_BYTES, free_bytes

    free = free_bytes(folder)
    return free, human_bytes(free) if free < UNKNOWN_BYTES else "an unknown number of bytes"


def _link(path: Path) -> Check:
    folder = path.parent.parent
    link = path.with_name("link")
    try:
        os.link(path, link)
        if path.samefile(link):
            return Check("hard links", "ok", f"{folder}: files can be hard-linked")
        reason = "a hard link and its original are different files"
    except OSError as error:
        reason = str(error.strerror)
    remedy = "for adopt and amend, use a folder on a different file system"
    return Check("hard links", "missing", f"{folder}: {reason}", remedy)


def _limit() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return Check("open files", "ok", "unlimited per process")
    found = f"at most {hard:,} per process, expected {_LEAST_FILES:,} or more"
    remedy = "raise nofile in /etc/security/limits.conf"
    return _judged("open files", hard >= _LEAST_FILES, found, remedy)


def _shared_memory() -> Check:
    try:
        free, space = _free(_SHARED)
    except OSError as error:
        return Check("/dev/shm", "wrong", str(error.strerror), f"mount -t tmpfs tmpfs {_SHARED}")
    is_writable = os.access(_SHARED, os.W_OK)
    found = f"{space} free" if is_writable else f"{space} free, not writable"
    remedy = "remove old files there; in a container: docker run --shm-size=8g"
    return _judged("/dev/shm", is_writable and free >= _LEAST_SHARED, found, remedy)


def _bucket(base: str) -> Check:
    """Tests uploads with checksums; if the server refuses checksums, tests without them."""
    from imagenet_prep.storage.s3 import CHECK_BY_READING, checks_by_reading

    by_reading = checks_by_reading()
    how = "objects are read back and compared" if by_reading else "the server verifies CRC32Cs"
    problem = _trial(base)
    if problem is None:
        tried = "an object of two parts was uploaded, read by range, listed and deleted"
        return Check("S3", "ok", f"{base}: {tried}; {how}")
    if by_reading:
        return Check("S3", "wrong", problem)
    os.environ[CHECK_BY_READING] = "1"
    try:
        remaining_problem = _trial(base)
    finally:
        del os.environ[CHECK_BY_READING]
    if remaining_problem is not None:
        return Check("S3", "wrong", problem)
    found = f"{base}: the server does not verify CRC32Cs, but objects can be read back and compared"
    return Check("S3", "wrong", found, f"export {CHECK_BY_READING}=1")


def _trial(base: str) -> str | None:
    """Makes each kind of request that a dataset needs; returns the problem, or None."""
    from imagenet_prep.dataset.manifest import DatasetFile
    from imagenet_prep.storage.bucket import PART_BYTES, BucketStore
    from imagenet_prep.storage.remote import Access

    folder = f"{schema.WORK}/doctor-{uuid.uuid4().hex}"
    name = f"{folder}/object"
    data = os.urandom(1 << 10) * (PART_BYTES // (1 << 10) + 1)
    file = DatasetFile(name, len(data), hashlib.sha256(data).hexdigest())
    # This range is in both parts.
    start = PART_BYTES - 100
    size = 200
    try:
        access = Access(timeout_s=_SERVER_S, retries=1, remedy="Is the server up?")
        store = BucketStore(base, access)
        store.try_to_write()
        try:
            store.put(file, functools.partial(io.BytesIO, data))
            problem = store.problem(file)
            found = store.read(name, start, size)
            listed = store.names(folder)
            store.abort_uploads(name.__eq__)
        finally:
            store.remove(name)
    except ImagenetPrepError as error:
        return str(error)
    if problem is not None:
        return f"{base}: {problem}"
    if found != data[start : start + size]:
        return f"{base}/{name}: the bytes that were read back differ from those written"
    if listed != ["object"]:
        return f"{base}/{folder}: the server lists {listed}, expected one object"
    return None


@program.verb("imagenet_prep.doctor", DoctorConfig, __doc__, resumes=False)
def run(config: DoctorConfig) -> int:
    done = []
    for check in checks(config):
        done.append(check)
        if not config.json:
            remedy = f"  -> {check.remedy}" if check.remedy else ""
            print(f"{check.state:8}{check.name}: {check.found}{remedy}", flush=True)
    wrong = [check.name for check in done if check.state == "wrong"]
    if config.json:
        listed = [check._asdict() for check in done]
        print(json.dumps({"ok": not wrong, "checks": listed}, indent=1))
    if wrong:
        terminal.say(f"{counted(len(wrong), 'check')} wrong: {', '.join(wrong)}")
    return 1 if wrong else 0
