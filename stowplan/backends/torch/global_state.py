"""Restores torch's global state after planning: random number generators, modes, and settings."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

#: Pairs of a function that reads a setting and a function that sets it.
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (
        lambda: [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()],
        lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1]),
    ),
)

#: Attributes of modules that are settings: the module, and the names of its attributes.
_ATTRIBUTES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch.backends.cudnn, ("enabled", "benchmark", "deterministic", "allow_tf32")),
    (torch.backends.cuda.matmul, ("allow_tf32",)),
    (torch.utils.deterministic, ("fill_uninitialized_memory",)),
)

#: Types of devices whose autocast mode is restored.
_AUTOCAST = ("cpu", "cuda")

_CUDA: Any = torch.cuda


def global_state() -> list[Any]:
    """Returns all values that :func:`preserve_global_state` restores, so that tests can compare them.

    They are tensors and plain values.
    """
    state = [get() for get, _ in _SETTINGS]
    state += [getattr(owner, name) for owner, names in _ATTRIBUTES for name in names]
    state += [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST]
    return state + (torch.cuda.get_rng_state_all() if _CUDA.is_initialized() else [])


@contextlib.contextmanager
def preserve_global_state() -> Iterator[None]:
    """A context manager that restores the global state when it exits."""
    settings = [get() for get, _ in _SETTINGS]
    flags = [(owner, name, getattr(owner, name)) for owner, names in _ATTRIBUTES for name in names]
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST]
    generators = torch.cuda.get_rng_state_all() if _CUDA.is_initialized() else None
    try:
        yield
    finally:
        for (get, set_value), value in zip(_SETTINGS, settings, strict=True):
            now = get()
            # Some settings are slow to set, so they are set only if they changed. The states of generators, which are tensors
            # and tuples, are always set: that is quick.
            if isinstance(now, (torch.Tensor, tuple)) or now != value:
                set_value(value)
        for owner, name, value in flags:
            if getattr(owner, name) != value:
                setattr(owner, name, value)
        for kind, is_enabled, dtype in autocast:
            torch.set_autocast_enabled(kind, is_enabled)
            torch.set_autocast_dtype(kind, dtype)
        if generators is not None:
            torch.cuda.set_rng_state_all(generators)
