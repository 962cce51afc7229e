"""The verbs as functions, for notebooks, scripts and the tasks of a scheduler.

The arguments are the flags of the command: `short_side=480` is `--short-side 480`. A function
prints its progress on stderr, unless `json=True`, and nothing on stdout. It returns what the
command prints with `--json`, and raises an error of `imagenet_prep.errors` where the command would
end with its exit code. The notes of an error (`__notes__`) are the problems that the command lists.

Example:
  >>> from imagenet_prep import verbs
  >>> verbs.verify("/data/nowhere", level="decode")
  Traceback (most recent call last):
  ...
  imagenet_prep.core.errors.UsageError: /data/nowhere: there is no such folder
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import os
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypedDict, TypeVar, cast

from imagenet_prep import amend as _amend
from imagenet_prep import duplicates as _duplicates
from imagenet_prep import export as _export
from imagenet_prep import forget as _forget
from imagenet_prep import replicate as _replicate
from imagenet_prep import resize as _resize
from imagenet_prep import verify as _verify
from imagenet_prep.core import arguments, program
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.flags import Settings
from imagenet_prep.core.strict_json import Json
from imagenet_prep.distribute.config import ReplicateConfig
from imagenet_prep.pipelines import prepare as _prepare
from imagenet_prep.preparation.config import PrepareConfig

__all__ = [
    "amend",
    "duplicates",
    "export",
    "forget",
    "prepare",
    "replicate",
    "resize",
    "verify",
]

_Flags = ParamSpec("_Flags")
_Config = TypeVar("_Config", bound=Settings)
_Result = TypeVar("_Result")


class DatasetResult(TypedDict, total=False):
    """What `prepare`, `resize` and `amend` return; a dry run has other keys, such as `disk_bytes`.

    Attributes:
      manifest: the path of dataset.json.
      digest: identifies the manifest, 64 hexadecimal digits; see docs/data-format.md.
      splits: by name: examples, shards, bytes, resized.
      classes: the number of classes.
      subset: whether the counts differ from the published ones.
      repaired: the number of repaired images, by reason.
      quarantined: the number of quarantined images, by reason.
      excluded: the number of images excluded on request.
      ignored: the number of files that are not images, by extension.
      written_examples: the number of images that this run has written.
      seconds: the duration of this run.
    """

    manifest: str
    digest: str
    splits: dict[str, Json]
    classes: int
    label_offset: int
    claims_ilsvrc2012: bool
    subset: bool
    edition: str
    repaired: dict[str, int]
    quarantined: dict[str, int]
    excluded: int
    ignored: dict[str, int]
    amendments: list[Json]
    amended: Json
    left_in_input: list[str]
    written_examples: int
    written_bytes: int
    read_bytes: int
    seconds: float
    images_per_s: float


class VerifyResult(TypedDict, total=False):
    """What `verify` returns for a sound dataset.

    Attributes:
      digest: identifies the manifest, 64 hexadecimal digits; see docs/data-format.md.
      level: "manifest", "crc" or "decode".
      shards: the number of shards that were checked.
      examples: the number of their images.
      excluded: the number of images excluded on request.
      oriented: the number of images with an EXIF orientation; None if no image was decoded.
      columns: the names of the complete columns.
    """

    dataset: str
    digest: str
    level: str
    signed_by: str
    columns_signed_by: dict[str, str]
    not_signed: list[str]
    unchanged_since: str | None
    shards: int
    examples: int
    part: str | None
    strangers: str
    excluded: int
    oriented: int | None
    has_samples: bool
    columns: list[str]
    incomplete_columns: dict[str, int]
    problems: list[str]
    unreadable: list[str]


class ReplicateResult(TypedDict):
    """What `replicate` returns; `replicas` has the place, files, bytes and problems of each."""

    dataset: str
    digest: str
    columns: list[str]
    replicas: list[Json]
    seconds: float


class ExportResult(TypedDict, total=False):
    """What `export` returns; the keys after `sha256` are those of `to="torch"` and "croissant"."""

    out: str
    place: str
    to: str
    dataset: str
    chosen: Json
    request: str
    splits: dict[str, Json]
    examples: int
    listed_bytes: int
    sums: str
    sha256: str
    model: str
    classes: int
    image_size: int
    checkpoint: str
    tensors: int
    bytes: int
    files: int
    missing: list[str]


class ForgetResult(DatasetResult, total=False):
    """What `forget` returns: the keys of `DatasetResult`, if there is such an image, and the list.

    Attributes:
      images: for each image its line in a list of keys, and how it was found.
      forgotten_before: number of listed keys of images that were forgotten before.
      places: for each place its kind, content and the action to take there.
      not_opened: the archives in the searched folders; they may have the images.
      problems: one sentence for each place or image that could not be searched.
    """

    dataset: str
    out: str
    images: list[Json]
    forgotten_before: int
    places: list[Json]
    not_opened: list[str]
    problems: list[str]


class DuplicatesResult(TypedDict, total=False):
    """What `duplicates` returns; the groups are in `pairs.csv` in the folder `out`."""

    places: list[str]
    digests: list[str]
    images: int
    groups: int
    cross: int
    also_elsewhere: dict[str, int]
    other_label: int
    pairs: list[Json]
    not_judged: int
    crowded: int
    excluded: dict[str, int]
    problems: list[str]
    page: bool


def _value(name: str, kind: Any, value: Any) -> Any:
    """Returns the value of a flag: a path as text, a list as a tuple.

    Raises UsageError if the value has a different type than the flag.
    """
    if isinstance(kind, types.UnionType):
        if value is None:
            return None
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_value(f"{name}[{place}]", str, item) for place, item in enumerate(value))
        expected = "a list of strings"
    elif kind is int:
        # NumPy's integers are integers, but 8.0 and True are none.
        if hasattr(value, "__index__") and not isinstance(value, bool):
            return operator.index(value)
        expected = "an integer"
    elif kind is bool:
        if isinstance(value, bool):
            return value
        expected = "True or False"
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        expected = "a number"
    else:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str):
            return value
        expected = "a string"
    raise UsageError(f"{name}={value!r}: expected {expected}")


def _problems(result: Json) -> Iterator[str]:
    for replica in result.get("replicas", ()):
        for problem in replica["problems"]:
            yield f"{replica['where']}: {problem}"
    yield from result.get("problems", ())
    yield from result.get("unreadable", ())


def _function(
    summary: str,
    example: str,
    config: Callable[_Flags, _Config],
    result_type: type[_Result],
    act: Callable[[_Config], Json],
    judge: Callable[[_Config, Json], None] | None = None,
) -> Callable[_Flags, _Result]:
    """Returns the public function of a verb; its arguments are the fields of the config."""
    signature = inspect.signature(config)
    hints = typing.get_type_hints(config)

    def call(*args: _Flags.args, **kwargs: _Flags.kwargs) -> _Result:
        program.require_utf8()
        arguments.require(act.__name__, signature, args, kwargs)
        given = signature.bind(*args, **kwargs).arguments
        values = {name: _value(name, hints[name], value) for name, value in given.items()}
        try:
            settings = cast(Callable[..., _Config], config)(**values)
        except ValueError as error:
            raise UsageError(str(error)) from None
        result = act(settings)
        try:
            if judge is not None:
                judge(settings, result)
        except ImagenetPrepError as error:
            for problem in _problems(result):
                error.add_note(problem)
            raise
        return cast(_Result, result)

    call.__name__ = call.__qualname__ = act.__name__
    described = "\n".join(_described(config))
    shown = textwrap.indent(textwrap.dedent(example).strip(), "  ")
    call.__doc__ = f"{summary}\n\nArguments::\n\n{described}\n\nExample:\n{shown}\n"
    parameters = [*signature.parameters.values()]
    vars(call)["__signature__"] = inspect.Signature(parameters, return_annotation=result_type)
    return call


def _described(config: Any) -> Iterator[str]:
    """Yields the help of each flag, as lines of a docstring."""
    for field in dataclasses.fields(config):
        spec = field.metadata.get("flag")
        help = spec.help if spec else "options of Apache Beam, such as --runner=DirectRunner"
        yield f"  {field.name}: {help}"


prepare = _function(
    "Makes a dataset from archives, folders or files, or resumes an interrupted run.",
    """
    >>> from imagenet_prep import verbs
    >>> made = verbs.prepare(source="/data/ilsvrc2012", out="/data/set")  # doctest: +SKIP
    >>> sorted(made["quarantined"].items())  # doctest: +SKIP
    [('truncated', 1)]
    """,
    PrepareConfig,
    DatasetResult,
    _prepare.prepare,
    _prepare.judge,
)
resize = _function(
    "Makes a dataset with smaller images from TFRecord shards.",
    """
    >>> from imagenet_prep import verbs
    >>> seen = verbs.resize("/data/imagenet-480", "/data/small", short_side=64, dry_run=True)
    >>> list(seen["splits"])
    ['train']
    """,
    _resize.ResizeConfig,
    DatasetResult,
    _resize.resize,
)
amend = _function(
    "Makes a new version of a dataset, with images excluded, relabelled or added.",
    """
    >>> from imagenet_prep import errors, verbs
    >>> try:
    ...     verbs.amend("/data/imagenet-480", out="/data/imagenet-480-v2")
    ... except errors.UsageError as error:
    ...     print(error)
    nothing to change: give --exclude, --relabel or --add
    """,
    _amend.AmendConfig,
    DatasetResult,
    _amend.amend,
)
verify = _function(
    "Checks that a dataset matches its manifest; raises DataDamagedError if it does not.",
    """
    >>> from imagenet_prep import verbs
    >>> verbs.verify("/data/imagenet-480", level="crc")["problems"]
    []
    """,
    _verify.VerifyConfig,
    VerifyResult,
    _verify.verify,
    _verify.judge,
)
replicate = _function(
    "Copies a dataset to a folder, a bucket or hosts; raises an error if a replica fails.",
    """
    >>> from imagenet_prep import verbs
    >>> seen = verbs.replicate("/data/imagenet-480", to="/data/copy", dry_run=True)
    >>> len(seen["replicas"])
    1
    """,
    ReplicateConfig,
    ReplicateResult,
    _replicate.replicate,
    _replicate.judge,
)
export = _function(
    "Exports a dataset to the format of another program, or the weights of a training run.",
    """
    >>> from imagenet_prep import errors, verbs
    >>> try:
    ...     verbs.export("/data/imagenet-480", out="/data/x", to="zip")
    ... except errors.UsageError as error:
    ...     print(error.exit_code)
    2
    """,
    _export.ExportConfig,
    ExportResult,
    _export.export,
)
duplicates = _function(
    "Finds duplicate images; raises DataDamagedError if `fail_on` forbids them.",
    """
    >>> from imagenet_prep import errors, verbs
    >>> try:
    ...     verbs.duplicates("/data/imagenet-480", out="/data/found", splits=["trian"])
    ... except errors.UsageError as error:
    ...     print(error.exit_code)
    2
    """,
    _duplicates.DuplicatesConfig,
    DuplicatesResult,
    _duplicates.duplicates,
    _duplicates.judge,
)
forget = _function(
    "Finds an image and its copies everywhere, and makes a version of the dataset without them.",
    """
    >>> from imagenet_prep import errors, verbs
    >>> try:
    ...     verbs.forget("/data/imagenet-480", out="/data/imagenet-480-v2")
    ... except errors.UsageError as error:
    ...     print(error)
    nothing to forget: give --keys or --image
    """,
    _forget.ForgetConfig,
    ForgetResult,
    _forget.forget,
    _forget.judge,
)
