"""JAX programs that are short of a TPU's fast memory, in plain JAX, for benchmarks that compile them.

Layers are few and activations large: a compile takes seconds, and what is live at once is several times the fast memory.
:data:`DEVELOPMENT` was looked at while the tuning of XLA was built, :data:`HELD_OUT` was not. Nothing is ever allocated:
arguments are shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

#: Programs by whether they may be looked at while building. Named before anything was built on them.
DEVELOPMENT = ("transformer_train", "wavenet_inf", "recommender_train", "unet_train")
HELD_OUT = ("gpt2_small_train", "gpt2_medium_train", "mixer_train", "lstm_lm_train")

#: A loss: parameters and inputs to a number.
Loss = Callable[..., Any]


class Parameters:
    """Parameters by name: their shapes are written down where there are none yet."""

    def __init__(self, values: dict[str, Any] | None, dtype: Any):
        self.values = values
        self.shapes: dict[str, Any] = {}
        self.dtype = dtype

    def __call__(self, name: str, *shape: int) -> Any:
        import jax
        import jax.numpy as jnp

        if self.values is not None:
            return self.values[name]
        self.shapes[name] = jax.ShapeDtypeStruct(shape, self.dtype)
        return jnp.zeros(shape, self.dtype)


def make(name: str) -> Any:
    """Function, arguments and donated positions of a program, as ``tune-xla`` takes them of a call."""
    return _PROGRAMS[name]()


def _shape(*dims: int, dtype: str = "float32") -> Any:
    import jax

    return jax.ShapeDtypeStruct(dims, dtype)


def _inference(model: Loss, *inputs: Any, dtype: str = "float32") -> Any:
    return (lambda values, *given: model(Parameters(values, dtype), *given)), (_shapes_of(model, inputs, dtype), *inputs), ()


def _training(loss: Loss, *inputs: Any, dtype: str = "float32") -> Any:
    """A step of gradient descent; parameters are donated."""
    import jax
    import jax.numpy as jnp

    def step(values: Any, *given: Any) -> Any:
        error, slope = jax.value_and_grad(lambda now: loss(Parameters(now, dtype), *given).astype(jnp.float32))(values)
        return jax.tree.map(lambda old, new: old - (1e-3 * new).astype(old.dtype), values, slope), error

    return step, (_shapes_of(loss, inputs, dtype), *inputs), (0,)


def _shapes_of(model: Loss, inputs: tuple[Any, ...], dtype: str) -> dict[str, Any]:
    import jax

    found = Parameters(None, dtype)
    jax.eval_shape(lambda *given: model(found, *given), *inputs)
    return found.shapes


def _norm(p: Parameters, name: str, x: Any) -> Any:
    import jax.numpy as jnp

    middle = x.mean(-1, keepdims=True)
    spread = jnp.square(x - middle).mean(-1, keepdims=True)
    return (x - middle) * (spread + 1e-5) ** -0.5 * p(name + ".scale", x.shape[-1]) + p(name + ".shift", x.shape[-1])


def _dense(p: Parameters, name: str, x: Any, width: int) -> Any:
    return x @ p(name + ".w", x.shape[-1], width) + p(name + ".b", width)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[..., None], -1).mean()


def _attention(p: Parameters, name: str, x: Any, heads: int, *, causal: bool) -> Any:
    import jax
    import jax.numpy as jnp

    batch, length, width = x.shape
    queries, keys, values = (
        _dense(p, f"{name}.{part}", x, width).reshape(batch, length, heads, width // heads) for part in ("q", "k", "v")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(width // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype), values)
    return _dense(p, name + ".o", mixed.reshape(batch, length, width), width)


def _language_model(layers: int, width: int, heads: int, vocabulary: int, *, causal: bool = True) -> Loss:
    def loss(p: Parameters, words: Any, labels: Any) -> Any:
        import jax

        table = p("words", vocabulary, width)
        x = table[words] + p("places", words.shape[1], width)
        for layer in range(layers):
            x = x + _attention(p, f"{layer}.attention", _norm(p, f"{layer}.n1", x), heads, causal=causal)
            hidden = jax.nn.gelu(_dense(p, f"{layer}.up", _norm(p, f"{layer}.n2", x), 4 * width))
            x = x + _dense(p, f"{layer}.down", hidden, width)
        return _cross_entropy(_norm(p, "end", x) @ table.T, labels)

    return loss


def _convolution(p: Parameters, name: str, x: Any, width: int, size: int, *, dilation: int = 1, stride: int = 1) -> Any:
    """Over the dimensions between the first and the last, padded to the same extent."""
    from jax import lax

    space = x.ndim - 2
    kernel = p(name + ".w", *[size] * space, x.shape[-1], width)
    order = "NWC", "WIO", "NWC"
    if space == 2:
        order = "NHWC", "HWIO", "NHWC"
    found = lax.conv_general_dilated(
        x, kernel, [stride] * space, "SAME", rhs_dilation=[dilation] * space, dimension_numbers=order
    )
    return found + p(name + ".b", width)


def _wavenet(p: Parameters, sound: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = _convolution(p, "in", sound, 128, 2)
    skipped = jnp.zeros(())
    for layer in range(8):
        both = _convolution(p, f"{layer}.both", x, 256, 2, dilation=2**layer)
        gated = jnp.tanh(both[..., :128]) * jax.nn.sigmoid(both[..., 128:])
        skipped = skipped + _dense(p, f"{layer}.skip", gated, 256)
        x = x + _dense(p, f"{layer}.on", gated, 128)
    return _dense(p, "out", jax.nn.relu(_dense(p, "mix", jax.nn.relu(skipped), 256)), 256)


def _recommender(p: Parameters, numbers: Any, marks: Any, clicked: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = numbers
    for layer, width in enumerate((512, 256, 64)):
        x = jax.nn.relu(_dense(p, f"bottom{layer}", x, width))
    found = [x] + [p(f"table{each}", 20_000, 64)[marks[:, each]] for each in range(26)]
    every = jnp.stack(found, 1)
    crossed = jnp.einsum("bid,bjd->bij", every, every).reshape(numbers.shape[0], -1)
    x = jnp.concatenate([x, crossed], -1)
    for layer, width in enumerate((1024, 1024, 512, 256)):
        x = jax.nn.relu(_dense(p, f"top{layer}", x, width))
    guess = _dense(p, "last", x, 1)[:, 0]
    return (jax.nn.softplus(guess) - guess * clicked).mean()


def _unet(p: Parameters, image: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def block(name: str, x: Any, width: int) -> Any:
        for each in range(1):
            x = jax.nn.relu(_convolution(p, f"{name}.{each}", x, width, 3))
        return x

    x, kept = image, []
    for level, width in enumerate((32, 64)):
        x = block(f"down{level}", x, width)
        kept.append(x)
        x = _convolution(p, f"half{level}", x, width, 2, stride=2)
    x = block("middle", x, 128)
    for level, width in ((1, 64), (0, 32)):
        x = x.repeat(2, 1).repeat(2, 2)
        x = block(f"up{level}", jnp.concatenate([x, kept[level]], -1), width)
    return _cross_entropy(_dense(p, "out", x, 8), labels)


def _mixer(p: Parameters, image: Any, labels: Any) -> Any:
    import jax

    x = _convolution(p, "patches", image, 512, 16, stride=16)
    x = x.reshape(x.shape[0], -1, 512)
    for layer in range(1):
        y = _norm(p, f"{layer}.n1", x).swapaxes(1, 2)
        y = _dense(p, f"{layer}.across", jax.nn.gelu(_dense(p, f"{layer}.over", y, 256)), x.shape[1])
        x = x + y.swapaxes(1, 2)
        y = _norm(p, f"{layer}.n2", x)
        x = x + _dense(p, f"{layer}.down", jax.nn.gelu(_dense(p, f"{layer}.up", y, 2048)), 512)
    return _cross_entropy(_dense(p, "out", x.mean(1), 1000), labels)


def _lstm(p: Parameters, words: Any, labels: Any) -> Any:
    """Two layers, unrolled over time."""
    import jax
    import jax.numpy as jnp

    table, width = p("words", 10_000, 512), 512
    inputs = [table[words[:, at]] for at in range(words.shape[1])]
    for layer in range(2):
        hidden = cell = jnp.zeros((words.shape[0], width))
        outputs = []
        for x in inputs:
            gates = _dense(p, f"{layer}", jnp.concatenate([x, hidden], -1), 4 * width)
            enter, forget, new, out = jnp.split(gates, 4, -1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
            outputs.append(hidden)
        inputs = outputs
    return _cross_entropy(jnp.stack(inputs, 1) @ table.T, labels)


def _words(*dims: int) -> Any:
    return _shape(*dims, dtype="int32")


_PROGRAMS: dict[str, Callable[[], Any]] = {
    "transformer_train": lambda: _training(
        _language_model(1, 512, 8, 8_000, causal=False), _words(16, 256), _words(16, 256), dtype="bfloat16"
    ),
    "wavenet_inf": lambda: _inference(_wavenet, _shape(16, 4096, 1)),
    "recommender_train": lambda: _training(_recommender, _shape(4096, 13), _words(4096, 26), _shape(4096)),
    "unet_train": lambda: _training(_unet, _shape(8, 128, 128, 3), _words(8, 128, 128)),
    "gpt2_small_train": lambda: _training(_language_model(1, 768, 12, 50_257), _words(2, 512), _words(2, 512)),
    "gpt2_medium_train": lambda: _training(
        _language_model(1, 1024, 16, 50_257), _words(2, 512), _words(2, 512), dtype="bfloat16"
    ),
    "mixer_train": lambda: _training(_mixer, _shape(32, 224, 224, 3), _words(32)),
    "lstm_lm_train": lambda: _training(_lstm, _words(256, 4), _words(256, 4)),
}
