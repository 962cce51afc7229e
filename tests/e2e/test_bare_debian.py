"""Somebody who has Debian's Python and a wheel alone: README's lines, and what they bring."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
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
    """A root of Debian, with `dist/` and all golden sets' sources in its user's home."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path, self.home = path, path / "root"
        made = subprocess.run(debian.bootstrap(path, path.name, *PACKAGES), capture_output=True)
        assert made.returncode == 0, (made.stdout[-3000:] + made.stderr).decode()
        debian.trust(path)
        shutil.copytree(released(cache), self.home / "dist")
        mini = golden_sets.miniature(cache)
        shutil.copytree(mini.root, self.home / "archives")
        golden_sets.shards(self.home / "shards", mini)
        there = Path("/root")
        self._sets = golden_sets.commands(there, there / "archives", there / "shards")

    def bash(self, script: str, code: int = 0) -> str:
        """Runs lines as a user types them, up to one that fails; returns all that was printed."""
        done = subprocess.run(
            debian.inside(self.path, "bash", "-euo", "pipefail", "-c", script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S,
        )
        text = done.stdout.decode(errors="replace")
        assert done.returncode == code, f"{script}\n{text[-5000:]}"
        return text

    def make(self, program: str, name: str, code: int = 0) -> str:
        """Makes a golden set; returns what the program printed."""
        return self.bash(shlex.join([program, *self._sets[name]]), code)

    def golden(self, program: str, name: str) -> None:
        """Proves that a program makes a set as it is committed: its bytes, by the same codec."""
        expected = json.loads(golden_sets.DIGESTS.read_text())[name]
        shutil.rmtree(self.home / name, ignore_errors=True)
        self.make(program, name)
        told = golden_sets.told(self.home / name)["producer"]
        assert told["libraries"] == expected["producer"]["libraries"]
        assert golden_sets.told(self.home / name, expected["producer"]) == expected


@pytest.fixture(params=["bookworm", "trixie"])
def root(request: pytest.FixtureRequest, shared_cache: Path, tmp_path: Path) -> Iterator[Root]:
    """A fresh root; it has 2.5 GB at the end, and goes."""
    if missing := debian.missing():
        pytest.skip(f"a root of Debian needs {', '.join(missing)}")
    path = tmp_path / request.param
    try:
        yield Root(path, shared_cache)
    finally:
        shutil.rmtree(path)


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
    assert root.bash(".venv/bin/python read.py") == here.stdout != ""


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
    said = root.make(program, "prepared, sizes kept", code=2)
    assert said.count("Install a C compiler, or `pip install ziglang`") == 1
    assert said.count("--codec portable") == 1
    assert len(said.splitlines()) <= 2
    root.golden(program, "prepared, portable")
    assert root.bash(f"{program} verify 'prepared, portable' --level decode").startswith("sound: ")
