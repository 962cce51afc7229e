"""Draws the plots of a dataset and of `bench-train` as SVG.

Each `Plot` has colours that follow the light or dark theme of the page.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import samples, schema
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.reporting.facts import DatasetFacts
from imagenet_prep.reporting.scaling import RankFigures

# Colours that `_plot` replaces with CSS variables of the page.
_BEFORE = "#010203"
_AFTER = "#040506"
_INK = "#070809"
_FAINT = "#0a0b0c"
_VARIABLES = {
    _BEFORE: "var(--before)",
    _AFTER: "var(--after)",
    _INK: "var(--ink)",
    _FAINT: "var(--faint)",
}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, for screen readers and the page's font
    "svg.hashsalt": "imagenet-prep",  # equal figures have equal ids
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,  # dollar signs in names are not math
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _FAINT),
    **dict.fromkeys(("axes.labelcolor", "legend.labelcolor", "text.color"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top"), False),
    **dict.fromkeys(("xtick.major.size", "xtick.minor.size", "ytick.major.size"), 0),
}
_INCHES = (3.7, 2.3)
_MAX_BARS = 24
_TIME_BINS = 60


@dataclass(frozen=True)
class Plot:
    """A plot as an <svg> element, with a title and a summary of its contents."""

    title: str
    says: str
    svg: str


# Title, names of the measures before and after resizing, axis label, and format of a value.
_BEFORE_AND_AFTER: tuple[tuple[str, tuple[str, str], str, Callable[[float], str]], ...] = (
    (
        "Short side",
        (samples.SOURCE_SHORT_SIDE, samples.SHORT_SIDE),
        "pixels, logarithmic",
        "{:,.0f}".format,
    ),
    (
        "Aspect ratio",
        (samples.SOURCE_ASPECT, samples.ASPECT),
        "width / height, logarithmic",
        "{:.2g}".format,
    ),
    (
        "Bytes per image",
        (samples.SOURCE_BYTES, samples.BYTES),
        "logarithmic",
        lambda value: human_bytes(value).replace(".0 ", " "),
    ),
)


def of(facts: DatasetFacts) -> list[Plot]:
    """Returns the plots of a dataset; a plot is omitted if its facts are missing."""
    with _settings(_STYLE):
        plots = [
            _examples_per_class(facts),
            *(_before_and_after(facts, *row) for row in _BEFORE_AND_AFTER),
            _bytes_per_shard(facts),
            _classes_per_shard(facts),
            _throughput(facts),
            _time_by_stage(facts),
            _per_worker(facts),
        ]
    return [plot for plot in plots if plot is not None]


def training(rows: Sequence[RankFigures]) -> Plot:
    """Returns the plot of `bench-train`: speed, hours, shares of time, cost by number of ranks."""
    with _settings(_STYLE):
        figure = Figure(figsize=(7.4, 4.8), layout="constrained")
        _draw_training(rows, figure, (_AFTER, _BEFORE, _INK))
        last = rows[-1]
        says = (
            f"{counted(last.ranks, 'rank')}: {last.images_per_s:,.1f} images/s, "
            f"{last.hours:,.1f} hours for 90 epochs, efficiency {last.efficiency:.0%}"
        )
        if last.dollars is not None:
            says += f", {last.dollars:,.0f} dollars"
        return _plot("Training over ranks", says, figure)


def save_training(rows: Sequence[RankFigures], file: BinaryIO) -> None:
    """Writes the plot of `training` as a PNG."""
    with _settings({}):
        figure = Figure(figsize=(9, 6), layout="constrained")
        _draw_training(rows, figure, ("C0", "C1", "0.5"))
        figure.savefig(file, format="png", dpi=160)


@contextlib.contextmanager
def _settings(style: Any) -> Iterator[None]:
    """Uses matplotlib's defaults and a style, since a user's settings could start LaTeX."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        yield


