"""Builds the images of docker/Dockerfile without Docker, and tests their main functions.

    make images-rehearsal
    sudo .venv/bin/python -m docker.rehearse prep node
    sudo .venv/bin/python -m docker.rehearse prep --without openssh-client

buildah runs the steps of the Dockerfile in chroots and pulls no images. This script makes the
base images: Debian by debootstrap, Beam's boot program from its Go module, and CUDA's nvcc from
wheels of CUDA 13, since CUDA 12 has no wheel of it. Then each image runs its HEALTHCHECK and a
test: prep prepares a miniature, beam does so as the worker of a pipeline, node receives a replica
by ssh, train trains on two ranks, and train-mxnet reads images while MXNet is loaded. Needs root,
buildah, debootstrap, go, and the clients of package registries. All files are stored below
build/images; a second run starts at the first changed step.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docker import debian

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
SCRATCH = REPOSITORY / "build" / "images"
_PROGRAMS = ("buildah", "debootstrap", "go", "unshare")
_BUILD_S = 3600
_TRIAL_S = 600
_HEALTHY_S = 60
_USER = 1000  # the user of the Dockerfile
# A miniature that takes less than a minute, with more than one shard per split.
_PREPARE = (
    "--allow-subset",
    "--short-side",
    "64",
    "--workers",
    "2",
    "--train-shards",
    "3",
    "--validation-shards",
    "2",
)
_CUDA_WHEELS = ("nvcc", "runtime", "crt", "cccl")


class RehearsalError(Exception):
    """A step failed; the message names the step."""


def steps(dockerfile: str) -> list[tuple[str, str]]:
    """Returns the instruction and arguments of each step, without comments and line breaks."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        instruction, _, arguments = line.partition(" ")
        found.append((instruction.upper(), arguments.strip()))
    return found


def resolved(dockerfile: str) -> str:
    """Replaces ARGs by their defaults, since Debian's buildah does not resolve them in FROM."""
    for instruction, arguments in steps(dockerfile):
        if instruction == "ARG":
            name, _, default = arguments.partition("=")
            dockerfile = dockerfile.replace(f"${{{name}}}", default)
    return dockerfile


def bases(dockerfile: str, target: str) -> list[str]:
    """Returns the external images that a target uses, directly or through other stages."""
    needs: dict[str, list[str]] = {}  # images and stages that a stage uses
    stage = ""
    for instruction, arguments in steps(resolved(dockerfile)):
        if instruction == "FROM":
            image, _, stage = arguments.partition(" AS ")
            needs[stage] = [image]
        elif stage:
            needs[stage] += re.findall(r"(?:--|,)from=([^\s,]+)", arguments)
    found: list[str] = []
    wanted = [target]
    for name in wanted:
        wanted += [need for need in needs.get(name, ()) if need not in wanted]
        if name not in needs:
            found.append(name)
    return found


def without(dockerfile: str, package: str) -> str:
    """Returns the Dockerfile without the installation of one Debian package.

    Raises:
      RehearsalError: no step installs the package.
    """
    changed = re.sub(
        rf"^(.*apt-get install .*?) {re.escape(package)}(?= |$)",
        r"\1",
        dockerfile,
        flags=re.MULTILINE,
    )
    if changed == dockerfile:
        raise RehearsalError(f"--without {package}: no step of {DOCKERFILE} installs it")
    return changed


def unmounted(dockerfile: str) -> str:
    """Returns the Dockerfile with COPY steps instead of mounts of other stages.

    Debian's buildah cannot mount files of a stage that is in its cache.
    """

    def copies(mounts: re.Match[str]) -> str:
        found = re.findall(r"from=([^\s,]+),source=([^\s,]+),target=([^\s,]+)", mounts[1])
        return "".join(f"COPY --from={stage} {a} {b}\n" for stage, a, b in found) + "RUN "

    return re.sub(r"^RUN ((?:--mount=\S+\s*(?:\\\n)?\s*)+)", copies, dockerfile, flags=re.MULTILINE)


def build(target: str, dockerfile: Path) -> str:
    """Builds one target and returns the name of the image."""
    name = f"localhost/rehearsal-{target}"
    _buildah(
        "build",
        "--layers",
        "--pull-never",
        "--format",
        "docker",
        "--target",
        target,
        *("--file", dockerfile, "--tag", name, *_package_clients(), REPOSITORY),
    )
    return name


