"""Real ranks of MXNet: a ring, one or two servers, and one process with all images."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.trainer import checkpoint, mxnet_comm
from tests.kit.batches import digests
from tests.kit.command import PATIENCE_S, PROGRAM, REPOSITORY, Finished, started
from tests.kit.layouts import make_mnist, mnist_digits
from tests.kit.machine import lines_of
from tests.kit.messages import says
from tests.kit.shared import made_once
from tests.kit.training import NUM_VALIDATION, arguments, flags, rows

RANK = Path(__file__).with_name("mxnet_rank.py")
SAVED = 10
FATAL = 15
LAST = 33
LAUNCH = ("launch", "-np", "2")

mxnet = pytest.mark.mxnet


def settings(shades: Path, run: Path, **more: Any) -> list[str]:
    """Returns the flags of 33 steps of 16 images over all ranks."""
    small = flags(shades, run, num_epochs=8.25, lr=0.02, backend="native", keep=9)
    return arguments(small | {"framework": "mxnet", "checkpoint_every": SAVED} | more)


def run(python: Path, *words: str | Path, code: int = 0, program: Any = PROGRAM) -> Finished:
    """Runs a verb or a program in MXNet's environment, with one thread per process."""
    # With two servers, all arrays of more than 99 numbers are divided between them.
    variables = {"OMP_NUM_THREADS": "1", "MXNET_KVSTORE_BIGARRAY_BOUND": "100"}
    with started(*words, python=python, env=variables, program=program) as running:
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []
    assert finished.code == code, finished.err
    return finished


# Prints the moves of a step with overflowing gradients and of one without, whether a masked image
# changes the loss, whether DLPack images are shared, and whether the total loss follows its
# definition. Then it trains.
OVERFLOW = """\
import dataclasses, sys, numpy as np
from imagenet_prep.core import program
from imagenet_prep.trainer import config, recipe
from imagenet_prep.trainer.mxnet_learner import MxnetLearner

sizes = {"image_size": 32, "batch_size": 2}
asked = config.TrainConfig(synthetic=True, framework="mxnet", model="tiny", **sizes)
plan = recipe.resolve(asked, 1, 64, 4)
learner = MxnetLearner(asked)
learner.build(dataclasses.replace(plan, loss_scale=1024.0), jit=False)
for peak in (np.inf, 1.0):
    before = learner.values()
    images = np.linspace(0, peak, 2 * 32 * 32 * 3, dtype="float32").reshape(2, 32, 32, 3)
    batch = {"images": images, "class_index": np.arange(2), "mask": np.ones(2)}
    learner.step(0, learner.hold(batch), 0.1, asks=False)
    print(sum((a != b).any() for a, b in zip(before, learner.values())))
losses = []
for without_class in (0, -1):
    labels = np.array([1, without_class], np.int32)
    batch = {"images": images, "class_index": labels, "mask": np.array([True, False])}
    held = learner.hold(batch)
    losses.append([float(part.asscalar()) for part in learner._loss(**{
        name: learner._array(array) for name, array in held.items()
    })])
print(losses[0] == losses[1] and bool(np.isfinite(losses).all()))
class Decoded:
    as_cpu = lambda self: self
    __dlpack__ = lambda self: images.__dlpack__()
taken = learner._array(Decoded())
images[:] = 7
print(bool((taken == 7).asnumpy().all()))
learner = MxnetLearner(asked)
learner.build(plan, jit=False)
shapes = learner.shapes(only_model=True)
learner.assign([np.full(shape, 0.01 if len(shape) > 1 else 1.0) for shape in shapes])
squares = sum(0.01**2 * np.prod(shape) for shape in shapes if len(shape) > 1)
batch |= {"class_index": np.arange(2), "mask": np.ones(2)}
found, _ = learner.step(1, learner.hold(batch), 0.1, asks=False)
loss, total, _ = map(float, found.asnumpy())
print(abs(total - loss - plan.weight_decay / 2 * squares) < 1e-6 * total)
program.main("imagenet_prep.train", sys.argv[1:])
"""

