"""The receiving end of a hop: started on a node through ssh, gone when its input ends.

`python -m imagenet_prep.distribute.receive FOLDER`. It listens nowhere: all it knows comes
through its standard input, from a process that ssh has let in.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagenet_prep.core import errors, naming, signals
from imagenet_prep.core.errors import BusyError, DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.core.manifest import File
from imagenet_prep.core.placement import WHOLE, Placement
from imagenet_prep.distribute.contents import num_bytes
from imagenet_prep.distribute.replica import Replica
from imagenet_prep.distribute.wire import PROTOCOL, BrokenError, Channel, Frame

# A predecessor whose connection has just ended needs a moment to let go.
_LOCK_PATIENCE_S = 5.0
# Hashing and writing share a node with what runs there.
_MAX_READERS = 8


class _AbandonedError(Exception):
    """The sender lost what it was sending."""


def serve(root: Path, channel: Channel) -> int:
    """Does what the first frame asks for, and returns the exit code.

    Answers, in this order: "problems" for a check or a plan; or "lacks", then "stored" or
    "wrong" for each file, then "whole". "error" instead of any of them.
    """
    try:
        begin = channel.read()
        if begin is None:
            return errors.EXIT_INTERRUPTED
        if begin.fields.get("protocol") != PROTOCOL:
            raise UsageError(
                f"imagenet-prep there speaks protocol {PROTOCOL}, here "
                f"{begin.fields.get('protocol')}. Install the same version on every host."
            )
        replica = Replica(root, begin.body, Placement(*begin.fields["placement"]))
        if begin.fields["task"] == "store":
            if replica.store.size(f"{naming.WORK}/{begin.fields['origin']}") is not None:
                if replica.placement != WHOLE:
                    raise UsageError(
                        f"{root} there is the data set itself, which is more than "
                        f"{replica.placement}. Choose another PATH."
                    )
                # There is nothing to give, and nothing may be mended.
                channel.write("lacks", names=[], num_bytes=0, begun={})
                channel.write("whole")
                return errors.EXIT_DONE
            with _lock(replica):
                return _store(replica, channel, prove=begin.fields["prove"])
        _look(replica, channel, begin)
        return errors.EXIT_DONE
    except ImagenetPrepError as error:
        channel.write("error", error=type(error).__name__, message=str(error))
        return error.exit_code
    except (BrokenError, OSError):
        # Whoever started this is gone; what is proven stays.
        return errors.EXIT_INTERRUPTED


@contextlib.contextmanager
def _lock(replica: Replica) -> Iterator[None]:
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(replica.lock())
                break
            except BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield


def _look(replica: Replica, channel: Channel, begin: Frame) -> None:
    prove = begin.fields["prove"]
    if not prove:
        replica.refuse_others()
    wrong = _problems(replica, prove=prove)
    problems = [problem for problem, _ in wrong]
    if prove and (problem := replica.manifest_problem()):
        problems.append(problem)
    lacking = [file for _, file in wrong]
    channel.write("problems", problems=problems, lacking_bytes=num_bytes(lacking))
    if not prove:
        replica.check_space(lacking)


def _problems(replica: Replica, *, prove: bool) -> list[tuple[str, File]]:
    readers = min(_MAX_READERS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(readers) as pool:
        found = pool.map(lambda file: replica.problem(file, prove=prove), replica.files)
        return [
            (problem, file) for problem, file in zip(found, replica.files, strict=True) if problem
        ]


def _store(replica: Replica, channel: Channel, *, prove: bool) -> int:
    replica.refuse_others()
    lacking = {file.name: file for _, file in _problems(replica, prove=prove)}
    begun = replica.begun(lacking.values())
    replica.check_space(list(lacking.values()))
    finished = not lacking and replica.manifest_problem() is None
    if not finished:
        replica.withdraw()
    channel.write(
        "lacks", names=sorted(lacking), num_bytes=num_bytes(lacking.values()), begun=begun
    )
    while lacking:
        frame = channel.read()
        if frame is None:
            return errors.EXIT_INTERRUPTED
        if frame.kind != "file" or frame.fields.get("name") not in lacking:
            raise BrokenError(f"expected a file that is lacking, got {frame.kind}")
        file = lacking[frame.fields["name"]]
        try:
            _take(replica, file, frame.fields["start"], channel)
        except _AbandonedError:
            continue
        except DataDamagedError as error:
            channel.write("wrong", name=file.name, message=str(error))
        else:
            del lacking[file.name]
            channel.write("stored", name=file.name, num_bytes=file.num_bytes)
    if not finished:
        replica.commit()
    channel.write("whole")
    return errors.EXIT_DONE


def _take(replica: Replica, file: File, start: int, channel: Channel) -> None:
    # What a broken connection leaves is gone on with when there is another.
    with replica.incoming(file, start, kept=(BrokenError,)) as arriving:
        while True:
            frame = channel.read()
            if frame is None:
                raise BrokenError("the input ended inside a file")
            if frame.kind == "end":
                return
            if frame.kind != "chunk":
                raise _AbandonedError
            arriving.append(frame.body)


def _end(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    signals.handle(_end)
    sys.exit(serve(Path(sys.argv[1]).expanduser(), Channel(0, 1)))
