"""Monitoring of a run: logs and errors as JSON, and a file of metrics for Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_prep.core import limits, small_files, terminal
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.flags import LOG_FORMATS, EveryVerb, parse_known
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.strict_json import Json

_METRICS = {
    "images": "Finished images of the run, by stage.",
    "bytes": "Bytes that the run has read or written, by stage.",
    "quarantined": "Quarantined images of the dataset.",
    "retries": "Repeated transfers of the run.",
    "seconds": "Duration of the run.",
    "exit_code": "Exit code of the run; 0 is success.",
    "end_time_seconds": "Unix time at which the run ended.",
}
_OWN = FileKind("a metrics file of this program", b"# HELP imagenet_prep_")


@dataclass
class _Run:
    verb: str = ""
    metrics_file: Path | None = None
    wants_json: bool = False
    quarantined: int = 0
    start: float = field(default_factory=time.monotonic)
    images: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


_run = _Run()


def begin(verb: str, words: Sequence[str]) -> list[str]:
    """Applies the flags that every verb has; returns the rest of the command line."""
    global _run
    os.environ[terminal.VERB] = verb
    end = words.index("--") if "--" in words else len(words)
    _run = _Run(verb, wants_json="--json" in words[:end])
    limits.begin()
    config, others = parse_known(EveryVerb, words[:end], verb=verb)
    if config.log_format is not None:
        os.environ[terminal.LOG_FORMAT] = config.log_format
    log_format = os.environ.get(terminal.LOG_FORMAT, "text")
    if log_format not in LOG_FORMATS:
        raise UsageError(f"{terminal.LOG_FORMAT}={log_format!r}: expected text or json")
    if config.metrics_file is not None:
        path = Path(config.metrics_file).expanduser().absolute()
        if path.is_dir() or not os.access(path.parent, os.R_OK | os.W_OK | os.X_OK):
            raise UsageError(
                f"--metrics-file {path}: expected a file in an existing folder that you may read "
                "and write. Create the folder or choose a different file."
            )
        small_files.require_own(path, _OWN)
        _run.metrics_file = path
    return [*others, *words[end:]]


def count(stage: str, *, images: int = 0, num_bytes: int = 0) -> None:
    """Adds finished images and bytes to the metrics of a stage."""
    _run.images[stage] += images
    _run.bytes[stage] += num_bytes


def quarantined(images: int) -> None:
    """Sets the number of quarantined images in the metrics."""
    _run.quarantined = images


def failed(error: BaseException, code: int, text: str) -> Json:
    """Returns an error's log fields; with --json, prints the error if stdout is still empty."""
    fields: Json = {"code": code, "kind": type(error).__name__}
    remedy = getattr(error, "remedy", "")
    if remedy:
        fields["remedy"] = remedy
    if _run.wants_json and not terminal.has_printed():
        with contextlib.suppress(OSError, ValueError):  # `program.finish` reports the failure
            print(json.dumps({"error": {**fields, "message": text}}))
    return fields


def leave_to_child() -> None:
    """Stops this process from writing metrics: a forked child continues the run and writes them."""
    _run.metrics_file = None


def end(code: int) -> int:
    """Writes the metrics file; returns `code`, or 1 if `code` is 0 and writing fails."""
    path = _run.metrics_file
    if path is None:
        return code
    try:
        with small_files.replaced(path, _OWN) as file:
            file.write(_metrics(code).encode())
    except (OSError, UsageError) as error:
        reason = getattr(error, "strerror", None) or error
        terminal.say(f"--metrics-file {path}: cannot be written: {reason}", "error")
        return code or ImagenetPrepError.exit_code
    return code


def _metrics(code: int) -> str:
    values: dict[str, Counter[str] | dict[str, float]] = {
        "images": _run.images,
        "bytes": _run.bytes,
        "quarantined": {"": _run.quarantined},
        "retries": {"": limits.retries()},
        "seconds": {"": round(time.monotonic() - _run.start, 3)},
        "exit_code": {"": code},
        "end_time_seconds": {"": round(time.time(), 3)},
    }
    lines = []
    for name, text in _METRICS.items():
        lines += [f"# HELP imagenet_prep_{name} {text}", f"# TYPE imagenet_prep_{name} gauge"]
        for stage, value in (values[name] or {"": 0}).items():
            # Prometheus rejects equal series in two files, so the file's name is added as a label.
            labels = {"run": _run.metrics_file.stem if _run.metrics_file else "", "verb": _run.verb}
            labels |= {"stage": stage} if stage else {}
            listed = ",".join(
                f"{key}={json.dumps(label, ensure_ascii=False)}" for key, label in labels.items()
            )
            lines.append(f"imagenet_prep_{name}{{{listed}}} {value}")
    return "\n".join([*lines, ""])
