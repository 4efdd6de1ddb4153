"""Encoders, encoder-decoders and state spaces of words and sound, each written in one of its usual ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.torch_memory.variants import parts
from benchmarks.torch_memory.variants.parts import FloatRms, Mlp


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[batch, heads, length, size]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Crossing(nn.Module):
    """Attention with its own four matrices, to itself or to something else; the scores may be spelled out, with a mask."""

    def __init__(self, width: int, heads: int, bias: bool = False, is_spelled: bool = False, dropout: float = 0.0):
        super().__init__()
        self.heads, self.is_spelled, self.dropout = heads, is_spelled, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        other = x if other is None else other
        query, key, value = (heads_of(made, self.heads) for made in (self.query(x), self.key(other), self.value(other)))
        if self.is_spelled:
            made = parts.spelled_attention(query, key, value, mask, self.dropout)
        else:
            made = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return self.out(made.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Words in both directions with norms *after* each part, dropout on scores, and a head that shares the embedding."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.attend = nn.ModuleList(Crossing(width, heads, True, True, 0.1) for _ in range(layers))
        self.feed = nn.ModuleList(Mlp(width, 4 * width, F.gelu, 0.1) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))

    def forward(self, words: Tensor, following: Tensor, mask: Tensor) -> Tensor:
        shown = (1.0 - mask[:, None, None, :]) * -10000.0
        x = self.norms[-1](self.words(words) + self.places(torch.arange(words.shape[1], device=words.device)))
        for at, (attend, feed) in enumerate(zip(self.attend, self.feed, strict=True)):
            x = self.norms[2 * at](x + F.dropout(attend(x, mask=shown), 0.1))
            x = self.norms[2 * at + 1](x + feed(x))
        return F.cross_entropy((x @ self.words.weight.t()).flatten(0, 1), following.flatten())


class BiasedT5(nn.Module):
    """Encoder and decoder whose scores have a bias for each distance, shared by the layers; the scores are spelled out."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, vocabulary: int):
        super().__init__()
        self.layers = layers
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.biases = nn.ModuleList(nn.Embedding(32, heads) for _ in range(2))
        self.attend = nn.ModuleList(Crossing(width, heads, is_spelled=True) for _ in range(3 * layers))
        self.feed = nn.ModuleList(Mlp(width, inner, F.relu, 0.1) for _ in range(2 * layers))
        self.norms = nn.ModuleList(FloatRms(width) for _ in range(5 * layers + 2))

    def bias(self, at: int, length: int) -> Tensor:
        place = torch.arange(length, device="meta")
        distance = (place[None, :] - place[:, None]).abs().clamp(max=31)
        made: Tensor = self.biases[at](distance).permute(2, 0, 1)[None]
        return made + parts.causal(length, made.dtype) if at else made

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        norms = iter(self.norms)
        x, bias = self.embedding(words), self.bias(0, words.shape[1])
        for at in range(self.layers):
            x = x + F.dropout(self.attend[at](next(norms)(x), mask=bias), 0.1)
            x = x + self.feed[at](next(norms)(x))
        encoded = next(norms)(x)
        x, bias = self.embedding(following), self.bias(1, following.shape[1])
        for at in range(self.layers):
            x = x + F.dropout(self.attend[self.layers + 2 * at](next(norms)(x), mask=bias), 0.1)
            x = x + F.dropout(self.attend[self.layers + 2 * at + 1](next(norms)(x), encoded), 0.1)
            x = x + self.feed[self.layers + at](next(norms)(x))
        return F.cross_entropy(self.head(next(norms)(x)).flatten(0, 1), following.flatten())


