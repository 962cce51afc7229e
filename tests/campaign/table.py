"""The promises of all commands that write: fault, exit code, remaining files, next run.

A row reads like this: "If `prepare` is killed before its manifest is written, it ends with -9.
Each visible file is an old or a complete new one. The same command then completes the output."

Three rules hold in every row:
- Exit code 0 is always allowed, and means that the output is complete.
- The source stays as it was, and no process and no file outside the given folders is left.
- Every other exit code of the command itself comes with a message, never with a traceback.

`python -m tests.campaign` tries the rows with random faults, `make test` each row once.
"""

from __future__ import annotations

import enum
import signal
from typing import NamedTuple


class Fault(enum.Enum):
    """The event that disturbs a command."""

    KILLED = "killed"
    TERMINATED = "terminated"
    INTERRUPTED = "interrupted"
    # EINTR, or only half of the bytes are read or written. The caller has to go on.
    SHORT_CALL = "short call"
    # EIO. Each kind of call that writes, reads, syncs or names files.
    FAILING_CALL = "failing call"
    # ENOSPC from one call on, or EDQUOT once.
    FULL_DISK = "full disk"
    POWER_LOST = "power lost"
    # Killed, then completed by the next run, then the power is lost.
    POWER_LOST_LATER = "power lost later"
    # A file of the complete output is removed or truncated, then the command runs again.
    FILE_LOST = "file lost"
    FILE_TRUNCATED = "file truncated"
    # The same command runs to its end while the first one is paused at a system call.
    SECOND_COMMAND = "second command"
    # A call that opens, reads or lists a sound dataset fails.
    UNREADABLE = "unreadable"
    # Images are replaced, added, removed, renamed, ... between two runs, or during one.
    SOURCE_CHANGED = "source changed"
    # Several of these faults, one after the other, then one undisturbed run.
    SEVERAL = "several faults"
    # The same, also with lost receipts, lost workers, and faults of servers, networks and hosts.
    SEVERAL_IN_ROUNDS = "rounds of faults"


class Place(enum.Enum):
    """The place of the output."""

    FOLDER = "folder"
    # Behind a network that resets, delays and truncates requests, with HTTP errors.
    BUCKET = "bucket"
    # A chain of hosts, some of which are killed.
    HOSTS = "hosts"


class Moment(enum.Enum):
    """When the fault happens. The manifest is written last: with it, the output is complete."""

    ANY = "at any moment"
    BEFORE = "before the manifest"
    AFTER = "after the manifest"
    END = "after the end"


class Left(enum.Enum):
    """The state of the output after the fault."""

    # A manifest is only there if all files that it names are there.
    OLD_OR_NEW = "each visible file is an old or a complete new one"
    COMPLETE = "the output is complete"
    AS_IT_WAS = "the complete output, without the file"
    NO_BLAME = "no message calls the dataset damaged, or advises to delete it"


class Next(enum.Enum):
    """The result of the same command, run again."""

    COMPLETES = "exit code 0, with the bytes of an undisturbed run"
    # An exit code of the row: the output stays as it is, and the message names the lost file.
    COMPLETES_OR_NAMES = "exit code 0 with the same bytes, or a message that names the file"
    # Exit code 0 only with the bytes that an undisturbed run makes of the source of that moment.
    FOLLOWS = "the output of the changed source, or a refusal whose advice works"
    UNTRIED = "not tried"


class Promise(NamedTuple):
    """One promise for several commands.

    Attributes:
      fault, moment, place: the fault, its time, and the place of the output.
      commands: the commands that keep the promise.
      codes: all exit codes but 0; a negative one is a signal.
      left: the state of the output after the fault.
      next: the result of the same command, run again.
    """

    fault: Fault
    commands: tuple[str, ...]
    codes: tuple[int, ...]
    left: Left
    next: Next
    moment: Moment = Moment.ANY
    place: Place = Place.FOLDER


class Row(NamedTuple):
    """One row of the table: a promise of one command."""

    command: str
    promise: Promise

    @property
    def verb(self) -> str:
        return self.command.split()[0].rstrip(",")

    def __str__(self) -> str:
        parts = [self.command, self.promise.fault.value]
        if self.promise.moment != Moment.ANY:
            parts.append(self.promise.moment.value)
        if self.promise.place != Place.FOLDER:
            parts.append(self.promise.place.value)
        return ", ".join(parts)


FAILED = 1
USAGE = 2
DAMAGED = 3
INCOMPLETE = 4
BUSY = 75
STOPPED = 130
KILLED = -signal.SIGKILL

