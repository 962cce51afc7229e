"""Where ranks of several hosts meet without ssh: Horovod's own server, and who each rank is.

What horovodrun does over ssh, for hosts that each start their own ranks.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.core.hosts import Host

# Horovod names ranks that others wait for after the first, and ends the job after the second.
_STALL_WARNING_S, _STALL_TIMEOUT_S = 30, 600
# How long ranks look for each other once all hosts are there, and Gloo waits for a frozen one.
_MEETING_S = 120
_REQUEST_S, _POLL_S = 10.0, 0.5


@contextmanager
def serving(hosts: Sequence[Host], address: str, port: int) -> Iterator[int]:
    """Yields the port of a server at which the ranks of `hosts` meet; 0 takes a free one.

    Raises:
      ImagenetPrepError: Horovod is missing, or the port is taken.
    """
    try:
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise ImagenetPrepError(
            f"several ranks need Horovod: {error}. Run `imagenet-prep install-horovod`."
        ) from error
    try:
        server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
    except OSError as error:
        raise ImagenetPrepError(
            f"{address}:{port}: {error.strerror}: the ranks cannot meet there. "
            "Does another job run on this host?"
        ) from error
    server.init(_plan(hosts))
    thread = threading.Thread(target=server.serve_forever, name="rendezvous", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environments(
    hosts: Sequence[Host], host: str, address: str, port: int, interface: str
) -> list[dict[str, str]]:
    """Returns the variables of each rank of `host`, for Horovod and NCCL.

    Args:
      hosts: all of them, with their ranks as slots, in the same order everywhere.
      host: whose ranks these are.
      address, port: of the server.
      interface: the network interface that all hosts share.
    """
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

    shared = {
        **create_run_env_vars(address, [interface], port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": _MEETING_S,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": _STALL_WARNING_S,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": _STALL_TIMEOUT_S,
    }
    return [
        {name: str(value) for name, value in (shared | create_slot_env_vars(slot)).items()}
        for slot in _plan(hosts)
        if slot.hostname == host
    ]


def exchange(
    about: str, mine: str, hosts: Sequence[Host], host: str, address: str, port: int, limit_s: float
) -> dict[str, str]:
    """Tells all hosts something through the server, and returns what each of `hosts` has told.

    Args:
      about: what is told, a word; once a job.
      mine: what this host tells.
      hosts: who is waited for.
      host, address, port: as for `environments`.
      limit_s: seconds that the others have.

    Raises:
      ImagenetPrepError: some have not come in time; they are named.
    """
    patience = time.monotonic() + limit_s
    told: dict[str, str] = {}
    sent = False
    while True:
        try:
            sent = sent or _ask(address, port, "PUT", f"/{about}/{host}", mine) is not None
            for other in hosts:
                if other.address not in told:
                    answer = _ask(address, port, "GET", f"/{about}/{other.address}")
                    if answer is not None:
                        told[other.address] = answer
        except OSError:  # the first host is not there yet
            pass
        late = [other.address for other in hosts if other.address not in told]
        if sent and not late:
            return told
        if time.monotonic() > patience:
            raise ImagenetPrepError(
                f"{host}: no word from {', '.join(late) or address} in {limit_s:g} s, at "
                f"{address}:{port}. Do the hosts' security groups let them reach each other on "
                "all ports?"
            )
        time.sleep(_POLL_S)


def _ask(address: str, port: int, method: str, path: str, body: str = "") -> str | None:
    """Returns what the server answers; None where it has nothing."""
    connection = http.client.HTTPConnection(address, port, timeout=_REQUEST_S)
    try:
        connection.request(method, path, body.encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        return text if answer.status == 200 else None
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def _plan(hosts: Sequence[Host]) -> list:  # type: ignore[type-arg]
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    ranks = sum(host.slots for host in hosts)
    text = ",".join(f"{host.address}:{host.slots}" for host in hosts)
    return get_host_assignments(parse_hosts(text), ranks)  # type: ignore[no-any-return]
