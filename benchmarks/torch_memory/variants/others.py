"""Encoders, encoder-decoders, and networks of pictures and of states, each written in one of its usual ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.torch_memory.variants import parts
from benchmarks.torch_memory.variants.parts import FloatRms, Mlp, SwiGlu


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


class States(nn.Module):
    """Layers of a selective state space as plain operators.

    ``chunked`` has one decay a head and goes from chunk to chunk with products of matrices; ``associative`` has a decay for each
    channel and state, and doubles the distance over which it adds, again and again.
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
