"""Each host gets exactly its own part, which is verified like a complete replica."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from imagenet_prep import replicate
from imagenet_prep.core.flags import parse
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.replicate import ReplicateConfig
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command, faults
from tests.kit.dataset import contents, shard_names
from tests.kit.fake_hosts import Hosts
from tests.kit.lengths import long_except
from tests.kit.messages import says, wording
from tests.kit.replicas import make_dataset
from tests.kit.s3_server import BUCKET, S3Server

PARTITION = ("--mode", "partition")


def part(dataset: Path, placement: Placement) -> dict[str, bytes]:
    """Returns all bytes that a host with a part must have."""
    manifest = open_dataset(str(dataset)).manifest
    names = {schema.MANIFEST, *(file.name for file in placement.files(manifest))}
    expected = {name: data for name, data in contents(dataset).items() if name in names}
    return {**expected, schema.PLACEMENT: placement.dumps(manifest.digest)}


def assert_parts(hosts: Hosts, dataset: Path, copies: int, *but: str) -> None:
    for node, address in enumerate(hosts.addresses):
        if address not in but:
            expected = part(dataset, Placement(node, len(hosts.addresses), copies))
            assert contents(hosts.replica(address)) == expected, address


@pytest.mark.parametrize("copies", long_except([2], [1, 2, 3]))
def test_hosts_get_their_parts_and_damage_is_repaired(
    hosts: Hosts, dataset: Path, copies: int
) -> None:
    hosts.only("10.0.0.1", "10.0.0.2", "node-3")
    flags = (*PARTITION, "--copies", str(copies))
    planned = hosts.run(dataset, *flags, "--dry-run", "--json")
    result = hosts.run(dataset, *flags, "--json")

    assert (planned.code, result.code) == (0, 0), (planned, result)
    assert_parts(hosts, dataset, copies)
    held = [shard_names(contents(hosts.replica(address))) for address in hosts.addresses]
    assert set().union(*held) == shard_names(contents(dataset))
    assert sum(map(len, held)) == 6 * copies
    moved = [replica["moved_bytes"] for replica in result.json["replicas"]]
    assert moved == [replica["lacking_bytes"] for replica in planned.json["replicas"]]
    assert moved == [replica["bytes"] for replica in result.json["replicas"]]
    checked = hosts.run(dataset, *flags, "--check")
    assert checked.code == 0, checked
    verified = command.run("verify", hosts.replica("node-3"), "--level", "manifest")
    assert verified.code == 0, verified
    assert f"({wording('part-copies', 2, 3, copies)})" in verified.out

    replica = hosts.replica("10.0.0.2")
    (name, *_) = sorted(shard_names(contents(replica)))
    faults.corrupt_silently(replica, name, 100)
    placement = hosts.replica("node-3") / schema.PLACEMENT
    placement.write_bytes((replica / schema.PLACEMENT).read_bytes())
    of_another_node = hosts.run(dataset, *flags, "--check")
    assert of_another_node.code == 3
    assert re.search(r"placement\.json: part \d of 3.*, expected part 2 of 3", of_another_node.out)
    placement.unlink()
    checked = hosts.run(dataset, *flags, "--check")
    assert checked.code == 3
    assert f"10.0.0.2:~/set: {name}: sha256 " in checked.out
    assert "placement.json: the complete dataset, expected part 2 of 3" in checked.out
    mended = hosts.run(dataset, *flags, "--repair", "--json")
    moved = [replica["moved_bytes"] for replica in mended.json["replicas"]]
    assert moved == [0, len(contents(dataset)[name]), 0]
    assert_parts(hosts, dataset, copies)


def test_folder_with_a_different_part_is_refused_unchanged(
    hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    def give(*flags: str) -> command.Finished:
        return command.run("replicate", dataset, "--to", tmp_path / "part", *flags)

    assert give(*PARTITION, "--part", "1/4").code == 0
    there = part(dataset, Placement(1, 4))
    for flags, said in (
        ((), "has part 1 of 4, copies: 1, expected the complete dataset"),
        ((*PARTITION, "--part", "1/4", "--copies", "2"), "expected part 1 of 4, copies: 2"),
        ((*PARTITION, "--part", "1/3"), "expected part 1 of 3, copies: 1"),
    ):
        refused = give(*flags)
        assert refused.code == 2, refused
        assert said in refused.err
        assert contents(tmp_path / "part") == there
    assert command.run("replicate", dataset, "--to", tmp_path / "whole").code == 0
    refused = command.run(
        "replicate", dataset, "--to", tmp_path / "whole", *PARTITION, "--part=0/4"
    )
    assert refused.code == 2
    assert says("files-readers-would-read-not", ..., "part 0 of 4").search(refused.err)
    assert contents(tmp_path / "whole") == contents(dataset)


def test_part_cannot_be_replicated_as_a_dataset(dataset: Path, tmp_path: Path) -> None:
    flags = (*PARTITION, "--part", "0/2")
    assert command.run("replicate", dataset, "--to", tmp_path / "part", *flags).code == 0
    refused = command.run("replicate", tmp_path / "part", "--to", tmp_path / "more")

    assert refused.code == 2
    assert says("command-needs-complete-dataset-use", ..., "part 0 of 2, copies: 1").search(
        refused.err
    )


def test_too_many_copies_and_leaders_folder_are_refused(
    hosts: Hosts, dataset: Path, tmp_path: Path
) -> None:
    many = hosts.run(dataset, *PARTITION, "--copies", "5")
    assert many.code == 2
    assert says("copies-hosts", 5, 4, says("copies-expected-1-nodes", 5, 4)).search(many.err)

    (tmp_path / "hosts.txt").write_text("localhost slots=8\nnode-3 slots=8\n")
    whole = contents(dataset)
    target = f"hosts:{tmp_path / 'hosts.txt'}:{dataset}"
    own = command.run("replicate", dataset, "--to", target, *PARTITION, env=hosts.environment)
    assert own.code == 2, own
    assert says("original-dataset-replicate-not-change", ..., "part 0 of 2").search(own.out)
    assert contents(dataset) == whole


# Faster test of the same: test_s3's hosts that read all of it.
@pytest.mark.long
def test_hosts_read_their_parts_from_a_bucket(s3: S3Server, hosts: Hosts, tmp_path: Path) -> None:
    make_dataset(tmp_path / "set")
    there = f"s3://{BUCKET}/parts"
    environment = {**s3.environment, **hosts.environment}
    sent = command.run("replicate", tmp_path / "set", "--to", there, env=environment)
    flags = ("--to", hosts.to, *PARTITION, "--copies", "2")
    result = command.run("replicate", there, *flags, env=environment)

    assert (sent.code, result.code) == (0, 0), (sent, result)
    assert_parts(hosts, tmp_path / "set", 2)


@pytest.mark.parametrize("part", [WHOLE, Placement(1, 4, 1), Placement(3, 4, 2)], ids=str)
def test_host_that_pulls_has_its_part(part: Placement) -> None:
    config = ReplicateConfig(dataset="s3://bucket/set", to="hosts:hosts:/data/set")
    words = replicate._pull_words(config, part, [])[1:]

    pulled = parse(ReplicateConfig, words, verb="replicate")

    assert (pulled.dataset, pulled.to) == ("s3://bucket/set", "/data/set")
    assert pulled.placement() == part
