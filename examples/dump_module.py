"""Dump the compiled module of a JAX function, to be planned: ``python examples/dump_module.py OUT.hlo.txt.gz``.

Needs JAX (``pip install jax jaxlib``), which stowplan itself does not. Replace ``model`` by a function of your own. On a
machine with a TPU, or with libtpu's ahead-of-time compiler, the module is scheduled for that target; on a CPU, for the CPU.
"""

from __future__ import annotations

import gzip
import sys
from typing import Any


def model(weights: Any, x: Any) -> Any:
    """Two dense layers: put your own function here."""
    import jax.numpy as jnp

    return jnp.maximum(x @ weights[0], 0) @ weights[1]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/dump_module.py OUT.hlo.txt.gz")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        sys.exit("this example needs JAX: pip install jax jaxlib")
    shapes = ([jax.ShapeDtypeStruct((512, 2048), jnp.float32), jax.ShapeDtypeStruct((2048, 512), jnp.float32)],)
    compiled = jax.jit(model).lower(*shapes, jax.ShapeDtypeStruct((64, 512), jnp.float32)).compile()
    with gzip.open(sys.argv[1], "wt") as stream:
        stream.write(compiled.as_text())
    print(f"wrote {sys.argv[1]}; now: stowplan solve {sys.argv[1]} --target tpu-v4")


if __name__ == "__main__":
    main()