def provide(base: str) -> None:
    """Makes a base image on this machine, unless it exists."""
    name = f"localhost/{base}"
    if _succeeds("inspect", "--type", "image", name):
        return
    repository, _, version = base.partition(":")
    for known, make in _MAKERS.items():
        if repository == known:
            print(f"making {base}", flush=True)
            root = SCRATCH / "bases" / re.sub(r"\W", "-", base)
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            make(root, version)
            container = _buildah("from", "scratch").strip()
            _buildah("add", "--quiet", container, root, "/")
            _buildah("commit", "--quiet", "--rm", container, name)
            shutil.rmtree(root)
            return
    raise RehearsalError(f"cannot make {base}: add it to _MAKERS in {__file__}")


def _make_debian(root: Path, version: str) -> None:
    suite = {"12": "bookworm"}[version.split(".")[0]]
    _output(*debian.bootstrap(root, suite))


def _make_beam_sdk(root: Path, version: str) -> None:
    boot = root / "opt" / "apache" / "beam" / "boot"
    boot.parent.mkdir(parents=True)
    environment = {"GOBIN": str(SCRATCH / "go"), "CGO_ENABLED": "0"}
    _output(
        "go",
        "install",
        f"github.com/apache/beam/sdks/v2/python/container@v{version}",
        environment=environment,
    )
    shutil.copy(SCRATCH / "go" / "container", boot)


def _make_cuda(root: Path, _version: str) -> None:
    wheels = SCRATCH / "cuda"
    names = [f"nvidia-cuda-{part}==13.*" for part in _CUDA_WHEELS] + ["nvidia-nvvm==13.*"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
    _output(*pip, *names)
    for wheel in wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(wheels)
    cuda = root / "usr" / "local" / "cuda"
    shutil.copytree(wheels / "nvidia" / "cu13", cuda)
    for program in (*cuda.glob("bin/*"), *cuda.glob("nvvm/bin/*")):
        program.chmod(0o755)
    # The linker searches for names without a version, which the real image also has.
    for library in cuda.glob("lib/lib*.so.*"):
        with contextlib.suppress(FileExistsError):
            library.with_name(f"{library.name.partition('.so')[0]}.so").symlink_to(library.name)
    (cuda / "lib64").symlink_to("lib")


_MAKERS: dict[str, Callable[[Path, str], None]] = {
    "debian": _make_debian,
    "apache/beam_python3.11_sdk": _make_beam_sdk,
    "nvidia/cuda": _make_cuda,
}


class Container:
    """A container of an image, with mounted folders of this machine.

    Args:
      image: name of the image.
      folders: path on this machine to path in the container, for each mounted folder. Folders get
        the image's user as their owner.
    """

    def __init__(self, image: str, folders: dict[Path, str]) -> None:
        settings = json.loads(_buildah("inspect", "--type", "image", image))["Docker"]["config"]
        self.entry: list[str] = settings.get("Entrypoint") or []
        self.command: list[str] = settings.get("Cmd") or []
        self.health: list[str] = settings["Healthcheck"]["Test"][1:]
        user = settings["User"]
        if user in ("", "0", "root"):
            raise RehearsalError(f"{image} runs as root")
        self._folders = folders
        self.name = _buildah("from", "--pull-never", image).strip()
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, _USER, _USER)

    def argv(self, *command: str | Path) -> list[str]:
        """Returns the command line that runs a command in the container, and ends its children."""
        volumes = [f"--volume={here}:{there}" for here, there in self._folders.items()]
        # Beam's driver sends its host name to the workers, which only know localhost.
        inside = _argv("run", "--hostname=localhost", *volumes, self.name, "--", *command)
        return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *inside]

    def run(self, *command: str | Path) -> str:
        """Runs a command in the container and returns its output."""
        return _output(*self.argv(*command), timeout_s=_TRIAL_S)

    def verb(self, *arguments: str | Path) -> str:
        """Runs the entry point with arguments, as `docker run IMAGE arguments` does."""
        return self.run(*self.entry, *arguments)

    @contextlib.contextmanager
    def started(self, checker: Container) -> Iterator[None]:
        """Runs the image as `docker run IMAGE` does while the context lasts, once it is healthy.

        Args:
          checker: a second container, which runs the health check, since buildah runs one command
            per container. All containers use this machine's network.

        Raises:
          RehearsalError: the container ended, or was not healthy in time.
        """
        log = SCRATCH / f"{self.name}.log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                self.argv(*self.entry, *self.command),
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            deadline = time.monotonic() + _HEALTHY_S
            while True:
                try:
                    checker.run(*self.health)
                    break
                except RehearsalError as failed:
                    ended = process.poll() is not None
                    if ended or time.monotonic() > deadline:
                        what = "ended" if ended else f"is not healthy after {_HEALTHY_S} s"
                        said = log.read_text(errors="replace")[-2000:]
                        raise RehearsalError(f"{self.entry} {what}: {failed}\n{said}") from failed
                    time.sleep(0.5)
            yield
        finally:
            process.send_signal(signal.SIGKILL)  # --kill-child also ends all processes inside
            process.wait()

    def remove(self) -> None:
        """Removes the container, but not its mounted folders."""
        _buildah("rm", self.name)


