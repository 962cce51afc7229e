#!/usr/bin/env bash
# keys.sh NODE...: makes ssh keys for the nodes in /keys, unless they exist. All nodes share one host
# key, so that it is known before they boot. Only use these keys for tests.
set -euo pipefail
umask 077
cd /keys
test -e host || ssh-keygen -q -t ed25519 -N '' -C rehearsal -f host
test -e client || ssh-keygen -q -t ed25519 -N '' -C rehearsal -f client
for node in "$@"; do
  echo "[$node]:2222 $(cut -d ' ' -f 1,2 host.pub)"
done > known_hosts
