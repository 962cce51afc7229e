#!/bin/sh
# Measures how fast N GPUs train ResNet-50 on random images, as train_synthetic.sh of AWS's tutorial of 2018 did:
#
#   sh examples/train_synthetic.sh 32
#
# N is 8 by default. It makes 1,000 steps of 256 images a GPU and needs no dataset. It runs on the hosts of the file `hosts` in the current
# folder, and without one on this machine; examples/hosts is the tutorial's for one machine. Further words are flags of `imagenet-prep train`,
# which go before those of this script: --num-batches 200.
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
