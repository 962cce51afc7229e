#!/bin/sh
# Measures how fast N GPUs train ResNet-50 on random images, as train_synthetic.sh of AWS's tutorial of 2018 did:
#
#   sh examples/train_synthetic.sh 32
#
# It runs on the hosts of the file `hosts` in the current folder, and without one on this machine. It needs no data
# set. What follows N are more flags of `imagenet-prep train`.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: sh $0 N [flags of imagenet-prep train]; N is the number of GPUs" >&2
    exit 2
fi
ranks=$1
shift
if [ -f hosts ]; then
    exec imagenet-prep launch -np "$ranks" --hosts hosts -- train --synthetic --recipe tutorial --clear-log "$@"
fi
exec imagenet-prep launch -np "$ranks" -- train --synthetic --recipe tutorial --clear-log "$@"
