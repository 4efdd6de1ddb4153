"""ExecuTorch's tensors as packing problems, one for each arena, and plans as its offsets.

Nothing here imports executorch: a specification is anything with those fields of its ``TensorSpec`` that are read.

*Facts of executorch 1.5.* Lifetimes are numbers of nodes, and inclusive. Sizes count in units of the alignment once
``realign`` was called. Arena 0 has the constants; a tensor without ``mem_id`` goes to arena 1. A tensor with a ``storage_base``
lies inside that one's bytes. What is reserved takes the lowest bytes of each arena, the whole time
(``input_mem_buffer_sizes``); padding, 64 bytes for XNNPACK, comes on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stowplan.backends.fallback import UnsupportedError
from stowplan.models.packing.problem import Buffer, Problem


@dataclass(eq=False)
class Tensor:
    """Executorch's ``TensorSpec`` in the time of a whole program."""

    spec: Any
    mem_id: int | None
    lifetime: tuple[Any, Any]
    """First and last moment."""
    storage_base: Tensor | None = None
    storage_base_offset: int = 0

    @property
    def alignment(self) -> int:
        """Bytes."""
        return int(self.spec.alignment)

    @property
    def allocated_memory(self) -> int:
        """Bytes, a multiple of ``alignment``."""
        return int(self.spec.allocated_memory)

    def root(self) -> Tensor:
        """The tensor in whose bytes it lies."""
        return self if self.storage_base is None else self.storage_base.root()


@dataclass(frozen=True)
class Place:
    """Where a tensor is, as executorch wants it; None where it has no bytes."""

    mem_id: int | None = None
    mem_obj_id: int | None = None
    """Equal for all that share bytes at some time."""
    mem_offset: int | None = None


@dataclass(frozen=True)
class Arena:
    """The tensors of one arena that have bytes of their own."""

    mem_id: int
    bottom: int
    """Offset of the first byte that may be planned."""
    padding: int
    """Bytes on top that stay free."""
    specs: tuple[Any, ...]
    problem: Problem
    """Buffer i is ``specs[i]``; its offsets count from ``bottom``."""

    def size(self, height: int) -> int:
        """Bytes of the arena for a packing of this height."""
        return self.bottom + height + self.padding


def round_up(value: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return value + -value % unit


def arena_of(spec: Any) -> int:
    """Number of the arena that a tensor is bound for."""
    return 1 if spec.mem_id is None else int(spec.mem_id)


def lifetimes(specs: Iterable[Any]) -> dict[int, tuple[int, int]]:
    """First and last node, by ``id`` of the specification; one that others lie inside of lives as long as all of them.

    Raises
    ------
    UnsupportedError
        No lifetime, or a ``storage_base`` that lies inside itself.
    """
    every = list(specs)
    lives: dict[int, tuple[int, int]] = {}
    for spec in every:
        first, last = spec.lifetime
        if first is None or last is None or not 0 <= first <= last:
            raise UnsupportedError(f"found a tensor of the lifetime {spec.lifetime}, expected its first and its last node")
        lives[id(spec)] = first, last
    for spec in every:
        first, last = lives[id(spec)]
        for base in bases(spec):
            begin, end = lives[id(base)]
            lives[id(base)] = min(begin, first), max(end, last)
    return lives


def bases(spec: Any) -> list[Any]:
    """The tensors inside whose bytes it lies, the innermost first; raises UnsupportedError where they form a circle."""
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
    """The arenas, by number, of tensors that are to be planned together.

    Parameters
    ----------
    alignment
        Bytes: offsets and sizes are multiples of it. The specifications are realigned.
    reserved
        Bytes at the bottom of each arena that are not to be used, by number of the arena; those beyond its end are 0.
    padding
        Bytes on top of each arena that holds something.

    Raises
    ------
    UnsupportedError
        What :func:`lifetimes` and :func:`bases` refuse, or a tensor that is bound for the arena of constants.
    """
    every = list(specs)
    for spec in every:
        spec.spec.realign(alignment)
    lives = lifetimes(every)
    roots: dict[int, list[Any]] = {}
    for spec in every:
        if spec.storage_base is None:
            roots.setdefault(arena_of(spec), []).append(spec)
    if any(mem_id < 1 for mem_id in roots):
        raise UnsupportedError("found a tensor that is bound for arena 0, which is for constants")
    units = []
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
        units.append(Arena(mem_id, bottom, padding, tuple(roots[mem_id]), problem))
    return units


def places(specs: Iterable[Any], offsets: Mapping[int, tuple[int, int]]) -> dict[int, Place]:
    """Where all tensors are, those inside others as well, by ``id`` of the specification.

    Parameters
    ----------
    offsets
        Arena and offset in it of each tensor that has bytes of its own, by ``id``.
    """
    placed: dict[int, tuple[int, int]] = dict(offsets)
    every = list(specs)
    for spec in every:
        if spec.storage_base is not None:
            chain = [spec, *bases(spec)]
            mem_id, at = offsets[id(chain[-1])]
            placed[id(spec)] = mem_id, at + sum(inner.storage_base_offset for inner in chain[:-1])
    numbers: dict[int, int] = {}
    by_arena: dict[int, list[Any]] = {}
    for spec in every:
        by_arena.setdefault(placed[id(spec)][0], []).append(spec)
    for mem_id, inside in by_arena.items():
        # What shares bytes, with others in between if need be, is one object of memory: a run of offsets without a gap.
        top, number = 0, -1
        for spec in sorted(inside, key=lambda spec: placed[id(spec)][1]):
            at = placed[id(spec)][1]
            if at >= top:
                number += 1
            top = max(top, at + spec.allocated_memory)
            numbers[id(spec)] = max(0, number)
        assert mem_id >= 1
    return {key: Place(mem_id, numbers[key], at) for key, (mem_id, at) in placed.items()}
