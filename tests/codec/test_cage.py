"""The cage: equal results, and every image that exceeds a limit becomes one bad image."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import cage, damage, decoding, likeness, planes, transform
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from tests.kit import command
from tests.kit.codec import corpus, costs, frames
from tests.kit.codec.calls import CALLS
from tests.kit.hostile import images
from tests.kit.hostile.bombs import bmp, gif
from tests.kit.messages import says

_POLICY = Policy(32)
SOF0 = 0xC0
SOF1 = 0xC1


def _encoded(pixels: np.ndarray, name: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, name)
    return buffer.getvalue()


_PIXELS = corpus.photograph(45, 60)
_JPEG = corpus.files()["96x128 420"]
PNG = _encoded(_PIXELS, "PNG")
FILES = {
    **corpus.files(),
    **{name: _encoded(_PIXELS, name) for name in ("PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF")},
    "empty": b"",
    "text": b"no image",
    "truncated JPEG": _JPEG[: len(_JPEG) // 2],
    "truncated PNG": PNG[: len(PNG) // 2],
}


@pytest.fixture(autouse=True)
def inside() -> None:
    """These tests call from outside of the cage, as programs do."""


def _result(call: Callable[[bytes], object], data: bytes) -> object:
    try:
        made = call(data)
    except BadImageError as error:
        return error.reason, error.detail
    return made.tobytes() if hasattr(made, "tobytes") else made


@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_same_inside_and_outside(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CALLS[name]
    outside = {file: _result(call, data) for file, data in FILES.items()}
    monkeypatch.setattr(cage, "_is_inside", True)
    within = {file: _result(call, data) for file, data in FILES.items()}

    assert [file for file in FILES if outside[file] != within[file]] == []


@pytest.mark.parametrize("name", CALLS)
def test_only_our_decoder_decodes_outside_the_cage(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow and libjpeg would decode here, in the process of the user."""
    used = []

    def note(*_: object, **__: object) -> None:
        used.append("Pillow")
        raise ValueError

    monkeypatch.setattr(Image, "open", note)
    ours = planes.workspace(jpeg=planes.ONLY_OWN)
    # `prove` and `opened` only use decoder.c.
    reads = ("header", "pixels", "read_through")
    for method in ("shrink", "decode", "decode_many", "means", "warnings", *reads):
        decode = getattr(planes.Workspace, method)

        def watched(space: planes.Workspace, *values: Any, decode: Any = decode) -> Any:
            if space is not ours:
                used.append("libjpeg")
            return decode(space, *values)

        monkeypatch.setattr(planes.Workspace, method, watched)
    for data in (FILES | frames.files()).values():
        _result(CALLS[name], data)

    assert used == []


def takes(ours: planes.Workspace, data: bytes) -> bool:
    """Returns whether decoder.c accepts an image."""
    with contextlib.suppress(cage.OutsideError):
        if ours.header(data) is not None:
            return True
    return ours.prove(data)


def test_our_decoder_only_accepts_sequential_jpegs() -> None:
    """Of all JPEGs of these tests, and no other format."""
    ours = planes.workspace(jpeg=planes.ONLY_OWN)
    markers = set()
    for data in (FILES | frames.files()).values():
        if takes(ours, data):
            frame = jpeg.refuse_bombs(data)
            assert frame is not None
            markers.add(frame.marker)

    assert markers == {SOF0, SOF1}


@pytest.mark.parametrize("width", [4_000_000, 64_000_000])
def test_excessive_memory_makes_one_bad_image(width: int) -> None:
    with pytest.raises(BadImageError) as caught:
        transform.transform(bmp.delta(width), _POLICY)

    assert caught.value.reason == cage.TOO_EXPENSIVE
    assert transform.transform(PNG, _POLICY).repair == "png"


@pytest.mark.slow  # it uses the processor up to the limit
def test_excessive_time_makes_one_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cage, "MOST_CPU_S", 1)

    with pytest.raises(BadImageError) as caught:
        transform.transform(gif.comment_of_blocks(30_000_000), _POLICY)

    assert caught.value.reason == cage.TOO_EXPENSIVE
    assert says("needs-more-s-processor-time", "1").search(caught.value.detail)
    assert transform.transform(PNG, _POLICY).repair == "png"


