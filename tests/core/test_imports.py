"""What is imported elsewhere: from the root of the file system, for as long as it takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_prep.core import imports
from tests.kit.command import PATIENCE_S, REPOSITORY


def said(cwd: Path, program: str, *words: str, **env: str) -> str:
    """Returns what a program prints that runs there."""
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
def test_a_pipe_called_matplotlibrc_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "matplotlibrc")
    program = (
        "import os\nfrom imagenet_prep.core import imports\nimports.guard()\nimports.guard()\n"
        "import matplotlib\nprint(os.getcwd())"
    )

    assert said(tmp_path, program) == f"{tmp_path}\n"


@pytest.mark.extras
def test_a_folder_that_is_gone_is_no_hindrance(tmp_path: Path) -> None:
    program = (
        "import os\nfrom imagenet_prep.core import imports\nimports.guard()\n"
        "os.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n"
        "import matplotlib\nprint(os.path.exists('/proc/self/cwd/.'))"
    )

    assert said(tmp_path, program)


def test_a_library_that_talks_as_it_is_imported_is_heard_only_where_it_fails(
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


def test_no_garbage_is_looked_for_while_a_library_is_imported(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("import gc\nprint(gc.isenabled())\n")
    program = (
        "import gc, sys\nsys.path.insert(0, sys.argv[1])\nfrom imagenet_prep.core import imports\n"
        "imports.guard()\nimport matplotlib\nprint(gc.isenabled())\n"
        "del sys.modules['matplotlib']\ngc.disable()\nimport matplotlib\nprint(gc.isenabled())"
    )

    assert said(Path("/"), program, str(tmp_path)).split() == ["False", "True", "False", "False"]


@pytest.mark.extras
def test_settings_of_the_user_change_no_plot(tmp_path: Path) -> None:
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


def test_xla_is_told_where_cuda_is_but_for_users_who_say_so() -> None:
    mine = "--xla_gpu_cuda_data_dir=/mine --xla_dump_to="

    assert imports.xla_flags(mine) == mine
    assert re.fullmatch(r"--xla_gpu_cuda_data_dir=/[^ ]+", imports.xla_flags(""))
    assert re.fullmatch(r"--x=1 --xla_gpu_cuda_data_dir=/[^ ]+", imports.xla_flags("--x=1"))
