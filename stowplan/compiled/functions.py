"""Decorators of compiled functions.

:func:`njit` marks what Python calls; its annotations are its signature. The others mark what only compiled code calls: from
Python they are the functions as they are written. One source serves all: :mod:`.build` compiles it, in a process of its own
where the decorators are numba's; elsewhere it runs as that machine code, which needs neither numba nor a compiler, or
interpreted, where ``STOWPLAN_INTERPRET=1`` asks for it or there is no machine code.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property, update_wrapper
from typing import Any, TypeVar, cast

import numpy as np

from stowplan.compiled.library import Entry, entry_of
from stowplan.compiled.signature import Signature, signature_of

F = TypeVar("F", bound=Callable[..., Any])

INTERPRET, BUILDING = "STOWPLAN_INTERPRET", "STOWPLAN_BUILDING"

#: Whether functions stay as they are written.
IS_INTERPRETED = os.environ.get(INTERPRET) == "1"

#: Functions that Python calls, as numba has them, in a process that builds.
TO_BUILD: list[Any] = []

_INNER = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}


def njit(function: F) -> F:
    """Compile a function that Python calls; its annotations say what it takes.

    It allocates no arrays: those that it needs are given to it. That keeps numba's own memory management out of machine code.
    """
    if os.environ.get(BUILDING) == "1":
        compiled = _with_numba(function)
        TO_BUILD.append(compiled)
        return compiled
    return cast(F, Compiled(function))


def njit_inner(function: F) -> F:
    """Compile a function that only compiled code calls."""
    return _with_numba(function) if os.environ.get(BUILDING) == "1" else function


def njit_small(function: F) -> F:
    """Like :func:`njit_inner`, always part of its callers: a call with many arrays takes longer than what it does."""
    return _with_numba(function, forceinline=True) if os.environ.get(BUILDING) == "1" else function


def njit_once(function: F) -> F:
    """Like :func:`njit_inner`, for a function called in one place: it is compiled as part of its caller, which is quicker."""
    return _with_numba(function, inline="always") if os.environ.get(BUILDING) == "1" else function


def _with_numba(function: F, **options: Any) -> F:
    import numba
    from numba.core.types import unliteral

    decorate: Any = numba.njit
    compiled = decorate(function, **_INNER, **options)
    if "inline" not in options:
        # Numba would compile a function again for each constant that it is called with.
        compile_for, general = compiled.compile, cast(Any, unliteral)
        compiled.compile = lambda types: compile_for(tuple(map(general, types)))
    return cast(F, compiled)


def _python_numbers(value: Any) -> Any:
    """What a function returned, NumPy's numbers as Python's: these are what machine code gives and what messages take."""
    if isinstance(value, tuple):
        return tuple(map(_python_numbers, value))
    return value.item() if isinstance(value, np.generic) else value


class Compiled:
    """A function as machine code; where there is none, as it is written.

    Calling it releases the interpreter's lock. The slots of the latest tuple of each parameter are kept, and the tuple with
    them: tables of many arrays are mostly those of the call before.
    """

    def __init__(self, function: Callable[..., Any]):
        update_wrapper(self, function)
        self.function = function
        self._tuples: dict[int, tuple[Any, list[int]]] = {}

    @cached_property
    def _signature(self) -> Signature:
        return signature_of(self.function)

    @cached_property
    def _entry(self) -> Entry | None:
        return None if IS_INTERPRETED else entry_of(self.function)

    @cached_property
    def _defaults(self) -> tuple[Any, ...]:
        return self.function.__defaults__ or ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function; raises TypeError where an argument is not what its annotation says."""
        entry = self._entry
        if entry is None:
            return _python_numbers(self.function(*arguments, **named))
        parameters, results = self._signature.parameters, self._signature.results
        if named:
            code = self.function.__code__
            arguments += tuple(named.pop(name) for name in code.co_varnames[len(arguments) : code.co_argcount] if name in named)
        missing = len(parameters) - len(arguments)
        if named or not 0 <= missing <= len(self._defaults):
            raise TypeError(f"{self.function.__name__} takes {len(parameters)} arguments, found {len(arguments)}")
        arguments += self._defaults[len(self._defaults) - missing :]
        block = array("q")
        try:
            for place, (kind, value) in enumerate(zip(parameters, arguments, strict=True)):
                block.extend(self._of_tuple(place, value) if isinstance(value, tuple) else kind.slots(value))
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            name = self.function.__code__.co_varnames[place]
            raise TypeError(f"{self.function.__module__}.{self.function.__name__}, argument {name}: {error}") from error
        first = len(block)
        block.extend([0] * len(results))
        entry(block.buffer_info()[0])
        if self._signature.is_tuple:
            return tuple(kind.result(block[first + place : first + place + 1]) for place, kind in enumerate(results))
        return results[0].result(block[first:]) if results else None

    def _of_tuple(self, place: int, value: tuple[Any, ...]) -> Sequence[int]:
        known, slots = self._tuples.get(place, (None, []))
        if known is not value:
            slots = self._signature.parameters[place].slots(value)
            self._tuples[place] = value, slots
        return slots