def test_all_tries_of_an_image_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that has used 100 s gets 10 s more; the second try gets the rest of the first."""
    times = itertools.count(100.25, 0.5)
    limit = cage._Child._limit_cpu
    given = []
    limits = []

    def limited(child: cage._Child, more_s: float) -> float:
        given.append(more_s)
        used_s = limit(child, more_s)
        limits.append(resource.prlimit(child._process.pid, resource.RLIMIT_CPU)[0])
        return used_s

    monkeypatch.setattr(cage._Child, "_used_s", lambda _: next(times))
    monkeypatch.setattr(cage._Child, "_limit_cpu", limited)

    with pytest.raises(BadImageError, match="undecodable"):
        decoding.pixels(PNG[: len(PNG) // 2])
    assert given == [10, 9.5]
    assert limits == [111, 111]


def test_small_image_gets_little_memory() -> None:
    decoding.pixels(PNG)
    child = cage._idle[-1]
    limits = resource.prlimit(child._process.pid, resource.RLIMIT_AS)

    assert limits[0] - child._base_bytes == cage.LIGHT_BYTES
    assert limits[1] - child._base_bytes == cage.HEAVY_BYTES


def test_dead_child_is_replaced() -> None:
    decoding.pixels(PNG)
    (child,) = cage._idle[-1:]
    os.kill(child._process.pid, signal.SIGKILL)

    assert decoding.pixels(PNG).shape[2] == 3
    assert child not in cage._idle


def test_decoder_that_always_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write = cage._Child._write

    def dies(child: cage._Child, values: object, data: bytes) -> None:
        os.kill(child._process.pid, signal.SIGSEGV)
        write(child, values, data)

    limit = cage._Child._limit_cpu
    given = []

    def limited(child: cage._Child, more_s: float) -> float:
        given.append(more_s)
        return limit(child, more_s)

    monkeypatch.setattr(cage._Child, "_write", dies)
    monkeypatch.setattr(cage._Child, "_limit_cpu", limited)

    with pytest.raises(BadImageError, match=says("decoder-ended-exit-code", "-11")) as caught:
        decoding.pixels(PNG)
    assert caught.value.reason == cage.DECODER_DIED
    assert given == [cage.MOST_CPU_S] * 2


def test_image_that_needs_much_memory_takes_a_turn(
    taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    png = _encoded(np.zeros((2000, 2000, 3), np.uint8), "PNG")
    assert transform.transform(png, _POLICY).repair == "png"
    assert taken == []
    # A new child does not know this limit, and does not request the turn by itself.
    monkeypatch.setattr(cage, "_idle", [])
    monkeypatch.setattr(cage, "LIGHT_BYTES", 8 << 20)
    assert transform.transform(png, _POLICY).repair == "png"
    assert taken == [True]
    cage._close_children()


_WRONG_PIXELS = [
    *[([2, -1], data) for data in (b"", b"x", bytes(7))],
    *[(size, b"") for size in ([0, 0], [2, -1], [1, 1])],
    *[(values, b"") for values in ([1], ["x", 2], {"a": 1}, None, [1 << 70, 1])],
]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *[(decoding.pixels, cage.Message(cage.RESULT, *wrong)) for wrong in _WRONG_PIXELS],
        *[
            (likeness.means, cage.Message(cage.RESULT, True, data))
            for data in (b"", b"x", bytes(7))
        ],
        (decoding.pixels, cage.Message(cage.BAD, [1, 2, 3], b"")),
    ],
)
def test_wrong_message_of_child_is_a_bad_image(
    call: Callable[[bytes], object], message: cage.Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cage._Child, "ask", lambda *_, **__: message)

    with pytest.raises(BadImageError) as caught:
        call(PNG)
    assert caught.value.reason == cage.DECODER_DIED


class Claims:
    """A pipe in which a child announces sizes, and then sends some bytes."""

    def __init__(self, text_bytes: int, data_bytes: int, sent: bytes) -> None:
        self._rest = struct.pack("<IQ", text_bytes, data_bytes) + sent

    def read(self, size: int) -> bytes:
        part = self._rest[:size]
        self._rest = self._rest[size:]
        return part


@pytest.mark.parametrize(
    ("text_bytes", "data_bytes", "sent", "is_read"),
    [
        (4, 8, b"trueDATADATA", True),
        (4, 0, b"true", True),
        (4, 9, b"trueDATADATA!", False),
        (5, 8, b"falseDATADATA", False),
        (4, 1 << 60, b"trueDATADATA", False),
        (4, 8, b"trueDATADAT", False),
        (4, 8, b"tru", False),
        (4, 8, b"", False),
    ],
)
def test_children_announce_sizes_within_bounds(
    monkeypatch: pytest.MonkeyPatch, text_bytes: int, data_bytes: int, sent: bytes, is_read: bool
) -> None:
    """A child that an image has taken over could fill the memory of this process."""
    monkeypatch.setattr(cage, "_MOST_TEXT_BYTES", 4)
    monkeypatch.setattr(cage, "_MOST_BYTES", 8)
    pipe = Claims(text_bytes, data_bytes, sent)
    if is_read:
        assert cage.read(pipe) == (True, sent[4:])
        return
    with pytest.raises(EOFError):
        cage.read(pipe)


def test_threads_get_their_own_results() -> None:
    pictures = [np.full((9, 7, 3), level, np.uint8) for level in range(0, 240, 10)]
    encoded = [_encoded(picture, "PNG") for picture in pictures]

    with futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(decoding.pixels, encoded * 3))

    assert all(np.array_equal(a, b) for a, b in zip(found, pictures * 3, strict=True))


def test_heaviest_image_is_decoded_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is free afterwards."""
    monkeypatch.setattr(cage, "_idle", [])

    transform.transform(images.heavy_webp(), _POLICY)
    (child,) = cage._idle
    peak = costs.kilobytes(child, "VmHWM")
    now = costs.kilobytes(child, "VmRSS")
    child.close()

    assert 700_000 < peak < 1_000_000
    assert now < 150_000


