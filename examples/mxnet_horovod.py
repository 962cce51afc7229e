"""Trains with MXNet's Gluon and Horovod on any number of ranks, as the script of AWS's article.

imagenet-prep launch -np 2 -- python examples/mxnet_horovod.py --data-dir /data/set
"""

import argparse
import json

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import autograd, gluon, nd

from imagenet_prep.read import make_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--image-size", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=0.02)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", default="model.params")
flags = parser.parse_args()

hvd.init()
context = mx.gpu(hvd.local_rank()) if mx.context.num_gpus() else mx.cpu()
mx.random.seed(0)


def reader(split):
    """Returns this rank's batches of a split; the rank comes from the environment."""
    return make_dataset(
        flags.data_dir,
        split,
        flags.batch_size,
        flags.image_size,
        backend="native",
        framework="numpy",
        layout="NCHW",
    )


def arrays(batch):
    """Returns images, labels and mask of a batch."""
    return [nd.array(batch[name], ctx=context) for name in ("images", "class_index", "mask")]


train = reader("train")
validation = reader("validation")
network = gluon.nn.HybridSequential()
network.add(
    gluon.nn.Conv2D(16, 3, strides=2, activation="relu"),
    gluon.nn.Conv2D(32, 3, strides=2, activation="relu"),
    gluon.nn.GlobalAvgPool2D(),
    gluon.nn.Dense(train.num_classes),
)
# Infer shapes without a forward pass: it would give the weights a layout that Horovod cannot read.
network.infer_shape(nd.zeros((1, 3, flags.image_size, flags.image_size)))
network.initialize(mx.init.Xavier(), ctx=context)
network.hybridize()
parameters = network.collect_params()
hvd.broadcast_parameters(parameters, root_rank=0)
# DistributedTrainer averages the gradients over ranks, and `step` over the batch. The article's
# DistributedOptimizer in a gluon.Trainer does not average, so its training diverges.
sgd = {"learning_rate": flags.learning_rate * hvd.size(), "momentum": 0.9}
trainer = hvd.DistributedTrainer(parameters, "sgd", sgd)
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(flags.epochs):
    for batch in train:
        images, labels, _ = arrays(batch)
        with autograd.record():
            loss = cross_entropy(network(images), labels)
        loss.backward()
        trainer.step(flags.batch_size)
    counted = nd.zeros(2)
    for batch in validation:
        images, labels, mask = arrays(batch)
        right = (network(images).argmax(axis=1) == labels) * mask
        counted += nd.concat(right.sum(), mask.sum(), dim=0).as_in_context(counted.context)
    counted = hvd.allreduce(counted, average=False, name="counted").asnumpy()
    if hvd.rank() == 0:
        top1 = float(counted[0] / counted[1])
        number = int(counted[1])
        row = {"epoch": epoch, "loss": float(loss.mean().asscalar()), "top1": top1}
        print(json.dumps({**row, "images": number}), flush=True)
if hvd.rank() == 0:
    network.save_parameters(flags.out)
# MXNet computes in the background. If a rank exits before all ranks have finished their work, it
# stops Horovod on every rank, and the ranks print "Horovod has been shut down".
nd.waitall()
hvd.allreduce(nd.zeros(1), name="end").wait_to_read()
hvd.shutdown()
