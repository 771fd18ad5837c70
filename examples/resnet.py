"""Train a ResNet on random pictures, by SGD with momentum.

A tiny one trains in seconds on a CPU; the other presets are for a GPU.

    python examples/resnet.py
    python examples/resnet.py --preset resnet50 --batch 64
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import DEVICE, Step, autocast, choose, options, train


@dataclass(frozen=True)
class Shape:
    """Blocks in each stage, channels of the first one, and the pictures."""

    blocks: tuple[int, ...]
    width: int
    pixels: int
    classes: int
    batch: int


PRESETS = {
    "tiny": Shape((1, 1), 8, 32, 10, 8),
    "resnet50": Shape((3, 4, 6, 3), 64, 224, 1000, 64),
    "resnet101": Shape((3, 4, 23, 3), 64, 224, 1000, 64),
}


class Bottleneck(nn.Module):
    """Narrow, look around, widen fourfold; and add what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps the size but for its stride, and the norm after it."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


class ResNet(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *convolution(3, shape.width, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)
        )
        stages, channels = [], shape.width
        for number, count in enumerate(shape.blocks):
            width = shape.width << number
            blocks = []
            for place in range(count):
                blocks.append(Bottleneck(channels, width, stride=2 if number and not place else 1))
                channels = 4 * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, shape.classes)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(pictures)).mean((2, 3)))


def make_step(
    preset: str | None = None,
    batch: int | None = None,
    device: str = DEVICE,
    dtype: str = "fp32",
    channels_last: bool = False,
) -> Step:
    """Model, optimizer and one random batch; returns what trains on it once."""
    shape = choose(PRESETS, preset, device)
    batch = batch or shape.batch
    with torch.device(device):
        model = ResNet(shape)
        pictures = torch.randn(batch, 3, shape.pixels, shape.pixels)
        labels = torch.randint(shape.classes, (batch,))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.to(memory_format=torch.channels_last)
    optim = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> Tensor:
        optim.zero_grad()
        with autocast(device, dtype):
            loss = functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optim.step()
        return loss.detach()

    return step


def main() -> None:
    parser = options(__doc__, PRESETS)
    parser.add_argument("--channels-last", action="store_true", help="how tensor cores like their pictures")
    args = vars(parser.parse_args())
    torch.manual_seed(0)
    steps = args.pop("steps")
    train(make_step(**args), steps)


if __name__ == "__main__":
    main()
