"""Functions under a policy, and losses that are marked within a step: the loss is planned, not what differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from stowplan.backends.jax.policy import Policy

#: What a marked function does instead of running: it is given the function and its arguments.
_INSTEAD: ContextVar[Callable[[Callable[..., Any], tuple[Any, ...]], Any] | None] = ContextVar("instead", default=None)


class marked:  # noqa: N801
    """Marks the loss that a step differentiates. It runs as it is, but for steps that are fitted, or run ``with_policy``."""

    def __init__(self, loss: Callable[..., Any]):
        self.loss = loss

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The loss of these arguments."""
        instead = _INSTEAD.get()
        loss = partial(self.loss, **named) if named else self.loss
        return loss(*arguments) if instead is None else instead(loss, arguments)


class with_policy:  # noqa: N801
    """A loss, or a step with marked losses, under a policy: a function of the same arguments, not jitted.

    Parameters
    ----------
    function
        Not jitted.
    policy
        As :func:`~stowplan.backends.jax.fit` found it.
    """

    def __init__(self, function: Callable[..., Any], policy: Policy):
        self.function, self.policy = function, policy
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, *arguments: Any) -> Any:
        """The function of these arguments."""
        if self.policy.kind == "as_it_is":
            return self.function(*arguments)
        if not _calls_marked(self.function, arguments):
            return _under(self.function, arguments, self.policy)
        return _run(self.function, arguments, lambda loss, given: _under(loss, given, self.policy))


def losses_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """The marked losses that a function calls while it is traced, traced themselves (``program.Loss``)."""
    import jax

    from stowplan.backends.jax.program import Loss

    met: list[Loss] = []

    def instead(loss: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        met.append(Loss(loss, given))
        return loss(*given)

    jax.eval_shape(lambda *given: _run(function, given, instead), *arguments)
    if met:
        # What is jitted within has been traced with the losses as they are.
        jax.clear_caches()
    return met


class _MetError(Exception):
    """A marked loss was met."""


def _calls_marked(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    import jax

    def instead(loss: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        raise _MetError

    try:
        jax.eval_shape(lambda *given: _run(function, given, instead), *arguments)
    except _MetError:
        return True
    return False


def _under(loss: Callable[..., Any], arguments: tuple[Any, ...], policy: Policy) -> Any:
    from stowplan.backends.jax.program import Loss

    return Loss(loss, arguments).run(policy, arguments)


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], instead: Any) -> Any:
    token = _INSTEAD.set(instead)
    try:
        return function(*arguments)
    finally:
        _INSTEAD.reset(token)