def try_prep(image: str, work: Path) -> None:
    """Tests that the image prepares a miniature with the same bytes as a run outside the image."""
    with _container(image, {work: "/data"}) as prep:
        prep.run(*prep.health)
        print(prep.verb("prepare", "--source", "archives", "--out", "set", *_PREPARE).strip())
        print(prep.verb("verify", "set", "--level", "decode").strip())
        print(prep.verb("report", "set").strip())
        if "tensorflow" in prep.run("pip", "list"):
            raise RehearsalError(f"{image} has TensorFlow")
    _same_bytes(work / "set", _prepared_here(work))


def try_beam(image: str, work: Path) -> None:
    """Tests that workers of Beam's boot program prepare a miniature with the same bytes."""
    options = ("--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=EXTERNAL")
    prepare = ("imagenet-prep", "prepare", "--source", "archives", "--out", "set-by-pool")
    pipeline = ("--", *options, "--environment_config=localhost:50000")
    folders = {work: "/data"}
    with (
        _container(image, folders) as pool,
        _container(image, folders) as leader,
        pool.started(leader),
    ):
        print(leader.run(*prepare, *_PREPARE, *pipeline).strip())
    _same_bytes(work / "set-by-pool", _prepared_here(work))


def try_node(image: str, work: Path) -> None:
    """Tests a login at the node's sshd by its key, and the replication of a dataset to the node."""
    keys = work / "keys"
    here = _prepared_here(work)
    (work / "hosts").write_text("127.0.0.2 slots=1\n")
    replicate = ("imagenet-prep", "replicate", here.name)
    replicate += ("--to", "hosts:hosts:/home/imagenet/set")
    folders = {keys: "/keys", work: "/data"}
    with _container(image, folders) as leader, _container(image, {keys: "/keys"}) as node:
        leader.run("keys.sh", "127.0.0.2")
        with node.started(leader):
            print(leader.run("ssh", "127.0.0.2", "id", "--user", "--name").strip())
            print(leader.run(*replicate).strip())
            print(leader.run(*replicate, "--check").strip())


def try_train(image: str, work: Path) -> None:
    """Tests that TensorFlow, DALI and Horovod load together, and that two ranks can train."""
    here = _prepared_here(work)
    libraries = (
        "import tensorflow, nvidia.dali, horovod.tensorflow as hvd; "
        "print(tensorflow.__version__, nvidia.dali.__version__, hvd.nccl_built()); "
        "assert hvd.nccl_built() and hvd.cuda_built() and hvd.gloo_built()"
    )
    train = ("train", "--model", "tiny", "--image-size", "32", "--batch-size", "8")
    with _container(image, {work: "/data"}) as trainer:
        trainer.run(*trainer.health)
        print(trainer.run("python", "-c", libraries).strip().splitlines()[-1])
        command = ("launch", "-np", "2", "--", *train, "--num-epochs", "1", "--data-dir", here.name)
        print(trainer.verb(*command, "--log-dir", "log")[-600:].strip())


def try_train_mxnet(image: str, work: Path) -> None:
    """Tests that MXNet and Horovod load together, and that our reader reads with them loaded."""
    here = _prepared_here(work)
    program = (
        "import mxnet, horovod.mxnet as hvd; from imagenet_prep.read import make_dataset; "
        "assert hvd.gloo_built() and not hvd.nccl_built(); "
        f"reader = make_dataset({here.name!r}, 'validation', 8, image_size=32); "
        "print(mxnet.__version__, sum(int(b['mask'].sum()) for b in reader), 'images')"
    )
    with _container(image, {work: "/data"}) as trainer:
        trainer.run(*trainer.health)
        print(trainer.run("python", "-c", program).strip().splitlines()[-1])


TRIALS = {
    "prep": try_prep,
    "beam": try_beam,
    "node": try_node,
    "train": try_train,
    "train-mxnet": try_train_mxnet,
}


@contextlib.contextmanager
def _container(image: str, folders: dict[Path, str]) -> Iterator[Container]:
    container = Container(image, folders)
    try:
        yield container
    finally:
        container.remove()


