"""Tune a JAX function for TPU v4 without one: ``python examples/tune_xla.py [FOLDER]``.

Needs ``pip install 'stowplan[xla]'``. A program so small gains nothing: all its data fits into fast memory.
"""

from __future__ import annotations

import sys
from typing import Any

from stowplan.backends import xla


def mixer(x: Any, weights: dict[str, Any]) -> Any:
    """Two mixing layers over tokens and channels, as MLP-Mixer has them."""
    import jax.numpy as jnp

    for _ in range(2):
        mixed = jnp.swapaxes(jnp.tanh(jnp.swapaxes(x, 0, 1) @ weights["tokens"]) @ weights["back"], 0, 1)
        x = x + mixed
        x = x + jnp.tanh(x @ weights["channels"])
    return x


def main() -> None:
    import jax

    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, "bfloat16")

    weights = {"tokens": shape(256, 512), "back": shape(512, 256), "channels": shape(512, 512)}
    tuning = xla.tune(
        mixer,
        shape(256, 512),
        weights,
        compiles=8,
        folder=sys.argv[1] if len(sys.argv) > 1 else None,
        on_progress=lambda progress: print(progress.line(), file=sys.stderr),
    )
    print(tuning.summary())
    print("compiler_options =", tuning.compiler_options)


if __name__ == "__main__":
    main()