def _draw_training(
    rows: Sequence[RankFigures], figure: Figure, colours: tuple[str, str, str]
) -> None:
    """Draws panels for speed, hours, shares of time and, if the rows have a price, cost."""
    of = {name: [getattr(row, name) for row in rows] for name in vars(rows[0])}
    ranks, speeds = of["ranks"], of["images_per_s"]
    shares = {
        "efficiency": of["efficiency"],
        "lost to input": of["input_share"],
        "lost to communication": of["communication_share"],
    }
    lines_of_speed = {
        "trained": speeds,
        "without input": of["images_per_s_without_input"],
        "linear scaling": [speeds[0] / ranks[0] * rank for rank in ranks],
    }
    panels: list[tuple[str, dict[str, list[Any]], str]] = [
        ("images/s", lines_of_speed, "{:,.0f}"),
        ("hours for 90 epochs", {"": of["hours"]}, "{:,.3g}"),
        ("share", {name: shares[name] for name in shares if None not in shares[name]}, "{:.0%}"),
    ]
    if None not in of["dollars"]:
        panels.append(("dollars for 90 epochs", {"": of["dollars"]}, "{:,.0f}"))
    for axes, (label, lines, form) in zip(figure.subplots(2, 2).flat, panels, strict=False):
        for (name, values), style, colour in zip(
            lines.items(), ("o-", "s-", ":"), colours, strict=False
        ):
            axes.plot(ranks, values, style, color=colour, label=name, markersize=4)
        axes.patch.set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _, form=form: form.format(value))
        )
        axes.set_ylim(0, 1.08 * max(map(max, lines.values())) or 1)
        axes.set_xlabel("ranks")
        axes.set_ylabel(label)
        if len(lines) > 1:
            axes.legend()
    for axes in figure.axes[len(panels) :]:
        axes.remove()


def _examples_per_class(facts: DatasetFacts) -> Plot:
    figure, axes = _axes("classes, largest first")
    says: list[str] = []
    for name, split, colour in _splits(facts):
        counts = sorted((count for count in split.examples_per_class if count), reverse=True)
        # Only the first split is a filled area, so that colours do not mix.
        axes.stairs(counts, fill=not says, color=colour, linewidth=1.6, label=name)
        if counts:
            says.append(f"{name}: {_range(counts, str)} in {counted(len(counts), 'class')}")
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    _legend(axes)
    return _plot("Examples per class", "; ".join(says), figure)


def _before_and_after(
    facts: DatasetFacts,
    title: str,
    names: tuple[str, str],
    label: str,
    text_of: Callable[[float], str],
) -> Plot | None:
    histograms = [facts.measured.histograms.get(name, Counter()) for name in names]
    if not all(histograms):
        return None
    figure, axes = _axes(label)
    styles: tuple[Any, ...] = (
        {"label": "before", "color": _BEFORE},
        {"label": "after", "color": _AFTER, "fill": True, "alpha": 0.6},
    )
    for counts, style in zip(histograms, styles, strict=True):
        bins = range(min(counts), max(counts) + 2)
        edges = [samples.lower_edge(number) for number in bins]
        axes.stairs([counts[number] for number in bins[:-1]], edges, linewidth=1.6, **style)
    axes.set_xscale("log", base=2)
    numbers = {*itertools.chain.from_iterable(histograms)}
    axes.set_xlim(samples.lower_edge(min(numbers) - 1), samples.lower_edge(max(numbers) + 2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value)))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    _legend(axes)
    before, after = (
        text_of(facts.measured.sums[name] / counts.total())
        for name, counts in zip(names, histograms, strict=True)
    )
    return _plot(title, f"mean {before} before, {after} after", figure)


def _bytes_per_shard(facts: DatasetFacts) -> Plot:
    figure, axes = _axes(y="shards")
    sizes = {name: [shard.num_bytes for shard in split.shards] for name, split, _ in _splits(facts)}
    every = [*itertools.chain.from_iterable(sizes.values())]
    # All splits have the same bins. The margin makes the bar of a single shard visible.
    bins = np.linspace(0.95 * min(every), 1.05 * max(every), min(40, max(8, len(every))) + 1)
    _bars(facts, axes, sizes, bins)
    says = [f"{name}: {_range(group, human_bytes)}" for name, group in sizes.items()]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    return _plot("Bytes per shard", "; ".join(says), figure)


def _classes_per_shard(facts: DatasetFacts) -> Plot | None:
    if not facts.num_classes:
        return None
    figure, axes = _axes("number of classes in a shard", "shards")
    says = []
    # The axis extends to the number of all classes, to show which share of them a shard has.
    most = max(map(num_classes, facts.manifest.splits.values()))
    bins = np.linspace(-0.5, most + 0.5, min(most + 1, 40) + 1)
    counts = {}
    for name, split, _ in _splits(facts):
        # Only shards with a table of samples have this number.
        shards = [shard.name for shard in split.shards if shard.name in facts.num_classes]
        if shards:
            counts[name] = [facts.num_classes[shard] for shard in shards]
            says.append(
                f"a shard of {name} has {_range(counts[name], '{:,}'.format)} of "
                f"{counted(num_classes(split), 'class')}"
            )
    _bars(facts, axes, counts, bins)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return _plot("Classes per shard", "; ".join(says), figure)


