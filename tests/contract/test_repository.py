"""Files for contributors: workflows, forms, hooks and the citation."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import imagenet_prep
from tests.kit.command import PATIENCE_S, REPOSITORY

GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))


def parsed(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def beside_python(program: str, advice: str) -> Path:
    """Returns a program of the tests' environment; skips if it is missing."""
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        pytest.skip(f"no {program} beside this Python: {advice}")
    return path


def program(path: Path, script: str) -> Path:
    """Writes an executable shell script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def run(*argv: str | Path, cwd: Path = REPOSITORY, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=PATIENCE_S
    )


def step(name: str) -> str:
    """Returns the script of a step of the release."""
    jobs = parsed(GITHUB / "workflows" / "release.yml")["jobs"].values()
    steps = itertools.chain.from_iterable(job.get("steps", ()) for job in jobs)
    (found,) = [each["run"] for each in steps if each.get("name") == name]
    return str(found)


def test_actionlint_accepts_the_workflows() -> None:
    actionlint = beside_python("actionlint", "make .venv/bin/actionlint; it needs Go")
    done = run(actionlint, "-shellcheck=", "-pyflakes=", *WORKFLOWS)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_zizmor_accepts_the_workflows() -> None:
    zizmor = beside_python("zizmor", "pip install zizmor")
    done = run(zizmor, "--offline", "--persona=pedantic", "--no-progress", "--quiet", GITHUB)

    assert done.returncode == 0, done.stdout + done.stderr


def test_actions_are_pinned_by_commit_and_version_comment() -> None:
    """A tag can be moved to different code, and a commit hash tells a reader nothing."""
    lines = "\n".join(path.read_text("utf-8") for path in WORKFLOWS).splitlines()
    steps = [line.strip(" -") for line in lines if "uses: ./" not in line]
    used = [step for step in steps if step.startswith("uses:")]
    pinned = r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"

    assert len(used) > 5
    assert [line for line in used if not re.fullmatch(pinned, line)] == []


def test_jobs_have_minimal_permissions() -> None:
    writes = {}
    for path in WORKFLOWS:
        workflow = parsed(path)
        assert workflow["permissions"] == {}, path
        for name, job in workflow["jobs"].items():
            granted = job["permissions"]
            writes[name] = sorted(each for each in granted if granted[each] == "write")

    assert {name: each for name, each in writes.items() if each} == {
        "attest": ["attestations", "id-token"],
        "upload": ["id-token"],
    }


@pytest.mark.parametrize(
    ("tag", "changelog", "sentence"),
    [
        ("v1.2.3", "## 1.2.3, 2027-01-31", None),
        ("v1.2.4", "## 1.2.4, 2027-01-31", "The tag is v1.2.4"),
        ("1.2.3", "## 1.2.3, 2027-01-31", "The tag is 1.2.3"),
        ("v1.2.3", "## 1.2.3, not published yet", "has no part '## 1.2.3, DATE'"),
        ("v1.2.3", "## 1x2.3, 2027-01-31", "has no part '## 1.2.3, DATE'"),
    ],
)
def test_tags_that_differ_from_the_version_are_refused(
    tag: str, changelog: str, sentence: str | None, tmp_path: Path
) -> None:
    (tmp_path / "imagenet_prep").mkdir()
    (tmp_path / "imagenet_prep" / "__init__.py").write_text('"""Ours."""\n__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}\n")

    script = step("The tag is the version")
    done = run("bash", "-eo", "pipefail", "-c", script, cwd=tmp_path, GITHUB_REF_NAME=tag)

    assert done.returncode == (sentence is not None)
    assert (sentence or "") in done.stdout


def test_the_release_finds_the_packages_version(repository: Path) -> None:
    """The step finds the version in our own file, so only the changelog may stop it."""
    done = run(
        "bash",
        "-eo",
        "pipefail",
        "-c",
        step("The tag is the version"),
        cwd=repository,
        GITHUB_REF_NAME=f"v{imagenet_prep.__version__}",
    )

    assert "The tag is" not in done.stdout


def test_two_builds_with_different_bytes_are_no_release(tmp_path: Path) -> None:
    builds = [tmp_path / f"dist-ubuntu-{each}" for each in ("22.04", "24.04")]
    for folder in builds:
        folder.mkdir()
        (folder / "a.whl").write_bytes(b"same")
    script = ("bash", "-eo", "pipefail", "-c", step("Two machines made the same bytes"))

    assert run(*script, cwd=tmp_path).returncode == 0
    (builds[1] / "a.whl").write_bytes(b"other")
    changed = run(*script, cwd=tmp_path)
    (builds[1] / "a.whl").write_bytes(b"same")
    (builds[1] / "b.tar.gz").write_bytes(b"more")
    more = run(*script, cwd=tmp_path)

    assert (changed.returncode, more.returncode) == (1, 1)
    assert "a.whl" in changed.stdout
    assert "b.tar.gz" in more.stdout


def test_ci_runs_on_every_python_and_machine() -> None:
    job = parsed(GITHUB / "workflows" / "check.yml")["jobs"]["check"]

    assert job["strategy"]["matrix"] == {
        "python": ["3.11", "3.12", "3.13", "3.14"],
        "machine": ["ubuntu-24.04", "ubuntu-24.04-arm"],
    }
    assert job["steps"][-1] == {
        "run": "bash .ci/run",
        "env": {"PYTHON": "python${{ matrix.python }}"},
    }


def test_the_classifiers_name_the_pythons_of_the_check() -> None:
    """Nothing else keeps the classifiers true: they may only name a Python that the check runs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    claimed = [
        each.rpartition(" ")[2]
        for each in project["classifiers"]
        if re.search(r"Python :: 3\.\d+$", each)
    ]
    job = parsed(GITHUB / "workflows" / "check.yml")["jobs"]["check"]

    assert claimed == job["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={claimed[0]}"


@pytest.mark.parametrize(
    ("python", "target"),
    [
        ("3 11 x86_64", "test"),
        ("3 12 x86_64", "test"),
        ("3 12 aarch64", "newest"),
        ("3 13 x86_64", "newest"),
        ("", "test"),
    ],
)
def test_complete_check_runs_if_the_lock_fits(
    python: str, target: str, repository: Path, tmp_path: Path
) -> None:
    """Without any Python, `make test` prints the error."""
    chosen = program(tmp_path / "chosen", f"echo '{python}'")
    program(tmp_path / "make", 'echo "make $* with $PYTHON"')
    path = f"{tmp_path}:{os.environ['PATH']}"

    done = run("bash", repository / ".ci" / "run", PATH=path, PYTHON=str(chosen))

    assert (done.returncode, done.stdout) == (0, f"make {target} with {chosen}\n"), done.stderr


FOUND = {
    "newest first": (("python3.12", "python3.11", "python3"), "python3.12"),
    "older": (("python3.11", "python3"), "python3.11"),
    "any": (("python3",), "python3"),
    "none": ((), ""),
}


@pytest.mark.parametrize("has_pyenv", [False, True])
@pytest.mark.parametrize("case", FOUND)
def test_python_for_the_environment(
    case: str, has_pyenv: bool, repository: Path, tmp_path: Path
) -> None:
    """pyenv's python3.12 is found, although it fails unless its version is selected."""
    names, expected = FOUND[case]
    for name in names:
        program(tmp_path / name, f"echo {name}")
    if has_pyenv:
        shim = '[ "${PYENV_VERSION:-}" = 3.12 ] && echo pyenv || exit 127'
        program(tmp_path / "python3.12", shim)
        expected = "pyenv"

    bash = shutil.which("bash")
    assert bash
    done = run(bash, repository / ".ci" / "python", "3.12", "3.11", "3", PATH=str(tmp_path))

    assert (done.stdout.strip(), done.returncode) == (expected, int(not expected))


def test_makefile_and_check_look_for_the_same_pythons(repository: Path) -> None:
    """Both create the same .venv; pyproject.toml names the versions that the lock is for."""
    for name in ("Makefile", ".ci/run"):
        assert ".ci/python 3.12 3.11 3 ||" in (repository / name).read_text("utf-8")
    tool = tomllib.loads((repository / "pyproject.toml").read_text("utf-8"))["tool"]
    (environment,) = tool["uv"]["environments"]
    assert environment.startswith("python_version < '3.13' and ")


@pytest.mark.parametrize("name", ["bug.yml", "wish.yml"])
def test_issue_forms_have_the_required_fields(name: str) -> None:
    form = parsed(GITHUB / "ISSUE_TEMPLATE" / name)
    fields = [each for each in form["body"] if each["type"] != "markdown"]

    assert {"name", "description", "body"} <= form.keys()
    assert len({each["id"] for each in fields}) == len(fields)
    assert all(each["attributes"]["label"] for each in fields)
    assert {each["type"] for each in fields} <= {"textarea", "input", "dropdown", "checkboxes"}


def test_the_bug_form_lists_the_exit_codes() -> None:
    form = parsed(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")
    (options,) = [
        each["attributes"]["options"] for each in form["body"] if each.get("id") == "exit-code"
    ]
    page = (REPOSITORY / "docs" / "exit-codes.md").read_text("utf-8")
    documented = re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)
    interrupted = {"130"}  # requested by the user, not a bug

    assert set(documented) - interrupted == {
        each.partition(":")[0] for each in options if each[0].isdigit()
    }


def test_the_hook_lints_only_staged_files(
    tmp_path: Path,
) -> None:
    (hook,) = parsed(REPOSITORY / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ruff").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin" / "ruff").chmod(0o755)
    for installer in ("pip", "uv"):
        (tmp_path / "bin" / installer).touch()  # otherwise make creates the environment
    venv = f"VENV={tmp_path}"
    # A make below a make would print its folder.
    quiet = ("make", "--no-print-directory", "--eval")
    key = run(*quiet, "key: ; @echo $(LIGHT)", venv, "key").stdout.strip()
    Path(key).touch()

    flags = f"--no-print-directory -- {venv}"
    done = run(*shlex.split(hook["entry"]), "a/b.py", "c.py", MAKEFLAGS=flags)

    assert (done.returncode, done.stderr) == (0, "")
    checks = [line.split()[0] for line in done.stdout.splitlines()]
    assert checks == ["check", "format"]
    assert all(line.endswith(" --force-exclude a/b.py c.py") for line in done.stdout.splitlines())


def test_the_citation_names_version_and_release_date() -> None:
    cited = parsed(REPOSITORY / "CITATION.cff")
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    (version, day), *older = re.findall(r"^## (\S+), (.+)$", changelog, re.MULTILINE)

    assert cited["version"] == imagenet_prep.__version__ == version
    assert str(cited.get("date-released", "not published yet")) == day
    assert [each for each in older if not re.fullmatch(r"\d{4}-\d\d-\d\d", each[1])] == []


def test_each_part_of_long_tests_runs_nightly() -> None:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    (parts,) = re.findall(r"^PARTS := (.+)$", makefile, re.MULTILINE)
    jobs = parsed(GITHUB / "workflows" / "nightly.yml")["jobs"]

    assert jobs["long"]["strategy"]["matrix"]["part"] == parts.split()