def test_large_image_is_decoded_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child requests the turn before it decodes, because it knows the size."""
    ask = cage._Child.ask
    asked = []

    def noted(child: cage._Child, function: str, *arguments: Any) -> cage.Message:
        asked.append(function)
        return ask(child, function, *arguments)

    monkeypatch.setattr(cage._Child, "ask", noted)
    transform.transform(_encoded(np.zeros((4200, 4200, 3), np.uint8), "PNG"), _POLICY)
    with pytest.raises(BadImageError, match="truncated"):
        transform.transform(FILES["truncated JPEG"], _POLICY)

    assert asked == ["transform"] * 2


def test_forked_process_starts_its_own_children() -> None:
    decoding.pixels(PNG)
    process = os.fork()
    if not process:
        shape = (0,)
        is_new = not cage._idle
        with contextlib.suppress(BaseException):
            shape = decoding.pixels(PNG).shape
            cage._close_children()
        os._exit(0 if is_new and len(shape) == 3 else 1)
    _, status = os.waitpid(process, 0)

    assert status == 0
    assert decoding.pixels(PNG).shape[2] == 3


def test_jpeg_repair_is_decided_in_the_cage() -> None:
    frame = jpeg.refuse_bombs(_JPEG)
    assert frame is not None
    with pytest.raises(cage.OutsideError):
        damage.repaired(_JPEG, frame)


def test_decoding_child_ends_if_its_parent_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "comment.gif"
    path.write_bytes(gif.comment_of_blocks(30_000_000))
    code = textwrap.dedent(
        """
        import sys, threading, time
        from pathlib import Path
        from imagenet_prep.codec import cage, decoding

        # The image takes two minutes of processor time: the child does not end by itself.
        cage.MOST_CPU_S = 3600
        data = Path(sys.argv[1]).read_bytes()
        with cage._borrowed() as child:
            before_s = child._used_s()
        thread = threading.Thread(target=decoding.pixels, args=(data,), daemon=True)
        thread.start()
        while thread.is_alive() and child._used_s() < before_s + 0.5:
            time.sleep(0.01)
        print(child._process.pid, flush=True)
        time.sleep(1000)
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=command.environment(),
    )
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()

    ended = select.poll()
    ended.register(child, select.POLLIN)
    assert ended.poll(60_000), "the decoder still runs"
    os.close(child)


def _varied_files() -> dict[str, bytes]:
    """Returns files for which Pillow needs other modules than for those of `FILES`."""
    picture = Image.fromarray(_PIXELS)
    cmyk = picture.convert("CMYK")
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "MPO": (cmyk, {"save_all": True, "append_images": [cmyk]}),
        "PNG": (picture.quantize(8), {"transparency": 3}),
        "GIF": (picture.quantize(8), {"save_all": True, "append_images": [picture.quantize(8)]}),
        "WEBP": (picture, {"lossless": True}),
        "TIFF": (cmyk, {"compression": "tiff_lzw"}),
        "JPEG": (cmyk, {"progressive": True}),
    }
    made = {}
    for name, (image, options) in kinds.items():
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        made[f"other {name}"] = buffer.getvalue()
    return made


