"""Faults over `replicate`: to a folder, along a chain of hosts, to a bucket and back."""

from __future__ import annotations

import time
from pathlib import Path

from imagenet_prep.dataset import schema
from tests.campaign.story import KILL, Story, hold, hold_whole_or_absent
from tests.kit import faults
from tests.kit.dataset import contents
from tests.kit.fake_hosts import Hosts, make_hosts
from tests.kit.replicas import make_dataset
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, S3Server, objects

_FAULTS = ("signal",) * 4 + ("full disk",) + ("file",) * 2


class Replicate:
    """Rounds of `replicate` to a folder."""

    def __init__(self, story: Story) -> None:
        """Measures an undisturbed run."""
        make_dataset(story.folder / "set")
        began = time.monotonic()
        story.undisturbed(_words(story.folder / "set", story.folder / "copy"))
        self.seconds = time.monotonic() - began
        self.changes = story.changes()

    def round(self, story: Story) -> None:
        """Replicates its own dataset in spite of every fault."""
        make_dataset(story.folder / "set", seed=story.rng.getrandbits(16))
        reference = contents(story.folder / "set")
        self._to_folder(story, reference)
        hold(contents(story.folder / "set") == reference, "the source is different")

    def _to_folder(self, story: Story, reference: dict[str, bytes]) -> None:
        with story.disk() as disk:
            copy = disk / "copy"
            words = _words(story.folder / "set", copy)
            # A run that ends early may not have come to them.
            damaged: set[str] = set()
            for _ in range(story.rng.randint(2, 6)):
                fault = story.rng.choice(_FAULTS)
                if fault == "file":
                    damaged.add(_damage(story, copy))
                if fault == "full disk":
                    story.little_room(disk, sum(map(len, reference.values())))
                    story.start(words, blind=True)
                    if story.finish(0, 4).code == 4:
                        story.faults[fault] += 1
                    story.much_room(disk)
                else:
                    story.ended_early(words, self.changes, self.seconds)
                hold_whole_or_absent(copy, reference, *damaged)
            story.undisturbed(words)
            hold(contents(copy) == reference, "the replica is a different dataset")
            left = [path for path in (copy / schema.WORK / "incoming").rglob("*") if path.is_file()]
            hold(not left, f"left over: {left}")


class ReplicateToHosts(Replicate):
    """Rounds of `replicate` along a chain of hosts."""

    def round(self, story: Story) -> None:
        """Kills the command or hosts of a chain, until all hosts have the dataset."""
        make_dataset(story.folder / "set", seed=story.rng.getrandbits(16))
        reference = contents(story.folder / "set")
        self._to_hosts(story, reference)
        hold(contents(story.folder / "set") == reference, "the source is different")

    def _to_hosts(self, story: Story, reference: dict[str, bytes]) -> None:
        hosts = make_hosts(story.folder)
        words = ["replicate", str(story.folder / "set"), "--to", hosts.to, "--wait", "0"]
        slow = ("--bandwidth-limit", "1")
        for _ in range(story.rng.randint(2, 4)):
            story.start([*words, *slow], env=hosts.environment)
            if not story.warm.ended(story.rng.uniform(0, 3)):
                self._hit(story, hosts)
            story.finish(0, 4, -KILL)
            for address in hosts.addresses:
                hold_whole_or_absent(hosts.replica(address), reference)
        story.undisturbed(words, env=hosts.environment)
        for address in hosts.addresses:
            found = contents(hosts.replica(address))
            hold(found == reference, f"{address}: the replica is a different dataset")

    def _hit(self, story: Story, hosts: Hosts) -> None:
        if story.rng.random() < 0.4:
            story.warm.send(KILL)
            story.faults["launcher killed"] += 1
        elif hosts.kill(story.rng.choice(hosts.addresses)):
            story.faults["host killed"] += 1


class ReplicateToS3:
    """Rounds of `replicate` to a bucket behind a proxy with faults, and back to a folder."""

    def __init__(self, story: Story, server: S3Server) -> None:
        self.server = server
        self.plain = Replicate(story)

    def round(self, story: Story) -> None:
        make_dataset(story.folder / "set", seed=story.rng.getrandbits(16))
        reference = contents(story.folder / "set")
        prefix = f"round-{story.rng.getrandbits(64):016x}"
        there = f"s3://{BUCKET}/{prefix}"
        seed = story.rng.getrandbits(32)
        with proxied(self.server.url, seed=seed, faults=20, rate=0.1) as proxy:
            env = {**self.server.environment, "AWS_ENDPOINT_URL": proxy.url}
            settings = {"env": env, "small": True}
            words = _words(story.folder / "set", there)
            for _ in range(story.rng.randint(1, 3)):
                story.ended_early(words, self.plain.changes, 1 + self.plain.seconds, **settings)
                self._hold_objects(prefix, reference, finished=False)
            story.undisturbed(words, **settings)
            self._hold_objects(prefix, reference, finished=True)
            words = _words(there, story.folder / "back")
            for _ in range(story.rng.randint(1, 3)):
                story.ended_early(words, self.plain.changes, 1 + self.plain.seconds, **settings)
                hold_whole_or_absent(story.folder / "back", reference)
            story.undisturbed(words, **settings)
            hold(contents(story.folder / "back") == reference, "other bytes came back")
        for kind, count in proxy.done.items():
            story.faults[f"network: {kind}"] += count

    def _hold_objects(self, prefix: str, reference: dict[str, bytes], *, finished: bool) -> None:
        found = objects(self.server.client(), prefix)
        there = {name: data for name, data in found.items() if not name.startswith(schema.WORK)}
        wrong = [name for name, data in there.items() if reference.get(name) != data]
        hold(not wrong, f"{prefix}: other bytes in {wrong}")
        if finished or schema.MANIFEST in there:
            missing = sorted(reference.keys() - there.keys())
            hold(not missing, f"{prefix}: a manifest without {missing}")


def _words(source: Path | str, to: Path | str) -> list[str]:
    return ["replicate", str(source), "--to", str(to), "--connections", "2", "--retries", "50"]


def _damage(story: Story, copy: Path) -> str:
    """Removes or cuts a file of the replica; returns its name."""
    there = [path for path in sorted(copy.rglob("*-of-*")) if schema.WORK not in path.parts]
    if not there:
        return ""
    path = story.rng.choice(there)
    if story.rng.random() < 0.5:
        path.unlink()
    else:
        faults.cut(path, story.rng.randrange(0, path.stat().st_size))
    story.faults["file damaged"] += 1
    return str(path.relative_to(copy))
