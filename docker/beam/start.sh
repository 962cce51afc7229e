#!/bin/sh
# The entry point of the beam image. `--worker_pool`, its default, starts the pool of workers on
# loopback: Beam's own would listen at all addresses, and who reaches it runs code as its user.
# Dataflow and the pool pass other arguments, which are for Beam's boot program.
set -eu
boot=/opt/apache/beam/boot
if [ "${1-}" = --worker_pool ]; then
  exec python -P -m imagenet_prep.engine.pool --container_executable="$boot"
fi
exec "$boot" "$@"
