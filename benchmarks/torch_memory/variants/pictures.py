"""Transformers and convolutions of pictures, each written in one of its usual ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.torch_memory.variants import parts
from benchmarks.torch_memory.variants.parts import FloatRms, Mlp, SwiGlu
from benchmarks.torch_memory.variants.sequences import Crossing, heads_of


class Pictures(nn.Module):
    """A transformer of patches.

    ``scaled`` has a scale for each layer's outputs and drops whole layers for some pictures of the batch; ``registers`` has
    further words, rotary positions, norms of queries and keys, and gated feed-forward layers.
    """

    def __init__(self, way: str, layers: int, width: int, heads: int, side: int = 224, patch: int = 14):
        super().__init__()
        self.way, self.heads, count = way, heads, (side // patch) ** 2
        self.patches, is_scaled = nn.Conv2d(3, width, patch, patch), way == "scaled"
        self.first = nn.Parameter(torch.empty(1, 1 if is_scaled else 5, width))
        self.places = nn.Parameter(torch.empty(1, count + 1, width)) if is_scaled else None
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=is_scaled) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feed = nn.ModuleList(
            Mlp(width, 4 * width) if is_scaled else SwiGlu(width, 4096, is_fused=True) for _ in range(layers)
        )
        kind = nn.LayerNorm if is_scaled else FloatRms
        self.norms = nn.ModuleList(kind(width) for _ in range(2 * layers + 1))
        self.head_norms = nn.ModuleList(FloatRms(width // heads) for _ in range(0 if is_scaled else 2 * layers))
        self.scales = nn.ParameterList(nn.Parameter(torch.empty(width)) for _ in range(2 * layers * is_scaled))
        self.head = nn.Linear(width, 1000)

    def dropped(self, x: Tensor, at: int) -> Tensor:
        if self.way != "scaled":
            return x
        keep = 1.0 - 0.3 * at / len(self.qkv)
        kept = torch.rand(x.shape[0], 1, 1, device=x.device).lt(keep).to(x.dtype) / keep
        return x * kept

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1)
        if self.places is not None:
            x = x + self.places
        angle = parts.angles(x.shape[1], x.shape[2] // self.heads)
        for at, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feed, strict=True)):
            made = qkv(self.norms[2 * at](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            query, key, value = made.unbind(0)
            if self.head_norms:
                query, key = self.head_norms[2 * at](query), self.head_norms[2 * at + 1](key)
                query, key = parts.by_cat(query, angle), parts.by_cat(key, angle)
            y = out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2))
            x = x + self.dropped(self.scales[2 * at] * y if self.scales else y, at)
            y = feed(self.norms[2 * at + 1](x))
            x = x + self.dropped(self.scales[2 * at + 1] * y if self.scales else y, at)
        return F.cross_entropy(self.head(self.norms[-1](x)[:, 0]).float(), classes)


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


class Diffusion(nn.Module):
    """A diffusion transformer whose norms are moved and scaled by the time; with ``words``, these have layers of their own and
    one attention of both."""

    def __init__(self, layers: int, width: int, heads: int, channels: int, words: int = 0):
        super().__init__()
        self.heads, self.begin, self.end = heads, nn.Linear(channels, width), nn.Linear(width, channels)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.words = nn.Linear(words, width) if words else None
        sides = 2 if words else 1
        self.moves = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(sides * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(sides * layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(sides * layers))
        self.feed = nn.ModuleList(Mlp(width, 4 * width, parts.tanh_gelu if words else F.gelu) for _ in range(sides * layers))
        self.last = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, time: Tensor, noise: Tensor, words: Tensor | None = None) -> Tensor:
        told = F.silu(self.time(time))
        streams = [self.begin(x)] if self.words is None else [self.begin(x), self.words(words)]
        sides = len(streams)
        for layer in range(len(self.qkv) // sides):
            own = [layer * sides + side for side in range(sides)]
            moves = [self.moves[at](told).chunk(6, -1) for at in own]
            made = [self.qkv[at](modulated(y, m[0], m[1])) for at, y, m in zip(own, streams, moves, strict=True)]
            query, key, value = (heads_of(each, self.heads) for each in torch.cat(made, 1).chunk(3, -1))
            both = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2)
            for side, y in enumerate(both.split([y.shape[1] for y in streams], 1)):
                at, m = own[side], moves[side]
                z = streams[side] + m[2][:, None] * self.out[at](y)
                streams[side] = z + m[5][:, None] * self.feed[at](modulated(z, m[3], m[4]))
        shift, scale = self.last(told).chunk(2, -1)
        return F.mse_loss(self.end(modulated(streams[0], shift, scale)), noise)


class Residual(nn.Module):
    """Two convolutions, each behind a norm; what is told, if anything, is added or scales between them."""

    def __init__(self, inside: int, out: int, told: int, is_scaled: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, out)
        self.conv1, self.conv2 = nn.Conv2d(inside, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.told, self.is_scaled = nn.Linear(told, out * (1 + is_scaled)), is_scaled
        self.skip = nn.Conv2d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        y, moves = self.conv1(F.silu(self.norm1(x))), self.told(told)[:, :, None, None]
        if self.is_scaled:
            scale, shift = moves.chunk(2, 1)
            y = self.norm2(y) * (1 + scale) + shift
        else:
            y = self.norm2(y + moves)
        return self.skip(x) + self.conv2(F.silu(y))  # type: ignore[no-any-return]


class DeepUNet(nn.Module):
    """Several residual layers at each size, each with a connection to its counterpart; attention, if any, at small sizes."""

    def __init__(self, widths: list[int], blocks: int, attention: int, is_scaled: bool):
        super().__init__()
        told = 4 * widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], told), nn.SiLU(), nn.Linear(told, told))
        self.begin, self.end = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
        self.down, self.up, self.attend = nn.ModuleList(), nn.ModuleList(), nn.ModuleDict()
        self.blocks, self.levels, channels, kept = blocks, len(widths), widths[0], [widths[0]]
        self.smaller = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for width in widths[:-1])
        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(Residual(channels, width, told, is_scaled))
                self._attend("down", level, width, attention)
                channels = width
                kept.append(width)
            if level + 1 < len(widths):
                kept.append(width)
        for level, width in reversed([*enumerate(widths)]):
            for _ in range(blocks + 1):
                self.up.append(Residual(channels + kept.pop(), width, told, is_scaled))
                self._attend("up", level, width, attention)
                channels = width

    def _attend(self, way: str, level: int, width: int, attention: int) -> None:
        if level >= self.levels - attention:
            self.attend[f"{way}{len(getattr(self, way)) - 1}"] = Crossing(width, width // 64, True)

    def block(self, way: str, at: int, x: Tensor, told: Tensor) -> Tensor:
        x = getattr(self, way)[at](x, told)
        if f"{way}{at}" not in self.attend:
            return x
        flat = x.flatten(2).transpose(1, 2)
        return x + self.attend[f"{way}{at}"](flat).transpose(1, 2).reshape(x.shape)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        told, x = self.time(time), self.begin(x)
        kept = [x]
        for level in range(self.levels):
            for at in range(self.blocks * level, self.blocks * (level + 1)):
                x = self.block("down", at, x, told)
                kept.append(x)
            if level + 1 < self.levels:
                x = self.smaller[level](x)
                kept.append(x)
        for level in range(self.levels):
            for at in range((self.blocks + 1) * level, (self.blocks + 1) * (level + 1)):
                x = self.block("up", at, torch.cat((x, kept.pop()), 1), told)
            if level + 1 < self.levels:
                x = F.interpolate(x, scale_factor=2.0)
        return F.mse_loss(self.end(x), noise)