# Runs 100 steps on normalised digits for each seed, and prints the accuracy on different digits.
DIGITS = """\
import sys, numpy as np
from imagenet_prep.read.recipes import RECIPES
from imagenet_prep.trainer import config, recipe
from imagenet_prep.trainer.mxnet_learner import _MEAN, _STD, MxnetLearner

rule = RECIPES["mnist"]
assert (rule.mean, rule.std) == ((_MEAN,) * 3, (_STD,) * 3)
digits = np.load(sys.argv[1])
order = np.random.default_rng(0).permutation(3600)
images, labels = digits["images"][order][..., None], digits["labels"][order]
images = (images - rule.mean) / rule.std
for seed in map(int, sys.argv[2:]):
    asked = config.TrainConfig(synthetic=True, framework="mxnet", recipe="mnist", seed=seed)
    learner = MxnetLearner(recipe.settled(asked))
    learner.build(recipe.resolve(asked, 1, 10_000, 10), jit=False)
    for step in range(100):
        where = slice(32 * step, 32 * step + 32)
        batch = {"images": images[where], "class_index": labels[where], "mask": np.ones(32)}
        learner.step(step, learner.hold(batch), 0.02, asks=False)
    held = learner.hold({"images": images[3200:]})["images"]
    print((learner.logits(held).argmax(1) == labels[3200:]).mean())
"""


@pytest.fixture(scope="session")
def runs(mxnet_python: Path, shades: Path, shared_cache: Path) -> Path:
    """Runs with the same 16 images per step.

    `one` has one process and `ring` two ranks. `servers` has two ranks and two servers, and starts
    from the first checkpoint of the ring.
    """

    def make(folder: Path) -> None:
        one, ring, servers = (folder / name for name in ("one", "ring", "servers"))
        export = str(folder / "exported")
        flags_of_one = settings(shades, one, batch_size=16, export=export)
        made = run(mxnet_python, *flags_of_one, program=("-P", "-c", OVERFLOW))
        (folder / "overflow").write_text(made.out)
        ring.mkdir()
        words = ("--", "python", RANK, ring, "-1", *settings(shades, ring, eval_every=4.0))
        run(mxnet_python, *LAUNCH, *words)
        servers.mkdir()
        shutil.copy(ring / checkpoint.name(SAVED), servers)
        words = ("--servers", "2", "--", "train", *settings(shades, servers, comm="dist_sync"))
        run(mxnet_python, *LAUNCH, *words)

    return made_once(shared_cache / "mxnet-runs", make)


@pytest.fixture(scope="session")
def killed(mxnet_python: Path, shades: Path, shared_cache: Path) -> Path:
    """A run of two ranks and one server, which ends because rank 1 is killed, and a resumed run of
    two servers.
    """

    def make(folder: Path) -> None:
        flags_of_servers = settings(shades, folder / "servers", comm="dist_sync")
        script = ("--grace", "1", "--", "python", RANK, folder, str(FATAL))
        words = (*LAUNCH, "--servers", "1", *script, *flags_of_servers)
        (folder / "killed").write_text(run(mxnet_python, *words, code=128 + 9).err)
        assert checkpoint.steps(folder / "servers") == [SAVED]
        words = (*LAUNCH, "--servers", "2", "--", "train", *flags_of_servers)
        (folder / "resumed").write_text(run(mxnet_python, *words).out)

    return made_once(shared_cache / "mxnet-killed", make)


def arrays(run: Path, step: int = LAST) -> dict[str, Any]:
    return dict(checkpoint.load(run / checkpoint.name(step)).arrays)


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) == 16  # weights and biases of four layers, and their momenta
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


@mxnet
def test_two_ranks_end_with_weights_of_one_process(runs: Path) -> None:
    """The mean loss divides by the batch, and only the sum over ranks by their number."""
    first, second = (dict(np.load(runs / "ring" / f"weights-{rank}.npz")) for rank in (0, 1))

    assert_same_bits(first, second)
    assert_same_bits(first, arrays(runs / "ring"))
    # Each rank starts with different weights, see mxnet_rank, so this needs the broadcast.
    one = arrays(runs / "one")
    assert max(np.abs(one[name] - first[name]).max() for name in one) < 1e-6
    moved = arrays(runs / "one", SAVED)
    assert max(np.abs(one[name] - moved[name]).max() for name in one) > 0.01


@mxnet
def test_ranks_with_an_older_numpy_read_equal_bytes(runs: Path, shades: Path) -> None:
    told = [json.loads((runs / "ring" / f"read-{rank}.json").read_text()) for rank in (0, 1)]
    assert told == [["1.23.5", digests(str(shades), World(rank, 2))] for rank in (0, 1)]