def test_decoding_imports_nothing_in_the_cage(tmp_path: Path) -> None:
    files = FILES | _varied_files()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    code = textwrap.dedent(
        """
        import contextlib, pathlib, sys
        from imagenet_prep.codec import cage, caged, transform
        from imagenet_prep.codec.policy import Policy
        from imagenet_prep.core.errors import BadImageError

        cage.enter()
        files = [(path.name, path.read_bytes()) for path in pathlib.Path(sys.argv[1]).iterdir()]
        caged._load_decoders()
        for name, data in files:
            before = set(sys.modules)
            with contextlib.suppress(BadImageError):
                transform.transform(data, Policy(32))
            print(name, *sorted(set(sys.modules) - before), sep=",")
        """
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert sorted(printed.splitlines()) == sorted(files)


def test_child_sees_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(cage, "_idle", [])

    decoding.pixels(PNG)
    (child,) = cage._idle
    environment = Path(f"/proc/{child._process.pid}/environ").read_bytes()

    assert b"secret" not in environment
    child.close()


def test_child_is_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cage, "_idle", [])

    missing = cage.missing_means()
    (child,) = cage._idle
    status = Path(f"/proc/{child._process.pid}/status").read_text()
    # No byte in a file, and no file with the memory of a decoder that has crashed.
    kinds = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
    limits = [resource.prlimit(child._process.pid, kind) for kind in kinds]
    child.close()

    assert limits == [(0, 0), (0, 0)]
    assert "NoNewPrivs:\t1\n" in status
    assert ("Seccomp:\t2\n" in status) == ("seccomp" not in missing)


@pytest.mark.parametrize("lacked", ["landlock", "seccomp"])
def test_child_reports_means_that_the_kernel_lacks(lacked: str) -> None:
    program = (
        "from imagenet_prep.codec import caged\nfrom imagenet_prep.core import confinement\n"
        f"confinement._{lacked} = lambda libc: False\ncaged.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        env=command.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        (kind, (_, missing)), _ = cage.read(child.stdout)

    assert kind == cage.READY
    assert lacked in missing


def test_confined_process_has_no_rights(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("private")
    code = textwrap.dedent(
        """
        import os, signal, socket, sys, threading
        from imagenet_prep.core import confinement

        path = sys.argv[1]
        tries = {
            "read": lambda: open(path),
            "write": lambda: open(path + "2", "w"),
            "remove": lambda: os.unlink(path),
            "rename": lambda: os.rename(path, path + "3"),
            "list": lambda: os.listdir("/"),
            "socket": socket.socket,
            "pair": socket.socketpair,
            "fork": os.fork,
            "program": lambda: os.execv("/bin/true", ["true"]),
            "signal": lambda: os.kill(os.getppid(), 0),
            "signal to a thread": lambda: signal.pthread_kill(threading.get_ident(), 0),
            "priority": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
            "processors": lambda: os.sched_setaffinity(os.getppid(), {0}),
        }
        missing = confinement.confine()
        allowed = []
        for name, call in tries.items():
            try:
                call()
                allowed.append(name)
            except PermissionError:
                pass
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        os.write(1, repr((missing, allowed)).encode())
        """
    )
    # Standard output must be a pipe, because the process cannot write to files.
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        capture_output=True,
        env=command.environment(OPENBLAS_NUM_THREADS="1"),
        timeout=command.PATIENCE_S,
    )
    missing, allowed = ast.literal_eval(done.stdout.decode())

    if missing:
        pytest.skip(f"this kernel lacks {missing}")
    assert allowed == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("unused", "attempt"),
    [
        ("_seccomp", "open(path)"),
        ("_seccomp", "os.unlink(path)"),
        ("_landlock", "open(path)"),
        ("_landlock", "socket.socket()"),
    ],
)
def test_each_means_forbids_without_the_other(unused: str, attempt: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("private")
    code = textwrap.dedent(
        f"""
        import os, socket, sys
        from imagenet_prep.core import confinement

        path = sys.argv[1]
        confinement.{unused} = lambda libc: True
        missing = confinement.confine()
        try:
            {attempt}
        except PermissionError:
            print("missing" if missing else "forbidden")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=command.environment(OPENBLAS_NUM_THREADS="1"),
        timeout=command.PATIENCE_S,
    )

    if done.stdout == "missing\n":
        pytest.skip("this kernel lacks the other means")
    assert done.stdout == "forbidden\n"


def test_confined_process_writes_no_byte_to_open_files(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import os, signal, sys
        from imagenet_prep.core import confinement

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
        confinement.confine()
        try:
            os.write(file, b"x")
        except OSError:
            os.write(1, b"forbidden")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        stdout=subprocess.PIPE,
        env=command.environment(OPENBLAS_NUM_THREADS="1"),
        timeout=command.PATIENCE_S,
    )

    assert done.stdout == b"forbidden"
    assert (tmp_path / "file").read_bytes() == b""
