"""Parts of transformers in the ways in which they are commonly written: positions, heads, norms, feed-forward layers, losses.

Each way leads to another graph: rotary positions by ``cat`` copy a half of each head, by complex numbers they go through
float32, from a cache they are stacked; heads of keys are copied by ``repeat_interleave`` and by ``expand`` with ``reshape``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Rotary = Callable[[Tensor, Tensor], Tensor]


def angles(length: int, size: int, device: Any = "meta", base: float = 10000.0) -> Tensor:
    """[length, size / 2] of each position and each pair of a head's elements."""
    powers = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
    return torch.outer(torch.arange(length, device=device, dtype=torch.float32), base**-powers)


def by_cat(x: Tensor, angle: Tensor) -> Tensor:
    """The second half negated before the first; cosines and sines of both halves, in the type of ``x``."""
    both = torch.cat((angle, angle), -1)
    cos, sin = both.cos().to(x.dtype), both.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def by_complex(x: Tensor, angle: Tensor) -> Tensor:
    """Neighbouring elements as complex numbers in float32."""
    turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def by_cache(x: Tensor, angle: Tensor) -> Tensor:
    """Neighbouring elements times a cache of cosines and sines, stacked again."""
    cache = torch.stack((angle.cos(), angle.sin()), -1)
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cache.unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).type_as(x)


def in_part(x: Tensor, angle: Tensor) -> Tensor:
    """Of the first quarter of each head only, by ``cat``; the rest is passed on."""
    size = x.shape[-1] // 4
    turned, passed = x[..., :size], x[..., size:]
    return torch.cat((by_cat(turned, angle[:, : size // 2]), passed), -1)


def by_repeat(x: Tensor, times: int) -> Tensor:
    """[batch, heads, length, size] with each head as often as there are queries for it."""
    return x.repeat_interleave(times, 1) if times > 1 else x


def by_expand(x: Tensor, times: int) -> Tensor:
    """The same by a view that is made whole."""
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


class FloatRms(nn.Module):
    """Root mean square normalization in float32; ``plus_one`` adds 1 to the weight."""

    def __init__(self, width: int, plus_one: bool = False):
        super().__init__()
        self.weight, self.plus_one = nn.Parameter(torch.ones(width)), plus_one

    def forward(self, x: Tensor) -> Tensor:
        whole = x.float()
        made = whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (made * (1 + self.weight.float())).type_as(x) if self.plus_one else made.type_as(x) * self.weight


class SwiGlu(nn.Module):
    """A gated layer with one matrix for each of gate and value, or ``is_fused``."""

    def __init__(self, width: int, inner: int, is_fused: bool = False, function: Callable[[Tensor], Tensor] = F.silu):
        super().__init__()
        self.function = function
        self.ins = nn.ModuleList(nn.Linear(width, inner * (1 + is_fused), bias=False) for _ in range(1 if is_fused else 2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.ins[0](x).chunk(2, -1) if len(self.ins) == 1 else (layer(x) for layer in self.ins)
        return self.down(self.function(gate) * value)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two matrices with biases and a function between them, and dropout."""

    def __init__(self, width: int, inner: int, function: Callable[[Tensor], Tensor] = F.gelu, dropout: float = 0.0):
        super().__init__()
        self.up, self.down, self.function = nn.Linear(width, inner), nn.Linear(inner, width), function
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.function(self.up(x))))  # type: ignore[no-any-return]


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU by the hyperbolic tangent, spelled out as GPT-2 did."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


class Experts(nn.Module):
    """Gated experts of which each token has two.

    ``sorted`` computes the words of each expert together, after a sort; ``capacity`` sends words to places of experts and back
    by products with one-hot matrices; ``dense`` runs all experts on all words and has one that is always added.
    """

    def __init__(self, width: int, inner: int, way: str, experts: int = 8):
        super().__init__()
        self.way, self.count, self.router = way, experts, nn.Linear(width, experts, bias=False)
        if way == "dense":
            self.experts = nn.ModuleList(SwiGlu(width, inner) for _ in range(experts))
            self.shared = SwiGlu(width, inner)
        else:
            self.gates, self.ups = (nn.Parameter(torch.empty(experts, width, inner)) for _ in range(2))
            self.downs = nn.Parameter(torch.empty(experts, inner, width))

    def forward(self, x: Tensor) -> Tensor:
        words = x.flatten(0, 1)
        weights, chosen = self.router(words).float().softmax(-1).topk(2)
        weights = (weights / weights.sum(-1, keepdim=True)).type_as(x)
        return getattr(self, self.way)(words, weights, chosen).view(x.shape)  # type: ignore[no-any-return]

    def made(self, routed: Tensor) -> Tensor:
        return torch.bmm(F.silu(torch.bmm(routed, self.gates)) * torch.bmm(routed, self.ups), self.downs)

    def sorted(self, words: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        places = chosen.flatten().argsort()
        routed = words[places // 2].unflatten(0, (self.count, -1))
        weighted = self.made(routed).flatten(0, 1) * weights.flatten()[places, None]
        return torch.zeros_like(words).index_add(0, places // 2, weighted)

    def capacity(self, words: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        # Groups of words keep the one-hot matrices small.
        size = 512
        most = size // self.count * 5 // 2
        of = F.one_hot(chosen.view(-1, 2 * size), self.count)
        place = of.cumsum(1) * of - 1
        sent = (place[..., None] == torch.arange(most, device=words.device)).type_as(words).unflatten(1, (size, 2))
        groups = words.view(-1, size, words.shape[-1])
        routed = torch.einsum("gskec,gsd->egcd", sent, groups)
        made = self.made(routed.flatten(1, 2)).view(routed.shape)
        back = sent * weights.view(-1, size, 2, 1, 1)
        return torch.einsum("gskec,egcd->gsd", back, made).flatten(0, 1)

    def dense(self, words: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        shares = torch.zeros(len(words), self.count, device=words.device, dtype=words.dtype).scatter(1, chosen, weights)
        made = self.shared(words)
        for at, expert in enumerate(self.experts):
            made = made + shares[:, at : at + 1] * expert(words)
        return made  # type: ignore[no-any-return]


def spelled_attention(query: Tensor, key: Tensor, value: Tensor, mask: Any = None, dropout: float = 0.0) -> Tensor:
    """Attention by plain matrix products: the scores are there."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    return F.dropout(scores.float().softmax(-1).type_as(query), dropout) @ value


def causal(length: int, dtype: torch.dtype) -> Tensor:
    """A mask to be added to scores."""
    return torch.full((length, length), float("-inf"), device="meta", dtype=dtype).triu(1)


def chunked_loss(head: nn.Module, x: Tensor, following: Tensor, chunks: int = 8) -> Tensor:
    """The loss of some words after the others, so that not all logits are there at once."""
    total = torch.zeros((), device=x.device)
    for part, classes in zip(x.flatten(0, 1).chunk(chunks), following.flatten().chunk(chunks), strict=True):
        total = total + F.cross_entropy(head(part).float(), classes)
    return total / chunks


def cast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer as autocast runs it: ``meta`` has no autocast, so that the casts are spelled out."""
    made = x.bfloat16() @ weight.bfloat16().t()
    return made if bias is None else made + bias.bfloat16()
