"""Decorators of compiled functions.

:func:`njit` marks functions that Python calls; their annotations are their signatures. The other decorators mark functions that
only compiled code calls; for Python these remain ordinary functions. :mod:`.build` compiles the functions in a process of its
own, in which the decorators are numba's. In all other processes a function runs as that machine code, which needs neither numba
nor a compiler. It runs interpreted if ``STOWPLAN_INTERPRET=1`` is set or if there is no machine code.

Outside of :mod:`.build`, the decorators raise no error. A call of a function that :func:`njit` decorates raises TypeError if
its arguments do not match the annotations.
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

#: Environment variables. If INTERPRET is 1, all functions run interpreted. BUILDING is 1 in a process that builds machine code.
INTERPRET, BUILDING = "STOWPLAN_INTERPRET", "STOWPLAN_BUILDING"

#: Whether all functions run interpreted.
IS_INTERPRETED = os.environ.get(INTERPRET) == "1"

#: Numba's objects of the functions that Python calls. It is filled only in a process that builds.
TO_BUILD: list[Any] = []

#: Numba's options for all functions: no memory management, no entry points of numba's own, and NumPy's rules for division by 0.
_INNER = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}


def njit(function: F) -> F:
    """Compiles a function that Python calls, with the signature that its annotations state.

    The function must not allocate arrays; it gets all arrays that it needs as arguments. Machine code is then free of numba's
    memory management.
    """
    if os.environ.get(BUILDING) == "1":
        compiled = _with_numba(function)
        TO_BUILD.append(compiled)
        return compiled
    return cast(F, Compiled(function))


def njit_inner(function: F) -> F:
    """Compiles a function that only compiled code calls."""
    return _with_numba(function) if os.environ.get(BUILDING) == "1" else function


def njit_small(function: F) -> F:
    """Like :func:`njit_inner`, but the function is always inlined by LLVM. It is for short functions whose call with many
    arrays would take longer than their work."""
    return _with_numba(function, forceinline=True) if os.environ.get(BUILDING) == "1" else function


def njit_once(function: F) -> F:
    """Like :func:`njit_inner`, but the function is inlined by numba. It is for a function that is called in one place; inlining
    it then makes the compilation faster."""
    return _with_numba(function, inline="always") if os.environ.get(BUILDING) == "1" else function


def _with_numba(function: F, **options: Any) -> F:
    """Applies numba's decorator with these options."""
    import numba
    from numba.core.types import unliteral

    decorate: Any = numba.njit
    compiled = decorate(function, **_INNER, **options)
    if "inline" not in options:
        # Without this, numba would compile the function anew for each constant that it is called with.
        compile_for, general = compiled.compile, cast(Any, unliteral)
        compiled.compile = lambda types: compile_for(tuple(map(general, types)))
    return cast(F, compiled)


def _python_numbers(value: Any) -> Any:
    """Converts NumPy's numbers in the result of an interpreted function to Python's, which machine code returns as well."""
    if isinstance(value, tuple):
        return tuple(map(_python_numbers, value))
    return value.item() if isinstance(value, np.generic) else value


class Compiled:
    """A function that runs as machine code, or interpreted if there is none.

    A call of machine code releases the interpreter lock. Arguments are passed to it in *slots*, 64-bit words that contain a
    number or the address of an array (:mod:`.signature`). A tuple of arrays takes several slots. The slots of the last tuple
    that was passed for each parameter are cached, because the next call usually passes the same tuple.
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
        """Calls the function. Machine code raises TypeError if an argument does not match its annotation or is missing. A
        function that runs interpreted raises its own errors."""
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
        """The slots of a tuple, the argument at position ``place``; from the cache if it is the same object as in the last
        call."""
        cached_tuple, slots = self._tuples.get(place, (None, []))
        if cached_tuple is not value:
            slots = self._signature.parameters[place].slots(value)
            self._tuples[place] = value, slots
        return slots
