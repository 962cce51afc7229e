"""The mpirun command line, if Open MPI starts the ranks instead of `launching.host`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from imagenet_prep.hosts.hosts_file import Host
from imagenet_prep.hosts.process import ssh
from imagenet_prep.launching.fit import Network
from imagenet_prep.launching.pipes import through

# The same as in horovodrun: no InfiniBand verbs, and threads may run on all cores.
_FLAGS = ("-mca", "pml", "ob1", "-mca", "btl", "^openib", "-bind-to", "none", "-map-by", "slot")
# By default, hosts would start other hosts by ssh, which needs keys on every host.
_FLAT = ("-mca", "plm_rsh_no_tree_spawn", "true")


def mpirun(
    used: Sequence[Host],
    network: Network,
    variables: Mapping[str, str],
    command: Sequence[str],
    more: Sequence[str] = (),
) -> list[str]:
    """Returns the mpirun command line that starts `command` once per rank.

    It contains only the names of variables; mpirun takes the values from its own environment.
    """
    argv = ["mpirun", "--allow-run-as-root"]
    argv += ["-np", str(sum(host.slots for host in used))]
    argv += ["-H", ",".join(f"{host.address}:{host.slots}" for host in used), *_FLAGS]
    if not all(host.is_local for host in used):
        argv += [*_FLAT, "-mca", "plm_rsh_num_concurrent", str(len(used))]
        # By default, ssh would prompt, or mpirun would accept any host key.
        argv += ["-mca", "plm_rsh_agent", " ".join(ssh())]
        names = set(network.interfaces)
        if len(names) == 1:
            argv += ["-mca", "btl_tcp_if_include", *names]
    for name in sorted(variables):
        argv += ["-x", name]
    return [*argv, *more, *through(command)]