@mxnet
def test_parameter_servers_make_the_rings_bits(runs: Path) -> None:
    """Servers only add, also if an array is divided between them."""
    assert [row["resumed_at"] for row in rows(runs / "servers", "start")] == [SAVED]
    assert_same_bits(arrays(runs / "ring"), arrays(runs / "servers"))


# The short tests cover the servers above, and ranks and servers in tests/launching/test_crew.py.
@mxnet
@pytest.mark.long
def test_a_killed_rank_ends_all_and_resumes(runs: Path, killed: Path) -> None:
    """The other rank would wait for ever. `run` checks that no process is left."""
    said = (killed / "killed").read_text()
    assert says("imagenet-prep-choose-different-port", "rank 1: ended by signal 9").search(said)
    assert says("resumed-after-step", SAVED).search((killed / "resumed").read_text())
    assert [row["resumed_at"] for row in rows(killed / "servers", "start")] == [0, SAVED]
    for step in (SAVED, LAST):
        assert_same_bits(arrays(runs / "ring", step), arrays(killed / "servers", step))


@mxnet
@pytest.mark.parametrize("name", ["one", "ring", "servers"])
def test_each_run_learns_and_evaluates_every_example_once(runs: Path, name: str) -> None:
    evaluations = rows(runs / name, "evaluation")

    assert [row["examples"] for row in evaluations] == [NUM_VALIDATION] * len(evaluations)
    assert len(evaluations) == (3 if name == "ring" else 1)
    assert evaluations[-1]["top1"] > 0.9  # of four classes
    ours, ring = (rows(runs / each, "train")[-1] for each in (name, "ring"))
    assert (ours["step"], ours["learning_rate"]) == (ring["step"], ring["learning_rate"])
    assert ours["loss"] == pytest.approx(ring["loss"], abs=1e-5)


@mxnet
def test_a_step_whose_gradients_overflow_is_skipped(runs: Path) -> None:
    """float16 needs a GPU, so float32 overflows here."""
    skipped, made = map(int, (runs / "overflow").read_text().split()[:2])
    assert skipped == 0
    assert made > 8


@mxnet
def test_dlpack_images_are_not_copied(runs: Path) -> None:
    assert (runs / "overflow").read_text().split()[3] == "True"


@mxnet
def test_total_loss_adds_the_decay_of_kernels(runs: Path) -> None:
    assert (runs / "overflow").read_text().split()[4] == "True"


@mxnet
def test_masked_images_do_not_change_mxnets_loss(runs: Path) -> None:
    assert (runs / "overflow").read_text().split()[2] == "True"


@mxnet
@pytest.mark.parametrize("seeds", ["0", pytest.param("1 2 3 4", marks=pytest.mark.long)])
def test_the_recipe_learns_digits_in_100_steps(
    mxnet_python: Path, tmp_path: Path, seeds: str
) -> None:
    images, labels = mnist_digits(3600, 0)
    assert abs(images.mean() - 33.3) < 1
    assert abs(images.std() - 78.6) < 1
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)

    program = ("-P", "-c", DIGITS, tmp_path / "digits.npz")
    made = run(mxnet_python, *seeds.split(), program=program)

    accuracies = [float(word) for word in made.out.split()]
    assert len(accuracies) == len(seeds.split())
    assert min(accuracies) > 0.8, accuracies


@mxnet
@pytest.mark.long
def test_two_ranks_learn_mnist_in_100_steps(mxnet_python: Path, tmp_path: Path) -> None:
    source = make_mnist(tmp_path / "in", num=25_600)
    data = tmp_path / "set"
    run(Path(sys.executable), "prepare", "--source", source, "--out", data, "--allow-subset")
    words = ("--data-dir", data, "--framework", "mxnet", "--recipe", "mnist")

    run(mxnet_python, *LAUNCH, "--", "train", *words, "--log-dir", tmp_path / "run")

    last = rows(tmp_path / "run", "evaluation")[-1]
    assert last["step"] == 100
    assert last["top1"] > 0.8


