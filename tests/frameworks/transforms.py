"""One rank of a run whose published training transform gets the stored images of a reader.

`python transforms.py RECIPE SET RANK SIZE WORKERS STATE EPOCHS LOG`

STATE is a reader's state as JSON, or {} to begin. After each step, one line of JSON is added to
LOG: the epoch, the keys, the checksums of the stored images, and the state. The run ends after
EPOCHS epochs, or never if it is 0. With WORKERS, a DataLoader's workers apply the transform.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

from imagenet_prep.core.world import World
from imagenet_prep.read import decode, make_dataset

BATCH = 2
SEED = 6
BICUBIC = transforms.InterpolationMode.BICUBIC
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def tensor(mean=MEAN, std=STD):
    """Returns the last steps of each transform."""
    return [transforms.ToTensor(), transforms.Normalize(mean, std)]


def timm():
    """The defaults of timm with RandAugment and random erasing, as in its published recipes."""
    from timm.data import create_transform

    made = create_transform(
        224, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25
    )
    return lambda image: [made(image)]


def mae():
    """The pretraining of MAE (main_pretrain.py)."""
    crop = transforms.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=BICUBIC)
    made = transforms.Compose([crop, transforms.RandomHorizontalFlip(), *tensor()])
    return lambda image: [made(image)]


def dinov3():
    """The multi-crop of DINOv3: 2 global crops and 8 local ones (dinov3/data/augmentations.py)."""
    jitter = transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)
    colours = [transforms.RandomApply([jitter], p=0.8), transforms.RandomGrayscale(p=0.2)]
    blur = transforms.GaussianBlur(9, sigma=(0.1, 2.0))

    def view(size, area, blurred, solarised):
        crop = transforms.RandomResizedCrop(size, scale=area, interpolation=BICUBIC)
        steps = [crop, transforms.RandomHorizontalFlip(), *colours]
        steps.append(transforms.RandomApply([blur], p=blurred))
        steps.append(transforms.RandomSolarize(threshold=128, p=solarised))
        return transforms.Compose([*steps, *tensor()])

    views = [view(224, (0.32, 1.0), 1.0, 0.0), view(224, (0.32, 1.0), 0.1, 0.2)]
    views += [view(96, (0.05, 0.32), 0.5, 0.0)] * 8
    return lambda image: [each(image) for each in views]


def siglip():
    """SigLIP squashes images to a square (big_vision: "resize(224)|value_range(-1, 1)")."""
    resize = transforms.Resize((224, 224), interpolation=BICUBIC)
    made = transforms.Compose([resize, *tensor((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
    return lambda image: [made(image)]


SHAPES = {
    "timm": [(3, 224, 224)],
    "mae": [(3, 224, 224)],
    "dinov3": [(3, 224, 224)] * 2 + [(3, 96, 96)] * 8,
    "siglip": [(3, 224, 224)],
}


class Transformed:
    """Applies a recipe to each image of a batch, in this process or in a worker."""

    def __init__(self, recipe):
        self.recipe = recipe
        self.transform = globals()[recipe]()

    def __call__(self, batch):
        """Returns keys, checksums, and an array for each view."""
        views = [self.transform(Image.fromarray(decode(data))) for data in batch["encoded"]]
        arrays = [torch.stack(view) for view in zip(*views, strict=True)]
        assert [array.shape[1:] for array in arrays] == SHAPES[self.recipe]
        assert all(array.isfinite().all() and array.std() > 0 for array in arrays)
        return batch["key"], [zlib.crc32(data) for data in batch["encoded"]], arrays


def main(recipe, root, rank, size, workers, state, epochs, log):
    """Writes one line after each step."""
    torch.set_num_threads(1)
    fields = ("encoded", "class_index", "key")
    world = World(int(rank), int(size))
    how = {"backend": "native", "framework": "torch", "fields": fields, "seed": SEED}
    reader = make_dataset(root, "train", BATCH, world=world, **how)
    if json.loads(state):
        reader.restore(json.loads(state))
    transformed = Transformed(recipe)
    sampler = reader.sampler()
    loader = DataLoader(
        reader,
        batch_size=None,
        sampler=sampler,
        num_workers=int(workers),
        collate_fn=transformed,
    )
    with Path(log).open("a") as file:
        while not int(epochs) or sampler.epoch < int(epochs):
            epoch = sampler.epoch
            steps = loader if int(workers) else map(transformed, reader)
            for step, (keys, sums, _) in enumerate(steps, 1):
                after = sampler.state_dict(step) if int(workers) else reader.state_dict()
                row = {"epoch": epoch, "keys": keys, "sums": sums, "state": after}
                file.write(f"{json.dumps(row)}\n")
                file.flush()
            if not int(workers):
                sampler = reader.sampler()


if __name__ == "__main__":
    main(*sys.argv[1:])
