"""Turns the tensors of an ExecuTorch program into packing problems, one for each arena, and plans into offsets.

An *arena* is a range of memory whose size the runtime allocates. A *packing problem* asks for the offsets of buffers with sizes
and life spans. This module does not import executorch. ExecuTorch describes each tensor by a *specification* (in code *spec*),
its ``TensorSpec``. Here it can be any object with the fields that are read, for example a :class:`Tensor`. Specifications are
compared by identity, so dictionaries have their ``id`` as keys.

*Facts of executorch 1.5.* Lifetimes are the indices of the first and the last node, both included. The method ``realign`` of a
``TensorSpec`` sets its alignment and rounds its size up to a multiple of the alignment. ``mem_id`` is the number of an arena.
Arena 0 has the constants; a tensor without ``mem_id`` goes to arena 1. A tensor with a ``storage_base`` lies inside the bytes
of that tensor. Reserved bytes (``input_mem_buffer_sizes``) are the lowest bytes of each arena, and are in use all the time.
Padding is free space above the highest buffer. It is 64 bytes if the graph has a delegate to XNNPACK, a library that may read
beyond the end of a tensor; otherwise executorch asks for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stowplan.backends.fallback import UnsupportedError
from stowplan.models.packing.problem import Buffer, Problem


@dataclass(eq=False)
class Tensor:
    """Executorch's ``TensorSpec`` with a lifetime on the time axis of the whole program, where the nodes of all graphs have
    numbers in the order in which they run."""

    spec: Any
    """The ``TensorSpec``."""
    mem_id: int | None
    """Number of the arena; None if it is not prescribed."""
    lifetime: tuple[Any, Any]
    """The first and the last node, both included, as numbers in the whole program."""
    storage_base: Tensor | None = None
    """The tensor inside whose bytes this one lies; None if it has bytes of its own."""
    storage_base_offset: int = 0
    """Offset inside of ``storage_base``, in bytes."""

    @property
    def alignment(self) -> int:
        """The offset of the tensor must be a multiple of this many bytes."""
        return int(self.spec.alignment)

    @property
    def allocated_memory(self) -> int:
        """Size in bytes, a multiple of ``alignment``."""
        return int(self.spec.allocated_memory)

    def root(self) -> Tensor:
        """Returns the outermost tensor inside whose bytes this one lies; itself if it has bytes of its own."""
        return self if self.storage_base is None else self.storage_base.root()


@dataclass(frozen=True)
class Place:
    """Where a tensor is, in executorch's terms; all fields are None if it has no bytes."""

    mem_id: int | None = None
    """Number of the arena."""
    mem_obj_id: int | None = None
    """Number of a range of bytes in the arena, counted from 0. Tensors that share bytes, directly or through other tensors,
    have the same number."""
    mem_offset: int | None = None
    """Offset in the arena, in bytes."""


@dataclass(frozen=True)
class Arena:
    """One arena, with the tensors that have bytes of their own in it."""

    mem_id: int
    """Number of the arena."""
    bottom: int
    """The lowest offset that is not reserved, rounded up to the alignment."""
    padding: int
    """Bytes at the top that stay free."""
    specs: tuple[Any, ...]
    """The tensors that have bytes of their own in the arena."""
    problem: Problem
    """The packing problem, in which buffer i is ``specs[i]``. Its offset 0 is the offset ``bottom`` of the arena."""

    def size(self, height: int) -> int:
        """Returns the bytes of the arena, including reserved bytes and padding, if the packing needs ``height`` bytes."""
        return self.bottom + height + self.padding


def round_up(value: int, unit: int) -> int:
    """Returns the smallest multiple of ``unit`` that is not below the value."""
    return value + -value % unit


def arena_of(spec: Any) -> int:
    """Returns the number of the arena to which a tensor goes."""
    return 1 if spec.mem_id is None else int(spec.mem_id)


def lifetimes(specs: Iterable[Any]) -> dict[int, tuple[int, int]]:
    """Returns the first and the last node of each tensor's lifetime, by ``id`` of the specification.

    If a tensor contains other tensors, its lifetime contains the lifetimes of these.

    Raises
    ------
    UnsupportedError
        A tensor has no lifetime, or :func:`bases` raises it.
    KeyError
        A tensor lies inside of one that is not among ``specs``.
    """
    all_specs = list(specs)
    lives: dict[int, tuple[int, int]] = {}
    for spec in all_specs:
        first, last = spec.lifetime
        if first is None or last is None or not 0 <= first <= last:
            raise UnsupportedError(f"found a tensor of the lifetime {spec.lifetime}, expected its first and its last node")
        lives[id(spec)] = first, last
    for spec in all_specs:
        first, last = lives[id(spec)]
        for base in bases(spec):
            begin, end = lives[id(base)]
            lives[id(base)] = min(begin, first), max(end, last)
    return lives


