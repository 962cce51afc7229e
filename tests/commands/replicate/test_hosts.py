"""To hosts, along a chain: whole everywhere, and what happens to one does not stop the others."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kit import command, faults
from tests.kit.columns import make_column
from tests.kit.dataset import contents
from tests.kit.fake_hosts import Hosts
from tests.kit.training import make_shades

SHARD = "train-00002-of-00006"


def test_every_host_gets_the_signatures_of_the_manifest_and_the_columns(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.only("10.0.0.1", "node-3")
    signed = tmp_path / "signed"
    make_shades(signed)
    make_column(signed)
    names = ("dataset.json.sig", "columns/latents/column.json.sig")
    for name in names:
        (signed / name).write_text(f"-----BEGIN SSH SIGNATURE-----\n{name}\n")
    assert hosts.run(signed).code == 0

    for address in hosts.addresses:
        for name in names:
            assert (hosts.replica(address) / name).read_bytes() == (signed / name).read_bytes()


def test_the_leader_may_be_in_the_hosts_file_and_its_set_is_left_alone(
    hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    folder = hosts.root / "shared"
    dataset.rename(folder)
    (tmp_path / "hosts.txt").write_text("localhost slots=8\nnode-3 slots=8\n")
    reference = contents(folder)
    faults.flip_bit(folder / SHARD, 0)
    damaged = contents(folder)
    target = f"hosts:{tmp_path / 'hosts.txt'}:{folder}"
    result = command.run("replicate", folder, "--to", target, env=hosts.environment)

    assert result.code == 0, result
    assert contents(folder) == damaged
    assert damaged["dataset.json"] == reference["dataset.json"]
    assert list((folder / ".work").glob("origin-*")) == []


def test_what_ssh_refuses_is_not_tried_for_ever(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.2", "node-3", "ubuntu@node-4")
    changed = (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n"
    )
    hosts.down("10.0.0.2", changed)
    hosts.down("node-3", "{}: Permission denied (publickey).\n")
    result = hosts.run(dataset, "--wait", "60")

    assert result.code == 1, result
    for address, said in (
        ("10.0.0.2", "the host's key has changed"),
        ("node-3", "Permission denied (publickey)"),
    ):
        (line,) = [line for line in result.out.splitlines() if line.startswith(f"{address}:~/set")]
        assert said in line
        assert "known_hosts" in line
    hosts.assert_whole(dataset, "10.0.0.2", "node-3")


def test_a_python_without_the_package_is_named(hosts: Hosts, dataset: Path) -> None:
    hosts.only("node-3")
    result = hosts.run(dataset, "--check", "--python", "/nowhere/python3")

    assert result.code == 1
    assert "/nowhere/python3" in result.out


def test_a_pipe_in_place_of_a_shard_at_the_source_is_refused_at_once(
    hosts: Hosts, dataset: Path
) -> None:
    hosts.only("10.0.0.1")
    (dataset / SHARD).unlink()
    os.mkfifo(dataset / SHARD)

    result = hosts.run(dataset)

    assert result.code == 3, result
    assert f"{SHARD}: is a named pipe" in result.err
    assert "times" not in result.out
    assert "Traceback" not in result.out + result.err
