"""What every test stands on: a clean environment, folders, the miniature ILSVRC2012."""

from __future__ import annotations

import compileall
import functools
import gc
import itertools
import os
import re
import signal
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

import tests.kit.start.sitecustomize  # noqa: F401 - as in the processes that tests start
from tests.kit import leftovers, messages
from tests.kit.browser import chromium, open_page  # noqa: F401 - one browser for all rooms
from tests.kit.command import REPOSITORY
from tests.kit.installed import installed  # noqa: F401 - for all rooms
from tests.kit.lengths import FULL, FULL_EXAMPLES, HYPOTHESIS, SHORT
from tests.kit.limits import limits  # noqa: F401 - for all rooms
from tests.kit.system import system  # noqa: F401 - for all rooms

# Rooms of tests that run whole commands; the tests of other rooms call functions.
_COMMANDS = ("benchmarks", "campaign", "commands", "golden", "hostile", "oracles", "site")
# Rooms whose tests take minutes, each with servers or frameworks of its own.
_MINUTES = (
    "commands/cluster",
    "commands/airflow",
    "trainer",
    "commands/report",
    "launching",
    "campaign",
    "hostile",
)
# What these fixtures give comes from packages of extras.
_OF_EXTRAS = {"miniature", "s3", "speaks"}

set_hypothesis_home_dir(REPOSITORY / "build" / "hypothesis")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the number of Hypothesis examples and compiles the modules.

    `make test-long` selects Hypothesis's tests by its own mark and has all examples of each, new
    ones each time; `make test` has a quarter or a tenth, always the same ones. Commands import our
    bytecode, and write none.
    """
    # Time is pytest-timeout's business: a deadline per example, and a limit for making examples,
    # fail on a busy machine.
    settings = hypothesis.settings
    for name, count in ((SHORT, FULL_EXAMPLES // 4), (FULL, FULL_EXAMPLES)):
        settings.register_profile(
            name,
            max_examples=count,
            derandomize=name == SHORT,
            print_blob=True,
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )
    settings.load_profile(FULL if HYPOTHESIS in config.option.markexpr else SHORT)
    if not hasattr(config, "workerinput"):
        for folder in ("imagenet_prep", "pipelines", "tests/kit"):
            compileall.compile_dir(REPOSITORY / folder, quiet=1)


def pytest_collection() -> None:
    """Keeps rewritten assertions for the next run, and collects no garbage."""
    sys.dont_write_bytecode = False
    gc.disable()


def pytest_collection_finish() -> None:
    """Undoes `pytest_collection`; tests and modules never become garbage."""
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names a case by the key of its message, not by the pattern."""
    return messages.key_of(val) if isinstance(val, re.Pattern) else None


def pytest_xdist_auto_num_workers() -> int:
    """Counts the cores of this process, and one: many tests wait for servers or hosts."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Marks tests of whole commands as slow; excludes the `long` ones unless `-m` names them.

    Once they are in random order, each worker is given some rooms of minutes to begin with: their
    servers are started once, and no test of a minute is left for the end. One worker has all tests
    that import TensorFlow, which takes seconds.
    """
    for item in items:
        if _room(item).split("/")[0] in _COMMANDS:
            item.add_marker(pytest.mark.slow)
        if _OF_EXTRAS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.extras)
    # Spark's tests are long; `-m spark` chooses them all the same.
    named = {"long", "spark"} & set(re.findall(r"\w+", config.option.markexpr))
    if "long" not in named:
        stays = [
            not item.get_closest_marker("long") or any(map(item.get_closest_marker, named))
            for item in items
        ]
        left = list(itertools.compress(items, (not each for each in stays)))
        items[:] = itertools.compress(items, stays)
        config.hook.pytest_deselected(items=left)
    yield
    _begin_with_minutes(items, getattr(config, "workerinput", {}).get("workercount", 1))


