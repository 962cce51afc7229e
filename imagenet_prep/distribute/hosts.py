"""Asks each host through ssh for the problems of its replica, or to fetch its own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from imagenet_prep.core import canonical, children, terminal
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import (
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    by_exit_code,
    by_name,
)
from imagenet_prep.dataset.manifest import Problem
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.distribute.messages import FROM_LOOKING
from imagenet_prep.hosts.channel import Frame, Process
from imagenet_prep.hosts.messages import PROTOCOL, BrokenError, Cause, count, sentence
from imagenet_prep.hosts.process import Ending, command_on, plain, run_all

# Number of hosts asked at a time, with one ssh each.
_MAX_ASKED = 32
# Problems of the manifest and of placement.json, in addition to those of the files.
_MORE_PROBLEMS = 2


@dataclass(frozen=True)
class Request:
    """The leader's request to every host."""

    data: bytes  # the manifest
    root: str  # folder of the dataset on the leader
    path: str  # folder of the replica, the same on every host
    python: str
    prove: bool  # whether to read every byte first, including files that were verified before
    limit: float  # bytes per second of one stream; 0 is no limit
    retries: int  # allowed losses of one host
    wait_s: float  # time to wait for lost hosts after all others are complete
    silence_s: float  # time without a sign of life until a connection is given up
    placements: Mapping[str, Placement]  # by address
    parent: str = ""  # folder of the parent's replica, the same on every host
    columns: Mapping[str, bytes] = field(default_factory=dict)  # each column.json, by column name

    @property
    def body(self) -> bytes:
        """The manifest and the column.json files, as the body of a message."""
        return b"".join([self.data, *self.columns.values()])

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each column.json in the body, by column name."""
        return {name: len(data) for name, data in self.columns.items()}

    def placement(self, address: str) -> tuple[int, int, int]:
        """Returns the part for a host, as a field of a message."""
        return dataclasses.astuple(self.placements[address])


def ask(num_files: Mapping[str, int], request: Request) -> list[Json | ImagenetPrepError]:
    """Returns problems and lacking_bytes of every host's replica, or its error; moves nothing.

    `num_files` is the number of files for each host, by address.
    """

    def ask_one(address: str) -> Json | ImagenetPrepError:
        try:
            return _ask(address, request, num_files[address])
        except ImagenetPrepError as error:
            return error
        except Exception as error:  # noqa: BLE001 - caused by the host's answer
            return StoreError(f"its answer is invalid: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(_MAX_ASKED) as pool:
        return list(pool.map(ask_one, num_files))


def _ask(address: str, request: Request, num_files: int) -> Json:
    words = ("imagenet_prep.distribute.receive", request.path)
    process = Process(address, request.python, words, FROM_LOOKING, request.silence_s)
    process.channel.begin(
        "look",
        request.body,
        protocol=PROTOCOL,
        columns=request.sizes,
        prove=request.prove,
        placement=request.placement(address),
    )
    most = num_files + len(request.columns) + _MORE_PROBLEMS
    problems: list[Problem] = []
    answers: list[Json] = []

    def take(frame: Frame) -> None:
        # If there is too little space, "error" is the last message, after all problems.
        match frame.kind:
            case "error":
                raise by_name(frame.fields["error"])(frame.fields["message"])
            case "problem" if len(problems) < most:
                problems.append(Problem(**frame.fields))
            case "looked" if not answers:
                answers.append({"problems": problems, **frame.fields})
            case _:
                raise BrokenError(f"it sent {frame.kind!r} too often")

    broken, ending = process.listen(take)
    # If the connection has ended, the error of ssh says more.
    cause = broken.cause if broken else Cause.ENDED
    if cause is Cause.UNREADABLE or (cause is Cause.SILENT and not answers):
        kind = IncompleteError if cause is Cause.SILENT else StoreError
        raise kind(f"its answer is invalid: {broken}.")
    if not answers:
        raise (IncompleteError if ending.is_lost else StoreError)(ending.explained)
    return answers[0]


def pull(
    addresses: Sequence[str], request: Request, argv_of: Callable[[Placement], Sequence[str]]
) -> list[Json | ImagenetPrepError]:
    """Runs this program on all hosts at once and returns their results.

    `argv_of` returns the verb and flags for a host with this part; --json is added.
    """

    def argv(address: str) -> list[str]:
        words = ("-m", "imagenet_prep", *argv_of(request.placements[address]), "--json")
        return command_on(address, children.python(*words, program=request.python))

    def hear(number: int, line: bytes) -> None:
        # Show messages such as retries at once: the result comes only at the end.
        program, _, message = plain(line.decode(errors="replace")).partition(": ")
        if program == "imagenet-prep":
            terminal.say(f"{addresses[number]}: {message.rstrip()}")

    endings = run_all([argv(address) for address in addresses], hear=hear)
    return [result_of(ending) for ending in endings]


def result_of(ending: Ending) -> Json | ImagenetPrepError:
    """Returns moved_bytes and problems from the output of a run with --json, or its error."""
    if ending.code != 0:
        kind = IncompleteError if ending.is_lost else by_exit_code(ending.code, StoreError)
        return kind(ending.why)
    try:
        # The result begins on its own line; a login shell may have printed something before it.
        start = ending.output.rfind("\n{\n") + 1
        replica = canonical.loads(ending.output[start:])["replicas"][0]
        return {
            "moved_bytes": count(replica["moved_bytes"]),
            "problems": [Problem(sentence(problem)) for problem in replica["problems"]],
        }
    except (ValueError, LookupError, TypeError) as error:
        return StoreError(f"its answer is invalid: {type(error).__name__}: {error}")
