"""Compares gradients with and without a policy, on this machine's CPU and with random numbers.

A policy of ``jax.checkpoint`` says which values of the forward pass are saved for the backward pass; it must not change the
results. A *fusion* is a group of operators that XLA compiles to one loop.

By default XLA keeps intermediate values of a fusion in float32 even if the program rounds them, and a policy changes which
operators are fused. With ``xla_allow_excess_precision=false`` all roundings stay where the program has them. The remaining
differences are only those between sums of float32 in different orders, and the tolerance allows for them.
"""

from __future__ import annotations

import math
from typing import Any

from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.errors import StowplanError, brief

#: Tolerance for sums of float32 in another order, relative to the largest number of a gradient. If a gradient has a type of
#: fewer than four bytes, such a sum may be rounded to the next number of that type. The tolerance is then the machine epsilon
#: of the type.
_REORDERING_TOLERANCE = 1e-5


class GradientError(StowplanError):
    """Gradients with a policy differ from those without it."""


def check_gradients(training: Training, policy: Policy) -> str:
    """Compares the results of a training step with and without a policy, with arguments of their full shapes.

    Returns
    -------
    str
        A line that says by how much they differ, or why they could not be computed.

    Raises
    ------
    GradientError
        The results differ by more than the tolerance, or a number is NaN or infinite in only one of them. Other errors are not
        raised; the returned line gives them as the reason why nothing was compared.
    """
    import jax

    try:
        device = jax.devices("cpu")[0]
        with jax.default_device(device):
            samples = _sample_arguments(training.arguments)
            # Each list has the results without the policy and with it; the lists differ in how XLA rounds.
            strict, as_compiled_by_default = (
                [_results(training, kind, samples, excess) for kind in (Policy("as_it_is"), policy)] for excess in (False, True)
            )
    except Exception as error:
        return f"gradients were not compared on the CPU: {brief(f'{type(error).__name__}: {error}', 120)}"
    difference = _difference(strict[1], strict[0])
    tolerance = max([_REORDERING_TOLERANCE, *(_machine_epsilon(value) for value in strict[0] if value.dtype.itemsize < 4)])
    as_compiled, own_difference = (
        _difference(as_compiled_by_default[1], as_compiled_by_default[0]),
        _difference(as_compiled_by_default[0], strict[0]),
    )
    if difference == math.inf:
        raise GradientError(
            f"{training.name}: a number of the gradients is NaN or infinite under {policy.kind} and another one without it, or "
            "the reverse, where XLA keeps all roundings; expected the same numbers"
        )
    if difference > tolerance:
        raise GradientError(
            f"{training.name}: gradients under {policy.kind} differ by {difference:.2g} of their largest number where XLA "
            f"keeps all roundings, expected at most {tolerance:.2g}"
        )
    agreement = "equal to the bit" if difference == 0 else f"within {difference:.2g} (at most {tolerance:.2g})"
    return (
        f"gradients on the CPU, made-up numbers: {agreement} where XLA keeps all roundings; as it compiles else, "
        f"{as_compiled:.2g} apart, and the function as it is {own_difference:.2g} from itself"
    )


def _results(training: Training, policy: Policy, samples: Any, excess: bool) -> list[Any]:
    """Returns the floating-point results of a training step with a policy.

    ``excess`` says whether XLA may leave out roundings (``xla_allow_excess_precision``).
    """
    import jax
    import numpy as np

    compiled = jax.jit(training.with_policy(policy)).lower(*samples).compile({"xla_allow_excess_precision": excess})
    leaves = [leaf for leaf in jax.tree.leaves(compiled(*samples)) if jax.numpy.issubdtype(leaf.dtype, np.floating)]
    return [np.asarray(leaf) for leaf in leaves]


def _sample_arguments(arguments: Any) -> Any:
    """Returns the arguments with random numbers in place of each shape; arrays are left unchanged.

    Floating-point numbers are normal with a standard deviation of 0.1, and integers are 0 or 1.
    """
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
    """Returns the difference between 1 and the next larger number of an array's type."""
    import jax.numpy as jnp

    return float(jnp.finfo(value.dtype).eps)


def _difference(found: list[Any], expected: list[Any]) -> float:
    """Returns the largest difference between two lists of arrays, relative to the largest finite number of the expected array.

    Two NaNs are equal, and so are two infinities of the same sign. If a value is NaN or infinite in one array and differs from
    the value in the other array, the difference is infinite.
    """
    import numpy as np

    most = 0.0
    for one, other in zip(found, expected, strict=True):
        wide, reference = np.asarray(one, "float64"), np.asarray(other, "float64")
        is_finite = np.isfinite(wide) & np.isfinite(reference)
        is_equal = (wide == reference) | (np.isnan(wide) & np.isnan(reference))
        if not (is_finite | is_equal).all():
            return math.inf
        scale = np.abs(reference[is_finite]).max(initial=0.0)
        difference = np.abs(wide[is_finite] - reference[is_finite]).max(initial=0.0)
        most = max(most, float(difference / (scale or 1.0)))
    return most
