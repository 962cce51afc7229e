"""Makes Python start faster: Python imports this module as it starts.

Keras imports scikit-learn, matplotlib and others if they are installed, for wrappers and plots that
we do not use: a third of TensorFlow's start. It works without them, as on hosts that lack them.

Imported modules never become garbage. Searching it after each 700 new objects, as Python 3.11 does,
is a quarter of the import time of TensorFlow and Airflow.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

_HIDDEN = {"cv2", "matplotlib", "pandas", "scipy", "sklearn"}
_FROM = ("keras.", "tensorflow.python.keras.")


class _NotForKeras(MetaPathFinder):
    """Hides these packages from the modules of Keras, ours or the one within TensorFlow.

    Keras' own dependencies find them: JAX needs SciPy.
    """

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in _HIDDEN:
            importer: FrameType | None = sys._getframe(1)
            while importer and importer.f_globals.get("__name__", "").startswith("importlib"):
                importer = importer.f_back
            if importer and importer.f_globals.get("__name__", "").startswith(_FROM):
                raise ModuleNotFoundError(f"{name} is hidden from Keras", name=name)
        return None


gc.set_threshold(20_000)
sys.meta_path.insert(0, _NotForKeras())