# Commands that make a dataset with a manifest, from nothing or in the place of a different one.
DATASETS = (
    "prepare",
    "prepare, resumed",
    "replicate",
    "adopt",
    "adopt --out",
    "resize",
    "resize, second split",
    "resize --force",
    "amend",
    "forget",
)
FORMATS = ("folder", "tfds", "webdataset", "parquet", "recordio")
EXPORTS = tuple(f"export --to {name}" for name in FORMATS)
OTHERS = (
    "replicate --repair",
    "replicate --replace",
    "download",
    *EXPORTS,
    "duplicates",
    "diff",
    "report",
)
WRITERS = (*DATASETS, *OTHERS)
# Each kind of output once. The first two have a manifest after each split, so that the rows
# of `WRITERS` do not hold for them.
PRODUCTS = (
    "adopt --rewrite",
    "resize of two splits",
    "prepare",
    "replicate",
    "adopt",
    "adopt --out",
    "amend",
    "forget",
    "download",
    *EXPORTS,
    "duplicates",
    "diff",
    "report",
)
# Commands that read a dataset, and write elsewhere or nothing.
READERS = (
    "verify",
    "verify --level decode",
    "verify --level manifest",
    "verify --if-changed",
    "replicate --check",
    "show --keys",
    "diff",
    "duplicates",
    "report",
    "export --to webdataset",
    "resize",
    "adopt --out",
    "amend",
    "replicate",
)
CHANGING = ("prepare", "resize", "amend", "adopt", "export", "replicate", "duplicates")

PROMISES = (
    Promise(
        Fault.KILLED,
        DATASETS,
        codes=(KILLED,),
        moment=Moment.BEFORE,
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.KILLED,
        DATASETS,
        codes=(KILLED,),
        moment=Moment.AFTER,
        left=Left.COMPLETE,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.KILLED,
        OTHERS,
        codes=(KILLED,),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.TERMINATED,
        WRITERS,
        codes=(STOPPED,),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.INTERRUPTED,
        WRITERS,
        codes=(STOPPED,),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.SHORT_CALL,
        WRITERS,
        codes=(),
        left=Left.COMPLETE,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.FAILING_CALL,
        WRITERS,
        codes=(FAILED, DAMAGED, INCOMPLETE),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.FULL_DISK,
        WRITERS,
        codes=(FAILED, INCOMPLETE),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.POWER_LOST,
        WRITERS,
        codes=(),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.POWER_LOST,
        WRITERS,
        codes=(),
        moment=Moment.END,
        left=Left.COMPLETE,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.POWER_LOST_LATER,
        WRITERS,
        codes=(),
        left=Left.COMPLETE,
        next=Next.UNTRIED,
    ),
    Promise(
        Fault.FILE_LOST,
        PRODUCTS,
        codes=(FAILED, USAGE, DAMAGED, INCOMPLETE),
        left=Left.AS_IT_WAS,
        next=Next.COMPLETES_OR_NAMES,
    ),
    Promise(
        Fault.FILE_TRUNCATED,
        PRODUCTS,
        codes=(FAILED, USAGE, DAMAGED, INCOMPLETE),
        left=Left.AS_IT_WAS,
        next=Next.COMPLETES_OR_NAMES,
    ),
    Promise(
        Fault.SECOND_COMMAND,
        PRODUCTS,
        codes=(FAILED, USAGE, INCOMPLETE, BUSY),
        left=Left.COMPLETE,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.UNREADABLE,
        READERS,
        codes=(FAILED, INCOMPLETE),
        left=Left.NO_BLAME,
        next=Next.UNTRIED,
    ),
    Promise(
        Fault.SOURCE_CHANGED,
        CHANGING,
        codes=(FAILED, USAGE, DAMAGED, INCOMPLETE, STOPPED, KILLED),
        left=Left.OLD_OR_NEW,
        next=Next.FOLLOWS,
    ),
    Promise(
        Fault.SEVERAL,
        ("adopt", "adopt --out", "amend", "resize", "resize, second split", *EXPORTS, "duplicates"),
        codes=(FAILED, DAMAGED, INCOMPLETE, STOPPED, KILLED),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.SEVERAL_IN_ROUNDS,
        ("prepare", "download", "replicate", "train"),
        codes=(FAILED, DAMAGED, INCOMPLETE, STOPPED, KILLED),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
    ),
    Promise(
        Fault.SEVERAL_IN_ROUNDS,
        ("prepare", "replicate", "amend"),
        codes=(FAILED, INCOMPLETE, BUSY, STOPPED, KILLED),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
        place=Place.BUCKET,
    ),
    Promise(
        Fault.SEVERAL_IN_ROUNDS,
        ("replicate",),
        codes=(INCOMPLETE, KILLED),
        left=Left.OLD_OR_NEW,
        next=Next.COMPLETES,
        place=Place.HOSTS,
    ),
)


def _rows() -> list[Row]:
    rows = []
    for promise in PROMISES:
        rows += [Row(command, promise) for command in promise.commands]
    return rows


ROWS = tuple(_rows())
