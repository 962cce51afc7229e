"""The network `tiny` in PyTorch, for the weights of `imagenet-prep export`.

imagenet-prep export RUN --format torch --out tiny.safetensors
python examples/tiny.py tiny.safetensors PHOTOGRAPH...    # prints a class index per photograph
"""

import contextlib
import sys

import torch
from PIL import Image, ImageOps
from torch import nn
from torchvision.models.resnet import BasicBlock
from torchvision.transforms import v2


def shortcut(inputs: int, outputs: int) -> nn.Module:
    """Returns the shortcut of a block that halves the sides and changes the number of channels."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))


class Tiny(nn.Module):
    """A network of three blocks of torchvision's ResNet-18, with 16, 32 and 64 channels."""

    def __init__(self, num_classes: int, image_size: int) -> None:
        """Makes the network for square images with sides of `image_size` pixels."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 2 if image_size >= 48 else 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.block0 = BasicBlock(16, 16)
        self.block1 = BasicBlock(16, 32, 2, shortcut(16, 32))
        self.block2 = BasicBlock(32, 64, 2, shortcut(32, 64))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns logits [batch, classes] for normalised images [batch, 3, size, size]."""
        x = self.bn1(self.conv1(images)).relu()
        x = self.block2(self.block1(self.block0(x)))
        return self.fc(x.mean((2, 3)))


def main(file: str, photographs: list[str]) -> None:
    """Prints the class index that the network predicts for each photograph."""
    from safetensors import safe_open

    with contextlib.suppress(ImportError):
        import pillow_heif  # opens HEIC

        pillow_heif.register_heif_opener()
    with safe_open(file, "pt") as weights:
        notes = weights.metadata()
        state = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    size = int(notes["image_size"])
    model = Tiny(int(notes["num_classes"]), size)
    model.load_state_dict(state)
    model.eval()
    prepared = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(round(size * 256 / 224)),
            v2.CenterCrop(size),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    for path in photographs:
        upright = ImageOps.exif_transpose(Image.open(path))
        image = prepared(upright.convert("RGB"))
        with torch.no_grad():
            print(int(model(image[None]).argmax()), path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
