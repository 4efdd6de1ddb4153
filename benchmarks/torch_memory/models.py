"""Models as people train them, small enough for a CPU, in plain torch: twelve families, each with its loss and a batch.

Weights are random, and so are batches. ``MODELS`` makes each as (model, inputs); the model returns its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.lib.torch_models import UNet
from benchmarks.lib.torch_networks import Bottleneck

Model = tuple[nn.Module, tuple[Tensor, ...]]


class RmsNorm(nn.Module):
    """Root mean square normalization, spelled out as the reference model does."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaBlock(nn.Module):
    """Attention and a gated feed-forward layer, both normalized before (Touvron et al. 2023); no rotation."""

    def __init__(self, width: int, inner: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def feed(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        parts = [self.split(layer(y)) for layer in (self.query, self.key, self.value)]
        attended = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.norm2(x))


class Experts(LlamaBlock):
    """The same with four experts, mixed by a router for every token (dense mixture)."""

    def __init__(self, width: int, inner: int, heads: int, experts: int = 4):
        super().__init__(width, inner, heads)
        self.router = nn.Linear(width, experts, bias=False)
        self.gates = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(experts))
        self.downs = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(experts))
        del self.gate, self.up, self.down

    def feed(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.router(x), -1)
        made = [down(F.silu(gate(x))) for gate, down in zip(self.gates, self.downs, strict=True)]
        return sum((weights[..., at : at + 1] * each for at, each in enumerate(made)), torch.zeros(()))


