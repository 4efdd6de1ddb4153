"""Random networks in the manner of real ones, to train policies that are to place networks they have not seen.

Five forms: *residual* convolutional networks (plain, bottleneck and inverted blocks, squeeze and excitation), *transformer*
encoders (in single operations, as BERT is in ``examples/data``, or fused), *mlp*: dense layers, with links past some of them,
behind tables or features; *branches*: parallel paths of convolutions that are joined, or every layer reads all before it in
its block; *unet*: down to small maps and up again, with links from one side to the other, so that activations live long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from stowplan.hardware.network import Layer, Network, Shape

Form = Literal["residual", "transformer", "mlp", "branches", "unet"]

FORMS: tuple[Form, ...] = ("residual", "transformer", "mlp", "branches", "unet")

#: Widths (channels, features) are multiples of this.
MULTIPLE = 8


def random_network(form: Form, chance: np.random.Generator, *, layers: int, width: int) -> Network:
    """A network of a form, the same for the same generator.

    Parameters
    ----------
    layers
        About so many; at least a handful.
    width
        Channels of the first convolutions, or features of a transformer or of dense layers; others follow from it. Weights grow
        about as its square.
    """
    builder = _Builder(chance, layers, width)
    builders: dict[Form, Callable[[_Builder], None]] = {
        "residual": _residual,
        "transformer": _transformer,
        "mlp": _mlp,
        "branches": _branches,
        "unet": _unet,
    }
    builders[form](builder)
    return Network(name=form, layers=tuple(builder.layers))


def rounded(width: float) -> int:
    """The nearest width that is a multiple of :data:`MULTIPLE`, at least that."""
    return max(MULTIPLE, round(width / MULTIPLE) * MULTIPLE)


class _Builder:
    """A network under construction; methods add a layer, and return its number."""

    def __init__(self, chance: np.random.Generator, count: int, width: int):
        self.chance, self.count, self.width = chance, count, width
        self.layers: list[Layer] = []

    # Chances

    def some(self, probability: float) -> bool:
        """True so often."""
        return bool(self.chance.random() < probability)

    def one_of(self, *choices: int) -> int:
        """Any of them."""
        return int(self.chance.choice(choices))

    # Layers

    def shape(self, number: int) -> Shape:
        """Of the output of a layer."""
        return self.layers[number].output_shape

    def layer(
        self, op: str, inputs: Sequence[int], shape: Shape, *, external: Shape | None = None, weights: int = 0, **rest: Any
    ) -> int:
        """A layer of any kind. The first of ``inputs`` gives the input's shape, or ``external``, an input of the network."""
        came = sum(self.layers[source].output_elements for source in set(inputs))
        self.layers.append(
            Layer(
                op=op,
                name=f"{op}_{len(self.layers)}",
                inputs=tuple(sorted(set(inputs))),
                input_shape=self.shape(inputs[0]) if inputs else external or (0, 0, 0),
                output_shape=shape,
                input_elements=came + (math.prod(external) if external else 0),
                output_elements=math.prod(shape),
                weight_elements=weights,
                **rest,
            )
        )
        return len(self.layers) - 1

    def conv(
        self,
        source: int | None,
        channels: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        image: int = 0,
        also: Sequence[int] = (),
        fused: tuple[str, ...] = ("batch_norm", "relu"),
    ) -> int:
        """A convolution of a map, or of an ``image`` of three channels; ``also`` are added to what it writes."""
        x, y, z = self.shape(source) if source is not None else (image, image, 3)
        at = (max(1, -(-x // stride)), max(1, -(-y // stride)))
        kernels = kernel * kernel * (z // groups) * channels
        return self.layer(
            "conv",
            () if source is None else (source, *also),
            (*at, channels),
            external=(x, y, z) if source is None else None,
            weights=kernels + channels,
            macs=at[0] * at[1] * kernels,
            groups=groups,
            kernel_x=kernel,
            kernel_y=kernel,
            stride=stride,
            pad=kernel // 2,
            dilation=1,
            fused=(*fused, "add") if also else fused,
        )

    def pool(self, op: str, source: int, kernel: int, stride: int) -> int:
        """Of a map; ``kernel`` 0 takes all of it."""
        x, y, z = self.shape(source)
        if not kernel:
            kernel, stride, shape = x, x, (1, 1, z)
        else:
            shape = (max(1, -(-x // stride)), max(1, -(-y // stride)), z)
        sizes: dict[str, Any] = {"kernel_x": kernel, "kernel_y": kernel, "stride": stride, "groups": 1, "dilation": 1}
        return self.layer(op, [source], shape, **sizes)

    def product(self, op: str, source: int, features: int, *, biased: bool = True) -> int:
        """A dense layer, ``fc`` or ``matmul_w``, of every place of its input."""
        x, y, z = self.shape(source)
        return self.layer(op, [source], (x, y, features), weights=features * (z + biased), macs=x * y * z * features)

    def same(self, op: str, source: int, *others: int, weights: int = 0) -> int:
        """An operation element by element: a map as large as the first input's."""
        return self.layer(op, [source, *others], self.shape(source), weights=weights)

    def joined(self, sources: Sequence[int]) -> int:
        """Maps one behind the other in z."""
        x, y, _ = self.shape(sources[0])
        return self.layer("concat", sources, (x, y, sum(self.shape(source)[2] for source in sources)))

    def head(self, source: int) -> None:
        """Classes, of a map."""
        if self.shape(source)[0] > 1:
            source = self.pool("avgpool", source, 0, 0)
        self.same("softmax", self.product("fc", source, self.one_of(10, 100, 1000)))

    def stem(self) -> int:
        """The first maps of an image."""
        image = self.one_of(*range(96, 385, 32))
        if self.some(0.25):
            return self.conv(None, self.width, 4, 4, image=image)
        source = self.conv(None, self.width, self.one_of(3, 7), 2, image=image)
        return self.pool("maxpool", source, 3, 2) if self.some(0.7) else source


def _residual(b: _Builder) -> None:
    source = b.stem()
    block = (_plain_block, _bottleneck, _inverted)[b.one_of(0, 1, 2)]
    is_fused, excites = b.some(0.6), b.some(0.2)
    stages = 3 if b.count < 20 else 4
    parts = b.chance.dirichlet([4.0] * stages)
    for stage in range(stages):
        until = len(b.layers) + parts[stage] * max(0, b.count - 5)
        width, is_first = b.width << stage, True
        while is_first or len(b.layers) < until:
            source = block(b, source, width, 2 if is_first and stage else 1, is_fused, excites)
            is_first = False
    b.head(source)


def _plain_block(b: _Builder, source: int, width: int, stride: int, is_fused: bool, excites: bool) -> int:
    return _closed(b, source, b.conv(source, width, 3, stride), width, 3, stride, is_fused, excites)


def _bottleneck(b: _Builder, source: int, width: int, stride: int, is_fused: bool, excites: bool) -> int:
    inner = b.conv(b.conv(source, width, 1), width, 3, stride)
    return _closed(b, source, inner, 4 * width, 1, stride, is_fused, excites)


def _inverted(b: _Builder, source: int, width: int, stride: int, is_fused: bool, excites: bool) -> int:
    wide = 4 * b.shape(source)[2]
    inner = b.conv(b.conv(source, wide, 1), wide, 3, stride, groups=wide)
    return _closed(b, source, inner, width, 1, stride, is_fused, excites)


def _closed(b: _Builder, source: int, inner: int, width: int, kernel: int, stride: int, is_fused: bool, excites: bool) -> int:
    """The end of a block: its last convolution, and the sum with what came in, which is made fit where it has to be."""
    if excites:
        squeezed = b.product("fc", b.pool("avgpool", inner, 0, 0), rounded(b.shape(inner)[2] / 8))
        inner = b.same("mul", inner, b.product("fc", squeezed, b.shape(inner)[2]))
    if stride > 1 or b.shape(source)[2] != width:
        source = b.conv(source, width, 1, stride, fused=("batch_norm",))
    if is_fused:
        return b.conv(inner, width, kernel, also=[source])
    return b.same("add", source, b.conv(inner, width, kernel, fused=("batch_norm",)))


def _transformer(b: _Builder) -> None:
    length, features = b.one_of(32, 64, 128, 197, 256, 384, 512), b.width
    heads = max(1, features // b.one_of(32, 64, 128))
    features = heads * max(MULTIPLE, features // heads)
    if b.some(0.6):
        rows = b.one_of(4, 8, 16, 32) * 1000
        source = b.layer(
            "embedding",
            (),
            (length, 1, features),
            external=(1, 1, length),
            weights=rows * features,
            weight_read_elements=length * features,
        )
    else:
        side = math.isqrt(length)
        length = side * side
        patches = b.conv(None, features, 16, 16, image=16 * side, fused=())
        source = b.layer("reshape", [patches], (length, 1, features))
    source = b.same("layernorm", source, weights=2 * features)
    is_fine, is_before, wider = b.some(0.5), b.some(0.5), b.one_of(2, 4)
    while True:
        source = _attention(b, source, heads, is_fine, is_before)
        source = _feed_forward(b, source, wider, is_fine, is_before)
        if len(b.layers) + (15 if is_fine else 8) > b.count:
            break
    _dense(b, source, b.one_of(2, 1000, features), is_fine)


def _dense(b: _Builder, source: int, features: int, is_fine: bool) -> int:
    if is_fine:
        return b.same("bias_add", b.product("matmul_w", source, features, biased=False), weights=features)
    return b.product("matmul_w", source, features)


def _attention(b: _Builder, source: int, heads: int, is_fine: bool, is_before: bool) -> int:
    length, _, features = b.shape(source)
    each = features // heads
    begin = b.same("layernorm", source, weights=2 * features) if is_before else source
    parts = []
    for _ in range(3):
        part = _dense(b, begin, features, is_fine)
        if is_fine:
            part = b.layer("transpose", [b.layer("view", [part], (each, heads, length))], (each, length, heads))
        parts.append(part)
    query, key, value = parts
    if is_fine:
        key = b.layer("transpose", [key], (length, each, heads))
    products = length * length * features
    scores = b.layer("matmul", [query, key], (length, length, heads), macs=products)
    if is_fine:
        scores = b.same("mul", scores)
    weighted = b.layer(
        "matmul",
        [b.same("softmax", scores), value],
        (each, length, heads) if is_fine else (length, 1, features),
        macs=products,
    )
    if is_fine:
        weighted = b.layer("reshape", [b.layer("transpose", [weighted], (each, heads, length))], (length, 1, features))
    total = b.same("add", source, _dense(b, weighted, features, is_fine))
    return total if is_before else b.same("layernorm", total, weights=2 * features)


def _feed_forward(b: _Builder, source: int, wider: int, is_fine: bool, is_before: bool) -> int:
    features = b.shape(source)[2]
    begin = b.same("layernorm", source, weights=2 * features) if is_before else source
    inner = _dense(b, begin, wider * features, is_fine)
    if is_fine:
        inner = b.same("gelu", inner)
    total = b.same("add", source, _dense(b, inner, features, is_fine))
    return total if is_before else b.same("layernorm", total, weights=2 * features)


def _mlp(b: _Builder) -> None:
    rows = b.one_of(1, 1, 16, 64, 256)
    begins = []
    for _ in range(b.one_of(0, 0, 2, 4, 8)):
        features = rounded(b.width / b.one_of(4, 8, 16))
        table: dict[str, Any] = {"weights": b.one_of(1, 4, 16) * 1000 * features, "weight_read_elements": rows * features}
        begins.append(b.layer("embedding", (), (rows, 1, features), external=(1, 1, rows), **table))
    if len(begins) > 1:
        source = b.joined(begins)
    else:
        features = b.one_of(64, 256, 1024)
        source = b.layer(
            "fc",
            (),
            (rows, 1, b.width),
            external=(rows, 1, features),
            weights=b.width * (features + 1),
            macs=rows * b.width * features,
        )
    is_fused, links = b.some(0.5), b.chance.random() * 0.6
    while len(b.layers) < b.count - 2:
        before = source
        source = b.product("fc", source, rounded(b.width * float(b.chance.choice([0.5, 1.0, 1.0, 2.0]))))
        if not is_fused:
            source = b.same("relu", source)
        if b.some(links):
            # A block with a link past it.
            source = b.same("add", before, b.product("fc", source, b.shape(before)[2]))
    b.same("sigmoid", b.product("fc", source, b.one_of(1, 10, 100)))


def _branches(b: _Builder) -> None:
    source = b.stem()
    is_dense = b.some(0.4)
    stages = b.one_of(2, 3, 4)
    for stage in range(stages):
        until = len(b.layers) + (b.count - len(b.layers) - 3) / (stages - stage)
        if stage:
            source = b.pool("maxpool" if b.some(0.5) else "avgpool", source, 2, 2)
        width, is_first = rounded(b.width * 1.6**stage), True
        while is_first or len(b.layers) < until:
            source = (_dense_block if is_dense else _parallel)(b, source, width)
            is_first = False
    b.head(source)


def _parallel(b: _Builder, source: int, width: int) -> int:
    ends = []
    for _ in range(b.one_of(2, 3, 4, 5)):
        end, depth = source, b.one_of(1, 2, 3)
        if b.some(0.2):
            end = b.pool("avgpool", end, 3, 1)
        for at in range(depth):
            kernel = 1 if not at and b.some(0.8) else b.one_of(3, 3, 5)
            end = b.conv(end, rounded(width * float(b.chance.choice([0.5, 1.0, 1.5]))), kernel)
        ends.append(end)
    return b.joined(ends)


def _dense_block(b: _Builder, source: int, width: int) -> int:
    parts = [source]
    for _ in range(b.one_of(2, 4, 6)):
        begin = b.joined(parts) if len(parts) > 1 else source
        parts.append(b.conv(b.conv(begin, width, 1), rounded(width / 2), 3))
    return b.conv(b.joined(parts), width, 1)


def _unet(b: _Builder) -> None:
    image = b.one_of(*range(96, 257, 32))
    source = b.conv(None, b.width, 3, b.one_of(1, 2), image=image)
    steps = 3 if b.count < 25 else 4
    # Down and up, and the bottom.
    at_once = max(1, round((b.count - 2 - 3 * steps) / (2 * steps + 1)))
    links = []
    for step in range(steps):
        for _ in range(at_once):
            source = b.conv(source, b.width << step, 3)
        links.append(source)
        source = b.pool("maxpool", source, 2, 2)
    for _ in range(at_once):
        source = b.conv(source, b.width << steps, 3)
    for step in reversed(range(steps)):
        x, y, _ = b.shape(links[step])
        source = b.layer("resize", [source], (x, y, b.shape(source)[2]))
        source = b.joined([links[step], source])
        for _ in range(at_once):
            source = b.conv(source, b.width << step, 3)
    b.conv(source, b.one_of(1, 2, 21), 1, fused=())
