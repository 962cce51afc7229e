"""Faults over `prepare`: into a folder, on a small disk, into a bucket behind a bad network."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from imagenet_prep.core.errors import BusyError
from imagenet_prep.dataset import schema
from tests.campaign.story import INTERRUPTED, KILL, Story, hold, hold_whole_or_absent
from tests.kit import faults
from tests.kit.command import wait_until
from tests.kit.dataset import contents, receipts, stamps
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, S3Server, objects
from tests.kit.warm import Warm, children

SHARDS = ("--train-shards", "5", "--validation-shards", "2")
FLAGS = (*SHARDS, "--short-side", "32", "--allow-subset", "--workers", "2")
_FAULTS_OF_FOLDER = ("signal",) * 6 + ("full disk",) * 2 + ("shard",) * 2 + ("receipt",) * 2
_TWO_LAUNCHERS_CHANCE = 0.15
# A worker process takes two seconds to start.
_WORKERS_CHANCE = 0.05


class Prepare:
    """Rounds of `prepare` into a folder."""

    def __init__(self, story: Story, source: Path) -> None:
        """Prepares once, undisturbed; keeps the bytes, not the folder."""
        self.source = source
        began = time.monotonic()
        story.undisturbed(self.words(story.folder / "out"))
        self.seconds = time.monotonic() - began
        self.changes = story.changes()
        self.reference = contents(story.folder / "out")

    def words(self, out: Path | str, *more: str) -> list[str]:
        return ["prepare", "--source", str(self.source), "--out", str(out), *FLAGS, *more]

    def round(self, story: Story) -> None:
        """Disturbs the preparation of one dataset until it is finished, several times."""
        with story.disk() as disk:
            out = disk / "out"
            damaged: set[str] = set()
            for _ in range(story.rng.randint(3, 8)):
                if story.rng.random() < _WORKERS_CHANCE:
                    self._lose_a_worker(story, out, damaged)
                else:
                    self._disturb(story, out, story.rng.choice(_FAULTS_OF_FOLDER), damaged)
            ended = story.undisturbed(self.words(out))
            found = contents(out)
            hold(found == self.reference, f"other bytes: {_differences(found, self.reference)}")
            left = [path.name for path in (out / schema.WORK / "temporary").glob("*")]
            # A run that finds all finished changes nothing, not even that.
            idle = b"nothing was left" in ended.out
            hold(idle or not left, f"temporary files are left: {left}")

    def _disturb(self, story: Story, out: Path, fault: str, damaged: set[str]) -> None:
        if fault in ("shard", "receipt"):
            self._damage(story, out, fault, damaged)
        before = self._finished(out)
        if fault == "full disk":
            story.little_room(out.parent, sum(map(len, self.reference.values())))
            story.start(self.words(out), blind=True)
            ended = story.finish(0, 4)
            if ended.code == 4:
                story.faults["full disk"] += 1
            story.much_room(out.parent)
        else:
            story.ended_early(self.words(out), self.changes, self.seconds)
        self._hold(out, before, damaged)

    def _damage(self, story: Story, out: Path, what: str, damaged: set[str]) -> None:
        """Removes or cuts a shard, or its receipt; adds the names that may be other now."""
        found = receipts(out) if what == "receipt" else sorted(out.glob("*-of-*"))
        found = [path for path in found if "-of-" in path.name]
        if not found:
            return
        path = story.rng.choice(found)
        if story.rng.random() < 0.5:
            path.unlink()
        else:
            faults.cut(path, story.rng.randrange(0, path.stat().st_size))
        story.faults[f"{what} damaged"] += 1
        shard = path.name.removesuffix(".json")
        damaged |= {shard, *schema.beside(shard)}

    def _lose_a_worker(self, story: Story, out: Path, damaged: set[str]) -> None:
        before = self._finished(out)
        story.start(self.words(out, "--worker-kind", "processes"))
        pid = story.warm.pid
        # The launcher starts a shell for each worker that becomes it.
        wait_until(lambda: story.warm.ended(0) or children(pid), "workers start")
        if not story.warm.ended(story.rng.uniform(0, 2.0)) and (workers := children(pid)):
            victim = story.rng.choice(workers)
            shutil.os.kill(victim, KILL)
            story.faults["worker killed"] += 1
        story.finish(0, 4, INTERRUPTED)
        self._hold(out, before, damaged)

    def _finished(self, out: Path) -> dict[str, tuple[int, int]]:
        """Returns (inode, time) of each shard that is whole and has its receipt."""
        if not out.is_dir():
            return {}
        noted = {path.name.removesuffix(".json"): path for path in receipts(out)}
        found = {}
        for name, stamp in stamps(out).items():
            if name in noted and (out / name).stat().st_size == len(self.reference[name]):
                try:
                    json.loads(noted[name].read_bytes())
                except ValueError:
                    continue
                found[name] = stamp
        return found

    def _hold(self, out: Path, before: dict[str, tuple[int, int]], damaged: set[str]) -> None:
        hold_whole_or_absent(out, self.reference, *damaged)
        after = self._finished(out)
        lost = [name for name in before if after.get(name) != before[name]]
        hold(not lost, f"finished shards were made again, or lost: {lost}")
        shards = [path.name for path in out.glob("*-of-*") if path.name not in damaged]
        without = [name for name in shards if name not in after]
        hold(not without, f"shards without a receipt: {without}")
        # A repaired file must stay complete.
        for shard in after:
            damaged -= {shard, *schema.beside(shard)}


class PrepareToS3(Prepare):
    """Rounds of `prepare` into a bucket: its server is behind a proxy with faults."""

    def __init__(
        self, story: Story, source: Path, server: S3Server, another: Callable[[], Warm]
    ) -> None:
        """As for a folder.

        Args:
          story: of the undisturbed run.
          source: the archives.
          server: of the bucket.
          another: returns a second process that forks commands.
        """
        super().__init__(story, source)
        self.server, self.another = server, another

    def round(self, story: Story) -> None:
        prefix = f"round-{story.rng.getrandbits(64):016x}"
        words = self.words(f"s3://{BUCKET}/{prefix}")
        number = story.rng.randint(2, 5)
        seed = story.rng.getrandbits(32)
        with proxied(self.server.url, seed=seed, faults=8 * number, rate=0.08) as proxy:
            env = {**self.server.environment, "AWS_ENDPOINT_URL": proxy.url}
            for _ in range(number):
                if story.rng.random() < _TWO_LAUNCHERS_CHANCE:
                    self._two_launchers(story, words, env)
                # A bucket costs a hundred requests where a folder costs a change.
                story.ended_early(words, self.changes, 3 * self.seconds + 1, env=env, small=True)
                self._hold_objects(prefix, finished=False)
            story.undisturbed(words, env=env, small=True)
        for kind, count in proxy.done.items():
            story.faults[kind] += count
        self._hold_objects(prefix, finished=True)

    def _two_launchers(self, story: Story, words: list[str], env: dict[str, str]) -> None:
        """Runs two at once, as on two machines: a bucket has no lock, and equal bytes are put."""
        other = self.another()
        tmp = story.folder / "tmp-of-another"
        tmp.mkdir(exist_ok=True)
        story.start(words, env=env, small=True)
        if not story.warm.ended(story.rng.uniform(0, self.seconds)):
            story.start_beside(other, words, env={**env, "TMPDIR": str(tmp)}, small=True)
            story.finish_beside(other, 0, BusyError.exit_code)
            story.faults["second launcher"] += 1
        story.finish(0, BusyError.exit_code)

    def _hold_objects(self, prefix: str, *, finished: bool) -> None:
        found = objects(self.server.client(), prefix)
        there = {name: data for name, data in found.items() if not name.startswith(schema.WORK)}
        wrong = [name for name, data in there.items() if self.reference.get(name) != data]
        hold(not wrong, f"{prefix}: other bytes in {wrong}")
        if finished or schema.MANIFEST in there:
            hold(there == self.reference, f"{prefix}: {_differences(there, self.reference)}")


def _differences(found: dict[str, bytes], reference: dict[str, bytes]) -> list[str]:
    names = found.keys() | reference.keys()
    return sorted(name for name in names if found.get(name) != reference.get(name))
