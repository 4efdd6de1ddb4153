"""Functions that run with a policy of ``jax.checkpoint``, and losses that are marked inside of a training step.

A policy says which values of a forward pass are saved for the backward pass. It applies to the loss, while the step around it,
which differentiates the loss, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from stowplan.backends.jax.policy import Policy

#: If set, a marked loss calls this function with itself and its arguments instead of running.
_REPLACEMENT: ContextVar[Callable[[Callable[..., Any], tuple[Any, ...]], Any] | None] = ContextVar("instead", default=None)


class marked:  # noqa: N801
    """Marks the loss that a training step differentiates; it can be used as a decorator.

    The loss runs unchanged, unless :func:`~stowplan.backends.jax.fit` traces the step, or the step runs under
    :class:`with_policy`.

    Parameters
    ----------
    loss
        The loss, which returns one float.
    """

    def __init__(self, loss: Callable[..., Any]):
        self.loss = loss

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the loss."""
        instead = _REPLACEMENT.get()
        loss = partial(self.loss, **named) if named else self.loss
        return loss(*arguments) if instead is None else instead(loss, arguments)


class with_policy:  # noqa: N801
    """Makes a loss, or a step with marked losses, run with a policy. The result is a function of the same positional arguments.
    It is not jitted.

    If the function calls marked losses, the policy applies to these; otherwise it applies to the whole function.

    Parameters
    ----------
    function
        The loss or the step, not jitted.
    policy
        A policy, for example from :func:`~stowplan.backends.jax.fit`. With the kind ``as_it_is`` the function runs unchanged.
    """

    def __init__(self, function: Callable[..., Any], policy: Policy):
        self.function, self.policy = function, policy
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, *arguments: Any) -> Any:
        """Call the function with its policy."""
        if self.policy.kind == "as_it_is":
            return self.function(*arguments)
        if not _calls_marked(self.function, arguments):
            return _run_with_policy(self.function, arguments, self.policy)
        return _run(self.function, arguments, lambda loss, given: _run_with_policy(loss, given, self.policy))


def losses_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Returns the marked losses that a function calls, each traced as a ``program.Loss``, in the order of the calls.

    The list is empty if it calls none. Errors that the function raises while jax traces it are raised.
    """
    import jax

    from stowplan.backends.jax.program import Loss

    losses: list[Loss] = []

    def instead(loss: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        losses.append(Loss(loss, given))
        return loss(*given)

    jax.eval_shape(lambda *given: _run(function, given, instead), *arguments)
    if losses:
        # Jitted functions inside of the step were traced with the original losses, and jax would reuse these traces.
        jax.clear_caches()
    return losses


class _MarkedLossError(Exception):
    """Raised when a marked loss is called, to find out whether a function calls one."""


def _calls_marked(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether a function calls a marked loss."""
    import jax

    def instead(loss: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        raise _MarkedLossError

    try:
        jax.eval_shape(lambda *given: _run(function, given, instead), *arguments)
    except _MarkedLossError:
        return True
    return False


def _run_with_policy(loss: Callable[..., Any], arguments: tuple[Any, ...], policy: Policy) -> Any:
    """Traces a loss for these arguments and evaluates it with a policy."""
    from stowplan.backends.jax.program import Loss

    return Loss(loss, arguments).run(policy, arguments)


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], instead: Any) -> Any:
    """Calls a function; marked losses that it calls are replaced by ``instead``, a function of the loss and its arguments."""
    token = _REPLACEMENT.set(instead)
    try:
        return function(*arguments)
    finally:
        _REPLACEMENT.reset(token)
