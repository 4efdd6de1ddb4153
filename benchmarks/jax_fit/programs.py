"""Losses in plain JAX, for benchmarks that fit them: eight small models, one more of before, and one that compiles slowly.

Arguments are shapes; nothing is allocated. Each returns a loss, its arguments, and no donated positions, as ``fit-jax`` takes
them of a call. :data:`HELD_OUT` was named before any of them was fitted, and nothing was changed for one of them since.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

#: Of the eight those that were looked at while fitting was built, and those that were not.
SEEN, HELD_OUT = ("llama_scanned", "gpt_names", "vit", "unet"), ("llama_unrolled", "t5", "moe", "diffusion_transformer")

#: All of them. The fifth is from before there were eight.
PROGRAMS = (*SEEN, "gpt_unrolled", *HELD_OUT)

#: Names what a layer makes.
Named = Callable[[Any, str], Any]


def _plain(value: Any, name: str) -> Any:
    return value


def _attention(
    x: Any, p: Any, heads: int, name: Named = _plain, *, is_causal: bool = True, source: Any = None, prefix: str = ""
) -> Any:
    """Of ``x`` on itself, or on ``source``; its weights' names begin with ``prefix``."""
    import jax
    import jax.numpy as jnp

    batch, length, width = x.shape
    source = x if source is None else source
    given = {"q": x, "k": source, "v": source}
    q, k, v = (
        name((from_ @ p[prefix + key]).reshape(batch, from_.shape[1], heads, width // heads), key)
        for key, from_ in given.items()
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(width // heads)
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores, -1).astype(x.dtype)
    return name(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width) @ p[f"{prefix}o"], "proj")


def _norm(x: Any, scale: Any) -> Any:
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def llama_layer(x: Any, p: Any, heads: int = 16, name: Named = _plain) -> Any:
    """A layer with a gated feed-forward network."""
    import jax

    x = x + _attention(_norm(x, p["n1"]), p, heads, name)
    inside = _norm(x, p["n2"])
    return x + (jax.nn.silu(inside @ p["gate"]) * (inside @ p["up"])) @ p["down"]


def gpt_layer(x: Any, p: Any, heads: int = 16, name: Named = _plain, is_causal: bool = True) -> Any:
    """A layer with a network of gelu."""
    import jax

    x = x + _attention(_norm(x, p["n1"]), p, heads, name, is_causal=is_causal)
    return x + jax.nn.gelu(_norm(x, p["n2"]) @ p["up"]) @ p["down"]


def _decoder_layer(source: Any, x: Any, p: Any, heads: int) -> Any:
    """One that attends to an encoder's results, too."""
    import jax

    x = x + _attention(_norm(x, p["n1"]), p, heads)
    x = x + _attention(_norm(x, p["n3"]), p, heads, is_causal=False, source=source, prefix="c")
    return x + jax.nn.relu(_norm(x, p["n2"]) @ p["up"]) @ p["down"]


def _moe_layer(x: Any, p: Any, heads: int) -> Any:
    """Each token to one of the experts, within their capacity."""
    import jax
    import jax.numpy as jnp

    x = x + _attention(_norm(x, p["n1"]), p, heads)
    tokens = _norm(x, p["n2"]).reshape(-1, x.shape[-1])
    experts = p["up"].shape[0]
    chances = jax.nn.softmax((tokens @ p["router"]).astype(jnp.float32), -1)
    chosen = jax.nn.one_hot(chances.argmax(-1), experts, dtype="int32")
    place = (chosen.cumsum(0) - 1) * chosen
    capacity = 5 * len(tokens) // (4 * experts)
    sent = (jax.nn.one_hot(place, capacity) * chosen[..., None]).astype(x.dtype)
    inside = jax.nn.gelu(jnp.einsum("tec,tw,ewh->ech", sent, tokens, p["up"]))
    back = jnp.einsum("tec,ech,ehw->tw", sent * chances[..., None].astype(x.dtype), inside, p["down"])
    return x + back.reshape(x.shape)


def _modulated_layer(condition: Any, x: Any, p: Any, heads: int) -> Any:
    """A layer of a diffusion transformer: shifts, scales and gates are made of a condition."""
    import jax
    import jax.numpy as jnp

    shift, scale, gate, shift2, scale2, gate2 = jnp.split((jax.nn.silu(condition) @ p["modulation"])[:, None], 6, -1)
    x = x + gate * _attention(_norm(x, p["n1"]) * (1 + scale) + shift, p, heads, is_causal=False)
    inside = _norm(x, p["n2"]) * (1 + scale2) + shift2
    return x + gate2 * (jax.nn.gelu(inside @ p["up"]) @ p["down"])


def _layers(layer: Any, x: Any, weights: Any, is_scanned: bool = True) -> Any:
    import jax

    if is_scanned:
        return jax.lax.scan(lambda x, inner: (layer(x, inner), None), x, weights)[0]
    for number in range(weights["q"].shape[0]):
        x = layer(x, jax.tree.map(lambda leaf, number=number: leaf[number], weights))
    return x


def _word_error(x: Any, embedding: Any, tokens: Any) -> Any:
    import jax
    import jax.numpy as jnp

    logits = (x @ embedding.T).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1).mean()


def _loss(layer: Any, is_scanned: bool, p: Any, tokens: Any) -> Any:
    return _word_error(_layers(layer, p["embedding"][tokens], p["layers"], is_scanned), p["embedding"], tokens)


def _vit_loss(p: Any, patches: Any, kinds: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = _layers(partial(gpt_layer, heads=8, is_causal=False), patches @ p["patch"] + p["places"], p["layers"])
    logits = (x.mean(1) @ p["head"]).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), kinds[:, None], -1).mean()


