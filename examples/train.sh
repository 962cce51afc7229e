#!/bin/sh
# Trains ResNet-50 on N GPUs by the recipe of AWS's tutorial of 2018, as its train.sh did:
#
#   sh examples/train.sh 32
#
# N is 8 by default. It trains on the hosts of the file `hosts` in the current folder, and without one on this machine; the file
# examples/hosts is the tutorial's for one machine. The dataset is in DATA_DIR, by default /data/imagenet-480; the tutorial's folder is
# DATA_DIR=~/data/tf-imagenet. Further words are flags of `imagenet-prep train`, which go before those of this script.
set -eu

ranks=8
case ${1:--} in
    -*) ;;
    *) ranks=$1 && shift ;;
esac
if [ -f hosts ]; then
    set -- --hosts hosts -- train --data-dir "${DATA_DIR:-/data/imagenet-480}" --recipe tutorial "$@"
else
    set -- -- train --data-dir "${DATA_DIR:-/data/imagenet-480}" --recipe tutorial "$@"
fi
exec imagenet-prep launch -np "$ranks" "$@"
