"""Faults over `amend` within a bucket: a new dataset next to the one that it is made from."""

from __future__ import annotations

import time
from pathlib import Path

from imagenet_prep.dataset import schema
from tests.campaign.prepare import FLAGS
from tests.campaign.story import Story, hold
from tests.kit.amended import make_changes
from tests.kit.dataset import contents
from tests.kit.s3_proxy import proxied
from tests.kit.s3_server import BUCKET, S3Server, key_of, objects


class AmendInS3:
    """Rounds of `amend` within a bucket whose server is behind a proxy with faults."""

    def __init__(self, story: Story, source: Path, folder: Path, server: S3Server) -> None:
        """Makes the parent dataset, puts it into the bucket, and amends it once, undisturbed.

        Args:
          story: of the undisturbed runs.
          source: archives.
          folder: made here, for the dataset and the changes.
          server: of the bucket.
        """
        parent = folder / "set"
        story.undisturbed(["prepare", "--source", source, "--out", parent, *FLAGS])
        self.changes = make_changes(parent, folder / "changes")
        began = time.monotonic()
        story.undisturbed(self.words(str(parent), str(story.folder / "out")))
        self.seconds = time.monotonic() - began
        self.num_changes = story.changes()
        self.reference = contents(story.folder / "out")
        self.before = contents(parent)
        self.server = server
        self.there = f"s3://{BUCKET}/{folder.name}"
        words = ["replicate", str(parent), "--to", self.there]
        story.undisturbed(words, env=server.environment)

    def words(self, parent: str, out: str) -> list[str]:
        return ["amend", parent, "--out", out, *self.changes.flags, "--workers", "2"]

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
