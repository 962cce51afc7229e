"""The skeleton of the article on MXNet with Horovod, in its order and with its calls.

mxnet_skeleton.py LEARNING_RATE BATCH_SIZE EPOCHS OUT
"""

import json
import sys

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

lr = float(sys.argv[1])
batch_size = int(sys.argv[2])
epochs = int(sys.argv[3])
out = sys.argv[4]

# Initialise Horovod.
hvd.init()

# One GPU per process.
context = mx.gpu(hvd.local_rank()) if mx.context.num_gpus() else mx.cpu(hvd.local_rank())
num_workers = hvd.size()

images = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
labels = images[:, :4].argmax(1)
mine = np.arange(256).reshape(-1, num_workers, batch_size)[:, hvd.rank()].ravel()

# Build the model.
mx.random.seed(100 + hvd.rank())
model = gluon.nn.HybridSequential()
model.add(gluon.nn.Dense(16, in_units=8, activation="tanh"), gluon.nn.Dense(4, in_units=16))
model.initialize(mx.init.Xavier(), ctx=context)
model.hybridize()

# Create the optimizer, and wrap it.
optimizer_params = {"learning_rate": lr * num_workers, "momentum": 0.9, "wd": 1e-4}
opt = mx.optimizer.create("sgd", **optimizer_params)
opt = hvd.DistributedOptimizer(opt)

# Fetch the parameters, and send rank 0's.
params = model.collect_params()
if params is not None:
    hvd.broadcast_parameters(params, root_rank=0)

# Create trainer and loss function.
trainer = gluon.Trainer(params, opt, kvstore=None)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

losses = []
for _ in range(epochs):
    of_epoch = []
    for begin in range(0, len(mine), batch_size):
        rows = mine[begin : begin + batch_size]
        data = mx.nd.array(images[rows], ctx=context)
        label = mx.nd.array(labels[rows], ctx=context)
        with autograd.record():
            output = model(data)
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(batch_size)
        of_epoch.append(float(loss.mean().asscalar()))
    losses.append(float(np.mean(of_epoch)))

weights = [parameter.data().asnumpy().ravel() for parameter in params.values()]
told = {"rank": hvd.rank(), "weights": np.concatenate(weights).tolist(), "loss": losses}
print("TOLD", json.dumps(told), flush=True)
mx.nd.waitall()
hvd.shutdown()
