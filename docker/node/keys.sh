#!/usr/bin/env bash
# Makes the keys of the rehearsal's nodes in /keys, once: keys.sh NODE...
# One host key for all, so that it is known before they boot. For rehearsals only.
set -euo pipefail
umask 077
cd /keys
test -e host || ssh-keygen -q -t ed25519 -N '' -C rehearsal -f host
test -e client || ssh-keygen -q -t ed25519 -N '' -C rehearsal -f client
for node in "$@"; do
  echo "[$node]:2222 $(cut -d ' ' -f 1,2 host.pub)"
done > known_hosts