def _t5_loss(p: Any, source: Any, tokens: Any) -> Any:
    encoded = _layers(partial(gpt_layer, heads=8, is_causal=False), p["embedding"][source], p["encoder"])
    x = _layers(partial(_decoder_layer, encoded, heads=8), p["embedding"][tokens], p["decoder"])
    return _word_error(x, p["embedding"], tokens)


def _diffusion_loss(p: Any, patches: Any, condition: Any, noise: Any) -> Any:
    x = _layers(partial(_modulated_layer, condition, heads=8), patches @ p["patch"], p["layers"])
    return ((x @ p["patch"].T - noise).astype("float32") ** 2).mean()


def _conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    import jax

    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _unet_loss(p: Any, image: Any, goal: Any) -> Any:
    """Two convolutions with a residual at each of three resolutions, down and up."""
    import jax
    import jax.numpy as jnp

    def block(x: Any, q: Any) -> Any:
        x = _conv(x, q["into"])
        return x + _conv(jax.nn.silu(_norm(_conv(jax.nn.silu(_norm(x, q["n1"])), q["one"]), q["n2"])), q["two"])

    x, skips = _conv(image, p["first"]), []
    for q in p["down"]:
        x = block(x, q)
        skips.append(x)
        x = _conv(x, q["narrow"], 2)
    x = block(x, p["middle"])
    for q, skip in zip(p["up"], reversed(skips), strict=True):
        x = block(jnp.concatenate([jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), skip], -1), q)
    return ((_conv(x, p["last"]) - goal).astype("float32") ** 2).mean()


def _shape(*dims: int, dtype: str = "bfloat16") -> Any:
    import jax

    return jax.ShapeDtypeStruct(dims, dtype)


def _weights(layers: int, width: int, wide: dict[str, tuple[int, ...]], dtype: str = "bfloat16", prefix: str = "") -> Any:
    """Of layers that are stacked: attention, two norms, and others by their dimensions."""
    square = {f"{prefix}{name}": (width, width) for name in "qkvo"}
    dims = square | {"n1": (width,), "n2": (width,)} | wide
    return {name: _shape(layers, *size, dtype=dtype) for name, size in dims.items()}


def shapes(
    layers: int, width: int, inner: int, batch: int, length: int, words: int, gated: bool, dtype: str = "bfloat16"
) -> Any:
    """Parameters and tokens of a decoder."""
    wide = dict.fromkeys(("gate", "up") if gated else ("up",), (width, inner)) | {"down": (inner, width)}
    parameters = {"embedding": _shape(words, width, dtype=dtype), "layers": _weights(layers, width, wide, dtype)}
    return parameters, _shape(batch, length, dtype="int32")


def _vit_shapes() -> Any:
    layers = _weights(6, 512, {"up": (512, 2048), "down": (2048, 512)})
    parameters = {"patch": _shape(768, 512), "places": _shape(256, 512), "head": _shape(512, 1000), "layers": layers}
    return parameters, _shape(32, 256, 768), _shape(32, dtype="int32")


def _t5_shapes() -> Any:
    wide = {"up": (512, 2048), "down": (2048, 512)}
    cross = {"n3": (512,), **{f"c{name}": (512, 512) for name in "qkvo"}}
    parameters = {
        "embedding": _shape(8192, 512),
        "encoder": _weights(4, 512, wide),
        "decoder": _weights(4, 512, wide | cross),
    }
    return parameters, _shape(8, 512, dtype="int32"), _shape(8, 256, dtype="int32")


def _moe_shapes() -> Any:
    wide = {"router": (512, 8), "up": (8, 512, 1024), "down": (8, 1024, 512)}
    return {"embedding": _shape(8192, 512), "layers": _weights(4, 512, wide)}, _shape(8, 256, dtype="int32")


def _diffusion_shapes() -> Any:
    wide = {"modulation": (512, 6 * 512), "up": (512, 2048), "down": (2048, 512)}
    parameters = {"patch": _shape(64, 512), "layers": _weights(6, 512, wide)}
    return parameters, _shape(32, 256, 64), _shape(32, 512), _shape(32, 256, 64)


