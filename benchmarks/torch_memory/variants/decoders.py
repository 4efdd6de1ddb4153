"""Decoders of 16 to 48 layers, made of parts: each is one way to write a language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.torch_memory.variants import parts
from benchmarks.torch_memory.variants.parts import Rotary


@dataclass(frozen=True)
class Choices:
    """How a decoder is written."""

    layers: int
    width: int
    heads: int
    key_heads: int
    feed: Callable[[int], nn.Module]
    """Of the width."""
    norm: Callable[[int], nn.Module] = parts.FloatRms
    rotary: Rotary | None = None
    """None has learned positions."""
    is_turned_once: bool = True
    """Angles are computed once for all layers, not in each."""
    repeat: Callable[[Tensor, int], Tensor] = parts.by_expand
    is_fused: bool = False
    """One matrix for queries, keys and values."""
    has_bias: bool = False
    has_head_norms: bool = False
    """Queries and keys are normalized."""
    is_parallel: bool = False
    """Attention and feed-forward layer read the same norm, and are added together."""
    dropout: float = 0.0
    is_cast: bool = False
    """Weights are float32 and cast where they are used, as autocast does."""
    loss: str = "inside"
    """``outside`` returns the logits, ``chunked`` computes the head and the loss in parts."""
    vocabulary: int = 32000
    batch: int = 4
    length: int = 4096


class Block(nn.Module):
    """One layer."""

    def __init__(self, choices: Choices):
        super().__init__()
        self.choices, width, size = choices, choices.width, choices.width // choices.heads
        self.size = size
        self.widths = [width, choices.key_heads * size, choices.key_heads * size]
        outs = [sum(self.widths)] if choices.is_fused else self.widths
        self.ins = nn.ModuleList(nn.Linear(width, out, bias=choices.has_bias) for out in outs)
        self.out = nn.Linear(width, width, bias=choices.has_bias)
        self.feed, self.norm1, self.norm2 = choices.feed(width), choices.norm(width), choices.norm(width)
        self.head_norms = nn.ModuleList(choices.norm(size) for _ in range(2 * choices.has_head_norms))
        self.dropout = nn.Dropout(choices.dropout)

    def forward(self, x: Tensor, angle: Tensor) -> Tensor:
        y = self.norm1(x)
        attended = self.attended(y, angle)
        if self.choices.is_parallel:
            return x + attended + self.feed(self.norm2(x))  # type: ignore[no-any-return]
        x = x + attended
        return x + self.dropout(self.feed(self.norm2(x)))  # type: ignore[no-any-return]

    def attended(self, y: Tensor, angle: Tensor) -> Tensor:
        made = self.ins[0](y).split(self.widths, -1) if self.choices.is_fused else [layer(y) for layer in self.ins]
        query, key, value = (each.unflatten(-1, (-1, self.size)).transpose(1, 2) for each in made)
        if self.head_norms:
            query, key = self.head_norms[0](query), self.head_norms[1](key)
        if self.choices.rotary is not None:
            if not self.choices.is_turned_once:
                angle = parts.angles(y.shape[1], self.size)
            query, key = self.choices.rotary(query, angle), self.choices.rotary(key, angle)
        times = self.choices.heads // self.choices.key_heads
        key, value = self.choices.repeat(key, times), self.choices.repeat(value, times)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.dropout(self.out(attended.transpose(1, 2).flatten(-2)))  # type: ignore[no-any-return]


class Language(nn.Module):
    """Embedding, layers, norm, head."""

    def __init__(self, choices: Choices):
        super().__init__()
        self.choices, width = choices, choices.width
        self.embedding = nn.Embedding(choices.vocabulary, width)
        self.places = nn.Embedding(choices.length, width) if choices.rotary is None else None
        self.blocks = nn.ModuleList(Block(choices) for _ in range(choices.layers))
        self.norm, self.head = choices.norm(width), nn.Linear(width, choices.vocabulary, bias=False)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.embedding(words)
        if self.places is not None:
            x = x + self.places(torch.arange(words.shape[1], device=words.device))
        angle = parts.angles(words.shape[1], self.choices.width // self.choices.heads)
        for block in self.blocks:
            x = block(x, angle)
        x = self.norm(x)
        if self.choices.loss == "chunked":
            return parts.chunked_loss(self.head, x, following)
        logits = self.head(x)
        if self.choices.loss == "outside":
            return logits  # type: ignore[no-any-return]
        return F.cross_entropy(logits.float().flatten(0, 1), following.flatten())


def made(choices: Choices) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model on ``meta`` and its batch; in bfloat16 where no casts are spelled out."""
    with torch.device("meta"):
        model = Language(choices)
        words = torch.empty(choices.batch, choices.length, dtype=torch.int64)
        return model if choices.is_cast else model.bfloat16(), (words, words.clone())
