"""Fit training steps of Flax modules into a TPU's memory, without one: ``python examples/fit_flax.py [nnx|linen]``.

Needs ``pip install '.[xla]' flax``. A module is fitted through its function: ``nnx.merge`` of its parameters, or ``apply``. The
names that it gives values are MaxText's, and plans are over them, so that its configuration is printed.
"""

from __future__ import annotations

import sys
from typing import Any

LAYERS, HEADS, BATCH, TOKENS, WIDTH, WORDS = 4, 4, 8, 512, 256, 2048


def _error(logits: Any, tokens: Any) -> Any:
    import jax
    import jax.numpy as jnp

    likely = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return -jnp.take_along_axis(likely, tokens[:, 1:, None], -1).mean()


def _attention(q: Any, k: Any, v: Any) -> Any:
    import jax
    from jax.ad_checkpoint import checkpoint_name

    named = (("query_proj", q), ("key_proj", k), ("value_proj", v))
    heads = (checkpoint_name(value, name).reshape(*value.shape[:2], HEADS, -1) for name, value in named)
    return jax.nn.dot_product_attention(*heads, is_causal=True).reshape(q.shape)


def make_nnx() -> Any:
    """A loss over an ``nnx`` module's parameters, and shapes of its arguments."""
    import jax
    import jax.numpy as jnp
    from flax import nnx
    from jax.ad_checkpoint import checkpoint_name

    class Block(nnx.Module):
        def __init__(self, rngs: Any):
            def linear(narrow: int, wide: int) -> Any:
                return nnx.Linear(narrow, wide, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs)

            self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
            self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

        def __call__(self, x: Any) -> Any:
            normed = self.norms[0](x)
            x = x + checkpoint_name(self.o(_attention(self.q(normed), self.k(normed), self.v(normed))), "out_proj")
            inside = checkpoint_name(self.up(self.norms[1](x)), "mlpwi")
            return x + checkpoint_name(self.down(nnx.gelu(inside)), "mlpwo")

    class Decoder(nnx.Module):
        def __init__(self, rngs: Any):
            self.words = nnx.Embed(WORDS, WIDTH, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])

        def __call__(self, tokens: Any) -> Any:
            x = self.words(tokens)
            for block in self.blocks:
                x = block(x)
            return self.words.attend(x)

    structure, parameters = nnx.split(nnx.eval_shape(lambda: Decoder(nnx.Rngs(0))))

    def nnx_loss(parameters: Any, tokens: Any) -> Any:
        return _error(nnx.merge(structure, parameters)(tokens), tokens)

    return nnx_loss, (parameters, jax.ShapeDtypeStruct((BATCH, TOKENS), "int32")), ()


def make_linen() -> Any:
    """The same of a ``linen`` module whose layers are scanned."""
    import jax
    import jax.numpy as jnp
    from flax import linen
    from jax.ad_checkpoint import checkpoint_name

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: Any, _: Any) -> Any:
            def linear(x: Any, width: int) -> Any:
                return linen.Dense(width, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)(x)

            normed = linen.LayerNorm()(x)
            x = x + checkpoint_name(linear(_attention(*(linear(normed, WIDTH) for _ in range(3))), WIDTH), "out_proj")
            inside = checkpoint_name(linear(linen.LayerNorm()(x), 4 * WIDTH), "mlpwi")
            return x + checkpoint_name(linear(linen.gelu(inside), WIDTH), "mlpwo"), None

    class Decoder(linen.Module):
        @linen.compact
        def __call__(self, tokens: Any) -> Any:
            words = linen.Embed(WORDS, WIDTH, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16)
            layers = linen.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
            return words.attend(layers()(words(tokens), None)[0])

    decoder, tokens = Decoder(), jax.ShapeDtypeStruct((BATCH, TOKENS), "int32")

    def linen_loss(parameters: Any, tokens: Any) -> Any:
        return _error(decoder.apply(parameters, tokens), tokens)

    return linen_loss, (jax.eval_shape(decoder.init, jax.random.key(0), tokens), tokens), ()


def main() -> None:
    try:
        import flax  # noqa: F401
        import jax  # noqa: F401
    except ImportError:
        sys.exit("this example needs JAX, libtpu and Flax: pip install '.[xla]' flax")
    from stowplan.backends.jax import fit

    make = make_linen if sys.argv[1:] == ["linen"] else make_nnx
    loss, arguments, _ = make()
    fitted = fit(loss, arguments, hbm="48 MiB", chip="v5e", own_names=True, compiles=0)
    print(fitted.report.summary())
    print(fitted.policy)


if __name__ == "__main__":
    main()
