"""The receiver: a process on a host that receives files into a folder.

A sender starts `python -m imagenet_prep.distribute.receive FOLDER SILENCE_S` through ssh. The
receiver opens no port: it reads messages from its standard input, and ends when the input ends.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagenet_prep.core import errors, program
from imagenet_prep.core.errors import BusyError, DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.core.limits import num_cores
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import WHOLE
from imagenet_prep.dataset.manifest import DatasetFile, FileProblem
from imagenet_prep.distribute.hosts import TO_RECEIVER, documents
from imagenet_prep.distribute.replica import Replica
from imagenet_prep.hosts.channel import BrokenError, Channel, OtherVersionError, sentence
from imagenet_prep.storage.folder import LocalStore

# After the end of a connection, the previous receiver needs a moment to release the lock.
_LOCK_PATIENCE_S = 5.0
# The maximum number of threads, to leave cores to other programs on the host.
_MAX_READERS = 8


class _AbandonedError(Exception):
    """The sender can no longer read the file that it was sending."""


def serve(root: Path, channel: Channel) -> int:
    """Checks the replica ("look") or receives missing files ("store"); returns the exit code.

    The receiver answers "look" with a "problem" for each problem, then "looked". It answers "store"
    with a "lacking" for each missing file, then "lacks". It then answers each file with "stored" or
    "wrong", and finally sends "whole". If it fails, "error" is its last message.
    """
    try:
        begin = channel.read()
        if begin is None:
            return errors.EXIT_INTERRUPTED
        if begin.kind not in ("look", "store"):
            raise BrokenError(f"expected 'look' or 'store', got {begin.kind}")
        data, columns = documents(begin.body, begin.fields["columns"])
        replaces = begin.fields["replaces"]
        replica = Replica(root, data, begin.fields["placement"], columns, replaces=replaces)
        if begin.kind == "look":
            _look(replica, channel, prove=begin.fields["prove"])
            return errors.EXIT_DONE
        if _is_origin(replica, begin.fields["origin"]):
            # The folder is the dataset itself: it lacks no file and must not be changed.
            channel.write("lacks", files=0)
            channel.write("whole")
            return errors.EXIT_DONE
        with contextlib.ExitStack() as stack:
            _lock(replica, stack)
            prove, parent = begin.fields["prove"], begin.fields["parent"]
            return _store(replica, channel, prove=prove, parent=parent)
    except OtherVersionError as error:
        return _refuse(channel, UsageError(str(error)))
    except ImagenetPrepError as error:
        return _refuse(channel, error)
    except (BrokenError, OSError) as error:
        # The sender has ended or is broken. Verified files stay.
        with contextlib.suppress(OSError):
            print(f"receiving: {error}", file=sys.stderr, flush=True)
        return errors.EXIT_INTERRUPTED


def _refuse(channel: Channel, error: ImagenetPrepError) -> int:
    with contextlib.suppress(OSError):
        message = sentence(str(error))
        channel.write("error", error=type(error).__name__, message=message)
    return error.exit_code


def _is_origin(replica: Replica, origin: str) -> bool:
    """Returns whether the folder is the dataset itself, for example on a shared file system."""
    if replica.store.size(f"{schema.WORK}/{origin}") is None:
        return False
    if replica.placement != WHOLE:
        raise UsageError(
            f"{replica.store.where()}: this is the original dataset, which replicate does not "
            f"change to {replica.placement}. Choose a different PATH."
        )
    return True


def _lock(replica: Replica, stack: contextlib.ExitStack) -> None:
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            stack.enter_context(replica.lock())
            return
        except BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _look(replica: Replica, channel: Channel, *, prove: bool) -> None:
    if not prove:
        replica.refuse_others()
    wrong = _problems(replica, replica.files, prove=prove)
    unfinished = replica.unfinished() if prove else []
    for problem in [*unfinished, *(problem for problem, _ in wrong)]:
        channel.write("problem", text=sentence(problem), is_missing=problem.is_missing)
    lacking = [file for _, file in wrong]
    channel.write("looked", lacking_bytes=sum(file.num_bytes for file in lacking))
    if not prove:
        replica.require_space(lacking)


def _problems(
    replica: Replica, files: Sequence[DatasetFile], *, prove: bool
) -> list[tuple[FileProblem, DatasetFile]]:
    readers = min(_MAX_READERS, num_cores())
    with ThreadPoolExecutor(readers) as pool:
        problems = pool.map(lambda file: replica.problem(file, prove=prove), files)
        return [(problem, file) for problem, file in zip(problems, files, strict=True) if problem]


def _store(replica: Replica, channel: Channel, *, prove: bool, parent: str) -> int:
    replica.refuse_others()
    wrong = _problems(replica, replica.files, prove=prove)
    if parent and wrong:
        lacks = [file for _, file in wrong]
        replica.adopt_files(LocalStore(Path(parent).expanduser()), lacks)
        wrong = _problems(replica, lacks, prove=False)
    lacking = {file.name: file for _, file in wrong}
    begun = replica.begun(lacking.values())
    replica.require_space(list(lacking.values()))
    finished = not lacking and not replica.unfinished()
    if not finished:
        replica.withdraw(lacking.values())
    for name in lacking:
        channel.write("lacking", name=name, begun=begun.get(name, 0))
    channel.write("lacks", files=len(lacking))
    while lacking:
        frame = channel.read()
        if frame is None:
            return errors.EXIT_INTERRUPTED
        if frame.kind != "file" or frame.fields["name"] not in lacking:
            raise BrokenError(f"expected the data of a missing file, got {frame.kind}")
        name, start = frame.fields["name"], frame.fields["start"]
        if start not in (0, begun.pop(name, 0)):
            raise BrokenError(f"{name}: cannot resume at byte {start:,}")
        file = lacking[name]
        try:
            _take(replica, file, start, channel)
        except _AbandonedError:
            continue
        except DataDamagedError as error:
            channel.write("wrong", name=name, message=sentence(str(error)))
        else:
            del lacking[name]
            channel.write("stored", name=name)
    if not finished:
        replica.commit()
    channel.write("whole")
    return errors.EXIT_DONE


def _take(replica: Replica, file: DatasetFile, start: int, channel: Channel) -> None:
    remaining = file.num_bytes - start
    # If the connection breaks, keep the received bytes: the next connection resumes after them.
    with replica.incoming(file, start, kept=(BrokenError,)) as arriving:
        while True:
            frame = channel.read()
            if frame is None:
                raise BrokenError("the input ended before the end of a file")
            if frame.kind == "end":
                return
            if frame.kind != "chunk":
                raise _AbandonedError
            remaining -= len(frame.body)
            if remaining < 0:
                raise BrokenError(f"{file.name}: received more than {file.num_bytes:,} bytes")
            arriving.append(frame.body)


def _end(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    program.handle(_end)
    silence_s = float(sys.argv[2])
    giver = Channel(0, 1, TO_RECEIVER, silence_s=silence_s)
    giver.begin()
    sys.exit(serve(Path(sys.argv[1]).expanduser(), giver))
