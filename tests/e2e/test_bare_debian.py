"""The commands of the README on a Debian system that only has Python and our wheel."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from docker import debian
from tests.kit import golden_datasets
from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.messages import says
from tests.kit.release import released

pytestmark = [pytest.mark.long, pytest.mark.root]

PACKAGES = ("python3", "python3-venv", "ca-certificates")
NO_COMPILER = "! command -v cc gcc clang tcc"
# Prints the digest of the native reader's output for a dataset, with its C code.
READ = """
import hashlib
from imagenet_prep.read import make_dataset

total = hashlib.sha256()
for batch in make_dataset("prepared", "train", 8, 32, backend="native"):
    for name in sorted(batch):
        total.update(batch[name].tobytes())
with open("/proc/self/maps") as maps:
    assert "_gather.so" in maps.read()
print(total.hexdigest())
"""


class Root:
    """A Debian root, with `dist/` and the sources of all golden datasets in its user's home."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path = path
        self.home = path / "root"
        done(debian.bootstrap(path, path.name, *PACKAGES))
        debian.trust(path)
        shutil.copytree(released(cache), self.home / "dist")
        sources(self.home, cache)

    def bash(self, script: str, code: int = 0) -> str:
        """Runs lines like a user, up to the first failure; returns all output."""
        argv = debian.inside(self.path, "bash", "-euo", "pipefail", "-c", script)
        return done(argv, code)

    def golden(self, program: str, name: str) -> None:
        """Checks that an installed program makes the committed bytes of a dataset."""
        self.bash(shlex.join([program, *made_by(Path("/root"), name)]))
        is_golden(self.home, name)


def done(argv: Sequence[str | Path], code: int = 0, env: dict[str, str] | None = None) -> str:
    """Runs a program that must end with the given code; returns all output."""
    made = subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE_S,
    )
    text = made.stdout.decode(errors="replace")
    assert made.returncode == code, f"{argv}\n{text[-5000:]}"
    return text


def sources(home: Path, cache: Path) -> None:
    """Copies the sources of golden datasets into a folder."""
    mini = golden_datasets.miniature(cache)
    shutil.copytree(mini.root, home / "archives")
    golden_datasets.shards(home / "shards", mini)


def made_by(home: Path, name: str) -> list[str]:
    """Returns the command that makes a golden dataset, in a folder with `sources`."""
    return golden_datasets.commands(home, home / "archives", home / "shards")[name]


def is_golden(home: Path, name: str) -> None:
    """Checks that a dataset has the committed bytes, made by the same codec."""
    expected = json.loads(golden_datasets.DIGESTS.read_text())[name]
    producer = golden_datasets.golden_facts(home / name)["producer"]
    assert producer["libraries"] == expected["producer"]["libraries"], name
    assert golden_datasets.golden_facts(home / name, expected["producer"]) == expected, name


@pytest.fixture(params=["bookworm", "trixie"])
def root(request: pytest.FixtureRequest, shared_cache: Path, tmp_path: Path) -> Iterator[Root]:
    """A fresh root of up to 2.5 GB; removed at the end."""
    need_debian()
    path = tmp_path / request.param
    try:
        yield Root(path, shared_cache)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def need_debian() -> None:
    if missing := debian.missing():
        pytest.skip(f"a root of Debian needs {', '.join(missing)}")


def readme_lines() -> str:
    """Returns the lines that the README gives to a user of the wheel."""
    text = (REPOSITORY / "README.md").read_text("utf-8")
    blocks = re.findall(r"^ *```\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    (lines,) = (block for block in blocks if "pip install dist/" in block)
    return lines


def test_readme_lines_install_program_without_a_compiler(root: Root) -> None:
    root.bash(NO_COMPILER)
    start = time.monotonic()
    said = root.bash(readme_lines())
    print(f"{root.path.name}: installed, and the demo made, in {time.monotonic() - start:.0f} s")
    root.bash(NO_COMPILER)

    assert says("finished-s").search(said)  # of the training
    (page,) = root.home.glob("imagenet-prep-demo/dataset-*/report.html")
    program = ".venv/bin/imagenet-prep"
    demo = page.parent.relative_to(root.home)
    assert root.bash(f"{program} verify {demo} --level decode").startswith("sound: ")
    for name in golden_datasets.SETS:
        root.golden(program, name)
    (root.home / "read.py").write_text(READ)
    here = subprocess.run(
        (sys.executable, "read.py"), cwd=root.home, capture_output=True, text=True, check=True
    )
    assert here.stdout
    assert root.bash(".venv/bin/python read.py") == here.stdout


def test_sdist_is_installed_without_a_compiler(root: Root) -> None:
    """If the index has ziglang, the codec is compiled; otherwise commands that need it say so."""
    root.bash(NO_COMPILER)
    root.bash(
        "tar -x --strip-components=1 --one-top-level=source -f dist/*.tar.gz\n"
        "python3 -m venv zig && cd source && ../zig/bin/pip install ."
    )
    root.golden("zig/bin/imagenet-prep", "prepared")

    root.bash(
        "python3 -m venv plain && plain/bin/pip install 'setuptools>=77'\n"
        "plain/bin/pip install --no-build-isolation dist/*.tar.gz"
    )
    program = "plain/bin/imagenet-prep"
    for name in ("resized", "prepared, portable"):
        said = root.bash(shlex.join([program, *made_by(Path("/root"), name)]), code=2)
        assert len(says("cannot-loaded-compiled-when-imagenet-prep").findall(said)) == 1
        assert len(says("images-cannot-converted-checked").findall(said)) == 1
        assert len(said.splitlines()) <= 2
    assert root.bash(f"{program} verify prepared").startswith("sound: ")


def test_arm_wheel_makes_the_committed_bytes(shared_cache: Path, tmp_path: Path) -> None:
    """Runs the program in an emulator, with Debian's Python for ARM and the packages of pip."""
    need_debian()
    if not shutil.which("qemu-aarch64-static"):
        pytest.skip("no qemu-aarch64-static here: make test-long installs it")
    arm = tmp_path / "arm"
    site = tmp_path / "site"
    done(debian.bootstrap(arm, "bookworm", "python3", foreign="arm64"))
    for package in arm.glob("var/cache/apt/archives/*.deb"):
        done(("dpkg-deb", "--extract", package, arm))
    (wheel,) = released(shared_cache).glob("*_aarch64.whl")
    # The platforms that pip accepts on such a machine with this Python.
    platforms = (f"--platform=manylinux_2_{libc}_aarch64" for libc in (17, 27, 28))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:")
    done((*pip, "--python-version=3.11", *platforms, "--target", site, wheel))
    sources(tmp_path, shared_cache)
    # Also for the processes that the program starts: the kernel need not know the emulator.
    python = tmp_path / "python-arm"
    command = ("qemu-aarch64-static", "-L", str(arm), str(arm / "usr/bin/python3.11"), "-P")
    python.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    python.chmod(0o755)
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(python)!r}\n")
    env = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}

    for name in golden_datasets.SETS:
        done((python, "-m", "imagenet_prep", *made_by(tmp_path, name)), env=env)
        is_golden(tmp_path, name)
