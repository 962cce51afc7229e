"""`python -m imagenet_prep.engine.pool`: Beam's worker pool, for this machine only.

With `--environment_type=EXTERNAL`, a Flink TaskManager requests Python workers from the pool on its
machine. A request contains a command line, so every client can run code as the pool's user. Beam's
own pool listens on all addresses. This pool listens only on the loopback address; as with Flink's
own ports, users of the machine need no password. Workers run with the pool's Python, regardless of
PATH, and import no modules from their current folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The port in the documentation and container images: --environment_config=localhost:50000.
_PORT = 50_000
_ADDRESS = "127.0.0.1"


def serve(port: int, container_executable: str | None) -> None:
    """Serves requests on a loopback port (0: any free port) until SIGTERM or SIGINT."""
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2_grpc as api
    from apache_beam.runners.worker import worker_pool_main
    from apache_beam.utils import thread_pool_executor

    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONUTF8"] = "1"  # names of files are UTF-8, whatever the locale of this machine
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # These options are the same as in Beam's own pool, because clients ping often.
    options = [("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]
    options.append(("grpc.so_reuseport", 0))
    server = grpc.server(thread_pool_executor.shared_unbounded_instance(), options=options)
    pool = _pool_class()(
        use_process=True, container_executable=container_executable, data_buffer_time_limit_ms=-1
    )
    api.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        port = server.add_insecure_port(f"{_ADDRESS}:{port}")
    except RuntimeError as error:
        raise OSError(f"{_ADDRESS}:{port}: {error}") from error
    # Python may run a signal handler late if the signal arrives just before a wait for a lock. The
    # wakeup socket is readable at once.
    signalled, on_signal = socket.socketpair()
    on_signal.setblocking(False)
    signal.set_wakeup_fd(on_signal.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.start()
    print(f"listening for requests to start workers on {_ADDRESS}:{port}", flush=True)
    signalled.recv(1)
    server.stop(0).wait()
    for worker in pool._worker_processes.values():
        worker_pool_main.kill_process_gracefully(worker)


def _pool_class() -> Any:
    from apache_beam.portability.api import beam_fn_api_pb2 as messages
    from apache_beam.runners.worker import worker_pool_main

    class Pool(worker_pool_main.BeamFnExternalWorkerPoolServicer):
        """Beam's pool, for several TaskManagers at a time.

        Every TaskManager names its first worker 1-1, and Beam's pool knows workers only by name. A
        TaskManager could thus stop the worker of a second TaskManager, which would wait forever.
        """

        lock = threading.Lock()

        def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
            with self.lock:
                answer = super().StartWorker(request, context)
                workers, name = self._worker_processes, request.worker_id
                if name in workers:
                    workers[f"{context.peer()} {name}"] = workers.pop(name)
            return answer

        def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
            name = f"{context.peer()} {request.worker_id}"
            return super().StopWorker(messages.StopWorkerRequest(worker_id=name), context)

    return Pool


def main(argv: Sequence[str]) -> int:
    """Runs the pool; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m imagenet_prep.engine.pool",
        description="Beam's worker pool on the loopback address, for --environment_type=EXTERNAL.",
    )
    parser.add_argument("--port", type=int, default=_PORT, help="default: %(default)s")
    parser.add_argument("--container_executable", help="path of Beam's boot program in a container")
    flags = parser.parse_args(argv)
    try:
        serve(flags.port, flags.container_executable)
    except OSError as error:
        print(f"imagenet-prep: {error}. Choose a different --port.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
