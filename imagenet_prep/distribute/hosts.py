"""Starts one process per host, which checks a replica or copies a dataset from a bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

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
from imagenet_prep.distribute.config import Config
from imagenet_prep.distribute.messages import FROM_LOOKING
from imagenet_prep.hosts.channel import Frame, Process
from imagenet_prep.hosts.messages import PROTOCOL, BrokenError, Cause, count, sentence
from imagenet_prep.hosts.process import Ending, command_on, plain, run_all

# Number of hosts that are checked at the same time, each through its own ssh process.
_MAX_ASKED = 32
# A host may report a problem of each file, and also of the manifest and of placement.json.
_MORE_PROBLEMS = 2


@dataclass(frozen=True)
class Request:
    """The leader's request to every host."""

    config: Config
    data: bytes  # the manifest
    placements: Mapping[str, Placement]  # by address
    columns: Mapping[str, bytes] = field(default_factory=dict)  # each column.json, by column name

    @property
    def root(self) -> str:
        """The folder of the dataset on the leader."""
        return str(Path(self.config.dataset).expanduser().absolute())

    @property
    def path(self) -> str:
        """The folder of the replica, the same on every host."""
        return self.config.hosts_and_path[1]

    @property
    def body(self) -> bytes:
        """The body of a message: the manifest, then each column.json."""
        return b"".join([self.data, *self.columns.values()])

    def fields(self, address: str) -> Json:
        """Returns fields for a message to a host; they describe `body` and the host's part."""
        sizes = {name: len(data) for name, data in self.columns.items()}
        placement = dataclasses.astuple(self.placements[address])
        return {"protocol": PROTOCOL, "columns": sizes, "placement": placement}


def ask(num_files: Mapping[str, int], request: Request) -> list[Json | ImagenetPrepError]:
    """Checks every replica; returns problems and lacking_bytes of each, or the error of its host.

    `num_files` maps each address to the number of files of its replica.
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
    config = request.config
    process = Process(address, config.python, words, FROM_LOOKING, config.timeout)
    process.channel.begin("look", request.body, prove=config.prove, **request.fields(address))
    most = num_files + len(request.columns) + _MORE_PROBLEMS
    problems: list[Problem] = []
    answers: list[Json] = []

    def take(frame: Frame) -> None:
        # If the disk has too little space, the host sends "error" after all problems.
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
    # After the end of a connection, the error of ssh says more.
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
    """Runs imagenet-prep on all hosts at once; returns the result or error of each run.

    `argv_of` returns the arguments for a host, given the host's part; --json is appended.
    """

    def argv(address: str) -> list[str]:
        words = ("-m", "imagenet_prep", *argv_of(request.placements[address]), "--json")
        return command_on(address, children.python(*words, program=request.config.python))

    def hear(number: int, line: bytes) -> None:
        # Show messages (such as retries) at once: the result follows only at the end.
        program, _, message = plain(line.decode(errors="replace")).partition(": ")
        if program == "imagenet-prep":
            terminal.say(f"{addresses[number]}: {message.rstrip()}")

    endings = run_all([argv(address) for address in addresses], hear=hear)
    return [result_of(ending) for ending in endings]


def result_of(ending: Ending) -> Json | ImagenetPrepError:
    """Returns moved_bytes and problems from the output of `replicate --json`, or its error."""
    if ending.code != 0:
        kind = IncompleteError if ending.is_lost else by_exit_code(ending.code, StoreError)
        return kind(ending.why)
    try:
        # The result begins on a new line, since a login shell may print text before it.
        start = ending.output.rfind("\n{\n") + 1
        replica = canonical.loads(ending.output[start:])["replicas"][0]
        return {
            "moved_bytes": count(replica["moved_bytes"]),
            "problems": [Problem(sentence(problem)) for problem in replica["problems"]],
        }
    except (ValueError, LookupError, TypeError) as error:
        return StoreError(f"its answer is invalid: {type(error).__name__}: {error}")
