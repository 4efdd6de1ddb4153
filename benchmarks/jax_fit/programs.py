"""Losses in plain JAX, for benchmarks that fit them: a scanned Llama, a GPT whose layers are unrolled, and one with names.

Arguments are shapes; nothing is allocated. Each returns a loss and its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any


def _attention(x: Any, p: Any, heads: int, name: Callable[[Any, str], Any]) -> Any:
    import jax
    import jax.numpy as jnp

    batch, length, width = x.shape
    q, k, v = (name((x @ p[key]).reshape(batch, length, heads, width // heads), key) for key in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), -1e9), -1).astype(x.dtype)
    return name(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width) @ p["o"], "proj")


def _norm(x: Any, scale: Any) -> Any:
    import jax
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _plain(value: Any, name: str) -> Any:
    return value


def llama_layer(x: Any, p: Any, heads: int = 16, name: Callable[[Any, str], Any] = _plain) -> Any:
    """A layer with a gated feed-forward network."""
    import jax

    x = x + _attention(_norm(x, p["n1"]), p, heads, name)
    inside = _norm(x, p["n2"])
    return x + (jax.nn.silu(inside @ p["gate"]) * (inside @ p["up"])) @ p["down"]


def gpt_layer(x: Any, p: Any, heads: int = 16, name: Callable[[Any, str], Any] = _plain) -> Any:
    """A layer with a network of gelu."""
    import jax

    x = x + _attention(_norm(x, p["n1"]), p, heads, name)
    return x + jax.nn.gelu(_norm(x, p["n2"]) @ p["up"]) @ p["down"]


def _loss(layer: Any, is_scanned: bool, p: Any, tokens: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x = p["embedding"][tokens]
    if is_scanned:
        x, _ = jax.lax.scan(lambda x, inner: (layer(x, inner), None), x, p["layers"])
    else:
        for number in range(p["layers"]["q"].shape[0]):
            x = layer(x, jax.tree.map(lambda leaf, number=number: leaf[number], p["layers"]))
    logits = (x @ p["embedding"].T).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1).mean()


def shapes(
    layers: int, width: int, inner: int, batch: int, length: int, words: int, gated: bool, dtype: str = "bfloat16"
) -> Any:
    """Parameters and tokens."""
    import jax

    def shape(*dims: int, dtype: str = dtype) -> Any:
        return jax.ShapeDtypeStruct(dims, dtype)

    square = {name: shape(layers, width, width) for name in "qkvo"}
    wide = {name: shape(layers, width, inner) for name in (("gate", "up") if gated else ("up",))}
    norms = {name: shape(layers, width) for name in ("n1", "n2")}
    parameters = {"embedding": shape(words, width), "layers": {**square, **wide, **norms, "down": shape(layers, inner, width)}}
    return parameters, shape(batch, length, dtype="int32")


def make(name: str) -> Any:
    """A loss, its arguments, and no donated positions, as ``fit-jax`` takes them of a call."""
    from jax.ad_checkpoint import checkpoint_name

    if name == "llama_scanned":
        return partial_named(name, partial(_loss, llama_layer, True)), shapes(4, 1024, 2816, 16, 512, 8192, True), ()
    if name == "gpt_unrolled":
        return partial_named(name, partial(_loss, gpt_layer, False)), shapes(4, 1024, 4096, 8, 512, 8192, False), ()
    layer = partial(gpt_layer, heads=12, name=checkpoint_name)
    return partial_named(name, partial(_loss, layer, True)), shapes(8, 768, 3072, 8, 1024, 8192, False), ()


def partial_named(name: str, function: Any) -> Any:
    """The function with a name."""
    function.__name__ = name
    return function


#: All of them.
PROGRAMS = ("llama_scanned", "gpt_unrolled", "gpt_names")
