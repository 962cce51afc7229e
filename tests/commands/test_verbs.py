"""The verbs as functions: the flags, results and errors of the commands."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep import amend, duplicates, export, resize, verbs, verify
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.pipelines import prepare
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.testing.miniature import Miniature
from tests.kit import command
from tests.kit.dataset import Reference, contents
from tests.kit.faults import flip_bit
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.photographs import photograph

CONFIGS: dict[str, Any] = {
    "prepare": PrepareConfig,
    "resize": resize.ResizeConfig,
    "amend": amend.AmendConfig,
    "verify": verify.VerifyConfig,
    "replicate": ReplicateConfig,
    "export": export.ExportConfig,
    "duplicates": duplicates.DuplicatesConfig,
}
# These differ between two runs of the same command.
OF_THE_RUN = ("seconds", "places", "images_per_s", "out", "place", "manifest", "replicas", "digest")


def function(verb: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(verbs, verb)
    return found


def told(result: Any) -> Any:
    """Returns a result as `--json` prints it, without what differs between two runs."""
    plain = json.loads(json.dumps(result))
    assert plain == result
    return {name: value for name, value in plain.items() if name not in OF_THE_RUN}


def words_of(flags: dict[str, Any]) -> list[str]:
    words = []
    for name, value in flags.items():
        spelled = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(spelled)
        else:
            words += [spelled, ",".join(value) if isinstance(value, list) else str(value)]
    return words


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("resize", {"output_dir": "new", "short_side": 32, "splits": ["validation"]}),
    ("resize", {"output_dir": "new", "short_side": 32, "dry_run": True}),
    ("amend", {"out": "new", "exclude": "keys.txt"}),
    ("amend", {"out": "new", "exclude": "keys.txt", "dry_run": True}),
    ("verify", {"level": "decode"}),
    ("replicate", {"to": "new"}),
    ("replicate", {"to": "new", "dry_run": True}),
    ("export", {"out": "new", "to": "webdataset", "split": ["validation"]}),
    ("export", {"out": "new", "to": "croissant"}),
    ("duplicates", {"out": "new", "splits": ["validation"]}),
    ("forget", {"out": "new", "keys": "keys.txt", "dry_run": True}),
]


@pytest.mark.parametrize(("verb", "flags"), CALLS)
def test_result_is_what_json_prints(
    reference: Reference,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    flags: dict[str, Any],
) -> None:
    table = next((reference.out / "samples").glob("validation-00000-*"))
    (tmp_path / "keys.txt").write_text(table.read_text().splitlines()[1].split(",")[0] + "\n")

    def given(folder: str) -> dict[str, Any]:
        places: dict[Any, Path] = {"new": tmp_path / folder, "keys.txt": tmp_path / "keys.txt"}
        return {name: places.get(str(value), value) for name, value in flags.items()}

    result = function(verb)(reference.out, **given("api"))
    assert capsys.readouterr().out == ""
    printed = command.run(verb, reference.out, *words_of(given("command")), "--json")

    assert printed.code == 0, printed
    assert told(result) == told(json.loads(printed.out))
    if not flags.get("dry_run"):
        declared = typing.get_type_hints(inspect.signature(function(verb)).return_annotation)
        assert result.keys() <= declared.keys()


def test_result_of_forget_can_be_written_as_json(reference: Reference, tmp_path: Path) -> None:
    """Each run has its own salt, so two runs are not compared."""
    table = next((reference.out / "samples").glob("validation-00000-*"))
    (tmp_path / "keys.txt").write_text(table.read_text().splitlines()[1].split(",")[0] + "\n")
    assert told(verbs.forget(reference.out, tmp_path / "new", keys=tmp_path / "keys.txt"))


def test_prepare_makes_the_dataset_of_the_command(
    mini: Miniature, reference: Reference, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = verbs.prepare(
        source=str(mini.root), out=str(tmp_path / "set"), allow_subset=True, train_shards=4
    )
    assert capsys.readouterr().out == ""

    assert made["splits"].keys() == {"train", "validation"}
    assert made.keys() <= typing.get_type_hints(verbs.DatasetResult).keys()
    assert verbs.verify(str(tmp_path / "set"))["digest"] == made["digest"]


@pytest.mark.parametrize("verb", CONFIGS)
def test_arguments_are_the_flags_with_their_help(verb: str) -> None:
    called = function(verb)
    parameters = inspect.signature(called).parameters
    fields = {field.name: field for field in dataclasses.fields(CONFIGS[verb])}

    assert parameters.keys() == fields.keys()
    assert called.__name__ == verb
    for name, field in fields.items():
        assert f"\n  {name}: " in (called.__doc__ or "")
        if "flag" in field.metadata:
            assert field.metadata["flag"].help in (called.__doc__ or "")


def test_wrong_values_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="^--level deep: "):
        verbs.verify(str(tmp_path), level="deep")
    with pytest.raises(TypeError, match="lvel"):
        function("verify")(str(tmp_path), lvel="crc")
    with pytest.raises(UsageError):
        verbs.verify(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError):
        verbs.amend(str(tmp_path), str(tmp_path / "out"))


WRONG_TYPES: list[tuple[str, dict[str, Any]]] = [
    ("prepare", {"short_side": "128"}),
    ("prepare", {"short_side": 128.0}),
    ("prepare", {"short_side": True}),
    ("prepare", {"splits": "train"}),
    ("prepare", {"holdout": 5}),
    ("prepare", {"licence": None}),
    ("prepare", {"dry_run": "no"}),
    ("prepare", {"source": None}),
    ("amend", {"exclude": ["cat/1.jpg"]}),
    ("replicate", {"bandwidth_limit": "1"}),
    ("replicate", {"bandwidth_limit": True}),
    ("export", {"columns": "captions"}),
    ("forget", {"image": "anna.jpg"}),
    ("forget", {"search": [3]}),
]


@pytest.mark.parametrize(("verb", "wrong"), WRONG_TYPES)
def test_values_of_other_types_are_refused(
    tmp_path: Path, verb: str, wrong: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    rest = {"prepare": {"source": tmp_path, "out": out}, "replicate": {"to": out}}
    given = rest.get(verb, {"out": out})
    dataset = [] if verb == "prepare" else [tmp_path]
    (name,) = wrong

    with pytest.raises(UsageError, match=says("expected-8", name)):
        function(verb)(*dataset, **{**given, **wrong})

    assert not out.exists()


def test_values_may_be_paths_and_integers_of_numpy(reference: Reference, tmp_path: Path) -> None:
    made = verbs.resize(
        reference.out,  # type: ignore[arg-type]
        output_dir=str(tmp_path / "small"),
        short_side=np.int64(32),  # type: ignore[arg-type]
        splits=["validation"],  # type: ignore[arg-type]
        max_bad=None,
    )

    assert made["splits"].keys() == {"validation"}


def test_tuples_are_lists_and_integers_are_numbers(reference: Reference, tmp_path: Path) -> None:
    (replica,) = verbs.replicate(
        str(reference.out),
        to=str(tmp_path / "copy"),
        columns=("none",),
        bandwidth_limit=5,
        dry_run=True,
    )["replicas"]

    assert replica["lacking_bytes"] > 0


def test_problems_are_notes_of_the_error(prepared: Path) -> None:
    shard = next(prepared.glob("train-0*"))
    flip_bit(shard, 100)
    (prepared / "labels.txt").unlink()
    listed = command.run("verify", prepared)

    with pytest.raises(DataDamagedError) as raised:
        verbs.verify(str(prepared))

    assert listed.code == raised.value.exit_code
    assert raised.value.__notes__ == listed.out.splitlines()
    assert str(raised.value) in listed.err


def test_incomplete_replica_is_an_error_with_notes(reference: Reference, tmp_path: Path) -> None:
    with pytest.raises(IncompleteError) as raised:
        verbs.replicate(str(reference.out), str(tmp_path / "copy"), check=True)

    missing = [note for note in raised.value.__notes__ if note.endswith(": missing")]
    assert len(missing) > len(contents(reference.out)) / 2
    assert all(note.startswith(f"{tmp_path / 'copy'}: ") for note in raised.value.__notes__)


def test_duplicates_fail_only_if_requested(tmp_path: Path) -> None:
    for number, path in enumerate(("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg")):
        write(tmp_path / "photos" / path, photograph(40, 50, number % 2))
    verbs.prepare(source=str(tmp_path / "photos"), out=str(tmp_path / "set"))

    given = {"dataset": str(tmp_path / "set"), "out": str(tmp_path / "found")}
    assert verbs.duplicates(**given)["cross"] == 1
    with pytest.raises(DataDamagedError, match=says("groups-more-one-split-dataset-2", 1)):
        verbs.duplicates(**given, fail_on="cross")


def test_results_decide_the_error(reference: Reference) -> None:
    place = str(reference.out)
    sound = {"problems": [], "cross": 0}
    across = duplicates.DuplicatesConfig(place, out=place, fail_on="cross")
    duplicates.judge(across, sound)
    with pytest.raises(DataDamagedError):
        duplicates.judge(across, {**sound, "cross": 1})
    with pytest.raises(DataDamagedError):
        duplicates.judge(across, {**sound, "problems": ["one"]})

    checked = {**verbs.verify(place, level="manifest")}
    with pytest.raises(StoreError):
        verify.judge(verify.VerifyConfig(place), {**checked, "unreadable": ["one"]})
    with pytest.raises(StoreError):
        prepare.judge(PrepareConfig(source=place, out=place), {"refusal": "one"})
