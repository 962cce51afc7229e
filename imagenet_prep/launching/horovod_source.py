"""Patches the source of Horovod's last release before it is built."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from imagenet_prep.core.errors import ImagenetPrepError

VERSION = "0.28.1"
# The code that is copied into Horovod.
_KERAS = Path(__file__).with_name("horovod_keras.py")

_IN_PROCESS_SET = "  assert(global_context.IsEnabled());\n"
_INTERFACE = "  gloo_iface_ = global_context.gloo_iface_;\n"
_STREAM = """
#if HAVE_GPU
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
#endif
"""

_SHUTDOWN = '    def shutdown(self):\n        """A function that shuts Horovod down."""\n'
# `comm` with ranks selects some ranks on purpose. Horovod is also used without our package.
_INIT_CHECKS = """\
        if comm:
            return
        try:
            from imagenet_prep.launching.horovod_launcher import refuse_unheard_launcher
        except ImportError:
            return
        try:
            refuse_unheard_launcher(self.size())
        except Exception:
            self.shutdown()
            raise

"""
_KERAS_3 = "    from horovod._keras import keras_3\n"
_OPTIMIZER = "    class _DistributedOptimizer(*optimizer.__class__.__bases__):\n"
_OPTIMIZER_OF_KERAS_3 = """\
    if keras_3.is_keras_3(keras):
        return keras_3.distribute(
            keras, optimizer,
            hvd._make_allreduce_grads_fn(
                name or "Distributed%s" % type(optimizer).__name__, device_dense, device_sparse,
                compression, sparse_as_dense, op, gradient_predivide_factor, groups,
                process_set=process_set),
            backward_passes_per_step)

"""
_LOADING = "    return _impl.load_model("
_LOADING_OF_KERAS_3 = """\
    if keras_3.is_keras_3(keras):
        return keras_3.load_model(
            keras, lambda optimizer: DistributedOptimizer(optimizer, compression=compression),
            filepath, custom_objects)
"""
_CALLBACKS_OF_KERAS_3 = """

from horovod._keras import keras_3

if keras_3.is_keras_3(tf.keras):
    from horovod._keras.keras_3 import (
        BroadcastGlobalVariablesCallbackImpl,
        LearningRateScheduleCallbackImpl,
        LearningRateWarmupCallbackImpl,
        MetricAverageCallbackImpl,
    )
"""
# Horovod 0.18, which the tutorials use, has the optimizer's learning rate as the default.
_WARMUP = "def __init__(self, initial_lr, warmup_epochs=5,"
_WARMUP_BY_DEFAULT = "def __init__(self, initial_lr=None, warmup_epochs=5,"
_TAPE = "            gradients = super(self.__class__, self).gradient(target, sources, "
_TAPE_UNWRAPS = """\
            from horovod._keras import keras_3
            sources = keras_3.unwrapped(sources)
"""
# TensorFlow 2.16 removed tf.estimator, which had this class, too.
_HOOK = "_SessionRunHook = tf.train.SessionRunHook"
_HOOK_OF_V1 = "_SessionRunHook = tf.compat.v1.train.SessionRunHook"
_BROADCAST = "    if inplace:\n        vars_by_device = {}\n        for var in variables:\n"
_BROADCAST_UNWRAPS = "    variables = keras_3.unwrapped(variables)\n"

_MXNET_OPTIMIZER = (
    "    def __getattr__(self, item):\n        return getattr(self._optimizer, item)\n"
)
# MXNet's Trainer sets attributes of its optimizer: `rescale_grad` for the batch size, `param_dict`
# for the factors of weight decay. Only the optimizer inside Horovod's uses them.
_MXNET_FORWARDS = """
    @property
    def rescale_grad(self):
        return self._optimizer.rescale_grad / self._share

    @property
    def _share(self):
        if not self._average_in_framework:
            return 1.0
        return self._gradient_predivide_factor / self._process_set.size()

    def __setattr__(self, name, value):
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name == "rescale_grad":
            self._optimizer.rescale_grad = value * self._share
        else:
            setattr(self._optimizer, name, value)
