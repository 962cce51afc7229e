"""Checks that Horovod has found all ranks that the launcher started.

`horovod_source.mend` lets `hvd.init()` call this module. Horovod built with Gloo does not read the
variables of Open MPI, torchrun or srun: each rank would train a separate model on its share of the
data.
"""

from __future__ import annotations

import os

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World


def refuse_unheard_launcher(size: int) -> None:
    """Raises UsageError if a launcher has started more processes than Horovod's `size`."""
    if os.environ.get("HOROVOD_ELASTIC") == "1":
        return  # the number of ranks changes during the run
    try:
        launched = World.from_environment(os.environ)
    except ValueError as error:
        if size > 1:
            return  # Horovod knows the ranks, although the variables are incomplete
        raise UsageError(f"hvd.init() found 1 rank, but {error}") from error
    if launched.size > 1 and launched.size != size:
        raise UsageError(
            f"hvd.init() found {size} of {launched.size} ranks: {launched.launcher} has started "
            "them, but this Horovod was built without support for it. Start the ranks with "
            "`imagenet-prep launch` or horovodrun; for mpirun, run `imagenet-prep install-horovod "
            "--mpi`."
        )
