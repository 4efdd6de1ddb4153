"""Tune a JAX function for TPU v4 without one: ``python examples/tune_xla.py [FOLDER]``.

Needs ``pip install '.[xla]'``. Each compile takes some 15 s of a processor; results are kept in FOLDER.
"""

from __future__ import annotations

import sys
from typing import Any

from stowplan.backends import xla

LAYERS, TOKENS, CHANNELS, HIDDEN = 4, 2048, 1024, 4096


def norm(x: Any) -> Any:
    import jax

    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def mixer(x: Any, weights: dict[str, Any]) -> Any:
    """Layers that mix tokens, then channels, as MLP-Mixer has them."""
    import jax
    import jax.numpy as jnp

    for layer in range(LAYERS):
        mixed = jax.nn.gelu(jnp.swapaxes(norm(x), 0, 1) @ weights["tokens"][layer]) @ weights["back"][layer]
        x = x + jnp.swapaxes(mixed, 0, 1)
        x = x + jax.nn.gelu(norm(x) @ weights["channels"][layer]) @ weights["down"][layer]
    return x


def main() -> None:
    try:
        import jax
    except ImportError:
        sys.exit("this example needs JAX and libtpu: pip install '.[xla]'")

    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, "float32")

    weights = {
        "tokens": shape(LAYERS, TOKENS, TOKENS),
        "back": shape(LAYERS, TOKENS, TOKENS),
        "channels": shape(LAYERS, CHANNELS, HIDDEN),
        "down": shape(LAYERS, HIDDEN, CHANNELS),
    }
    tuning = xla.tune(
        mixer,
        shape(TOKENS, CHANNELS),
        weights,
        compiles=10,
        folder=sys.argv[1] if len(sys.argv) > 1 else None,
        on_progress=lambda progress: print(progress.line(), file=sys.stderr),
    )
    print(tuning.summary())
    print("compiler_options =", tuning.compiler_options)


if __name__ == "__main__":
    main()
