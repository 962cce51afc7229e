#!/bin/sh
# Trains ResNet-50 on N GPUs with the recipe of AWS's tutorial of 2018, as the tutorial's train.sh did:
#
#   sh examples/train.sh 32
#
# N is 8 by default. The script trains on the hosts of the file `hosts` in the current folder, or on this machine if there is no such file.
# examples/hosts is the tutorial's file for one machine. The dataset is in DATA_DIR (default: /data/imagenet-480; in the tutorial:
# ~/data/tf-imagenet). Further arguments are flags of `imagenet-prep train`, which override the flags of this script.
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