"""
# DistributedTrainer takes the optimizer out of Horovod's, and then divides by the ranks again.
_MXNET_UNWRAPPING = "            optimizer = optimizer._optimizer\n"
_MXNET_UNSCALING = "            optimizer._optimizer.rescale_grad = optimizer.rescale_grad\n"


def local_version(*, nccl: bool) -> str:
    """Returns the version suffix of a patched Horovod; `launch` compares it between hosts.

    It contains a digest of the patches, so that a wheel with different patches is never reused.
    """
    patches = hashlib.sha256(Path(__file__).read_bytes() + _KERAS.read_bytes())
    variant = ".nccl" if nccl else ""
    return f"patch{patches.hexdigest()[:8]}{variant}"


def mend(source: Path, framework: str) -> None:
    """Changes Horovod's source.

    - Tensors are sent through the interface HOROVOD_GLOO_IFACE. Horovod sends tensors in a process
      set whose `gloo_iface_` is never assigned, so Gloo would use the address of the host's name,
      often 127.0.0.1.
    - The XLA operations, off by default, are removed: TensorFlow's wheels lack their headers.
    - With a GPU, a function that TensorFlow 2.21 has removed is defined again.
    - For MXNet, the symbols of Horovod's and MXNet's libraries become local. MXNet's library
      includes a libjpeg. Pillow and our codec would call it instead of their own, and crash.
    - For PyTorch, Horovod is compiled as C++20 instead of C++14, as PyTorch 2.15's headers require.
      So is the bundled Gloo, since one of its constants would otherwise be defined twice.
    - `hvd.init()` fails if Horovod does not understand the launcher (`horovod_launcher`).
    - `DistributedOptimizer` and the callbacks work with Keras 3 (`horovod_keras`), and Keras 3
      variables can be passed to the gradient tape and to `broadcast_variables`.
      `BroadcastGlobalVariablesHook` works without tf.estimator.
    - MXNet's `DistributedOptimizer` scales gradients by the batch size of `gluon.Trainer`.
    - The build takes a third less time: it creates no debug symbols, which our linker flag -s
      removes, and compiles only one of two copies of Gloo.
    """
    horovod = source / "horovod"
    flags = 'string(REPLACE "{}" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO'
    _replace(source / "CMakeLists.txt", flags.format("-O2"), flags.format("-O2 -g"))
    gloo = "add_subdirectory(third_party/gloo{})"
    _replace(source / "CMakeLists.txt", gloo.format(""), gloo.format(" EXCLUDE_FROM_ALL"))
    context = horovod / "common" / "gloo" / "gloo_context.cc"
    _replace(context, _IN_PROCESS_SET, _IN_PROCESS_SET + _INTERFACE)
    if framework == "mxnet":
        for loader in (horovod / "common" / "basics.py", horovod / "mxnet" / "mpi_ops.py"):
            _replace(loader, "ctypes.RTLD_GLOBAL", "ctypes.RTLD_LOCAL")
    if framework == "pytorch":
        for folder in (source, horovod / "torch"):
            _replace(folder / "CMakeLists.txt", "CXX_STANDARD 14", "CXX_STANDARD 20")
    (horovod / "tensorflow" / "xla_mpi_ops.cc").write_text("", "utf-8")
    _append(horovod / "tensorflow" / "mpi_ops.cc", _STREAM)
    _mend_init(horovod / "common" / "basics.py")
    _mend_keras(horovod)
    _mend_mxnet(horovod / "mxnet" / "__init__.py")


def _mend_init(module: Path) -> None:
    _insert(module, _INIT_CHECKS, _SHUTDOWN)


def _mend_keras(horovod: Path) -> None:
    shutil.copyfile(_KERAS, horovod / "_keras" / "keras_3.py")
    _insert(horovod / "_keras" / "__init__.py", _KERAS_3 + _OPTIMIZER_OF_KERAS_3, _OPTIMIZER)
    _append(horovod / "_keras" / "callbacks.py", _CALLBACKS_OF_KERAS_3)
    for folder in (horovod / "keras", horovod / "tensorflow" / "keras"):
        _insert(folder / "__init__.py", _KERAS_3 + _LOADING_OF_KERAS_3, _LOADING)
        _replace(folder / "callbacks.py", _WARMUP, _WARMUP_BY_DEFAULT)
    _insert(horovod / "tensorflow" / "__init__.py", _TAPE_UNWRAPS, _TAPE)
    _replace(horovod / "tensorflow" / "__init__.py", _HOOK, _HOOK_OF_V1)
    _insert(horovod / "tensorflow" / "functions.py", _KERAS_3 + _BROADCAST_UNWRAPS, _BROADCAST)


def _mend_mxnet(module: Path) -> None:
    _replace(module, _MXNET_OPTIMIZER, _MXNET_OPTIMIZER + _MXNET_FORWARDS)
    _insert(module, _MXNET_UNSCALING, _MXNET_UNWRAPPING)


def _append(path: Path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def _insert(path: Path, text: str, before: str) -> None:
    _replace(path, before, text + before)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    if text.count(old) != 1:
        raise ImagenetPrepError(
            f"{path}: expected {old.strip()!r} once, found it {text.count(old)} times. "
            f"This is not Horovod {VERSION}."
        )
    path.write_text(text.replace(old, new), "utf-8")
