"""ResNet-50, ResNet-101 and BERT-base, the networks of the EGRL paper, and BERT-large, in plain ``torch.nn``, untrained."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolution around a shortcut (He et al. 2016, figure 5)."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """``blocks`` bottlenecks in each of four stages, then a classifier of 1,000 classes with its softmax."""

    def __init__(self, blocks: tuple[int, int, int, int]):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for block in range(count):
                stages.append(Bottleneck(channels, width, 2 if stage and block == 0 else 1))
                channels = 4 * width
        self.stages = nn.Sequential(*stages)
        self.pool, self.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.classifier(self.pool(self.stages(self.stem(x))).flatten(1)), -1)


class BertLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual add and a layer norm (Devlin et al. 2018)."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads, self.depth = heads, hidden // heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.depth).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(2, 3)) * (1 / math.sqrt(self.depth)) + mask
        context = torch.matmul(torch.softmax(scores, -1), value).transpose(1, 2).contiguous().reshape(x.shape)
        x = self.norm1(self.output(context) + x)
        return self.norm2(self.down(nn.functional.gelu(self.up(x))) + x)


class Bert(nn.Module):
    """BERT-base with the head for question answering: start and end of the answer."""

    def __init__(self, layers: int = 12, hidden: int = 768, heads: int = 12, words: int = 30522, positions: int = 512):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, hidden), nn.Embedding(positions, hidden)
        self.segments = nn.Embedding(2, hidden)
        self.norm, self.answer = nn.LayerNorm(hidden), nn.Linear(hidden, 2)
        self.layers = nn.ModuleList(BertLayer(hidden, heads) for _ in range(layers))

    def forward(self, ids: Tensor, segments: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1]).unsqueeze(0)
        x = self.norm(self.words(ids) + self.segments(segments) + self.positions(places))
        both = attended[:, None, None, :].bool().expand(-1, 1, ids.shape[1], -1)
        mask = torch.where(both, 0.0, -1e9)
        for layer in self.layers:
            x = layer(x, mask)
        start, end = self.answer(x).split(1, -1)
        return start.squeeze(-1), end.squeeze(-1)


def build(name: str, sequence: int = 128) -> tuple[nn.Module, tuple[Any, ...]]:
    """A model in evaluation mode without storage for its weights, and arguments to trace it with, batch 1."""
    with torch.device("meta"):
        if name in ("bert_base", "bert_large"):
            ids = torch.zeros(1, sequence, dtype=torch.int64)
            return (Bert() if name == "bert_base" else Bert(24, 1024, 16)).eval(), (ids, ids, ids)
        blocks = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}[name]
        return ResNet(blocks).eval(), (torch.zeros(1, 3, 224, 224),)
