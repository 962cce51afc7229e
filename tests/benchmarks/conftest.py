"""The environment of other projects' readers and decoders, with which benchmarks compare ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import decode, measure, peer_readers


@pytest.fixture(scope="session")
def peers_venv() -> Path:
    """Returns its folder; skips the test if it is missing or incomplete."""
    venv = Path(os.environ.get("PEERS_VENV", "/tmp/peers-venv"))
    python = venv / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {venv}: see benchmarks/README.md")
    packages = {package for peer in peer_readers.PEERS.values() for package in peer.packages}
    packages |= {each.package for each in decode.DECODERS.values() if each.package is not None}
    missing = packages - measure.versions(python, sorted(packages)).keys()
    if missing:
        pytest.skip(f"{venv} lacks {', '.join(sorted(missing))}: see benchmarks/README.md")
    return venv
