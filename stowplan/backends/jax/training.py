"""A traced training step and its form with a policy, which says which values are saved for the backward pass.

The step is either made of a loss, by computing its gradient, or it is the user's own function, in which the loss is marked by
:class:`~stowplan.backends.jax.losses.marked`. A policy is one of ``jax.checkpoint``. A loss is divided into *parts* that get
the policy: its scans, its repeated blocks, or all of it (:mod:`stowplan.backends.jax.program`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from stowplan.backends.jax.losses import losses_of, marked, with_policy
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.report import mib
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.sharding import partition_of
from stowplan.backends.xla.workload import Workload, of_function, shapes_of
from stowplan.errors import StowplanError, UsageError
from stowplan.hardware.targets import Target


class Training:
    """A traced training step, with the graphs of its parts.

    Parameters
    ----------
    loss_or_step, arguments, argnums, donated
        See :func:`stowplan.backends.jax.fit`.
    target
        The machine for which the step is compiled. Its roofline model predicts the time of each operator from the operator's
        floating-point operations and bytes.
    limit
        Memory limit in bytes; the arguments alone must not exceed it.

    Attributes
    ----------
    graphs
        The graph of the forward pass of each part of the losses (:class:`stowplan.backends.jax.graph.Graph`). A block that is
        repeated has one graph for all repetitions.
    identity
        Text that is equal for equal training steps, for the keys of stored results.
    has_own_checkpoints
        Whether the program itself contains a ``jax.checkpoint``.

    Raises
    ------
    UsageError
        One of these:

        - the function has no backward pass
        - the arguments alone are above the limit
        - a sharding of an argument cannot be sent to another process, or the shardings use several device meshes
    CompileError
        The function cannot be traced.
    """

    def __init__(
        self,
        loss_or_step: Callable[..., Any],
        arguments: Sequence[Any],
        argnums: int | Sequence[int],
        donated: Sequence[int],
        target: Target,
        limit: int,
    ):
        import jax

        from stowplan.backends.jax.program import Loss, has_checkpoints, text_of

        self.function = loss_or_step.loss if isinstance(loss_or_step, marked) else loss_or_step
        self.name = getattr(self.function, "__name__", "function")
        self.arguments, self.donated, self.target = tuple(arguments), tuple(donated), target
        size = _argument_bytes(arguments)
        if size > limit:
            raise UsageError(
                f"{self.name}: found a limit of {mib(limit)}, expected more than the arguments alone have, {mib(size)}"
            )
        try:
            losses = losses_of(self.function, self.arguments)
            self._argnums = None if losses else argnums if isinstance(argnums, int) else tuple(argnums)
            if not losses:
                self._check_loss(jax.eval_shape(self.function, *self.arguments))
                losses = [Loss(self.function, self.arguments)]
            self.graphs = [graph for loss in losses for graph in loss.graphs(target.roofline)]
            traced = jax.make_jaxpr(self.with_policy(Policy("as_it_is")))(*self.arguments)
        except StowplanError:
            raise
        except Exception as error:
            raise CompileError(f"{self.name}: cannot trace the function: {type(error).__name__}: {error}") from error
        shapes, mesh = shapes_of(self.arguments)
        self.identity = f"{text_of(traced)} {shapes} {mesh} {self.donated}"
        self.has_own_checkpoints = has_checkpoints(traced)

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names that the program itself gives to values by ``checkpoint_name``, each once."""
        return tuple(dict.fromkeys(name for graph in self.graphs for name in graph.named("names")))

    def _check_loss(self, result: Any) -> None:
        """Raise UsageError if the result of the function, given by its shape, is not a single float."""
        import jax
        import jax.numpy as jnp

        leaves = jax.tree.leaves(result)
        if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
            returned = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves[:4]) or "nothing"
            raise UsageError(
                f"{self.name}: found a function without a backward pass, which returns {returned}; expected a loss, one float, "
                "or a step that calls its loss by stowplan.backends.jax.marked"
            )

    def with_policy(self, policy: Policy) -> Callable[..., Any]:
        """Returns the function that is compiled, without ``jax.jit``.

        It is the user's step, or a function that returns the loss and its gradient.
        """
        planned, argnums = with_policy(self.function, policy), self._argnums
        if argnums is None:
            return planned

        def differentiated(*arguments: Any) -> Any:
            import jax

            return jax.value_and_grad(planned, argnums, allow_int=True)(*arguments)

        return differentiated

    def workload(self, policy: Policy) -> Workload:
        """Returns the function of :meth:`with_policy` in a form that can be sent to a compiling process.

        Raises the errors of :func:`~stowplan.backends.xla.workload.of_function`.
        """
        return of_function(self.with_policy(policy), *self.arguments, donated=self.donated, name=self.name)


def _argument_bytes(arguments: Sequence[Any]) -> int:
    """Returns the bytes of the arguments on one device, without padding that layouts add."""
    import jax

    total = 0
    for leaf in jax.tree.leaves(tuple(arguments)):
        if not hasattr(leaf, "dtype"):
            continue
        partition, mesh = partition_of(leaf)
        sizes = dict(zip(mesh.names, mesh.sizes, strict=True)) if mesh else {}
        parts = math.prod(sizes.get(axis, 1) for axes in partition or () for axis in axes)
        total += math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 0) // parts
    return total
