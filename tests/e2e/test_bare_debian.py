"""Somebody who has Debian's Python and a wheel alone: README's lines, and what they bring."""

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
from tests.kit import golden_sets
from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.release import released

pytestmark = [pytest.mark.long, pytest.mark.root]

PACKAGES = ("python3", "python3-venv", "ca-certificates")
NO_COMPILER = "! command -v cc gcc clang tcc"
# The digest of what the native reader makes of a set, with its C.
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
    """A root of Debian, with `dist/` and the sources of all golden sets in its user's home."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path = path
        self.home = path / "root"
        done(debian.bootstrap(path, path.name, *PACKAGES))
        debian.trust(path)
        shutil.copytree(released(cache), self.home / "dist")
        sources(self.home, cache)

    def bash(self, script: str, code: int = 0) -> str:
        """Runs lines as a user types them, up to one that fails; returns all that was printed."""
        argv = debian.inside(self.path, "bash", "-euo", "pipefail", "-c", script)
        return done(argv, code)

    def golden(self, program: str, name: str) -> None:
        """Proves that an installed program makes a set as it is committed."""
        self.bash(shlex.join([program, *made_by(Path("/root"), name)]))
        is_golden(self.home, name)


def done(argv: Sequence[str | Path], code: int = 0, env: dict[str, str] | None = None) -> str:
    """Runs a program, which ends with a code; returns all that it printed."""
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
    """Puts what golden sets are made of into a folder."""
    mini = golden_sets.miniature(cache)
    shutil.copytree(mini.root, home / "archives")
    golden_sets.shards(home / "shards", mini)


def made_by(home: Path, name: str) -> list[str]:
    """Returns the command that makes a golden set, in a folder with `sources`."""
    return golden_sets.commands(home, home / "archives", home / "shards")[name]


def is_golden(home: Path, name: str) -> None:
    """Proves that a set was made as it is committed: its bytes, by the same codec."""
    expected = json.loads(golden_sets.DIGESTS.read_text())[name]
    producer = golden_sets.told(home / name)["producer"]
    assert producer["libraries"] == expected["producer"]["libraries"], name
    assert golden_sets.told(home / name, expected["producer"]) == expected, name


@pytest.fixture(params=["bookworm", "trixie"])
def root(request: pytest.FixtureRequest, shared_cache: Path, tmp_path: Path) -> Iterator[Root]:
    """A fresh root; it has 2.5 GB at the end, and goes."""
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
    """Returns the lines that README tells somebody to type who has a wheel."""
    text = (REPOSITORY / "README.md").read_text("utf-8")
    blocks = re.findall(r"^ *```\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    (lines,) = (block for block in blocks if "pip install dist/" in block)
    return lines


def test_readmes_lines_bring_the_whole_program_without_a_compiler(root: Root) -> None:
    root.bash(NO_COMPILER)
    start = time.monotonic()
    said = root.bash(readme_lines())
    print(f"{root.path.name}: installed, and the demo made, in {time.monotonic() - start:.0f} s")
    root.bash(NO_COMPILER)

    assert "Finished in " in said  # the training
    (page,) = root.home.glob("imagenet-prep-demo/dataset-*/report.html")
    program = ".venv/bin/imagenet-prep"
    demo = page.parent.relative_to(root.home)
    assert root.bash(f"{program} verify {demo} --level decode").startswith("sound: ")
    for name in golden_sets.SETS:
        root.golden(program, name)
    (root.home / "read.py").write_text(READ)
    here = subprocess.run(
        (sys.executable, "read.py"), cwd=root.home, capture_output=True, text=True, check=True
    )
    assert here.stdout
    assert root.bash(".venv/bin/python read.py") == here.stdout


def test_the_sdist_is_installed_without_a_compiler(root: Root) -> None:
    """Where the index has one, the codec is in C; otherwise it says so, and portable works."""
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
    said = root.bash(shlex.join([program, *made_by(Path("/root"), "resized")]), code=2)
    assert said.count("Install a C compiler, or `pip install ziglang`") == 1
    assert said.count("--codec portable") == 1
    assert len(said.splitlines()) <= 2
    root.golden(program, "prepared, portable")
    assert root.bash(f"{program} verify 'prepared, portable' --level decode").startswith("sound: ")


def test_the_wheel_for_arm_makes_the_committed_bytes(shared_cache: Path, tmp_path: Path) -> None:
    """The whole program, in the emulator: Debian's Python for ARM, and what pip installs there."""
    need_debian()
    if not shutil.which("qemu-aarch64-static"):
        pytest.skip("no qemu-aarch64-static here: make test-long installs it")
    arm = tmp_path / "arm"
    site = tmp_path / "site"
    done(debian.bootstrap(arm, "bookworm", "python3", foreign="arm64"))
    for package in arm.glob("var/cache/apt/archives/*.deb"):
        done(("dpkg-deb", "--extract", package, arm))
    (wheel,) = released(shared_cache).glob("*_aarch64.whl")
    # As pip chooses on such a machine with that Python.
    platforms = (f"--platform=manylinux_2_{libc}_aarch64" for libc in (17, 27, 28))
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:")
    done((*pip, "--python-version=3.11", *platforms, "--target", site, wheel))
    sources(tmp_path, shared_cache)
    python = ("qemu-aarch64-static", "-L", arm, arm / "usr/bin/python3.11", "-P")
    env = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}

    for name in golden_sets.SETS:
        done((*python, "-m", "imagenet_prep", *made_by(tmp_path, name)), env=env)
        is_golden(tmp_path, name)
