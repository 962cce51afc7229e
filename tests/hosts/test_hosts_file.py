from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.hosts.commands import LOCAL, Host, command_on, read_hosts, where_ranks_run


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
        ("a slots=8\nb slots=eight\n", "line 2: expected slots=N after the address$"),
        (f"a slots={'9' * 5_000}\n", "line 1: expected slots=N after the address$"),
        ("a 8\n", "line 1"),
        ("a slots=8 more\n", "line 1"),
        ("-oProxyCommand=evil slots=1\n", "line 1"),
        ("a;reboot\n", "line 1"),
        ("a slots=0\n", "line 1: the host has 0 slots. Remove this line"),
        ("a:0\n", "line 1: the host has 0 slots. Remove this line"),
        ("a\nb\na slots=2\n", "line 3: the same host as in line 1"),
        ("# nobody\n", "no hosts. Write one per line"),
        ("[a]:22 slots=2\n", r"line 1: .* without brackets and port \(write a port into"),
        ("[::1]\n", "line 1: the first word is not the address of a host, without brackets"),
        ("a max_slots=x\n", "line 1: expected slots=N"),
        ("a max_slots=2 slots\n", "line 1: expected slots=N"),
        ("max_slots=4\n", "no hosts"),
        (":4\n", "line 1: the first word"),
        ("::\n", "line 1: the first word"),
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
def test_no_message_repeats_a_line_of_what_is_no_hosts_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"hosts: line [12]: ") as refused:
        read_hosts(written(tmp_path, text))
    assert "hunter2" not in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_pipe_a_device_and_an_endless_file_are_no_hosts_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 8 << 40)
    for path in (tmp_path / "pipe", tmp_path / "sparse", Path("/dev/zero")):
        with pytest.raises(DataDamagedError, match=f"{path}: "):
            read_hosts(path)
    (tmp_path / "binary").write_bytes(b"a\nhunter2\xff\n")
    with pytest.raises(UsageError, match="not UTF-8: byte 9$"):
        read_hosts(tmp_path / "binary")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: the hosts file cannot be read: No such"):
        read_hosts(tmp_path / "nowhere")


def test_arguments_reach_the_other_shell_as_they_are(tmp_path: Path) -> None:
    argv = ["printf", "%s|", "two words", "$HOME", "a'b", "*"]
    *options, address, command = command_on("node", argv)

    assert (options[0], options[-1], address) == ("ssh", "--", "node")
    assert "StrictHostKeyChecking=yes" in options
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert said.stdout == "two words|$HOME|a'b|*|"


def test_a_list_of_horovodrun_is_accepted_unless_a_file_has_this_name(
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
        ("a:2,b:0", "--hosts: host 2: the host has 0 slots. Remove this host"),
        ("a:2,a:4", "--hosts: host 2: the same host as in host 1"),
        ("-oProxyCommand=evil:2", "--hosts: host 1: the first word is not the address"),
        ("a:2,b", "a:2,b: the hosts file cannot be read: No such file or directory"),
        ("hosts.txt", "hosts.txt: the hosts file cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_list_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        where_ranks_run(text, 2)
    assert complaint in str(refused.value)


def test_a_hosts_file_may_have_open_mpis_form(tmp_path: Path) -> None:
    text = "a slots = 4\nb  slots=2 max_slots=8\nc max-slots = 3 slots =3\nd max_slots=9\n"
    hosts = [Host("a", 4), Host("b", 2), Host("c", 3), Host("d", 1)]
    assert read_hosts(written(tmp_path, text)) == hosts


def test_each_name_of_this_machine_may_be_in_a_hosts_file(tmp_path: Path) -> None:
    for address in LOCAL:
        (host,) = read_hosts(written(tmp_path, f"{address} slots=2\n"))
        assert host == Host(address, 2)
        assert host.is_local


def test_a_hosts_file_may_have_horovods_form_and_ipv6_addresses(tmp_path: Path) -> None:
    text = "server1:4\nfe80::1 slots=2\n2001:db8::7\n"
    assert read_hosts(written(tmp_path, text)) == [
        Host("server1", 4),
        Host("fe80::1", 2),
        Host("2001:db8::7", 1),
    ]