def bases(spec: Any) -> list[Any]:
    """Returns the tensors inside whose bytes a tensor lies, the innermost first; none if it has bytes of its own.

    Raises
    ------
    UnsupportedError
        A tensor lies inside of itself, exceeds the bytes of the tensor that contains it, or begins there at an offset that is
        no multiple of its alignment.
    """
    chain: list[Any] = []
    inner, base = spec, spec.storage_base
    while base is not None:
        if base is spec or any(base is other for other in chain):
            raise UnsupportedError("found a tensor that lies inside its own bytes")
        at = inner.storage_base_offset
        if at < 0 or at + inner.allocated_memory > base.allocated_memory or at % inner.alignment:
            raise UnsupportedError(
                f"found {inner.allocated_memory} bytes at {at} of a tensor of {base.allocated_memory} bytes, expected them "
                f"inside it at a multiple of {inner.alignment}"
            )
        chain.append(base)
        inner, base = base, base.storage_base
    return chain


def arenas(alignment: int, specs: Iterable[Any], reserved: Sequence[int], padding: int) -> list[Arena]:
    """Returns the arenas of tensors that are planned together, in the order of their numbers.

    Parameters
    ----------
    alignment
        Offsets and sizes are multiples of this many bytes; the specifications are realigned to it.
    specs
        The :class:`Tensor` of each tensor. A tensor that lies inside another is not packed, but extends the lifetime of the
        other.
    reserved
        [arenas] Bytes at the bottom of each arena that must not be used; 0 for arenas beyond the end of the list.
    padding
        Bytes at the top of each arena that stay free.

    Raises
    ------
    UnsupportedError
        :func:`lifetimes` or :func:`bases` raises it, or a tensor goes to arena 0, which is for constants.
    """
    all_specs = list(specs)
    for spec in all_specs:
        spec.spec.realign(alignment)
    lives = lifetimes(all_specs)
    roots: dict[int, list[Any]] = {}
    for spec in all_specs:
        if spec.storage_base is None:
            roots.setdefault(arena_of(spec), []).append(spec)
    if any(mem_id < 1 for mem_id in roots):
        raise UnsupportedError("found a tensor that is bound for arena 0, which is for constants")
    all_arenas = []
    for mem_id in sorted(roots):
        bottom = round_up(reserved[mem_id] if mem_id < len(reserved) else 0, alignment)
        buffers = tuple(
            Buffer(
                id=str(number),
                lower=lives[id(spec)][0],
                upper=lives[id(spec)][1] + 1,
                size=spec.allocated_memory,
                alignment=alignment,
            )
            for number, spec in enumerate(roots[mem_id])
        )
        problem = Problem(buffers=buffers, name=f"arena {mem_id}")
        all_arenas.append(Arena(mem_id, bottom, padding, tuple(roots[mem_id]), problem))
    return all_arenas


def places(specs: Iterable[Any], offsets: Mapping[int, tuple[int, int]]) -> dict[int, Place]:
    """Returns the places of all tensors, including tensors that lie inside of others, by ``id`` of the specification.

    Parameters
    ----------
    offsets
        Arena and offset of each tensor that has bytes of its own, by ``id``.

    Raises
    ------
    UnsupportedError
        :func:`bases` raises it.
    KeyError
        A tensor with bytes of its own has no offset.
    """
    place_of: dict[int, tuple[int, int]] = dict(offsets)
    all_specs = list(specs)
    for spec in all_specs:
        if spec.storage_base is not None:
            chain = [spec, *bases(spec)]
            mem_id, at = offsets[id(chain[-1])]
            place_of[id(spec)] = mem_id, at + sum(inner.storage_base_offset for inner in chain[:-1])
    numbers: dict[int, int] = {}
    by_arena: dict[int, list[Any]] = {}
    for spec in all_specs:
        by_arena.setdefault(place_of[id(spec)][0], []).append(spec)
    for mem_id, specs_of_arena in by_arena.items():
        # Tensors that share bytes, directly or through others, are one memory object: a range of offsets without a gap.
        top, number = 0, -1
        for spec in sorted(specs_of_arena, key=lambda spec: place_of[id(spec)][1]):
            at = place_of[id(spec)][1]
            if at >= top:
                number += 1
            top = max(top, at + spec.allocated_memory)
            numbers[id(spec)] = max(0, number)
        assert mem_id >= 1
    return {key: Place(mem_id, numbers[key], at) for key, (mem_id, at) in place_of.items()}