def _throughput(facts: DatasetFacts) -> Plot | None:
    tasks = [task for task in facts.tasks if task.seconds > 0 and task.examples]
    if not tasks:
        return None
    start = min(task.start_s for task in tasks)
    end = max(task.start_s + task.seconds for task in tasks)
    edges = np.linspace(0, end - start, _TIME_BINS + 1)
    # Assume that each task wrote its images at a constant rate.
    done = np.zeros(len(edges))
    for task in tasks:
        done += task.examples * np.clip((edges - (task.start_s - start)) / task.seconds, 0, 1)
    rates = np.diff(done) / np.diff(edges)
    unit, seconds = _time_unit(end - start)
    figure, axes = _axes(f"{unit} since the first shard was started", "images/s")
    axes.stairs(rates, edges / seconds, fill=True, color=_AFTER, alpha=0.75)
    mean = sum(task.examples for task in tasks) / (end - start)
    return _plot(
        "Throughput over the run",
        f"{mean:,.0f} images/s over {(end - start) / seconds:,.1f} {unit}, including pauses",
        figure,
    )


def _time_by_stage(facts: DatasetFacts) -> Plot | None:
    stages = facts.seconds_of
    if not any(stages.values()):
        return None
    unit, seconds_per_unit = _time_unit(max(stages.values()))
    figure, axes = _axes(f"{unit}, summed over all workers")
    names = sorted(stages, key=lambda name: -stages[name])
    values = [stages[name] / seconds_per_unit for name in names]
    axes.barh(names, values, color=_AFTER, alpha=0.75, height=0.6)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    total = sum(stages.values())
    says = ", ".join(f"{name} {stages[name] / total:.0%}" for name in names)
    return _plot("Time by stage", says, figure)


def _per_worker(facts: DatasetFacts) -> Plot | None:
    examples = Counter[str]()
    seconds = defaultdict[str, float](float)
    for task in facts.tasks:
        if task.worker:
            examples[task.worker] += task.examples
            seconds[task.worker] += task.seconds
    rates = sorted((examples[w] / seconds[w] for w in seconds if seconds[w] > 0), reverse=True)
    if not rates:
        return None
    figure, axes = _axes("workers, fastest first", "images/s")
    if len(rates) <= _MAX_BARS:
        axes.bar(range(1, len(rates) + 1), rates, color=_AFTER, alpha=0.75, width=0.6)
    else:
        axes.stairs(rates, fill=True, color=_AFTER, alpha=0.75)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set_ylim(bottom=0)
    says = f"{counted(len(rates), 'worker')}, {rates[-1]:,.0f} to {rates[0]:,.0f} images/s each"
    return _plot("Images/s per worker", says, figure)


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def _splits(facts: DatasetFacts) -> Iterator[tuple[str, Split, str]]:
    colours = {schema.VALIDATION: _BEFORE, schema.HOLDOUT: _INK}
    for name, split in facts.manifest.splits.items():
        yield name, split, colours.get(name, _AFTER)


def _range(values: Sequence[int], text_of: Callable[[int], str]) -> str:
    low = text_of(min(values))
    high = text_of(max(values))
    return low if low == high else f"{low} to {high}"


def _bars(facts: DatasetFacts, axes: Any, values: Mapping[str, Sequence[int]], bins: Any) -> None:
    """Draws the histograms of all splits, with bars next to each other."""
    colours = [colour for name, _, colour in _splits(facts) if name in values]
    axes.hist([*values.values()], bins=bins, color=colours, label=[*values])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)


def num_classes(split: Split) -> int:
    """Returns the number of classes with examples in a split."""
    return sum(1 for count in split.examples_per_class if count)


def _legend(axes: Any) -> None:
    """Adds a legend above the axes, so that it covers no data."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=2, borderpad=0)


def _axes(x: str = "", y: str = "") -> tuple[Figure, Any]:
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes: Any = figure.subplots()
    axes.patch.set_visible(False)
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def _plot(title: str, says: str, figure: Figure) -> Plot:
    buffer = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    # The page sets the size of the plot. Screen readers read the summary instead of the plot.
    svg = re.sub(
        r'.*?<svg [^>]*?viewBox="([^"]*)"[^>]*>',
        r'<svg viewBox="\1" aria-hidden="true">',
        buffer.getvalue(),
        count=1,
        flags=re.DOTALL,
    )
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Ids must differ between the plots of a page, so they get a prefix.
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return Plot(title, says, svg)
