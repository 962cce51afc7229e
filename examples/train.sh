#!/bin/sh
# Trains ResNet-50 on N GPUs by the recipe of AWS's tutorial of 2018, as its train.sh did:
#
#   sh examples/train.sh 32
#
# It trains on the hosts of the file `hosts` in the current folder, and without one on this machine. The data set
# lies at DATA_DIR, by default /data/imagenet-480. What follows N are more flags of `imagenet-prep train`.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: sh $0 N [flags of imagenet-prep train]; N is the number of GPUs" >&2
    exit 2
fi
ranks=$1
shift
if [ -f hosts ]; then
    exec imagenet-prep launch -np "$ranks" --hosts hosts -- \
        train --data-dir "${DATA_DIR:-/data/imagenet-480}" --recipe tutorial "$@"
fi
exec imagenet-prep launch -np "$ranks" -- \
    train --data-dir "${DATA_DIR:-/data/imagenet-480}" --recipe tutorial "$@"
