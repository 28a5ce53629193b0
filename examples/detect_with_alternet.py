"""AlterNet (Park & Kim, 2022, arXiv:2202.06709) as the backbone of a Faster R-CNN.

A network built with ``features_only=True`` passes its four stages through torchvision's feature
pyramid (Lin et al., 2017, arXiv:1612.03144) to the detector. Images can have any size: where
attention windows do not fit, the map is padded and the padding is masked. Nothing is downloaded;
the weights are random at the start.

    python examples/detect_with_alternet.py
    python examples/detect_with_alternet.py --backbone alternet50 --steps 1

It prints the four losses of the first and the last training step, and the detections on images
that were not used for training.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import FeaturePyramidNetwork, box_iou
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

import retinoscope.models  # noqa: F401 — registers our networks with timm

SIZES = ((101, 83), (83, 118))
"""Heights and widths in pixels, divisible neither by 32 nor into windows of 7 positions."""


class Pyramid(nn.Module):
    """Feature pyramid: images (N, 3, H, W) to maps of ``out_channels`` at strides 4 to 64."""

    def __init__(self, name: str, out_channels: int = 64) -> None:
        super().__init__()
        body: Any = timm.create_model(name, features_only=True, out_indices=(1, 2, 3, 4))
        channels = body.feature_info.channels()
        self.body = body
        self.pyramid = FeaturePyramidNetwork(
            channels, out_channels, extra_blocks=LastLevelMaxPool()
        )
        self.out_channels = out_channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """The maps by index, the format that torchvision's detectors expect."""
        return self.pyramid({str(index): maps for index, maps in enumerate(self.body(images))})


@dataclass(frozen=True)
class Outcome:
    """Losses and detections of one run."""

    first: dict[str, float]
    """The losses of the first step by name."""
    last: dict[str, float]
    detections: list[dict[str, Tensor]]
    """Boxes (n, 4), labels (n,) and scores (n,) of each image, best first."""
    overlaps: list[float]
    """Intersection over union of the best detection with the true box, per image."""


def main(backbone: str = "alternet18", steps: int = 40) -> Outcome:
    """Train on images with one bright rectangle each, then detect in new images."""
    torch.manual_seed(0)
    detector = build(backbone)
    optimiser = torch.optim.AdamW(detector.parameters(), lr=5e-4)
    history = []
    for step in range(steps):
        images, targets = draw(4, seed=step)
        losses = detector.train()(images, targets)
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
        history.append({name: loss.item() for name, loss in losses.items()})
    images, targets = draw(4, seed=-1)
    with torch.no_grad():
        detections = detector.eval()(images)
    outcome = Outcome(history[0], history[-1], detections, overlaps(detections, targets))
    show(outcome, images)
    return outcome


def build(backbone: str) -> FasterRCNN:
    """A Faster R-CNN for one class of objects, with anchors of 8 to 128 pixels."""
    anchors = AnchorGenerator(((8,), (16,), (32,), (64,), (128,)), ((0.5, 1.0, 2.0),) * 5)
    return FasterRCNN(
        Pyramid(backbone),
        num_classes=2,  # including the background
        rpn_anchor_generator=anchors,
        min_size=min(min(size) for size in SIZES),
        max_size=max(max(size) for size in SIZES),
        size_divisible=1,  # torchvision would pad to multiples of 32
        rpn_pre_nms_top_n_train=200,
        rpn_post_nms_top_n_train=100,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=50,
        box_batch_size_per_image=64,
    )


def draw(count: int, seed: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Noisy images (3, H, W) in [0, 1] with one bright rectangle each, and its box."""
    generator = torch.Generator().manual_seed(seed)
    images, targets = [], []
    for index in range(count):
        height, width = SIZES[index % len(SIZES)]
        high, wide = torch.randint(20, 50, (2,), generator=generator).tolist()
        top = int(torch.randint(0, height - high, (), generator=generator))
        left = int(torch.randint(0, width - wide, (), generator=generator))
        image = 0.5 * torch.rand(3, height, width, generator=generator)
        image[:, top : top + high, left : left + wide] += 0.5
        images.append(image)
        box = torch.tensor([[left, top, left + wide, top + high]], dtype=torch.float32)
        targets.append({"boxes": box, "labels": torch.ones(1, dtype=torch.int64)})
    return images, targets


def overlaps(detections: list[dict[str, Tensor]], targets: list[dict[str, Tensor]]) -> list[float]:
    """IoU of each image's best detection with the true box; 0 if nothing was detected."""
    return [
        box_iou(found["boxes"][:1], true["boxes"]).item() if len(found["boxes"]) else 0.0
        for found, true in zip(detections, targets, strict=True)
    ]


def show(outcome: Outcome, images: list[Tensor]) -> None:
    """Print the outcome."""
    for when, losses in (("first", outcome.first), ("last", outcome.last)):
        print(f"{when} step: " + ", ".join(f"{name} {x:.3f}" for name, x in losses.items()))
    for image, found, overlap in zip(images, outcome.detections, outcome.overlaps, strict=True):
        size = " × ".join(map(str, image.shape[1:]))
        print(f"{size} pixels: {len(found['boxes'])} detections, IoU of the best {overlap:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a Faster R-CNN with an AlterNet backbone.")
    parser.add_argument("--backbone", default="alternet18")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    main(arguments.backbone, arguments.steps)
