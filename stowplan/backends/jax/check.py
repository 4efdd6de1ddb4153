"""Gradients under a policy beside those without, on this machine's CPU and with made-up numbers.

Compiled, XLA keeps values within what it fuses in float32 where the program rounds them, and a policy changes what is fused.
With ``xla_allow_excess_precision=false`` roundings stay where the program has them: what then differs is what float32 sums in
another order, and it is that which has a tolerance.
"""

from __future__ import annotations

from typing import Any

from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.errors import StowplanError, brief

#: What sums of float32 in another order come to, relative to the largest number of a gradient. One of them may turn a rounding
#: of a narrower type around: its step is the tolerance there.
_REORDERED = 1e-5


class GradientError(StowplanError):
    """Gradients under a policy are not those of the function."""


def check_gradients(training: Training, policy: Policy) -> str:
    """A line that says how far gradients under a policy are from those without.

    Raises
    ------
    GradientError
        Further than the tolerance.
    """
    import jax

    try:
        device = jax.devices("cpu")[0]
        with jax.default_device(device):
            given = _filled(training.arguments)
            # One list for each way to compile: without the policy, and with it.
            strict, free = (
                [_results(training, kind, given, excess) for kind in (Policy("as_it_is"), policy)] for excess in (False, True)
            )
    except Exception as error:
        return f"gradients were not compared on the CPU: {brief(f'{type(error).__name__}: {error}', 120)}"
    found = _difference(strict[1], strict[0])
    tolerance = max([_REORDERED, *(_step(value) for value in strict[0] if value.dtype.itemsize < 4)])
    as_compiled, own = _difference(free[1], free[0]), _difference(free[0], strict[0])
    if not found <= tolerance:
        raise GradientError(
            f"{training.name}: gradients under {policy.kind} differ by {found:.2g} of their largest number where XLA keeps all "
            f"roundings, expected at most {tolerance:.2g}"
        )
    what = "equal to the bit" if found == 0 else f"within {found:.2g} (at most {tolerance:.2g})"
    return (
        f"gradients on the CPU, made-up numbers: {what} where XLA keeps all roundings; as it compiles else, {as_compiled:.2g} "
        f"apart, and the function as it is {own:.2g} from itself"
    )


def _results(training: Training, policy: Policy, given: Any, excess: bool) -> list[Any]:
    import jax
    import numpy as np

    compiled = jax.jit(training.with_policy(policy)).lower(*given).compile({"xla_allow_excess_precision": excess})
    leaves = [leaf for leaf in jax.tree.leaves(compiled(*given)) if jax.numpy.issubdtype(leaf.dtype, np.floating)]
    return [np.asarray(leaf) for leaf in leaves]


def _filled(arguments: Any) -> Any:
    """Arguments with numbers in place of shapes: normal ones of 0.1, and zeros and ones where they are whole."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    chance = np.random.default_rng(0)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
        is_float = jnp.issubdtype(leaf.dtype, np.floating)
        return jnp.asarray(chance.normal(0, 0.1, leaf.shape) if is_float else chance.integers(0, 2, leaf.shape), leaf.dtype)

    return jax.tree.map(filled, arguments)


def _step(value: Any) -> float:
    """From 1 to the next number of an array's type."""
    import jax.numpy as jnp

    return float(jnp.finfo(value.dtype).eps)


def _difference(found: list[Any], expected: list[Any]) -> float:
    """The largest, relative to the largest number of the array that it is in; numbers that are none are equal."""
    import numpy as np

    most = 0.0
    for one, other in zip(found, expected, strict=True):
        wide = [np.nan_to_num(np.asarray(value, "float64")) for value in (one, other)]
        scale = np.abs(wide[1]).max(initial=0.0)
        if scale or np.abs(wide[0]).max(initial=0.0):
            most = max(most, float(np.abs(wide[0] - wide[1]).max() / (scale or 1.0)))
    return most
