"""To hosts, along a chain: complete everywhere; a fault of one host does not stop the others."""

from __future__ import annotations

import os
from pathlib import Path

from imagenet_prep.reporting import facts
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command, faults
from tests.kit.columns import make_column
from tests.kit.dataset import assert_visible_files_are_complete, contents
from tests.kit.fake_hosts import Hosts
from tests.kit.messages import exactly, says
from tests.kit.replicas import make_dataset
from tests.kit.training import make_shades

SHARD = "train-00002-of-00006"


def test_all_hosts_get_all_bytes(hosts: Hosts, dataset: Path) -> None:
    result = hosts.run(dataset, "--json")

    assert result.code == 0, result
    hosts.assert_whole(dataset)
    moved = [replica["moved_bytes"] for replica in result.json["replicas"]]
    assert moved == [result.json["replicas"][0]["bytes"]] * 4
    assert hosts.run(dataset, "--check").code == 0


def test_second_run_copies_missing_and_repair_damaged_files(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.2", "node-3")
    assert hosts.run(dataset).code == 0
    (hosts.replica("node-3") / SHARD).unlink()
    faults.corrupt_silently(hosts.replica("10.0.0.2"), SHARD, 100)
    planned = hosts.run(dataset, "--dry-run", "--json")
    assert [replica["lacking_bytes"] for replica in planned.json["replicas"]] == [0, 40_002]

    # A host does not forward a file that was damaged on its disk.
    again = hosts.run(dataset)
    assert again.code == 0, again
    assert f"{SHARD} is damaged on 10.0.0.2; another host will send the file" in again.err
    hosts.assert_whole(dataset, "10.0.0.2")

    checked = hosts.run(dataset, "--check")
    assert checked.code == 3
    assert f"10.0.0.2:~/set: {SHARD}: sha256 " in checked.out
    assert "1 of 2 replicas damaged" in checked.err
    mended = hosts.run(dataset, "--repair", "--json")
    assert [replica["moved_bytes"] for replica in mended.json["replicas"]] == [40_002, 0]
    hosts.assert_whole(dataset)

    (hosts.replica("node-3") / SHARD).unlink()
    last = hosts.run(dataset, "--json")
    assert [replica["moved_bytes"] for replica in last.json["replicas"]] == [0, 40_002]
    hosts.assert_whole(dataset)


def test_hosts_get_signatures_of_manifest_and_columns(hosts: Hosts, tmp_path: Path) -> None:
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


def test_leader_in_hosts_file_keeps_its_dataset(
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


def test_refusal_of_ssh_is_not_retried(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.2", "node-3", "ubuntu@node-4")
    changed = (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n"
    )
    hosts.down("10.0.0.2", changed)
    hosts.down("node-3", "{}: Permission denied (publickey).\n")
    result = hosts.run(dataset, "--wait", "60")

    assert result.code == 1, result
    for address, said in (
        ("10.0.0.2", says("host-s-key-changed-host")),
        ("node-3", exactly("Permission denied (publickey)")),
    ):
        (line,) = [line for line in result.out.splitlines() if line.startswith(f"{address}:~/set")]
        assert said.search(line)
        assert "known_hosts" in line
    hosts.assert_whole(dataset, "10.0.0.2", "node-3")
    # Only complete replicas are noted.
    noted = [note.where for note in facts.replicas_of(LocalStore(dataset))]
    assert noted == ["ubuntu@node-4:~/set"]


def test_python_without_the_package_is_named(hosts: Hosts, dataset: Path) -> None:
    hosts.only("node-3")
    result = hosts.run(dataset, "--check", "--python", "/nowhere/python3")

    assert result.code == 1
    assert "/nowhere/python3" in result.out


def test_changing_source_is_reported_and_never_mixed(hosts: Hosts, tmp_path: Path) -> None:
    hosts.only("10.0.0.1", "10.0.0.2")
    source = tmp_path / "changing"
    make_dataset(source, shards=8, shard_bytes=500_000)
    before = contents(source)
    make_dataset(tmp_path / "next", shards=8, shard_bytes=500_000, seed=1)
    # After two of eight shards, there are three seconds to replace the files.
    with hosts.started(source, "--bandwidth-limit", "1") as running:
        arrived = hosts.replica("10.0.0.1")
        command.wait_until(lambda: len(list(arrived.glob("train-*"))) >= 2, "shards arrive")
        for name, data in contents(tmp_path / "next").items():
            (source / f"{name}.new").write_bytes(data)
            (source / f"{name}.new").rename(source / name)
        result = running.finish()

    assert result.code in (3, 4), result
    assert "changed" in result.err or says("arrives-damaged-every-time-damaged").search(result.out)
    for address in hosts.addresses:
        assert_visible_files_are_complete(hosts.replica(address), before)


def test_named_pipe_instead_of_shard_is_refused(hosts: Hosts, dataset: Path) -> None:
    hosts.only("10.0.0.1")
    (dataset / SHARD).unlink()
    os.mkfifo(dataset / SHARD)

    result = hosts.run(dataset)

    assert result.code == 3, result
    assert f"{SHARD}: is a named pipe" in result.err
    assert "times" not in result.out
    assert "Traceback" not in result.out + result.err
