from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.hosts.commands import LOCAL, Host, command_on, read_hosts, where_ranks_run
from tests.kit.messages import says


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
        ("a slots=8\nb slots=eight\n", says("expected-slots-n-after-address", "line 2")),
        (f"a slots={'9' * 5_000}\n", says("expected-slots-n-after-address", "line 1")),
        ("a 8\n", "line 1"),
        ("a slots=8 more\n", "line 1"),
        ("-oProxyCommand=evil slots=1\n", "line 1"),
        ("a;reboot\n", "line 1"),
        ("a slots=0\n", says("host-0-slots-remove", "line 1", "line")),
        ("a:0\n", says("host-0-slots-remove", "line 1", "line")),
        ("a\nb\na slots=2\n", "line 3: the same host as in line 1"),
        ("# nobody\n", says("no-hosts-write-one-per")),
        ("[a]:22 slots=2\n", says("first-word-not-address-host", "line 1")),
        ("[::1]\n", says("first-word-not-address-host", "line 1")),
        ("a max_slots=x\n", says("expected-slots-n-after-address", "line 1")),
        ("a max_slots=2 slots\n", says("expected-slots-n-after-address", "line 1")),
        ("max_slots=4\n", "no hosts"),
        (":4\n", says("first-word-not-address-host", "line 1")),
        ("::\n", says("first-word-not-address-host", "line 1")),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read_hosts(written(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "AWS_SECRET_ACCESS_KEY=hunter2\0HOME=/hunter2\0",
        "password hunter2\n",
        "hunter2 password\n",
        "sql_alchemy_conn = postgresql://u:hunter2@db/airflow\n",
        "a\x1b]0;hunter2\x07\n",
        "a\x0bhunter2 x\n",
        "hunter2 slots=0\n",
        "hunter2\nhunter2\n",
    ],
)
def test_messages_do_not_repeat_lines_of_malformed_files(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"hosts: line [12]: ") as refused:
        read_hosts(written(tmp_path, text))
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).isprintable()


def test_pipes_devices_and_huge_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 8 << 40)
    for path in (tmp_path / "pipe", tmp_path / "sparse", Path("/dev/zero")):
        with pytest.raises(DataDamagedError, match=f"{path}: "):
            read_hosts(path)
    (tmp_path / "binary").write_bytes(b"a\nhunter2\xff\n")
    with pytest.raises(UsageError, match=says("not-utf-8-text-byte-save", ..., "9")):
        read_hosts(tmp_path / "binary")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says("hosts-file-cannot-read", "nowhere", "No such")):
        read_hosts(tmp_path / "nowhere")


def test_arguments_reach_the_remote_shell_unchanged(tmp_path: Path) -> None:
    argv = ["printf", "%s|", "two words", "$HOME", "a'b", "*"]
    *options, address, command = command_on("node", argv)

    assert (options[0], options[-1], address) == ("ssh", "--", "node")
    assert "StrictHostKeyChecking=yes" in options
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert said.stdout == "two words|$HOME|a'b|*|"


def test_lists_of_horovodrun_are_accepted_except_existing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "localhost:2,ubuntu@server1:4"
    assert where_ranks_run(text, 6) == [Host("localhost", 2), Host("ubuntu@server1", 4)]
    assert where_ranks_run("server1:4", 4) == [Host("server1", 4)]

    Path("server1:4").write_text("server2 slots=8\n")
    assert where_ranks_run("server1:4", 8) == [Host("server2", 8)]
    assert where_ranks_run(None, 3) == [Host("localhost", 3)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a:2,b:0", says("host-0-slots-remove", "--hosts: host 2", "host")),
        ("a:2,a:4", says("same-host", "--hosts: host 2", "host", "1")),
        ("-oProxyCommand=evil:2", says("first-word-not-address-host", "--hosts: host 1")),
        ("a:2,b", says("hosts-file-cannot-read", "a:2,b", "No such file or directory")),
        ("hosts.txt", says("hosts-file-cannot-read", "hosts.txt", "No such file or directory")),
    ],
)
def test_a_wrong_list_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        where_ranks_run(text, 2)
    assert re.search(complaint, str(refused.value))


def test_a_hosts_file_may_have_open_mpis_form(tmp_path: Path) -> None:
    text = "a slots = 4\nb  slots=2 max_slots=8\nc max-slots = 3 slots =3\nd max_slots=9\n"
    hosts = [Host("a", 4), Host("b", 2), Host("c", 3), Host("d", 1)]
    assert read_hosts(written(tmp_path, text)) == hosts


def test_hosts_files_may_contain_local_names(tmp_path: Path) -> None:
    for address in LOCAL:
        (host,) = read_hosts(written(tmp_path, f"{address} slots=2\n"))
        assert host == Host(address, 2)
        assert host.is_local


def test_hosts_files_may_have_horovods_form_and_ipv6(tmp_path: Path) -> None:
    text = "server1:4\nfe80::1 slots=2\n2001:db8::7\n"
    assert read_hosts(written(tmp_path, text)) == [
        Host("server1", 4),
        Host("fe80::1", 2),
        Host("2001:db8::7", 1),
    ]
