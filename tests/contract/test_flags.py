"""Flags are a contract (docs/policy.md): their aliases, and the numbers that they accept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from imagenet_prep.__main__ import VERBS
from imagenet_prep.completion import config_of
from imagenet_prep.core.flags import Flag

# By verb: each numeric flag, its default if it has one, and its interval.
NUMBERS = """\
demo
  --images 400 in [40, )
  --short-side 256 in [1, )
download
  --connections 8 in [1, )
  --part-size 32 in [1, )
  --retries 20 in [0, )
  --timeout 60 in [1, )
prepare
  --workers 0 in [0, )
  --max-bad in [0, )
  --holdout-per-class 0 in [0, )
  --train-shards in [1, 99999]
  --validation-shards in [1, 99999]
  --short-side 480 in [1, )
  --quality 90 in [1, 100]
  --seed 0 in [-9223372036854775808, 9223372036854775807]
  --label-offset 1 in [0, 1]
  --subset-per-class in [1, )
verify
  --workers 0 in [0, )
resize
  --workers 0 in [0, )
  --max-bad in [0, )
  --short-side 480 in [1, )
  --quality 85 in [1, 100]
  --start-offset 0 in (, )
  --num-preprocess-threads 0 in [0, )
  --num-intra-threads 0 in [0, )
  --num-inter-threads 0 in [0, )
adopt
  --workers 0 in [0, )
amend
  --workers 0 in [0, )
forget
  --workers 0 in [0, )
replicate
  --copies 1 in (, )
  --bandwidth-limit 0.0 in [0, )
  --connections 8 in [1, )
  --wait 60 in [0, )
  --retries 20 in [0, )
  --timeout 60 in [1, )
show
  --limit in [0, )
  --step in [0, )
duplicates
  --workers 0 in [0, )
export
  --workers 0 in [0, )
report
  --seed 0 in (, )
  --workers 0 in [0, )
train
  --batch-size 256 in [1, )
  --num-epochs in (0, )
  --num-batches in [1, )
  --image-size in [16, )
  --crop-share in (0, 1]
  --lr in (0, )
  --momentum in [0, 1)
  --weight-decay in [0, 1)
  --trust-coefficient in (0, 1)
  --label-smoothing in [0, 1)
  --warmup-epochs in [0, )
  --warmup-lr in [0, )
  --loss-scale in [1, )
  --display-every 50 in [1, )
  --eval-every in [0, )
  --checkpoint-every 1000 in [1, )
  --keep 3 in [1, )
  --seed 0 in [0, )
  --fraction 1.0 in (0, 1]
launch
  --num-processes in [1, )
  --servers 0 in [0, )
  --fusion-threshold-mb in [0, )
  --cycle-time-ms in [0, )
  --stall-timeout 600 in (30, )
  --check-timeout 60 in [1, )
  --grace 60 in [1, )
sagemaker
  --instances 1 in [1, )
  --processes 0 in [0, )
  --volume-size 300 in [1, )
  --max-runtime 86400 in [1, )
sagemaker-container
  --processes 0 in [0, )
run-on-hosts
  --timeout 60.0 in (0, )
bench-read
  --batch-size 128 in (0, )
  --image-size 224 in (0, )
  --seconds 10.0 in (0, )
bench-train
  --servers 0 in [0, )
  --price in (0, )
  --steps 100 in [10, )
"""


def interval(flag: Flag) -> str:
    """Returns the interval of allowed numbers; [ and ] include a bound, ( and ) exclude it."""
    low = "(" if flag.above is None else f"({flag.above}"
    if flag.least is not None:
        low = f"[{flag.least}"
    high = ")" if flag.below is None else f"{flag.below})"
    if flag.most is not None:
        high = f"{flag.most}]"
    return f"{low}, {high}"


def flags_of(verb: str) -> Iterator[tuple[str, Any, Flag]]:
    """Yields the name, the default and the description of each flag."""
    for field in dataclasses.fields(config_of(verb)):
        if (flag := field.metadata.get("flag")) is not None:
            yield f"--{field.name.replace('_', '-')}", field.default, flag


def by_verb(describe: Callable[[str], Iterable[str]]) -> list[str]:
    """Returns the lines that describe the flags of each verb, below its name."""
    lines: list[str] = []
    for verb in VERBS:
        flags = [*describe(verb)]
        if flags:
            lines += [verb, *flags]
    return lines


def numbers(verb: str) -> Iterator[str]:
    for name, value, flag in flags_of(verb):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number or interval(flag) != "(, )":
            default = f" {value}" if number else ""
            yield f"  {name}{default} in {interval(flag)}"


def test_flags_keep_their_defaults_and_intervals() -> None:
    assert by_verb(numbers) == NUMBERS.splitlines()


# By verb: positional arguments, as [--flag], and the aliases of flags.
NAMES = """\
demo
  [--folder]
prepare
  --licence --license
  [--source] --source
  [--out] --out
verify
  [--dataset] --data-dir
resize
  --licence --license
  [--input-dir] --data-dir -i --input-dir
  --output-dir -o
  --splits -s --subset-name
  --dataset-name -d
  --short-side -r --size
  --quality -Q
  --stretch -R
  --force -f
adopt
  [--folder] --data-dir
amend
  [--dataset] --data-dir
forget
  [--dataset] --data-dir
remove-column
  [--dataset] --data-dir
  [--name] --name
replicate
  [--dataset] --data-dir
  [--to] --to
diff
  [--a]
  [--b]
show
  [--dataset] --data-dir
duplicates
  [--dataset] --data-dir
export
  [--dataset] --data-dir
  [--out] --out
  --to --format
  --split --splits
report
  [--dataset] --data-dir
  [--other]
train
  [--data-dir] --data-dir
  --model -m
  --batch-size -b
  --num-epochs --epochs
  --lr --learning-rate
  --momentum --mom
  --weight-decay --wdecay
  --trust-coefficient --leta
  --schedule --lr-decay-mode
  --eval-every --eval-interval
  --checkpoint-every --save-interval --save-checkpoints-steps
  --evaluate --eval
score
  [--predictions]
  [--dataset] --data-dir
launch
  --num-processes -np
  --hosts -H
sagemaker
  [--data] --data-dir --data
run-on-hosts
  [--hosts]
completion
  [--shell]
bench-read
  [--dataset] --data-dir
bench-train
  --num-processes -np
"""


def names(verb: str) -> Iterator[str]:
    for name, _, flag in flags_of(verb):
        if flag.positional or flag.aliases:
            yield " ".join(["  " + (f"[{name}]" if flag.positional else name), *flag.aliases])


def test_arguments_and_other_names_of_flags_stay() -> None:
    assert by_verb(names) == NAMES.splitlines()
