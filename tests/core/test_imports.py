"""Imports of libraries without their side effects, and the names of missing packages."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_prep.core import imports
from imagenet_prep.core import imports as here
from imagenet_prep.core.errors import UsageError
from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.installed import Installed
from tests.kit.messages import says, wording


def said(cwd: Path, program: str, *words: str, **env: str) -> str:
    """Returns the output of a program that runs in this folder."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        cwd=cwd,
        env=dict(os.environ, PYTHONPATH=str(REPOSITORY), TF_CPP_MIN_LOG_LEVEL="3", **env),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.extras
def test_pipe_called_matplotlibrc_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "matplotlibrc")
    program = (
        "import os\nfrom imagenet_prep.core import imports\nimports.guard()\nimports.guard()\n"
        "import matplotlib\nprint(os.getcwd())"
    )

    assert said(tmp_path, program) == f"{tmp_path}\n"


@pytest.mark.extras
def test_removed_current_folder_does_not_matter(tmp_path: Path) -> None:
    program = (
        "import os\nfrom imagenet_prep.core import imports\nimports.guard()\n"
        "os.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n"
        "import matplotlib\nprint(os.path.exists('/proc/self/cwd/.'))"
    )

    assert said(tmp_path, program)


def test_messages_during_an_import_only_appear_on_failure(
    tmp_path: Path,
) -> None:
    package = tmp_path / "libraries" / "tensorflow"
    kernels = package / "python" / "framework" / "kernels.py"
    kernels.parent.mkdir(parents=True)
    kernels.write_text("def get_registered_kernels_for_op(name): pass\n")
    lines = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795517597.071199    8150 port.cc:153] oneDNN custom operations are on.",
        "W0000 00:00:1795517597.071199    8150 cuda/driver.cc:7] no driver",
        "E0000 00:00:1795517597.071199    8150 port.cc:153] an error",
        "and a text",
    ]
    text = "".join(f"{line}\n" for line in lines)
    package.joinpath("__init__.py").write_text(f"import os\nos.write(2, {text.encode()!r})\n")
    program = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom imagenet_prep.core import imports\n"
        "imports.guard()\nimport tensorflow, os\nos.write(2, b'after\\n')"
    )

    def heard(**env: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, str(package.parent)],
            env={"PYTHONPATH": str(REPOSITORY), **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert (done.returncode, done.stdout) == (0, "")
        return done.stderr.splitlines()

    assert heard() == [*lines[3:], "after"]
    assert heard(TF_CPP_MIN_LOG_LEVEL="0") == [*lines, "after"]
    package.joinpath("__init__.py").write_text(
        "import os\nos.write(2, b'F0000 no AVX here\\n')\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(package.parent)],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (-9, b"F0000 no AVX here\n")


def test_garbage_collection_is_off_during_an_import(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("import gc\nprint(gc.isenabled())\n")
    program = (
        "import gc, sys\nsys.path.insert(0, sys.argv[1])\nfrom imagenet_prep.core import imports\n"
        "imports.guard()\nimport matplotlib\nprint(gc.isenabled())\n"
        "del sys.modules['matplotlib']\ngc.disable()\nimport matplotlib\nprint(gc.isenabled())"
    )

    assert said(Path("/"), program, str(tmp_path)).split() == ["False", "True", "False", "False"]


@pytest.mark.extras
def test_matplotlib_settings_of_the_user_change_no_plot(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 30\n")
    program = (
        "from imagenet_prep.reporting import plots\nimport matplotlib as mpl\n"
        "before = mpl.rcParams['font.size']\n"
        "with plots._settings(plots._STYLE):\n"
        "    print(mpl.rcParams['text.usetex'], mpl.rcParams['font.size'])\n"
        "print(before, mpl.rcParams['font.size'])"
    )

    found = said(Path("/"), program, MPLCONFIGDIR=str(tmp_path))
    assert found == "False 9.0\n30.0 30.0\n"


def test_xla_gets_cuda_folder_if_it_is_unset() -> None:
    mine = "--xla_gpu_cuda_data_dir=/mine --xla_dump_to="

    assert imports.xla_flags(mine) == mine
    assert re.fullmatch(r"--xla_gpu_cuda_data_dir=/[^ ]+", imports.xla_flags(""))
    assert re.fullmatch(r"--x=1 --xla_gpu_cuda_data_dir=/[^ ]+", imports.xla_flags("--x=1"))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, the only one on the path."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def add(folder: Path, name: str, version: str) -> None:
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def build(folder: Path, **built: str) -> None:
    add(folder, "horovod", "0.28.1")
    (folder / "horovod").mkdir()
    (folder / "horovod" / "metadata.json").write_text(json.dumps({**built, "dummy": "none"}))


def test_all_missing_packages_are_named_at_once(packages: Path, installed: Installed) -> None:
    installed.packages(lambda _: False)
    dali = "pip install 'imagenet-prep[dali]'"

    assert here.lacking(["pytorch", "horovod", "dali"]) == [
        "PyTorch is not installed: pip install 'imagenet-prep[torch]'",
        "Horovod is not installed: run `imagenet-prep install-horovod --framework pytorch`",
        wording("dali-not-installed-imagenet-prep-dali-cuda13", dali),
    ]


def test_pytorch_is_recommended_if_it_is_installed(installed: Installed) -> None:
    installed.packages(lambda name: name == "torch")

    (said,) = here.lacking(["tensorflow", "native"])
    more = wording("add-framework-pytorch")
    assert said.endswith(more)
    assert here.lacking(["tfdata"]) == [said.removesuffix(more)]


@pytest.mark.parametrize(
    ("built", "problem"),
    [
        ({"tensorflow": "2.21.0"}, "Horovod is not built for PyTorch"),
        ({"pytorch": "2.14.0"}, "Horovod is built for PyTorch 2.14.0, but 2.15.0 is installed"),
        ({"pytorch": "2.14.0+cpu"}, "Horovod is built for PyTorch 2.14.0, but 2.15.0 is installed"),
        ({"pytorch": "2.15.0"}, None),
        ({"pytorch": "2.15.0+cu130"}, None),
    ],
)
@pytest.mark.parametrize("variant", ["", "+cpu", "+cu130"])
def test_horovod_must_be_built_for_the_installed_framework(
    packages: Path, variant: str, built: dict[str, str], problem: str | None
) -> None:
    """Only the releases must be equal; what follows + names the variant of a build."""
    add(packages, "torch", f"2.15.0{variant}")
    build(packages, **built)

    assert (here.problem_of_horovod("pytorch") or ("", None))[1] == problem


@pytest.mark.parametrize(
    ("framework", "package", "version", "is_on_cpu"),
    [
        ("pytorch", "torch", "2.15.0+cpu", True),
        ("pytorch", "torch", "2.15.0+cu130", False),
        ("pytorch", "torch", "2.15.0", False),
        ("pytorch", "tensorflow-cpu", "2.21.0", False),
        ("tensorflow", "tensorflow-cpu", "2.21.0", True),
        ("tensorflow", "tensorflow", "2.21.0", False),
        ("mxnet", "mxnet", "1.9.1", False),
    ],
)
def test_packages_without_gpus_are_recognised(
    packages: Path, framework: str, package: str, version: str, is_on_cpu: bool
) -> None:
    add(packages, package, version)

    assert here.on_cpu_only(framework) == (f"{package} {version}" if is_on_cpu else None)


@pytest.mark.parametrize(
    ("version", "is_on_cpu"),
    [("0.28.1+patch01234567", True), ("0.28.1+patch01234567.nccl", False), ("0.28.1", False)],
)
def test_our_horovod_without_nccl_is_recognised(
    packages: Path, version: str, is_on_cpu: bool
) -> None:
    assert not here.sums_on_cpu()
    add(packages, "horovod", version)

    assert here.sums_on_cpu() == is_on_cpu


@pytest.mark.parametrize("text", ["{", "[]", "null", "1", '{"pytorch": [1]}'])
def test_damaged_horovod_is_named(packages: Path, text: str) -> None:
    add(packages, "torch", "2.15.0")
    build(packages)
    (packages / "horovod" / "metadata.json").write_text(text)

    assert "Horovod is" in str(here.problem_of_horovod("pytorch"))


def test_missing_modules_of_an_extra_name_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("jinja2", "skimage"):
        monkeypatch.setitem(sys.modules, module, None)
    here.require_modules("parquet", "--to parquet", "json")

    with pytest.raises(UsageError) as refused:
        here.require_modules("report", "the page", "jinja2", "json", "skimage")
    assert str(refused.value) == (
        "the page needs jinja2, skimage (not installed). Run: pip install 'imagenet-prep[report]'"
    )


def test_library_without_a_function_counts_as_missing() -> None:
    """As after an update of a clone, before its C code is compiled again."""
    libc = Path("libc.so.6")
    assert imports.find(libc, strlen=(ctypes.c_size_t, ctypes.c_char_p)) is not None
    assert imports.find(libc, strlen_of_tomorrow=(ctypes.c_int,)) is None
    message = says("cannot-loaded-compiled-when-imagenet-prep", libc)
    with pytest.raises(imports.NotCompiledError, match=message):
        imports.load(libc, strlen_of_tomorrow=(ctypes.c_int,))
