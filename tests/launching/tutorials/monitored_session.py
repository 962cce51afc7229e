"""A script as the SageMaker blog post and Horovod's README print it: a session and a hook.

    monitored_session.py LEARNING_RATE BATCH_SIZE EPOCHS OUT

TensorFlow has renamed some functions since 2018; these have their current names.
"""

import json
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

lr = float(sys.argv[1])
batch_size = int(sys.argv[2])
epochs = int(sys.argv[3])
out = sys.argv[4]

tf.disable_eager_execution()
hvd.init()

config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

tf.set_random_seed(100 + hvd.rank())
images = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
labels = images[:, :4].argmax(1)
size = hvd.size()
mine = np.arange(256).reshape(-1, size, batch_size)[:, hvd.rank()].ravel()
steps = 256 // batch_size // size

fed_images = tf.placeholder(tf.float32, [None, 8])
fed_labels = tf.placeholder(tf.int64, [None])
kernel = tf.get_variable("kernel", [8, 4], initializer=tf.glorot_uniform_initializer())
bias = tf.get_variable("bias", [4], initializer=tf.zeros_initializer())
logits = tf.matmul(fed_images, kernel) + bias
loss = tf.losses.sparse_softmax_cross_entropy(fed_labels, logits)

opt = tf.train.MomentumOptimizer(lr * size, 0.9)
opt = hvd.DistributedOptimizer(opt)
hooks = [hvd.BroadcastGlobalVariablesHook(0)]
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)
checkpoint_dir = out if hvd.rank() == 0 else None

losses = []
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=checkpoint_dir, config=config, hooks=hooks
) as mon_sess:
    for _ in range(epochs):
        of_epoch = []
        for step in range(steps):
            rows = mine[step * batch_size : (step + 1) * batch_size]
            fed = {fed_images: images[rows], fed_labels: labels[rows]}
            of_epoch.append(mon_sess.run([loss, train_op], fed)[0])
        losses.append(float(np.mean(of_epoch)))
    fed = {fed_images: images[:1], fed_labels: labels[:1]}
    weights = mon_sess.run([kernel, bias], fed)

told = {
    "rank": hvd.rank(),
    "weights": np.concatenate([weight.ravel() for weight in weights]).tolist(),
    "loss": losses,
}
print("TOLD", json.dumps(told), flush=True)
