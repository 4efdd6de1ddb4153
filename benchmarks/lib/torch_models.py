"""Models for ``planning.py``: of torchvision and timm where they are installed, and some small ones of our own.

All have random weights. torchvision's own operators are not needed: where its library does not fit the installed torch, they
are declared without it, so that the models can be made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Model = tuple[nn.Module, tuple[Tensor, ...]]

_DECLARED: list[Any] = []


def torchvision_models() -> Any:
    """Module ``torchvision.models``; its detection operators are declared, not implemented, where they are missing."""
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
        import torchvision
    return torchvision.models


def _torchvision(name: str, side: int = 224) -> Model:
    models = torchvision_models()
    extra = {"init_weights": False, "aux_logits": False} if name in ("inception_v3", "googlenet") else {}
    return models.get_model(name, weights=None, **extra).eval(), (torch.randn(1, 3, side, side),)


def _timm(name: str, side: int = 224) -> Model:
    torchvision_models()
    import timm

    return timm.create_model(name, pretrained=False).eval(), (torch.randn(1, 3, side, side),)


class UNet(nn.Module):
    """Contracting and expanding path with skips."""

    def __init__(self, width: int = 8, depth: int = 3):
        super().__init__()
        widths = [3, *(width * 2**at for at in range(depth + 1))]
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        self.up = nn.ModuleList(nn.Conv2d(3 * widths[at], widths[at], 3, padding=1) for at in range(depth, 0, -1))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for at, conv in enumerate(self.down):
            x = F.relu(conv(x))
            if at < len(self.down) - 1:
                skips.append(x)
                x = F.avg_pool2d(x, 2)
        for conv in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = F.relu(conv(torch.cat([x, skips.pop()], 1)))
        return self.head(x)


class NasnetCells(nn.Module):
    """Cells of NASNet's kind: several branches from the outputs of the two cells before."""

    def __init__(self, cells: int = 6, width: int = 24):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.squeeze = nn.ModuleList(nn.Conv2d(width if at == 0 else 6 * width, width, 1) for at in range(cells))
        self.before = nn.ModuleList(nn.Conv2d(width if at < 2 else 6 * width, width, 1) for at in range(cells))
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(6)) for _ in range(cells)
        )
        self.head = nn.Linear(6 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        last = before = self.stem(x)
        for squeeze, shrink, branches in zip(self.squeeze, self.before, self.branches, strict=True):
            h, p = squeeze(F.relu(last)), shrink(F.relu(before))
            a, b, c, d, e, f = (branch(F.relu(p if at % 2 else h)) for at, branch in enumerate(branches))
            first, second, third = a + b, c + d, e + f
            fourth = F.avg_pool2d(first, 3, 1, 1) + second
            before, last = last, torch.cat([p, first, second, third, fourth, h], 1)
        return self.head(last.mean((2, 3)))


class MtlTowers(nn.Module):
    """One trunk, and a tower for each of several tasks; all towers are begun before the first is done."""

    def __init__(self, tasks: int = 8, width: int = 16):
        super().__init__()
        self.trunk = nn.Conv2d(3, width, 3, padding=1)
        self.wide = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(tasks))
        self.deep = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1, stride=2) for _ in range(tasks))
        self.heads = nn.ModuleList(nn.Linear(2 * width, 4) for _ in range(tasks))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = F.relu(self.trunk(x))
        wide = [F.relu(layer(x)) for layer in self.wide]
        deep = [F.relu(layer(each)) for layer, each in zip(self.deep, wide, strict=True)]
        return tuple(head(each.mean((2, 3))) for head, each in zip(self.heads, deep, strict=True))


class RandWire(nn.Module):
    """A stage of randomly wired separable convolutions (seeded), each with up to three inputs."""

    def __init__(self, nodes: int = 32, width: int = 16, seed: int = 5):
        super().__init__()
        import random

        chance = random.Random(seed)
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.inputs = [sorted(chance.sample(range(at), min(at, chance.randint(1, 3)))) for at in range(1, nodes + 1)]
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(nodes))

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for sources, conv in zip(self.inputs, self.convs, strict=True):
            total = values[sources[0]]
            for source in sources[1:]:
                total = total + values[source]
            values.append(conv(F.relu(total)))
        used = {source for sources in self.inputs for source in sources}
        ends = [value for at, value in enumerate(values) if at not in used]
        return torch.stack([end.mean((2, 3)) for end in ends]).mean(0)


class Unrolled(nn.Module):
    """Recurrent cells, unrolled over time; in both directions where asked for."""

    def __init__(self, kind: str, steps: int, size: int = 128, both: bool = False):
        super().__init__()
        cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[kind]
        self.cells = nn.ModuleList(cell(size, size) for _ in range(1 + both))
        self.kind, self.steps, self.size = kind, steps, size
        self.head = nn.Linear(size * (1 + both), 10)

    def forward(self, x: Tensor) -> Tensor:
        every = []
        for direction, cell in enumerate(self.cells):
            hidden = torch.zeros(x.shape[0], self.size)
            state = torch.zeros(x.shape[0], self.size)
            outputs = []
            for step in reversed(range(self.steps)) if direction else range(self.steps):
                if self.kind == "lstm":
                    hidden, state = cell(x[:, step], (hidden, state))
                else:
                    hidden = cell(x[:, step], hidden)
                outputs.append(hidden)
            every.append(torch.stack(outputs[::-1] if direction else outputs, 1))
        return self.head(torch.cat(every, -1))


class Transformer(nn.Module):
    """An encoder of a few layers."""

    def __init__(self, layers: int = 4, width: int = 128, heads: int = 4):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


def _own(make: Callable[[], nn.Module], *shape: int) -> Model:
    torch.manual_seed(0)
    return make().eval(), (torch.randn(*shape),)


#: Ways to make the models, by name. Those of our own come first: they need nothing but torch.
MODELS: dict[str, Callable[[], Model]] = {
    "unet8": partial(_own, UNet, 1, 3, 96, 96),
    "nasnet_cells": partial(_own, NasnetCells, 1, 3, 32, 32),
    "mtl_towers": partial(_own, MtlTowers, 1, 3, 32, 32),
    "randwire": partial(_own, RandWire, 1, 3, 32, 32),
    "lstm_unrolled": partial(_own, partial(Unrolled, "lstm", 32), 1, 32, 128),
    "bigru_unrolled": partial(_own, partial(Unrolled, "gru", 24, both=True), 1, 24, 128),
    "transformer": partial(_own, Transformer, 1, 64, 128),
    **{
        name: partial(_torchvision, name)
        for name in (
            "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "densenet121", "googlenet",
            "shufflenet_v2_x1_0", "squeezenet1_1", "mnasnet1_0", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "swin_t",
            "vit_b_16", "vgg11", "alexnet",
        )
    },
    "inception_v3": partial(_torchvision, "inception_v3", 299),
    **{
        name: partial(_timm, name)
        for name in (
            "ghostnet_100", "hrnet_w18_small", "levit_128s", "mobilevit_s", "repvgg_a0", "res2net50_26w_4s",
            "xcit_nano_12_p16_224",
        )
    },
}  # fmt: skip