class GptBlock(nn.Module):
    """Attention and feed-forward with layer norms and biases (Radford et al. 2019)."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0, is_causal: bool = True):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.is_causal)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """A language model: its loss on the next word."""

    def __init__(self, blocks: list[nn.Module], width: int, vocabulary: int, norm: nn.Module):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(vocabulary, width), nn.ModuleList(blocks)
        self.norm, self.head = norm, nn.Linear(width, vocabulary, bias=False)
        self.around: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = self.around(block, x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


class Vit(nn.Module):
    """Patches, blocks, mean, classifier (Dosovitskiy et al. 2021)."""

    def __init__(self, layers: int, width: int, heads: int, patch: int = 8, side: int = 64):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        self.blocks = nn.ModuleList(GptBlock(width, heads, is_causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)), classes)


class ResNet50(nn.Module):
    """Bottlenecks in four stages (He et al. 2016); ``pyramid`` adds a feature pyramid and dense heads (Lin et al. 2017)."""

    def __init__(self, is_pyramid: bool = False, blocks: tuple[int, ...] = (3, 4, 6, 3), base: int = 64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, base, 7, 2, 3, bias=False), nn.BatchNorm2d(base), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.ModuleList()
        channels, widths = base, []
        for stage, count in enumerate(blocks):
            layers = []
            for block in range(count):
                layers.append(Bottleneck(channels, base << stage, 2 if stage and block == 0 else 1))
                channels = 4 * base << stage
            widths.append(channels)
            self.stages.append(nn.Sequential(*layers))
        self.classifier = nn.Linear(channels, 100)
        self.is_pyramid = is_pyramid
        if is_pyramid:
            self.lateral = nn.ModuleList(nn.Conv2d(width, 64, 1) for width in widths)
            self.smooth = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in widths)
            self.boxes, self.scores = nn.Conv2d(64, 4, 3, padding=1), nn.Conv2d(64, 10, 3, padding=1)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        x = self.stem(x)
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        loss = F.cross_entropy(self.classifier(x.mean((2, 3))), classes)
        if not self.is_pyramid:
            return loss
        above: Tensor | None = None
        for lateral, smooth, level in zip(reversed(self.lateral), reversed(self.smooth), reversed(levels), strict=True):
            merged = lateral(level)
            if above is not None:
                merged = merged + F.interpolate(above, size=merged.shape[2:], mode="nearest")
            above = merged
            features = F.relu(smooth(merged))
            loss = loss + self.boxes(features).abs().mean() + F.softplus(self.scores(features)).mean()
        return loss


class DenseNet(nn.Module):
    """Every layer reads all before it in its block (Huang et al. 2017)."""

    def __init__(self, growth: int = 16, blocks: tuple[int, ...] = (6, 12, 16)):
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for count in blocks:
            layers = nn.ModuleList()
            for _ in range(count):
                layers.append(nn.Sequential(
                    nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4 * growth, 1, bias=False),
                    nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
                ))  # fmt: skip
                channels += growth
            self.blocks.append(layers)
            self.transitions.append(nn.Conv2d(channels, channels // 2, 1, bias=False))
            channels //= 2
        self.head = nn.Linear(channels, 100)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        x = self.stem(x)
        for layers, transition in zip(self.blocks, self.transitions, strict=True):
            for layer in layers:
                x = torch.cat([x, layer(x)], 1)
            x = F.avg_pool2d(transition(x), 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), classes)


class ConvNext(nn.Module):
    """Depthwise convolution, norm over channels, wide layer (Liu et al. 2022)."""

    class Block(nn.Module):
        """One of its blocks."""

        def __init__(self, width: int):
            super().__init__()
            self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.depth(x).permute(0, 2, 3, 1))
            return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)

    def __init__(self, depths: tuple[int, ...] = (3, 3, 9, 3), base: int = 32):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, base, 4, 4)]
        for stage, depth in enumerate(depths):
            width = base << stage
            if stage:
                layers.append(nn.Conv2d(width // 2, width, 2, 2))
            layers += [self.Block(width) for _ in range(depth)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(base << (len(depths) - 1), 100)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), classes)


class HrNet(nn.Module):
    """Branches of several resolutions side by side, which exchange what they have (Wang et al. 2020)."""

    def __init__(self, width: int = 16, branches: int = 3, rounds: int = 4):
        super().__init__()
        widths = [width << at for at in range(branches)]

        def conv(inside: int, out: int, stride: int = 1) -> nn.Module:
            return nn.Sequential(nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out))

        self.stem = conv(3, width, 2)
        self.begin = nn.ModuleList(conv(a, b, 2) for a, b in pairwise(widths))
        self.steps = nn.ModuleList(nn.ModuleList(conv(w, w) for w in widths) for _ in range(2 * rounds))
        self.fuse = nn.ModuleList(nn.ModuleDict({
            f"{a}{b}": nn.Conv2d(widths[a], widths[b], 1) if a > b else conv(widths[a], widths[b], 1 << (b - a))
            for a in range(branches) for b in range(branches) if a != b
        }) for _ in range(rounds))  # fmt: skip
        self.head = nn.Linear(sum(widths), 100)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        levels = [F.relu(self.stem(x))]
        for begin in self.begin:
            levels.append(F.relu(begin(levels[-1])))
        for at, fuse in enumerate(self.fuse):
            for steps in self.steps[2 * at : 2 * at + 2]:
                levels = [F.relu(x + step(x)) for step, x in zip(steps, levels, strict=True)]
            mixed = []
            for b, own in enumerate(levels):
                total = own
                for a, other in enumerate(levels):
                    if a != b:
                        moved = fuse[f"{a}{b}"](other)
                        total = total + (F.interpolate(moved, size=own.shape[2:], mode="nearest") if a > b else moved)
                mixed.append(F.relu(total))
            levels = mixed
        return F.cross_entropy(self.head(torch.cat([each.mean((2, 3)) for each in levels], 1)), classes)


class Lstm(nn.Module):
    """Two layers of cells, unrolled over time."""

    def __init__(self, steps: int = 24, width: int = 128, layers: int = 2):
        super().__init__()
        self.cells, self.steps, self.width = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers)), steps, width
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        states = [(torch.zeros(x.shape[0], self.width),) * 2 for _ in self.cells]
        loss = torch.zeros(())
        for step in range(self.steps):
            y = x[:, step]
            for at, cell in enumerate(self.cells):
                states[at] = cell(y, states[at])
                y = states[at][0]
            loss = loss + F.cross_entropy(self.head(y), classes)
        return loss


class DiffusionUNet(nn.Module):
    """A network that is told the time, with attention in the middle (Ho et al. 2020)."""

    class Block(nn.Module):
        """Two convolutions, and the time between them."""

        def __init__(self, inside: int, out: int, time: int):
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(4, inside), nn.Conv2d(inside, out, 3, padding=1)
            self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
            self.time, self.skip = nn.Linear(time, out), nn.Conv2d(inside, out, 1)

        def forward(self, x: Tensor, time: Tensor) -> Tensor:
            y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
            return self.skip(x) + self.conv2(F.silu(self.norm2(y)))

    def __init__(self, base: int = 32, depth: int = 3, time: int = 64):
        super().__init__()
        widths = [base << at for at in range(depth)]
        self.time, self.begin = nn.Linear(1, time), nn.Conv2d(3, base, 3, padding=1)
        self.down = nn.ModuleList(self.Block(widths[max(0, at - 1)], widths[at], time) for at in range(depth))
        self.middle = nn.MultiheadAttention(widths[-1], 4, batch_first=True)
        self.up = nn.ModuleList(self.Block(2 * widths[at], widths[max(0, at - 1)], time) for at in reversed(range(depth)))
        self.end = nn.Conv2d(base, 3, 3, padding=1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        time = F.silu(self.time(x.flatten(1).mean(1, keepdim=True)))
        y, skips = self.begin(x + noise), []
        for at, block in enumerate(self.down):
            y = block(F.avg_pool2d(y, 2) if at else y, time)
            skips.append(y)
        flat = y.flatten(2).transpose(1, 2)
        y = y + self.middle(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view(y.shape)
        for at, block in enumerate(self.up):
            y = block(torch.cat([F.interpolate(y, scale_factor=2.0) if at else y, skips.pop()], 1), time)
        return F.mse_loss(self.end(y), noise)


class Segmented(nn.Module):
    """The U-Net with its loss on a picture of two classes."""

    def __init__(self, width: int = 16, depth: int = 4):
        super().__init__()
        self.inside = UNet(width, depth)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.inside(x), mask)


def llama(layers: int = 16, width: int = 256, inner: int = 688, length: int = 512, block: Any = LlamaBlock) -> Model:
    """The toy of the published comparisons by default: 512 words, 1,000 in the vocabulary."""
    blocks = [block(width, inner, 8) for _ in range(layers)]
    return Decoder(blocks, width, 1000, RmsNorm(width)), words(1, length)


def _gpt(layers: int = 8, width: int = 256, length: int = 256) -> Model:
    return Decoder([GptBlock(width, 8, 0.1) for _ in range(layers)], width, 1000, nn.LayerNorm(width)), words(2, length)


def words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """A batch of words, and those that follow them."""
    return torch.randint(0, 1000, (batch, length)), torch.randint(0, 1000, (batch, length))


def pictures(make: Callable[[], nn.Module], batch: int, side: int) -> Model:
    """A model with a batch of square pictures and their classes."""
    return make(), (torch.randn(batch, 3, side, side), torch.randint(0, 100, (batch,)))


def _seeded(make: Callable[[], Model]) -> Model:
    torch.manual_seed(0)
    return make()


#: Ways to make the models, by name.
MODELS: dict[str, Callable[[], Model]] = {
    name: partial(_seeded, make)
    for name, make in {
        "llama16": llama,
        "gpt8": _gpt,
        "vit8": partial(pictures, partial(Vit, 8, 192, 6), 8, 64),
        "resnet50": partial(pictures, ResNet50, 4, 96),
        "unet": lambda: (Segmented(), (torch.randn(2, 3, 96, 96), torch.rand(2, 1, 96, 96).round())),
        "densenet": partial(pictures, DenseNet, 4, 64),
        "convnext": partial(pictures, ConvNext, 4, 96),
        "hrnet": partial(pictures, HrNet, 4, 64),
        "lstm": lambda: (Lstm(), (torch.randn(64, 24, 128), torch.randint(0, 100, (64,)))),
        "diffusion_unet": lambda: (DiffusionUNet(), (torch.randn(2, 3, 64, 64), torch.randn(2, 3, 64, 64))),
        "mixture8": partial(llama, 8, 256, 256, 256, Experts),
        "detector": partial(pictures, partial(ResNet50, True, (2, 2, 2, 2), 32), 2, 128),
    }.items()
}
