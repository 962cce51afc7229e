"""Where a data set goes, over a run: whose it is, whether it fits, writing it, committing it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imagenet_prep
from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import manifest, naming
from imagenet_prep.preparation import space
from imagenet_prep.preparation.inventory import Inventory
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.tasks import (
    PLAN_FOLDER,
    UNPACKED,
    HashTask,
    ShardTask,
    WriteWork,
    plan_name,
)
from imagenet_prep.shards import plan
from imagenet_prep.shards.commit import commit
from imagenet_prep.shards.limit import BadImageLimit, check_finished
from imagenet_prep.shards.summary import summarise
from imagenet_prep.storage import notes
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.store import Store

_BEGUN = f"{naming.WORK}/run.json"


class Output:
    """The folder or prefix that one run of prepare fills.

    Attributes:
      store: where it is.
    """

    def __init__(self, job: Job, store: Store) -> None:
        self.job = job
        self.store = store
        self._start = time.time()
        self._new: list[dict[str, Any]] = []

    def committed(self) -> manifest.Manifest | None:
        """Returns the manifest where this very data set is already here, whole.

        Raises:
          UsageError: the folder holds another data set.
          DataDamagedError: more images were left out of it than are allowed.
        """
        # A listing fails where there is no such bucket; asking for the manifest would not.
        if naming.MANIFEST not in self.store.top():
            return None
        path = self.store.where(naming.MANIFEST)
        there = manifest.loads(self.store.read(naming.MANIFEST), path)
        sizes = self.job.sizes
        differences = _differences(there.config, self.job.decisive()) + [
            f"{source.name} was {source.num_bytes:,} bytes, is {sizes[source.name]:,}"
            for source in there.sources
            if source.name in sizes and source.num_bytes != sizes[source.name]
        ]
        known = {source.name for source in there.sources}
        differences += [f"{name} was not there" for name in sizes if name not in known]
        if differences:
            raise UsageError(
                f"{self.store.where()} holds another data set: {'; '.join(differences)}. "
                "Choose another --out, or remove that one."
            )
        files = there.files_of(there.splits)
        sizes_there = self.store.sizes(file.name for file in files)
        if not all(sizes_there.get(file.name) == file.num_bytes for file in files):
            return None
        check_finished(self.store.where(), there, self.job.config.allowed_bad_images)
        return there

    def clear(self) -> None:
        """Removes what killed runs left behind, and refuses to mix two runs in one folder.

        Raises:
          UsageError: another configuration or program has left shards here.
        """
        local = self.store.local
        local.remove_temporaries()
        # The source has changed since these were unpacked, or what is read of it.
        for folder in local.path(UNPACKED).glob("*"):
            if folder.name != self.job.index_digest[:16]:
                local.remove_tree(f"{UNPACKED}/{folder.name}")
        if self.store.size(_BEGUN) is None:
            there = self.store.top()
            strangers = list(filter(naming.looks_like_shard, there))
            # With a manifest the shards are ours: `committed` has compared the settings.
            if strangers and naming.MANIFEST not in there:
                raise UsageError(
                    f"{self.store.where()} already holds {', '.join(strangers[:3])}, which no run "
                    "of prepare left there. Choose an empty --out."
                )
            return
        self._refuse_others()

    def _refuse_others(self) -> None:
        begun_with = notes.read(self.store, _BEGUN, config=dict, libraries=dict)
        differences = [
            difference
            for part, mine in self._settings().items()
            for difference in _differences(begun_with[part], mine)
        ]
        if differences:
            raise UsageError(
                f"{self.store.where()} holds the unfinished work of another run: "
                f"{'; '.join(differences)}. Finish it as it was started, choose another --out, "
                "or remove that work."
            )

    def _settings(self) -> dict[str, dict[str, Any]]:
        return {"config": self.job.decisive(), "libraries": self.job.libraries}

    def write(self, inventory: Inventory) -> manifest.Manifest:
        """Writes the shards that are missing, then commits the whole."""
        plans = inventory.plans
        stage = self._stage(plans)
        tasks: list[HashTask | ShardTask] = [
            *self.job.hash_tasks(),
            *(ShardTask(name) for split in plans for name in split.shard_names),
        ]
        names = {task.name for task in tasks}
        pending = names - stage.receipts(names).keys()
        space.check_shards(self.job, self.store, plans, pending)
        # From here on the folder belongs to these settings; a run refused before leaves it free.
        self.store.claim(_BEGUN, canonical.dumps(self._settings()))
        self._refuse_others()
        if self.store is self.store.local:
            # For `report`, which reads folders; a bucket gets no paths of this machine.
            self.store.write(naming.ORIGIN, self._origin())
        if self.job.workers.remote:
            shards = (name for split in plans for name in split.shard_names)
            self.store.share(plan_name(name) for name in shards if name in pending)
        receipts = engine.run(
            stage,
            tasks,
            self.job.workers,
            title="write",
            watch=BadImageLimit(self.job.config.allowed_bad_images),
            quiet=self.job.config.json,
        )
        self._new = [receipt for receipt in receipts if receipt.get("shard") in pending]
        committed = self._commit(inventory, receipts)
        if self.store is not self.store.local:
            self.store.remove_tree(PLAN_FOLDER)
        self.remove_unpacked()
        return committed

    def remove_unpacked(self) -> None:
        """Removes the images that were unpacked: a finished set needs them no more."""
        self.store.local.remove_tree(UNPACKED)

    def summary(self, committed: manifest.Manifest) -> dict[str, Any]:
        """Returns what the user is told at the end."""
        path = self.store.where(naming.MANIFEST)
        return summarise(path, committed, self._new, time.time() - self._start)

    def _stage(self, plans: Sequence[plan.SplitPlan]) -> engine.Stage[Any]:
        config, classes = self.job.config, self.job.source.classes
        work = WriteWork(
            reader=self.job.reader(self.store.local),
            proofs=ArchiveReader({p.name: p.path for p in self.job.parts if p.path is not None}),
            store=self.store,
            plans=self.store if self.job.workers.remote else self.store.local,
            policy=self.job.policy,
            classes=tuple(zip(classes.wnids, classes.words, strict=True)),
            label_offset=config.label_offset,
            fail_on_bad_image=config.on_bad_image == "fail",
            expected_md5={
                part.name: part.md5
                for part in self.job.parts
                if part.md5 is not None and not config.allow_subset
            },
        )
        digest = canonical.digest(
            [
                self.job.decisive(),
                self.job.libraries,
                [split.digest for split in plans],
                classes.render().decode(),
                sorted(self.job.sizes.items()),
            ]
        )
        return engine.Stage("write", digest, self.store, work)

    def _origin(self) -> bytes:
        files = {p.name: str(p.path.absolute()) for p in self.job.parts if p.path is not None}
        root = str(Path(self.job.config.source).expanduser().absolute())
        return json.dumps({"root": root, "files": files}).encode()

    def _commit(
        self, inventory: Inventory, receipts: Sequence[dict[str, Any]]
    ) -> manifest.Manifest:
        config, classes = self.job.config, self.job.source.classes
        md5 = {receipt["archive"]: receipt["md5"] for receipt in receipts if "md5" in receipt}
        return commit(
            self.store,
            producer=manifest.Producer(
                "imagenet-prep", imagenet_prep.__version__, self.job.libraries
            ),
            config=self.job.decisive(),
            plans=inventory.plans,
            receipts=[receipt for receipt in receipts if "shard" in receipt],
            sources=[
                manifest.Source(p.name, p.num_bytes, md5.get(p.name), inventory.taken[p.name])
                for p in self.job.parts
            ],
            classes=manifest.Classes(len(classes.wnids), classes.digest, classes.official),
            labels_file=classes.render(),
            label_offset=config.label_offset,
            subset=config.asks_for_subset,
            name=self.job.source.name,
        )


def _differences(there: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    return [
        f"{name} is {there.get(name)!r} there, {value!r} here"
        for name, value in asked.items()
        if there.get(name) != value
    ]
