#!/bin/sh
# The entry point of the beam image. The default argument `--worker_pool` starts our pool of workers,
# which only listens on loopback. Beam's pool would listen on all addresses and run code for every
# client. Dataflow and the pool pass different arguments, which are for Beam's boot program.
set -eu
boot=/opt/apache/beam/boot
if [ "${1-}" = --worker_pool ]; then
  exec python -P -m imagenet_prep.engine.pool --container_executable="$boot"
fi
exec "$boot" "$@"
