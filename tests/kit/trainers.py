"""The table of docs/trainers.md, from which tests read the expected labels of each program.

`python -m tests.kit.trainers` writes it into the page, and tests/contract compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.kit.command import REPOSITORY

PAGE = REPOSITORY / "docs" / "trainers.md"

# The label that a program expects.
SET = "the dataset"
FROM_0 = "`--label-offset 0`"
FOLDER, TFDS, WEBDATASET, PARQUET = (
    f"`--to {form}`" for form in ("folder", "tfds", "webdataset", "parquet")
)
# The label that reaches the loss, minus the class index.
INDEX = 0
STORED = 1
# Shards that a program requires by name.
ANY = "any"
FIXED = "1024, 128"
# The kind of test behind a row.
LONG = "`make test-long`"
QUICK = "`make test`"
CHECKOUT = "with a checkout"
BY_HAND = "by hand, 11/2026"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Client:
    """A row.

    Attributes:
      name: the program; also, up to the first comma, the heading of its recipe.
      version: with which it was run.
      takes: its input.
      classes: outputs of its network.
      label: minus the class index, as it reaches the loss if the recipe is followed.
      shards: numbers of train and validation that it hard-codes.
      proof: the kind of test.
      package: in the lock of its environment, if a test runs it: (lock, name).
    """

    name: str
    version: str
    takes: str
    classes: int
    label: int
    shards: str
    proof: str
    package: tuple[str, str] | None = None

    @property
    def anchor(self) -> str:
        """The heading of its recipe, in the form of a link."""
        heading = self.name.partition(",")[0].lower()
        return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")

    @property
    def row(self) -> str:
        """The line of the table."""
        labels = f"{self.label} … {self.label + 999}"
        cells = [f"[{self.name}](#{self.anchor})", self.version, self.takes, f"{self.classes:,}"]
        return f"| {' | '.join([*cells, labels, self.shards, self.proof])} |"


TRAINERS = ".ci/trainers.lock"
MAIN = ".ci/main.lock"
MODEL_GARDEN = Client(
    "Model Garden, `resnet_imagenet`",
    "2.20.0",
    SET,
    1001,
    STORED,
    ANY,
    LONG,
    package=(TRAINERS, "tf-models-official"),
)
OLDER_RESNET = Client(
    "Model Garden's older ResNet",
    "2.20.0",
    SET,
    1001,
    INDEX,
    FIXED,
    LONG,
    package=(TRAINERS, "tf-models-official"),
)
KERAS_CV = Client("KerasCV", "0.9.0", SET, 1000, INDEX, FIXED, LONG, package=(TRAINERS, "keras-cv"))
TFRECORD = Client("The package tfrecord", "1.14.6", SET, 1000, INDEX, ANY, BY_HAND)
TIMM = Client("timm", "1.0.31", SET, 1000, INDEX, ANY, LONG, package=(MAIN, "timm"))
TIMM_FROM_0 = Client(
    "timm, without a class map",
    "1.0.31",
    FROM_0,
    1000,
    INDEX,
    ANY,
    LONG,
    package=(MAIN, "timm"),
)
FLAX = Client("flax examples/imagenet", "18f8f31", TFDS, 1000, INDEX, ANY, CHECKOUT)
BIG_VISION = Client("big_vision", "0127fb6", FROM_0, 1000, INDEX, ANY, CHECKOUT)
BIG_VISION_FROM_1 = Client("big_vision, 1,001 outputs", "0127fb6", SET, 1001, STORED, ANY, CHECKOUT)

CLIENTS = [
    MODEL_GARDEN,
    OLDER_RESNET,
    KERAS_CV,
    Client("Keras, `fit` on tf.data", "3.15.1", SET, 1000, INDEX, ANY, BY_HAND),
    Client("tensorflow/tpu", "TF 2.15.1", SET, 1000, INDEX, ANY, BY_HAND),
    Client("tf_cnn_benchmarks", "TF 2.15.1", SET, 1001, STORED, ANY, BY_HAND),
    Client("MLPerf ResNet, TensorFlow 1", "only its parser", SET, 1001, STORED, FIXED, BY_HAND),
    Client("NVIDIA's ConvNets, TensorFlow 1 and 2", "only tf.data", SET, 1000, INDEX, ANY, BY_HAND),
    Client(
        "NVIDIA DALI",
        "2.4.0",
        SET,
        1000,
        INDEX,
        ANY,
        QUICK,
        package=(MAIN, "nvidia-dali-cuda120"),
    ),
    Client(
        "TensorFlow Datasets",
        "4.9.10",
        SET,
        1000,
        INDEX,
        ANY,
        QUICK,
        package=(MAIN, "tensorflow-datasets"),
    ),
    TFRECORD,
    Client("Grain", "0.2.18", SET, 1000, INDEX, ANY, BY_HAND),
    Client("torchtitan", "", SET, 1000, INDEX, ANY, NOT_RUN),
    Client("Ray Data", "2.60.0", SET, 1000, INDEX, ANY, BY_HAND),
    TIMM,
    TIMM_FROM_0,
    BIG_VISION,
    BIG_VISION_FROM_1,
    FLAX,
    Client(
        "TFDS's imagenet2012, by timm or big_vision",
        "as above",
        TFDS,
        1000,
        INDEX,
        ANY,
        BY_HAND,
    ),
    Client("pytorch/examples", "11/2026", FOLDER, 1000, INDEX, ANY, BY_HAND),
    Client("torchvision's references", "", FOLDER, 1000, INDEX, ANY, NOT_RUN),
    Client("FFCV", "", FOLDER, 1000, INDEX, ANY, NOT_RUN),
    Client("WebDataset, timm's `wds/`", "1.0.2, 1.0.31", WEBDATASET, 1000, INDEX, ANY, BY_HAND),
    Client("Hugging Face datasets", "5.2.0", PARQUET, 1000, INDEX, ANY, BY_HAND),
    Client("LitData and MosaicML streaming", "0.2.76, 0.13", SET, 1000, INDEX, ANY, BY_HAND),
]


def table() -> str:
    """Returns the table of the page."""
    head = "| program | version | takes | outputs | labels | shards | tested |"
    rule = "|---|---|---|---:|---|---|---|"
    return "\n".join([head, rule, *(client.row for client in CLIENTS)]) + "\n"


def written(page: str) -> str:
    """Returns a page with its table replaced by this one."""
    return re.sub(r"^\| program \|.*\n(\|.*\n)*", lambda _: table(), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
