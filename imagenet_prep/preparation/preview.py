"""The result of `prepare --dry-run`: the plan, required space, and whether a run would fail."""

from __future__ import annotations

from typing import Any

from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import ignored
from imagenet_prep.preparation.inventory import take_inventory
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.writing import write_stage
from imagenet_prep.storage import scratch
from imagenet_prep.storage.folder import LocalStore


def preview(job: Job, output: Output) -> dict[str, Any]:
    """Plans and checks a run without writing; lack of space is `refusal`, so the plan is shown."""
    left = output.left()
    images, store = job.selection, output.store
    with scratch.place() as place:
        plans = LocalStore(place)
        forecast = job.forecast(store, plans)
        refusal = None
        try:
            if left:
                forecast.check_unpacking()
        except StoreError as error:
            refusal = str(error)
        inventory = take_inventory(images, plans, job.workers, quiet=True, unpack=False)
        try:
            if left:
                stage = write_stage(job, inventory, store, plans)
                forecast.check_shards(inventory.plans, stage.receipts(inventory.shard_names))
        except StoreError as error:
            refusal = refusal or str(error)
        return {
            **forecast.content(inventory.plans),
            "ignored": ignored.together(dict(part.ignored) for part in images.parts),
            "left": left,
            "refusal": refusal,
        }
