"""A machine on which tests run commands of the documents: its folders replace /data and ~."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit import blocks, command
from tests.kit.dataset import split_records
from tests.kit.fake_hosts import Hosts, make_hosts
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.shared import made_once

# The path of a dataset on hosts, and the text before it.
_ON_HOSTS = r"(hosts:\S+?:|--from-parent )(/\S+)"
_PROGRAM = """\
#!/bin/sh
exec {python} -P -m imagenet_prep "$@"
"""


class Machine:
    """Runs commands in a folder with data/ for /data and home/ for ~.

    Attributes:
      root: the current folder of commands.
      data: the folder that replaces /data.
      source: the archives in /data/ilsvrc2012.
      places: more replacements, by the text of a page. A replacement is not replaced again.
      environment: variables of the commands.
    """

    def __init__(self, root: Path, source: Miniature) -> None:
        self.root = root
        self.source = source
        self.data = root / "data"
        (self.data / "ilsvrc2012").parent.mkdir(parents=True)
        shutil.copytree(source.root, self.data / "ilsvrc2012")
        self.places: dict[str, str] = {}
        self.environment: dict[str, str] = {}

    def typed(self, name: str, *numbers: int) -> list[command.Finished]:
        """Runs commands of a block, counted from 1; all by default. Each must succeed."""
        lines = lines_of(name)
        chosen = [lines[number - 1] for number in numbers] if numbers else lines
        return [self.run(line) for line in chosen]

    def run(self, line: str) -> command.Finished:
        """Runs a command, which must succeed."""
        words = self.words(line)
        how: dict[str, Any] = {}
        if words[:2] == ["python", "-m"]:
            how["program"] = ("-P", "-m", words[2])
            arguments = words[3:]
        else:
            assert words[0] == "imagenet-prep", line
            arguments = words[1:]
        if arguments[0] in ("prepare", "adopt") or "imagenet_prep.preprocess_imagenet" in words:
            arguments.append("--allow-subset")
        done = command.run(*arguments, cwd=self.root, env=self.environment, **how)
        assert done.code == 0, (line, done)
        return done

    def words(self, line: str) -> list[str]:
        """Returns the words of a command, with this machine's paths and addresses."""
        return shlex.split(self.replaced(line), comments=True)

    def replaced(self, text: str) -> str:
        """Returns a text of a page with this machine's paths and addresses."""
        there = {"/data": str(self.data), "~": str(self.root / "home")} | self.places
        longest_first = sorted(there, key=len, reverse=True)
        # Not the beginning of a longer word, such as /dataset.json.
        pattern = f"{_ON_HOSTS}|(?:{'|'.join(map(re.escape, longest_first))})(?!\\w)"

        def replacement(match: re.Match[str]) -> str:
            if match[1]:
                return f"{match[1]}~{match[2]}"
            return there[match[0]]

        return re.sub(pattern, replacement, text)

    def shell(self, text: str) -> subprocess.CompletedProcess[str]:
        """Runs lines of a page by bash; `imagenet-prep` and `python` are those of the tests."""
        programs = self.root / "bin"
        programs.mkdir(exist_ok=True)
        program = programs / "imagenet-prep"
        program.write_text(_PROGRAM.format(python=shlex.quote(sys.executable)))
        program.chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", self.replaced(text)],
            env=command.environment(**self.environment, PATH=path),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=command.PATIENCE_S,
            check=False,
        )

    def with_hosts(self, *addresses: str, file: str = "hosts.txt") -> Hosts:
        """Gives the machine hosts and their file; a path on them is in the home of each host."""
        hosts = make_hosts(self.root / "of-hosts")
        hosts.file = self.root / file
        hosts.only(*addresses)
        self.environment |= hosts.environment
        return hosts

    def dataset(self, name: str) -> Path:
        return self.data / name


def lines_of(name: str) -> list[str]:
    """Returns the commands of a block; a command may continue on the next line."""
    return blocks.block(name).text.replace("\\\n", "").strip().splitlines()


def with_datasets(machine: Machine, shared_cache: Path) -> Machine:
    """Gives a machine /data/imagenet-480 and /data/imagenet-256.

    The documented commands make both from its archives, once per run of the tests.
    """
    source = machine.source

    def make(folder: Path) -> None:
        made = Machine(folder / "machine", source)
        made.typed("$ prepare.md: Prepare a dataset", 2)
        resize = blocks.block("$ existing.md: Resize").text.replace("imagenet-480", "imagenet-256")
        made.run(resize.replace("imagenet-full", "imagenet-480") + " --short-side 64")

    made = made_once(shared_cache / f"datasets-of-{source.root.name}", make) / "machine" / "data"
    for name in ("imagenet-480", "imagenet-256"):
        shutil.copytree(made / name, machine.dataset(name))
    return machine


def small_machine(shared_cache: Path, root: Path) -> Machine:
    """Returns a machine that only has archives, of 32 small images."""
    source = miniature_for_tests(shared_cache, num_train=24, num_validation=8, size=(100, 75))
    return Machine(root, source)


def manifest(root: Path) -> Any:
    return json.loads((root / "dataset.json").read_bytes())


def labels(root: Path, *splits: str) -> dict[str, int]:
    """Returns the class index of each image, by the name of its file."""
    found = {}
    for split in splits or manifest(root)["splits"]:
        for record in split_records(root, split):
            found[record.filename.rpartition("/")[2]] = record.stored_label - 1
    return found


def expected(source: Miniature, *splits: str) -> dict[str, int]:
    """Returns the expected result of `labels` for the archives."""
    found = {}
    for split in splits or ("train", "validation"):
        for key, image in source.of(split).items():
            if image.fate != "quarantined":
                found[key.rpartition("/")[2]] = image.class_index
    return found