class Speech(nn.Module):
    """An encoder of sound behind two convolutions, and a decoder of words that looks at it."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int):
        super().__init__()
        self.layers = layers
        self.stem = nn.Sequential(nn.Conv1d(80, width, 3, 1, 1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU())
        self.places, self.words = nn.Parameter(torch.empty(1500, width)), nn.Embedding(vocabulary, width)
        self.word_places = nn.Parameter(torch.empty(length, width))
        self.attend = nn.ModuleList(Crossing(width, heads, True) for _ in range(3 * layers))
        self.feed = nn.ModuleList(Mlp(width, 4 * width) for _ in range(2 * layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5 * layers + 2))

    def forward(self, sound: Tensor, words: Tensor, following: Tensor) -> Tensor:
        norms = iter(self.norms)
        x = self.stem(sound).transpose(1, 2) + self.places
        for at in range(self.layers):
            x = x + self.attend[at](next(norms)(x))
            x = x + self.feed[at](next(norms)(x))
        heard, x = next(norms)(x), self.words(words) + self.word_places
        for at in range(self.layers):
            x = x + self.attend[self.layers + 2 * at](next(norms)(x), is_causal=True)
            x = x + self.attend[self.layers + 2 * at + 1](next(norms)(x), heard)
            x = x + self.feed[self.layers + at](next(norms)(x))
        logits = (next(norms)(x) @ self.words.weight.t()).float()
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


class States(nn.Module):
    """Layers of a selective state space as plain operators.

    ``chunked`` has one decay a head and goes from chunk to chunk with products of matrices; ``associative`` has a decay for
    each channel and state, and doubles the distance over which it adds, again and again.
    """

    def __init__(self, way: str, layers: int, width: int, states: int, vocabulary: int, size: int = 64):
        super().__init__()
        self.way, self.states, self.size, inner = way, states, size, 2 * width
        self.rates = inner // size if way == "chunked" else inner
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.ins = nn.ModuleList(nn.Linear(width, 2 * inner, bias=False) for _ in range(layers))
        self.convs = nn.ModuleList(nn.Conv1d(inner, inner, 4, groups=inner, padding=3) for _ in range(layers))
        self.told = nn.ModuleList(nn.Linear(inner, self.rates + 2 * states) for _ in range(layers))
        shape = (self.rates,) if way == "chunked" else (inner, states)
        self.decays = nn.ParameterList(nn.Parameter(torch.empty(shape)) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(FloatRms(width) for _ in range(layers + 1))

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.embedding(words)
        for at, norm in enumerate(self.norms[:-1]):
            y, gate = self.ins[at](norm(x)).chunk(2, -1)
            y = F.silu(self.convs[at](y.transpose(1, 2))[..., : y.shape[1]].transpose(1, 2))
            rate, entering, leaving = self.told[at](y).split((self.rates, self.states, self.states), -1)
            rate, decay = F.softplus(rate.float()), -self.decays[at].float().exp()
            scanned = getattr(self, self.way)(y, rate, decay, entering.float(), leaving.float()).type_as(x)
            x = x + self.outs[at](scanned * F.silu(gate))
        return F.cross_entropy(self.head(self.norms[-1](x)).flatten(0, 1), following.flatten())

    def chunked(self, y: Tensor, rate: Tensor, decay: Tensor, entering: Tensor, leaving: Tensor, chunk: int = 512) -> Tensor:
        split = heads_of(y, self.rates)
        moved = split.float() * rate.transpose(1, 2)[..., None]
        logs = (rate * decay).transpose(1, 2)
        state = torch.zeros(*split.shape[:2], self.states, self.size, device=y.device)
        made = []
        for begin in range(0, y.shape[1], chunk):
            own = slice(begin, begin + chunk)
            total = logs[..., own].cumsum(-1)
            between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
            scores = (leaving[:, own] @ entering[:, own].transpose(1, 2))[:, None] * between
            carried = (leaving[:, None, own] @ state) * total.exp()[..., None]
            made.append(scores @ moved[..., own, :] + carried)
            kept = (total[..., -1:] - total).exp()[..., None] * moved[..., own, :]
            state = state * total[..., -1, None, None].exp() + entering[:, None, own].transpose(-2, -1) @ kept
        return torch.cat(made, 2).transpose(1, 2).flatten(-2)

    def associative(self, y: Tensor, rate: Tensor, decay: Tensor, entering: Tensor, leaving: Tensor) -> Tensor:
        kept = (rate[..., None] * decay).exp()
        state = (rate * y.float())[..., None] * entering[:, :, None]
        distance = 1
        while distance < y.shape[1]:
            back = (0, 0, 0, 0, distance, 0)
            state = state + kept * F.pad(state[:, :-distance], back)
            kept = kept * F.pad(kept[:, :-distance], back, value=1.0)
            distance *= 2
        return (state * leaving[:, :, None]).sum(-1)
