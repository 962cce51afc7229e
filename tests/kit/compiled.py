"""Bytecode that all workers and commands import, made once before they start."""

from __future__ import annotations

import compileall
import os
import re
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.kit.command import REPOSITORY

# pytest keeps bytecode of its own for these, with rewritten asserts.
_REWRITTEN = re.compile(r"/(test_\w+|conftest)\.py$")


def compile_all(config: pytest.Config) -> None:
    """Compiles the modules of the checkout; before a complete run also rewrites the asserts.

    Workers start at the same time: each would rewrite all asserts, which takes 9 s. They read the
    bytecode, and write it if a module has changed, whatever the environment says.
    """
    for folder in ("imagenet_prep", "pipelines", "tests"):
        compileall.compile_dir(REPOSITORY / folder, quiet=1, rx=_REWRITTEN)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        for path in (REPOSITORY / "tests").rglob("*.py"):
            if _REWRITTEN.search(str(path)):
                _rewrite(path, config)


def _rewrite(path: Path, config: pytest.Config) -> None:
    """Writes the bytecode of a module with rewritten asserts if there is none or an older one."""
    cache = rewrite.get_cache_dir(path)
    compiled = cache / f"{path.stem}{rewrite.PYC_TAIL}"
    if not compiled.exists() or compiled.stat().st_mtime <= path.stat().st_mtime:
        cache.mkdir(exist_ok=True)
        source_hash, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, compiled)