@mxnet
@pytest.mark.long
def test_the_example_learns_deterministically_without_warnings(
    mxnet_python: Path, shades: Path, tmp_path: Path
) -> None:
    script = REPOSITORY / "examples" / "mxnet_horovod.py"
    words = ("--data-dir", shades, "--image-size", "16", "--batch-size", "8", "--epochs", "12")

    for round in range(3):
        out = tmp_path / f"{round}.params"
        done = run(mxnet_python, *LAUNCH, "--", "python", script, *words, "--out", out)
        assert done.err == ""
        row = json.loads(done.out.splitlines()[-1])
        assert (row["images"], out.exists()) == (NUM_VALIDATION, True)
        assert row["top1"] > 0.9
    assert (tmp_path / "0.params").read_bytes() == (tmp_path / "2.params").read_bytes()


# Prints the greatest difference between the exported network and the learner's probabilities.
EXPORT = """\
import sys, numpy as np, mxnet as mx
from pathlib import Path
from imagenet_prep.trainer import config, recipe
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.mxnet_learner import MxnetLearner

out = Path(sys.argv[2])
sizes = {"image_size": 32, "model": sys.argv[1], "recipe": sys.argv[3]}
asked = config.TrainConfig(synthetic=True, framework="mxnet", **sizes)
learner = MxnetLearner(asked)
learner.build(recipe.resolve(asked, 1, 1000, 5), jit=False)
interface = Interface("a x\\nb y\\nc z\\nd w\\ne v\\n", (121.0, 115.0, 100.0), (70.0, 68.0, 71.0))
learner.export(out, interface)
pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32)).astype(np.float32)
mean = np.array(interface.mean, np.float32).reshape(3, 1, 1)
std = np.array(interface.std, np.float32).reshape(3, 1, 1)
shares = np.exp(learner.logits((pixels - mean) / std))
shares /= shares.sum(1, keepdims=True)
files = [str(out / name) for name in ("model-symbol.json", "model-0000.params")]
network = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
print(np.abs(network(mx.nd.array(pixels)).asnumpy() - shares).max(), np.ptp(shares))
"""


@mxnet
@pytest.mark.parametrize("names", ["tiny article", "mnist mnist"])
def test_an_exported_network_takes_pixels_and_returns_probabilities(
    mxnet_python: Path, tmp_path: Path, names: str
) -> None:
    model, recipe = names.split()
    made = run(mxnet_python, model, tmp_path, recipe, program=("-P", "-c", EXPORT))
    apart, spread = map(float, made.out.split())
    assert apart < 1e-6 < 0.01 < spread
    assert (tmp_path / "labels.txt").read_text() == "a x\nb y\nc z\nd w\ne v\n"


@mxnet
def test_the_exported_files_contain_the_weights(runs: Path) -> None:
    files = {path.name: path.read_bytes() for path in (runs / "exported").iterdir()}

    assert sorted(files) == ["labels.txt", "model-0000.params", "model-symbol.json"]
    weights = list(arrays(runs / "one").values())[:8]
    assert [
        each.shape for each in weights if each.tobytes() not in files["model-0000.params"]
    ] == []


def test_a_horovod_without_the_launchers_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If Horovod lacks MPI, each process finds one rank, and all would write one log folder."""
    fake: Any = ModuleType("horovod.mxnet")
    fake.init = lambda: None
    fake.rank = fake.local_rank = lambda: 0
    fake.size = fake.local_size = lambda: 1
    monkeypatch.setitem(sys.modules, "horovod", ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.mxnet", fake)
    sys.modules["horovod"].mxnet = fake  # type: ignore[attr-defined]

    with pytest.raises(
        UsageError, match=says("launcher-started-horovod-found-horovod", "2 ranks", "1")
    ):
        mxnet_comm.Ring(World(1, 2))


def test_dist_sync_without_parameter_servers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DMLC_PS_ROOT_URI", raising=False)
    with pytest.raises(UsageError, match=says("comm-needs-parameter-servers-start", "dist_sync")):
        mxnet_comm.Servers(World(), "dist_sync")


class Store:
    """Replaces MXNet's servers, and records the requests of a rank."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.called.append(name)


