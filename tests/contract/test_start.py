"""Modules that tests hide from Keras are hidden only from Keras."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kit import command, layouts

# Keras with JAX below it, which needs SciPy; Keras itself works even if SciPy is missing.
KERAS = b"""\
try:
    import scipy
    hidden = False
except ImportError:
    hidden = True
import jax
"""


def test_modules_hidden_from_keras_stay_importable_elsewhere(tmp_path: Path) -> None:
    for name, text in {"keras/src": KERAS, "jax": b"import scipy\n", "scipy": b""}.items():
        layouts.write(tmp_path / name / "__init__.py", text)
    layouts.write(tmp_path / "keras" / "__init__.py", b"from keras.src import hidden\n")
    path = os.pathsep.join((str(tmp_path), command.environment()["PYTHONPATH"]))
    program = ("-c", "import keras, scipy; print(keras.hidden)")

    with command.started(program=program, env={"PYTHONPATH": path}) as running:
        ended = running.finish()

    assert (ended.code, ended.out) == (0, "True\n"), ended.err
