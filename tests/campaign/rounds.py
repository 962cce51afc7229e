"""Rounds of several faults over one command: in a folder, in a bucket, on hosts."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from tests.campaign.amend import AmendInS3
from tests.campaign.attempts import Attempt
from tests.campaign.changing import Changing, cases
from tests.campaign.download import Download
from tests.campaign.prepare import Prepare, PrepareToS3
from tests.campaign.replicate import Replicate, ReplicateToHosts, ReplicateToS3
from tests.campaign.scenes import Theatre
from tests.campaign.story import Story
from tests.campaign.table import Fault, Place, Row
from tests.kit import warm
from tests.kit.arena import Arena
from tests.kit.miniature import miniature_for_tests
from tests.kit.s3_server import BUCKET, S3Server, serve_s3
from tests.kit.shared import in_memory


class Subject(Protocol):
    """The subject of a round: one command, in one place."""

    def round(self, story: Story) -> None:
        """Carries out a round; raises ViolationError if a promise is broken."""


class Round:
    """A round of several faults; the case is its seed."""

    def __init__(self, rooms: Callable[[], Rooms]) -> None:
        self._rooms = rooms

    def sample(self, _theatre: Theatre, _row: Row, rng: random.Random) -> str:
        return str(rng.getrandbits(32))

    def every(self, _theatre: Theatre, _row: Row) -> Iterable[str]:
        """Returns only two seeds: rounds have no end."""
        return map(str, range(2))

    def attempt(self, _theatre: Theatre, row: Row, case: str) -> Attempt:
        story = self._rooms().round(row, random.Random(case))
        return Attempt([], story.faults)


class Rooms:
    """The place of rounds: an arena, warm processes, and the subjects that exist."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        temporary = tempfile.TemporaryDirectory(dir=in_memory())
        self._folder = Path(self._closing.enter_context(temporary))
        (self._folder / "arena").mkdir()
        (self._folder / "sources").mkdir()
        counts = {"num_train": 32, "num_validation": 8}
        self._mini = miniature_for_tests(self._folder, **counts, size=(64, 48))
        self._warm: dict[str, warm.Warm] = {}
        self._arena = Arena(self._folder / "arena", self._process("verbs"))
        self._subjects: dict[tuple[str, Fault, Place], Subject] = {}
        self._server: S3Server | None = None

    def close(self) -> None:
        self._closing.close()

    def round(self, row: Row, rng: random.Random) -> Story:
        """Carries out a round; raises ViolationError if a promise is broken."""
        subject = self._subject(row)
        story = self._story(row, rng)
        before = self._arena.look()
        try:
            subject.round(story)
            story.hold_outside(before)
        finally:
            story.warm.left(0)
        return story

    def server(self) -> S3Server:
        """Returns an S3 server with a bucket; it is started at the first call."""
        if self._server is None:
            folder = self._made("s3")
            self._server = self._closing.enter_context(serve_s3(folder))
            self._server.client().create_bucket(Bucket=BUCKET)
        return self._server

    def _process(self, which: str) -> warm.Warm:
        if which not in self._warm:
            modules = list(warm.VERBS)
            if which in ("bucket", "another"):
                modules += ["boto3", "imagenet_prep.storage.bucket"]
            if which == "train":
                modules = ["imagenet_prep.train", "imagenet_prep.trainer.loop", "tensorflow"]
            self._warm[which] = self._closing.enter_context(warm.Warm(modules))
        return self._warm[which]

    def _story(self, row: Row, rng: random.Random) -> Story:
        self._arena.clear()
        which = "verbs"
        if row.promise.place == Place.BUCKET:
            which = "bucket"
        elif row.verb == "train":
            which = "train"
        return Story(self._arena, self._process(which), rng, codes=row.promise.codes)

    def _subject(self, row: Row) -> Subject:
        key = (row.verb, row.promise.fault, row.promise.place)
        if key not in self._subjects:
            story = self._story(row, random.Random(0))
            if row.promise.fault == Fault.SOURCE_CHANGED:
                made = self._made(f"changing-{row.verb}")
                of_verb = cases(row.verb, self._mini, story.undisturbed, made)
                self._subjects[key] = Changing(of_verb)
            elif row.promise.place == Place.BUCKET:
                self._subjects[key] = self._in_bucket(row.verb, story)
            elif row.promise.place == Place.HOSTS:
                self._subjects[key] = ReplicateToHosts(story)
            else:
                self._subjects[key] = self._in_folder(row.verb, story)
        return self._subjects[key]

    def _in_bucket(self, verb: str, story: Story) -> Subject:
        source = self._mini.root
        if verb == "prepare":
            return PrepareToS3(story, source, self.server(), lambda: self._process("another"))
        if verb == "amend":
            return AmendInS3(story, source, self._made("amend-in-bucket"), self.server())
        return ReplicateToS3(story, self.server())

    def _in_folder(self, verb: str, story: Story) -> Subject:
        source = self._mini.root
        made: dict[str, Callable[[], Subject]] = {
            "prepare": lambda: Prepare(story, source),
            "download": lambda: Download(story),
            "replicate": lambda: Replicate(story),
            "train": lambda: _train(story, self._folder),
        }
        return made[verb]()

    def _made(self, name: str) -> Path:
        folder = self._folder / "sources" / name
        folder.mkdir()
        return folder


def _train(story: Story, folder: Path) -> Subject:
    # Only this verb needs TensorFlow.
    from tests.campaign.train import Train
    from tests.kit.training import make_shades

    return Train(story, make_shades(folder / "shades"))
