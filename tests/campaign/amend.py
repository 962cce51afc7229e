"""Faults over `amend`: another set beside the one that it is made from, in a folder or a bucket."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from imagenet_prep.dataset import schema
from tests.campaign.prepare import FLAGS
from tests.campaign.story import Story, hold, hold_whole_or_absent
from tests.kit import faults
from tests.kit.amended import Changes, make_changes
from tests.kit.dataset import contents
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, S3Server, key_of, objects

_FAULTS = ("signal",) * 6 + ("full disk",) * 2 + ("lost file",) * 2 + ("damaged parent",)


class Amend:
    """Rounds of `amend` from folder to folder."""

    def __init__(self, story: Story, source: Path, folder: Path) -> None:
        """Makes the set, what is to change in it, and what undisturbed runs make of it.

        Args:
          story: of the undisturbed runs.
          source: archives.
          folder: made here, for the set and the changes.
        """
        self.parent = folder / "set"
        story.undisturbed(["prepare", "--source", source, "--out", self.parent, *FLAGS])
        self.changes: Changes = make_changes(self.parent, folder / "changes")
        began = time.monotonic()
        story.undisturbed(self.words(self.parent, story.folder / "out"))
        self.seconds = time.monotonic() - began
        self.num_changes = story.changes()
        self.reference = contents(story.folder / "out")
        self.before = contents(self.parent)

    def words(self, parent: Path | str, out: Path | str) -> list[str]:
        places = [str(parent), "--out", str(out)]
        return ["amend", *places, *self.changes.flags, "--workers", "2"]

    def round(self, story: Story) -> None:
        """Disturbs one set until it is made in spite of all; its parent lies on the same disk."""
        with story.disk() as disk:
            parent = disk / "set"
            out = disk / "out"
            shutil.copytree(self.parent, parent)
            words = self.words(parent, out)
            lost: set[str] = set()
            for _ in range(story.rng.randint(3, 8)):
                fault = story.rng.choice(_FAULTS)
                if fault == "lost file":
                    lost |= self._lose(story, out)
                if fault == "full disk":
                    story.little_room(disk, sum(map(len, self.reference.values())) // 2)
                    story.start(words, blind=True)
                    story.faults.update([fault] * (story.finish(0, 4).code == 4))
                    story.much_room(disk)
                elif fault == "damaged parent":
                    self._refuse(story, parent, out, words)
                else:
                    story.ended_early(words, self.num_changes, self.seconds)
                hold(contents(parent) == self.before, "the parent has changed")
                hold_whole_or_absent(out, self.reference, *lost)
            story.undisturbed(words)
            found = contents(out)
            wrong = sorted(n for n in self.reference if found.get(n) != self.reference[n])
            hold(found == self.reference, f"another data set: {wrong}")
            hold(contents(parent) == self.before, "the parent has changed")

    def _lose(self, story: Story, out: Path) -> set[str]:
        """Removes a file of the unfinished or finished set; its bytes may be the parent's too."""
        found = sorted(out.glob("*-of-*")) + sorted(out.glob("index/*"))
        if not found:
            return set()
        path = story.rng.choice(found)
        path.unlink()
        story.faults["file lost"] += 1
        return {str(path.relative_to(out))}

    def _refuse(self, story: Story, parent: Path, out: Path, words: list[str]) -> None:
        """Damages what is read of the parent; an unfinished set must not be finished from it."""
        finished = (out / schema.MANIFEST).exists()
        path = story.rng.choice(sorted(parent.glob("samples/*")))
        whole = path.read_bytes()
        # Not in place: the other set may have a link to the file.
        path.unlink()
        path.write_bytes(whole)
        faults.flip_bit(path, story.rng.randrange(len(whole)))
        story.start(words)
        story.finish(3)
        story.faults["parent damaged"] += 1
        path.write_bytes(whole)
        hold(finished or not (out / schema.MANIFEST).exists(), "a set from a damaged parent")


class AmendInS3(Amend):
    """Rounds of `amend` within a bucket whose server is behind a proxy with faults."""

    def __init__(self, story: Story, source: Path, folder: Path, server: S3Server) -> None:
        """As for folders; puts the set into the bucket."""
        super().__init__(story, source, folder)
        self.server = server
        self.there = f"s3://{BUCKET}/{folder.name}"
        words = ["replicate", str(self.parent), "--to", self.there]
        story.undisturbed(words, env=server.environment)

    def round(self, story: Story) -> None:
        prefix = f"round-{story.rng.getrandbits(64):016x}"
        words = self.words(self.there, f"s3://{BUCKET}/{prefix}")
        number = story.rng.randint(2, 5)
        seed = story.rng.getrandbits(32)
        with proxied(self.server.url, seed=seed, faults=8 * number, rate=0.08) as proxy:
            env = {**self.server.environment, "AWS_ENDPOINT_URL": proxy.url}
            for _ in range(number):
                story.ended_early(words, self.num_changes, 3 * self.seconds + 1, env=env)
                self._hold_objects(prefix, finished=False)
            story.undisturbed(words, env=env)
        story.faults.update(proxy.done)
        self._hold_objects(prefix, finished=True)

    def _hold_objects(self, prefix: str, *, finished: bool) -> None:
        client = self.server.client()
        parent = objects(client, key_of(self.there))
        hold(parent == self.before, "the parent has changed")
        there = {
            name: data
            for name, data in objects(client, prefix).items()
            if not name.startswith(schema.WORK)
        }
        wrong = [name for name, data in there.items() if self.reference.get(name) != data]
        hold(not wrong, f"{prefix}: other bytes in {wrong}")
        if finished or schema.MANIFEST in there:
            hold(there == self.reference, f"{prefix}: missing: {self.reference.keys() - there}")
