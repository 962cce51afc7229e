#!/bin/sh
# Measures the speed at which N GPUs train ResNet-50 on random images, as train_synthetic.sh of AWS's tutorial of 2018 did:
#
#   sh examples/train_synthetic.sh 32
#
# N is 8 by default. The script trains for 1,000 steps of 256 images per GPU and needs no dataset. It uses the hosts of the file `hosts` in
# the current folder, or this machine if there is no such file; examples/hosts is the tutorial's file for one machine. Further arguments are
# flags of `imagenet-prep train`, which override the flags of this script, e.g. --num-batches 200.
set -eu

ranks=8
case ${1:--} in
    -*) ;;
    *) ranks=$1 && shift ;;
esac
set -- --synthetic --recipe tutorial --log-dir runs/synthetic --clear-log --batch-size 256 --num-batches 1000 --lr 6.4 --warmup-epochs 0 \
    --display-every 100 "$@"
if [ -f hosts ]; then
    exec imagenet-prep launch -np "$ranks" --hosts hosts -- train "$@"
fi
exec imagenet-prep launch -np "$ranks" -- train "$@"
