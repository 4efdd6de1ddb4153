"""Compares gradients with and without a policy, on this machine's CPU and with random numbers.

By default XLA keeps intermediate values of a fusion in float32 even if the program rounds them, and a policy changes what is
fused. With ``xla_allow_excess_precision=false`` all roundings stay where the program has them. Then the only differences come
from sums of float32 in another order, and the tolerance is for these.
"""

from __future__ import annotations

from typing import Any

from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.errors import StowplanError, brief

#: Tolerance for sums of float32 in another order, relative to the largest number of a gradient. Such a sum may round
#: differently to a narrower type, so that the tolerance is the machine epsilon of that type there.
_REORDERING_TOLERANCE = 1e-5


class GradientError(StowplanError):
    """Gradients with a policy differ from those without it."""


def check_gradients(training: Training, policy: Policy) -> str:
    """Compares gradients; returns a line that says how much they differ.

    Raises
    ------
    GradientError
        They differ by more than the tolerance.
    """
    import jax

    try:
        device = jax.devices("cpu")[0]
        with jax.default_device(device):
            given = _sample_arguments(training.arguments)
            # One list for each way to compile: without the policy, and with it.
            strict, as_compiled_by_default = (
                [_results(training, kind, given, excess) for kind in (Policy("as_it_is"), policy)] for excess in (False, True)
            )
    except Exception as error:
        return f"gradients were not compared on the CPU: {brief(f'{type(error).__name__}: {error}', 120)}"
    found = _difference(strict[1], strict[0])
    tolerance = max([_REORDERING_TOLERANCE, *(_machine_epsilon(value) for value in strict[0] if value.dtype.itemsize < 4)])
    as_compiled, own_difference = (
        _difference(as_compiled_by_default[1], as_compiled_by_default[0]),
        _difference(as_compiled_by_default[0], strict[0]),
    )
    if not found <= tolerance:
        raise GradientError(
            f"{training.name}: gradients under {policy.kind} differ by {found:.2g} of their largest number where XLA keeps all "
            f"roundings, expected at most {tolerance:.2g}"
        )
    what = "equal to the bit" if found == 0 else f"within {found:.2g} (at most {tolerance:.2g})"
    return (
        f"gradients on the CPU, made-up numbers: {what} where XLA keeps all roundings; as it compiles else, {as_compiled:.2g} "
        f"apart, and the function as it is {own_difference:.2g} from itself"
    )


def _results(training: Training, policy: Policy, given: Any, excess: bool) -> list[Any]:
    import jax
    import numpy as np

    compiled = jax.jit(training.with_policy(policy)).lower(*given).compile({"xla_allow_excess_precision": excess})
    leaves = [leaf for leaf in jax.tree.leaves(compiled(*given)) if jax.numpy.issubdtype(leaf.dtype, np.floating)]
    return [np.asarray(leaf) for leaf in leaves]


def _sample_arguments(arguments: Any) -> Any:
    """Arguments with random numbers instead of shapes: normal ones with a deviation of 0.1, or zeros and ones for integers."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    generator = np.random.default_rng(0)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
        is_float = jnp.issubdtype(leaf.dtype, np.floating)
        return jnp.asarray(
            generator.normal(0, 0.1, leaf.shape) if is_float else generator.integers(0, 2, leaf.shape), leaf.dtype
        )

    return jax.tree.map(filled, arguments)


def _machine_epsilon(value: Any) -> float:
    """The difference between 1 and the next larger number of an array's type."""
    import jax.numpy as jnp

    return float(jnp.finfo(value.dtype).eps)


def _difference(found: list[Any], expected: list[Any]) -> float:
    """The largest difference, relative to the largest number of its array; NaNs are equal."""
    import numpy as np

    most = 0.0
    for one, other in zip(found, expected, strict=True):
        wide = [np.nan_to_num(np.asarray(value, "float64")) for value in (one, other)]
        scale = np.abs(wide[1]).max(initial=0.0)
        if scale or np.abs(wide[0]).max(initial=0.0):
            most = max(most, float(np.abs(wide[0] - wide[1]).max() / (scale or 1.0)))
    return most
