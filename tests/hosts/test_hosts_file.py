from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.hosts.hosts_file import Host, read_hosts
from imagenet_prep.hosts.process import command_on


def written(folder: Path, text: str) -> Path:
    path = folder / "hosts"
    path.write_text(text)
    return path


def test_the_tutorials_hosts_file_is_read(tmp_path: Path) -> None:
    text = (
        "172.31.20.10 slots=8\n\n# the second\nubuntu@node-2.local slots=4 # smaller\nlocalhost\n"
    )

    assert read_hosts(written(tmp_path, text)) == [
        Host("172.31.20.10", 8),
        Host("ubuntu@node-2.local", 4),
        Host("localhost", 1),
    ]
    assert [host.is_local for host in read_hosts(written(tmp_path, text))] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a slots=8\nb slots=eight\n", "line 2: 'b slots=eight', expected: ADDRESS slots=N"),
        ("a 8\n", "line 1"),
        ("a slots=8 more\n", "line 1"),
        ("-oProxyCommand=evil slots=1\n", "line 1"),
        ("a;reboot\n", "line 1"),
        ("a slots=0\n", "remove this line"),
        ("a\nb\na slots=2\n", "line 3: a is listed twice"),
        ("# nobody\n", "lists no host"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_hosts(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: cannot be read"):
        read_hosts(tmp_path / "nowhere")


def test_arguments_reach_the_other_shell_as_they_are(tmp_path: Path) -> None:
    argv = ["printf", "%s|", "two words", "$HOME", "a'b", "*"]
    *options, address, command = command_on("node", argv)

    assert (options[0], options[-1], address) == ("ssh", "--", "node")
    assert "StrictHostKeyChecking=yes" in options
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert said.stdout == "two words|$HOME|a'b|*|"