def _begin_with_minutes(items: list[pytest.Item], num_workers: int) -> None:
    """Deals the rooms of `_MINUTES` to the beginnings of the workers' equal parts of `items`."""
    begin: list[list[pytest.Item]] = [[] for _ in range(num_workers)]
    others = []
    for item in items:
        room = _room(item)
        if room not in _MINUTES and item.get_closest_marker("tf"):
            room = "trainer"
        if room in _MINUTES:
            begin[_MINUTES.index(room) % num_workers].append(item)
        else:
            others.append(item)
    ends = [len(items) * number // num_workers for number in range(1, num_workers + 1)]
    items.clear()
    for rooms, end in zip(begin, ends, strict=True):
        items += rooms
        count = max(0, end - len(items))
        items += others[:count]
        del others[:count]
    items += others


def _room(item: pytest.Item) -> str:
    """Returns the name of a test's folder; below `commands`, with that of the verb's folder."""
    return _room_of(item.path)


@functools.cache
def _room_of(path: Path) -> str:
    folders = path.relative_to(REPOSITORY / "tests").parent.parts
    return "/".join(folders[: 2 if folders[0] == "commands" else 1])


@pytest.fixture(scope="session", autouse=True)
def clean_environment(shared_cache: Path) -> Iterator[None]:
    """No test sees the developer's credentials, proxies or settings; nor do its children."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(filter(leftovers.is_ours, os.environ)):
            patch.delenv(name)
        # All workers' runs note there where sources lie: one makes a set that others show.
        patch.setenv("IMAGENET_PREP_CACHE", str(shared_cache / "of-the-user"))
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_and_a_lost_terminal() -> None:
    """Both reach what tests start, also where pytest runs in the background or under nohup.

    A process that is started with a signal ignored goes on ignoring it, and so do its children.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was() -> Iterator[None]:
    """Fails the test that changes what later tests of this worker stand on."""
    before = leftovers.state()
    yield
    changes = leftovers.changes(before, leftovers.state())
    assert not changes, changes


@pytest.fixture(autouse=True)
def knows_no_server() -> None:
    """No test sees the servers and retries of earlier ones: few retries are logged at a time."""
    if remote := sys.modules.get("imagenet_prep.storage.remote"):
        remote._lines = remote._Lines()  # type: ignore[attr-defined]
        remote.server_at.cache_clear()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all xdist workers of this run share; who fills it takes a lock."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def unusual_tmp_path(tmp_path: Path) -> Path:
    """A folder as users have them: blanks, quotes, a dollar, a percent sign, other scripts."""
    path = tmp_path / 'it\'s a "data set" $HOME 100% — 数据 é'
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def miniature(shared_cache: Path) -> Any:
    """The miniature ILSVRC2012 with its defaults, made once a run; treat it as read-only."""
    from tests.kit.miniature import miniature_for_tests

    return miniature_for_tests(shared_cache)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An S3 server with an empty bucket, `S3Server`; each test has a prefix of its own."""
    from tests.kit.s3_server import BUCKET, serve_s3

    pytest.importorskip("boto3")
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        server.client().create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture
def prefix(s3: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the test's own prefix in that bucket, which this process may use."""
    from tests.kit.s3_server import BUCKET

    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    own = re.sub(r"\W", "-", request.node.nodeid.rpartition("/")[2])
    return f"s3://{BUCKET}/{own}"


@pytest.fixture(scope="session")
def tf() -> ModuleType:
    """TensorFlow, where it is installed; importing it takes seconds, so no module does."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        warnings.simplefilter("ignore")  # of its own dependencies
        found = pytest.importorskip("tensorflow", reason="TensorFlow is absent")
    # Graphs are made once here and run a few times: to improve them costs more than it saves.
    found.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    found.config.threading.set_intra_op_parallelism_threads(1)
    gc.freeze()  # A million objects: a search for garbage among them takes 0.3 s.
    return found


@pytest.fixture(scope="session")
def mxnet_python() -> Path:
    """The interpreter of MXNet's environment, next to ours."""
    python = Path(sys.prefix) / "mxnet" / "bin" / "python"
    if not python.exists():
        pytest.skip("MXNet is not installed; make test installs it into .venv/mxnet")
    return python
