"""Patches the source of Horovod's last release before it is built."""

from __future__ import annotations

from pathlib import Path

from imagenet_prep.core.errors import ImagenetPrepError

VERSION = "0.28.1"
# Version suffix of a patched Horovod; `launch` refuses a host with an unpatched Horovod.
LOCAL_VERSION = "interface"

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


def mend(source: Path, framework: str) -> None:
    """Changes Horovod's source in six places.

    - Tensors are sent through the interface HOROVOD_GLOO_IFACE. Horovod sends tensors in a process
      set whose `gloo_iface_` is never assigned, so Gloo would use the address of the host's name,
      often 127.0.0.1.
    - The XLA operations, off by default, are removed: TensorFlow's wheels lack their headers.
    - With a GPU, a function that TensorFlow 2.21 has removed is defined again.
    - For MXNet, the symbols of Horovod's and MXNet's libraries become local. MXNet's library
      includes a libjpeg. Pillow and our codec would call it instead of their own, and crash.
    - For PyTorch, Horovod is compiled as C++20 instead of C++14, as PyTorch 2.15's headers require.
      So is the bundled Gloo, since one of its constants would otherwise be defined twice.
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
    with open(horovod / "tensorflow" / "mpi_ops.cc", "a", encoding="utf-8") as operations:
        operations.write(_STREAM)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    if text.count(old) != 1:
        raise ImagenetPrepError(
            f"{path}: expected {old.strip()!r} once, found it {text.count(old)} times. "
            f"This is not Horovod {VERSION}."
        )
    path.write_text(text.replace(old, new), "utf-8")
