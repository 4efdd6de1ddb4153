"""Fit a training step of a small decoder into a TPU's memory, without one: ``python examples/fit_jax.py [FOLDER]``.

Needs ``pip install '.[xla]'``. Each preview takes a second or two of a processor; results are kept in FOLDER.
"""

from __future__ import annotations

import sys
from typing import Any

import stowplan.backends.jax as fitting

LAYERS, BATCH, TOKENS, WIDTH, HIDDEN, WORDS = 4, 8, 512, 512, 2048, 4096


def layer(x: Any, weights: dict[str, Any]) -> Any:
    import jax
    import jax.numpy as jnp

    q, k, v = (x @ weights[name] for name in "qkv")
    scores = jnp.einsum("bqw,bkw->bqk", q, k).astype(jnp.float32) / WIDTH**0.5
    x = x + jnp.einsum("bqk,bkw->bqw", jax.nn.softmax(scores).astype(x.dtype), v)
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"], None


@fitting.marked
def loss(weights: dict[str, Any], tokens: Any) -> Any:
    import jax
    import jax.numpy as jnp

    x, _ = jax.lax.scan(layer, weights["words"][tokens], weights["layers"])
    logits = (x @ weights["words"].T).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], -1).mean()


def step(weights: dict[str, Any], tokens: Any) -> Any:
    """Gradient descent: the loss in it is marked."""
    import jax

    error, slope = jax.value_and_grad(loss)(weights, tokens)
    return jax.tree.map(lambda old, new: old - (1e-3 * new).astype(old.dtype), weights, slope), error


def arguments(batch: int = BATCH) -> Any:
    """Shapes of parameters and tokens."""
    import jax

    def shape(*dims: int, dtype: str = "bfloat16") -> Any:
        return jax.ShapeDtypeStruct(dims, dtype)

    layers = {name: shape(LAYERS, WIDTH, WIDTH) for name in "qkv"}
    layers |= {"up": shape(LAYERS, WIDTH, HIDDEN), "down": shape(LAYERS, HIDDEN, WIDTH)}
    return {"words": shape(WORDS, WIDTH), "layers": layers}, shape(batch, TOKENS, dtype="int32")


def make(batch: str) -> Any:
    """The step, its arguments, and which of them it may take the memory of, for a batch that is looked for."""
    return step, arguments(int(batch)), (0,)


def main() -> None:
    try:
        import jax  # noqa: F401
    except ImportError:
        sys.exit("this example needs JAX and libtpu: pip install '.[xla]'")
    fitted = fitting.fit(
        step,
        arguments(),
        hbm="250 MiB",
        chip="v5e",
        donated=(0,),
        compiles=0,
        folder=sys.argv[1] if len(sys.argv) > 1 else None,
        on_progress=lambda line: print(line, file=sys.stderr),
    )
    print(fitted.report.summary())
    print(fitted.policy)


if __name__ == "__main__":
    main()