def test_servers_receive_arrays_and_no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers would unpickle an optimizer; without one, they only add."""
    store = Store()
    fake: Any = ModuleType("mxnet")
    fake.kv = SimpleNamespace(create=lambda _: store)
    fake.nd = SimpleNamespace(zeros=np.zeros, array=np.array, waitall=lambda: None)
    monkeypatch.setitem(sys.modules, "mxnet", fake)
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "127.0.0.1")
    servers = mxnet_comm.Servers(World(), "dist_sync")
    arrays = [np.ones(3, np.float32)]
    servers.add_up(arrays, "gradient")
    servers.broadcast(arrays, "weights")
    servers.average(arrays)
    servers.close()

    assert set(store.called) == {"init", "push", "pull"}


def test_ranks_share_weights_statistics_and_momenta(monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks of the runs above have no batch norm, and so no statistics."""
    for name in ("mxnet", "mxnet.gluon"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name in ("model_zoo", "nn"):
        setattr(sys.modules["mxnet.gluon"], name, ModuleType(name))
    spec = importlib.util.find_spec("imagenet_prep.trainer.mxnet_learner")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    learner = object.__new__(module.MxnetLearner)
    learner._weights, learner._statistics, learner._momenta = (
        [np.full(2, value)] for value in (1, 2, 3)
    )
    sent: list[int] = []
    learner.comm = SimpleNamespace(
        broadcast=lambda arrays, _: sent.extend(int(array[0]) for array in arrays)
    )

    learner.share()
    assert sorted(sent) == [1, 2, 3]


class Held(np.ndarray):
    """Replaces MXNet's array."""

    def asnumpy(self) -> Any:
        return np.array(self)


class Threads(mxnet_comm._MxnetGroup):
    """One of four ranks on two hosts, which are threads that add their arrays."""

    _nd = SimpleNamespace(
        array=lambda values, dtype="float32": np.array(values, dtype).view(Held),
        waitall=lambda: None,
    )

    def __init__(self, rank: int, room: dict[int, Any], barrier: threading.Barrier) -> None:
        self.world = World(rank, 4, rank % 2, 2)
        self._room = room
        self._barrier = barrier

    def add_up(self, arrays: Sequence[Any], name: str) -> None:
        self._barrier.wait()
        self._room[self.world.rank] = name, [np.array(array) for array in arrays]
        self._barrier.wait()
        assert {sent for sent, _ in self._room.values()} == {name}
        for place, array in enumerate(arrays):
            array[:] = sum(sent[place] for _, sent in self._room.values())


def test_sums_make_all_operations_of_ranks() -> None:
    room: dict[int, Any] = {}
    barrier = threading.Barrier(4, timeout=PATIENCE_S)

    def operate(rank: int) -> list[Any]:
        comm = Threads(rank, room, barrier)
        mean = np.array([rank, 8.0])
        comm.average([mean])
        first = np.array([[rank, 7.0]])
        comm.broadcast([first], "weight")
        return [
            comm.totals([1, rank, 5]),
            comm.gather(np.array([rank, 10 * rank]), "row").tolist(),
            comm.from_first("bytes", np.arange(5000, dtype=np.int32) % 251 + rank).tolist(),
            comm.broadcast_object({"rank": rank}),
            mean.tolist(),
            first.tolist(),
        ]

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(operate, range(4))]
    expected = [
        [4, 6, 20],
        [[rank, 10 * rank] for rank in range(4)],
        (np.arange(5000) % 251).tolist(),
        {"rank": 0},
        [1.5, 8],
        [[0, 7]],
    ]
    assert found == [expected] * 4


@mxnet
@pytest.mark.long
@pytest.mark.parametrize("number", [1, 2, 3], ids=["alone", "ring", "servers"])
def test_documented_commands_learn_alone_and_on_two_ranks(
    mxnet_python: Path, shades: Path, tmp_path: Path, number: int
) -> None:
    """Two ranks and servers instead of eight."""
    line = lines_of("$ mxnet.md: Train")[number - 1].partition("#")[0]
    words = line.replace("/data/imagenet-480", "DATA").replace("8", "2").split()[1:]
    words = [str(shades) if word == "DATA" else word for word in words]
    small = flags(shades, tmp_path / "run", num_epochs=8.0, lr=0.02, backend="native")
    del small["data_dir"]
    run(mxnet_python, *words, *arguments(small | {"batch_size": 16 if number == 1 else 8}))

    last = rows(tmp_path / "run", "evaluation")[-1]
    assert last["examples"] == NUM_VALIDATION
    assert last["top1"] > 0.8