def _prepared_here(work: Path) -> Path:
    """Returns the miniature, prepared with the packages of this machine."""
    out = work / "set-here"
    if not (out / "dataset.json").exists():
        argv = [sys.executable, "-m", "imagenet_prep", "prepare", "--source", work / "archives"]
        _output(*argv, "--out", out, *_PREPARE, timeout_s=_TRIAL_S)
    return out


def _same_bytes(one: Path, other: Path) -> None:
    def digests(folder: Path) -> dict[str, str]:
        files = sorted(folder.glob("*-of-*"))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    if not digests(one) or digests(one) != digests(other):
        raise RehearsalError(f"the shards of {one} differ from the shards of {other}")
    print(f"{len(digests(one))} shards, with the same bytes as outside the image")


def _package_clients() -> list[str]:
    """Returns volume flags that pass the certificate settings of this machine's pip to steps."""
    authority = debian.authority()
    if authority is None:
        return []
    settings = SCRATCH / "pip.conf"
    settings.write_text(debian.PIP_SETTINGS)
    return [
        f"--volume={settings}:/etc/pip.conf:ro",
        f"--volume={authority}:{debian.AUTHORITY}:ro",
    ]


def _argv(*arguments: str | Path) -> list[str]:
    """Returns a command line of buildah with separate storage below build/images."""
    policy = SCRATCH / "policy.json"
    # No image is pulled, so there are no signatures to check.
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    storage = [f"--root={SCRATCH / 'storage'}", f"--runroot={SCRATCH / 'run'}"]
    storage += ["--storage-driver=overlay"]
    verb, *rest = map(str, arguments)
    trust = [f"--signature-policy={policy}"] if verb in ("build", "commit", "from") else []
    return ["buildah", *storage, verb, *trust, *rest]


def _buildah(*arguments: str | Path) -> str:
    return _output(*_argv(*arguments), timeout_s=_BUILD_S)


def _succeeds(*arguments: str | Path) -> bool:
    try:
        _buildah(*arguments)
    except RehearsalError:
        return False
    return True


def _environment() -> dict[str, str]:
    temporary = SCRATCH / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return os.environ | {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(temporary)}


def _output(
    *argv: str | Path, timeout_s: float = _BUILD_S, environment: dict[str, str] | None = None
) -> str:
    """Runs a command and returns its output.

    Raises:
      RehearsalError: the exit code is not 0, or the command did not end in time.
    """
    how: dict[str, Any] = {"cwd": REPOSITORY, "env": _environment() | (environment or {})}
    try:
        done = subprocess.run(
            list(map(str, argv)),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            **how,
        )
    except subprocess.TimeoutExpired as error:
        raise RehearsalError(
            f"still running after {timeout_s:g} s: {' '.join(map(str, argv))}"
        ) from error
    if done.returncode:
        said = done.stdout + done.stderr
        log = SCRATCH / "failed.log"
        log.write_text(said)
        raise RehearsalError(
            f"exit code {done.returncode}: {' '.join(map(str, argv))}\n{said[-3000:]}\n"
            f"The complete output is in {log}"
        )
    return done.stdout


def _miniature(folder: Path) -> None:
    from imagenet_prep.testing.miniature import make_miniature

    if not folder.exists():
        aside = folder.with_name("archives.partial")
        shutil.rmtree(aside, ignore_errors=True)
        make_miniature(aside, num_train=60, num_validation=20)
        aside.rename(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Builds and tests the targets; returns 0, or 1 after it printed the failed step."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m docker.rehearse")
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(TRIALS)}; default: all")
    parser.add_argument("--without", metavar="PACKAGE", help="exclude a Debian package")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.targets) - set(TRIALS)):
        parser.error(f"no such target: {', '.join(unknown)}")
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"needs root and {', '.join(_PROGRAMS)}; missing: {', '.join(missing)}")
    work = SCRATCH / "work"
    try:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        _miniature(SCRATCH / "archives")
        shutil.copytree(SCRATCH / "archives", work / "archives")
        text = unmounted(resolved(DOCKERFILE.read_text("utf-8")))
        dockerfile = SCRATCH / "Dockerfile"
        dockerfile.write_text(without(text, args.without) if args.without else text)
        for target in args.targets or TRIALS:
            for base in bases(text, target):
                provide(base)
            start = time.monotonic()
            image = build(target, dockerfile)
            built = time.monotonic()
            TRIALS[target](image, work)
            tried = time.monotonic()
            print(f"{target}: built in {built - start:.0f} s, tested in {tried - built:.0f} s")
    except RehearsalError as failed:
        print(f"docker.rehearse: {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
