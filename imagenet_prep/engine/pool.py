"""`python -m imagenet_prep.engine.pool`: Beam's worker pool, only for this machine.

A Flink TaskManager asks the pool next to it to start Python workers
(`--environment_type=EXTERNAL`). A request is a command line, and Beam's own pool listens on all
addresses, so any client can run code as its user. This pool listens on loopback: only users of
this machine can connect, without a password, as with Flink's own ports. It always starts its own
Python, regardless of PATH, and workers import no modules from their current folder.
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

# The port in docs and images: --environment_config=localhost:50000.
_PORT = 50_000
_ADDRESS = "127.0.0.1"


def serve(port: int, container_executable: str | None) -> None:
    """Starts workers on request, on a loopback port (0: a free one), until SIGTERM or SIGINT."""
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2_grpc as api
    from apache_beam.runners.worker import worker_pool_main
    from apache_beam.utils import thread_pool_executor

    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # Same as in Beam's own pool: its clients ping often.
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
    # Python may handle a signal late if it arrives just before a lock wait; a socket is never late.
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

        Each TaskManager numbers its workers from 1-1, and Beam's pool only uses this name. So a
        finished TaskManager stopped the worker of a different one, which then waited forever.
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
    parser.add_argument("--container_executable", help="Beam's boot program in its Docker images")
    flags = parser.parse_args(argv)
    try:
        serve(flags.port, flags.container_executable)
    except OSError as error:
        print(f"imagenet-prep: {error}. Choose a different --port.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
