"""The networks of MXNet: ResNets of Gluon's model zoo, and a small one for demos and tests."""

from __future__ import annotations

from typing import Any


def build(name: str, image_size: int, num_classes: int, context: Any) -> Any:
    """Returns an initialised Gluon network: [batch, 3, size, size] normalised images -> logits.

    Nothing is computed for it. A forward pass, as Gluon's own way to learn the shapes needs one,
    would leave weights in oneDNN's own layout, which Horovod cannot read: it dies of that, at
    random.

    Args:
      name: "resnet18", "resnet34", "resnet50-v1", "resnet101-v1", "resnet152-v1": the zoo's v1;
        "tiny": three convolutions, 24 thousand weights, no batch norm.
      image_size: pixels of a side.
      num_classes: length of a row of logits.
      context: the device.
    """
    import mxnet as mx
    from mxnet.gluon import model_zoo, nn

    if name == "tiny":
        network = nn.HybridSequential()
        for filters in (16, 32, 64):
            network.add(nn.Conv2D(filters, 3, strides=2, padding=1, activation="relu"))
        network.add(nn.GlobalAvgPool2D(), nn.Dense(num_classes))
    else:
        zoo = f"{name.removesuffix('-v1')}_v1"
        network = model_zoo.vision.get_model(zoo, classes=num_classes)
    network.infer_shape(mx.nd.zeros((1, 3, image_size, image_size)))
    # As He et al. 2015 (MSRA), and Horovod's example for MXNet.
    first = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
    network.initialize(first, ctx=context)
    network.hybridize()
    return network
