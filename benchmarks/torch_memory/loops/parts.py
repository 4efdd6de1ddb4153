"""Small models and batches that several loops train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, CLASSES, WORDS = 32, 16, 64


def mlp(layers: int = 4, width: int = WIDTH, out: int = CLASSES, dropout: float = 0.0) -> Any:
    """Linear layers."""
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout))]
    return nn.Sequential(*hidden, nn.Linear(width, out))


def images(channels: int = 8, out: int = CLASSES) -> Any:
    """Convolutions with norms, for pictures of 12 x 12."""
    stages = [
        each
        for number in range(3)
        for each in (nn.Conv2d(channels if number else 3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
    ]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(4 * channels, out))


class Block(nn.Module):
    """A layer of a causal transformer."""

    def __init__(self, width: int = WIDTH, heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """The stream with attention and a feed-forward layer added."""
        parts = self.qkv(self.before(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        inside = functional.gelu(self.up(self.between(x)), approximate="tanh")
        return x + functional.dropout(self.down(inside), self.dropout, self.training)


class Language(nn.Module):
    """A causal language model whose head is its embedding."""

    def __init__(self, layers: int = 2, width: int = WIDTH, dropout: float = 0.0, length: int = 64):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, dropout=dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def hidden(self, words: Any) -> Any:
        """What the head is given."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, words: Any) -> Any:
        """Logits."""
        return self.head(self.hidden(words))


def labelled(count: int = 256, width: int = WIDTH) -> tuple[Any, Any]:
    """A batch of vectors and their classes."""
    return torch.randn(count, width), torch.randint(0, CLASSES, (count,))


def pictures(count: int = 32) -> tuple[Any, Any]:
    """A batch of pictures and their classes."""
    return torch.randn(count, 3, 12, 12), torch.randint(0, CLASSES, (count,))


def text(count: int = 8, length: int = 32) -> tuple[Any, Any]:
    """A batch of sentences, and the next words."""
    words = torch.randint(0, WORDS, (count, length + 1))
    return words[:, :-1], words[:, 1:]