def _unet_shapes() -> Any:
    def block(given: int, width: int, **others: Any) -> Any:
        convs = {"into": (1, 1, given, width), "one": (3, 3, width, width), "two": (3, 3, width, width)}
        return {name: _shape(*dims) for name, dims in (convs | {"n1": (width,), "n2": (width,)} | others).items()}

    parameters = {
        "first": _shape(3, 3, 4, 64),
        "down": [block(64, 64, narrow=(3, 3, 64, 128)), block(128, 128, narrow=(3, 3, 128, 256))],
        "middle": block(256, 256),
        "up": [block(256 + 128, 128), block(128 + 64, 64)],
        "last": _shape(3, 3, 64, 4),
    }
    return parameters, _shape(16, 64, 64, 4), _shape(16, 64, 64, 4)


def _scanned_mixer(x: Any, p: Any) -> Any:
    """A state-space model along the tokens, with rates of their own; its states come from an associative scan."""
    import jax
    import jax.numpy as jnp

    rate = jax.nn.softplus((x @ p["rate"]).astype(jnp.float32))[..., None]
    entered = (x @ p["write"])[:, :, None, :].astype(jnp.float32) * (x @ p["into"])[..., None].astype(jnp.float32)

    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    decay = jnp.exp(-rate * jnp.exp(p["decay"].astype(jnp.float32)))
    states = jax.lax.associative_scan(join, (decay, rate * entered), axis=1)[1]
    read = (states * (x @ p["read"])[:, :, None, :]).sum(-1).astype(x.dtype)
    return (read * jax.nn.silu(x @ p["gate"])) @ p["out"]


def _state_space_loss(p: Any, source: Any, tokens: Any) -> Any:
    """An encoder, and a decoder that attends to it; both mix by state-space models."""
    import jax

    def layer(encoded: Any, x: Any, q: Any) -> Any:
        x = x + _scanned_mixer(_norm(x, q["n1"]), q)
        if encoded is not None:
            x = x + _attention(_norm(x, q["n3"]), q, 4, is_causal=False, source=encoded, prefix="c")
        return x + jax.nn.gelu(_norm(x, q["n2"]) @ q["up"]) @ q["down"]

    encoded = jax.lax.scan(lambda x, q: (layer(None, x, q), None), p["embedding"][source], p["encoder"])[0]
    decoded = jax.lax.scan(lambda x, q: (layer(encoded, x, q), None), p["embedding"][tokens], p["decoder"])[0]
    return _word_error(decoded, p["embedding"], tokens)


def _state_space_shapes(width: int = 256, states: int = 16, batch: int = 4, length: int = 1024) -> Any:
    square = dict.fromkeys(("into", "rate", "gate", "out"), (width, width))
    narrow = {"write": (width, states), "read": (width, states), "decay": (width, states)}
    mixer = square | narrow | {"n1": (width,), "n2": (width,), "up": (width, 4 * width), "down": (4 * width, width)}
    cross = {"n3": (width,), **{f"c{name}": (width, width) for name in "qkvo"}}
    layers = {"encoder": mixer, "decoder": mixer | cross}
    stacked = {part: {name: _shape(2, *dims) for name, dims in dims_of.items()} for part, dims_of in layers.items()}
    tokens = _shape(batch, length, dtype="int32")
    return {"embedding": _shape(4096, width)} | stacked, tokens, tokens


def make(name: str) -> Any:
    """A loss, its arguments, and no donated positions."""
    from jax.ad_checkpoint import checkpoint_name

    made: dict[str, Callable[[], tuple[Any, Any]]] = {
        "llama_scanned": lambda: (partial(_loss, llama_layer, True), shapes(4, 1024, 2816, 16, 512, 8192, True)),
        "llama_unrolled": lambda: (
            partial(_loss, partial(llama_layer, heads=8), False),
            shapes(4, 512, 1408, 8, 512, 8192, True),
        ),
        "gpt_unrolled": lambda: (partial(_loss, gpt_layer, False), shapes(4, 1024, 4096, 8, 512, 8192, False)),
        "gpt_names": lambda: (
            partial(_loss, partial(gpt_layer, heads=12, name=checkpoint_name), True),
            shapes(8, 768, 3072, 8, 1024, 8192, False),
        ),
        "vit": lambda: (partial(_vit_loss), _vit_shapes()),
        "unet": lambda: (partial(_unet_loss), _unet_shapes()),
        "t5": lambda: (partial(_t5_loss), _t5_shapes()),
        "moe": lambda: (partial(_loss, partial(_moe_layer, heads=8), True), _moe_shapes()),
        "diffusion_transformer": lambda: (partial(_diffusion_loss), _diffusion_shapes()),
        "state_space": lambda: (partial(_state_space_loss), _state_space_shapes()),
    }
    loss, arguments = made[name]()
    loss.__name__ = name
    return loss, arguments, ()
