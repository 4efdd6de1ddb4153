"""Turns any proposed memory map into one that can be executed: Khadka et al., ICLR 2021, algorithm 1, lines 6 and 7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stowplan.arguments import show
from stowplan.errors import InputError, UsageError
from stowplan.hardware.nnp_i.compiler import MemoryMap, Placer, compiler_map, spill_order
from stowplan.hardware.nnp_i.room import Room
from stowplan.models.tier_placement.problem import Problem


class Rectified(NamedTuple):
    """What became of a proposal."""

    map: MemoryMap
    """It can be executed."""
    epsilon: float
    """Bytes of the tensors that were re-assigned over the bytes of all: 0 where the proposal could be executed as it is."""


class Rectifier:
    """The compiler's check of proposals for one problem.

    This is the plain form, one proposal at a time, and the only one for tiers that are address spaces.
    :func:`stowplan.hardware.nnp_i.kernel.rectify` does the same for many, compiled.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._weights = np.array([layer.weight_bytes for layer in problem.layers], np.int64)
        self._outputs = np.array([layer.output_bytes for layer in problem.layers], np.int64)
        self._total = max(1, int(self._weights.sum() + self._outputs.sum()))

    def rectify(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Rectified:
        """The nearest map by simple rules: layer by layer, what has no room goes to a slower tier, or else to a faster one.

        Where that leaves a tensor without room, it is the compiler's own map. Where tiers are address spaces, it may move
        tensors that some cleverer choice of offsets would find room for.

        Parameters
        ----------
        weight_tiers, output_tiers
            Number of a tier for each layer, ``[layers]``.

        Returns
        -------
        Rectified
            The map that can be executed, and the part of all bytes that had to move, 0 to 1.

        Raises
        ------
        UsageError
            The proposal has not a tier for each layer, or one that does not exist.
        InputError
            The compiler finds no map at all.
        """
        wanted = self.checked(weight_tiers, output_tiers)
        try:
            found = self._place(wanted)
        except InputError:
            found = compiler_map(self._problem)
        moved = sum(
            int(sizes[np.array(was) != np.array(now)].sum())
            for sizes, was, now in (
                (self._weights, wanted.weight_tiers, found.weight_tiers),
                (self._outputs, wanted.output_tiers, found.output_tiers),
            )
        )
        return Rectified(found, moved / self._total)

    def checked(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> MemoryMap:
        """A proposal as a map, with 0 for weights of 0 bytes; UsageError as for :meth:`rectify`."""
        count, tiers = len(self._problem.layers), len(self._problem.tiers)
        for name, proposed in (("weight_tiers", weight_tiers), ("output_tiers", output_tiers)):
            if len(proposed) != count or not all(tier in range(tiers) for tier in proposed):
                raise UsageError(f"found {name} {show(list(proposed))}, expected {count} numbers from 0 to {tiers - 1}")
        return MemoryMap(
            tuple(int(tier) if size else 0 for tier, size in zip(weight_tiers, self._weights, strict=True)),
            tuple(map(int, output_tiers)),
        )

    def _place(self, wanted: MemoryMap) -> MemoryMap:
        tiers = len(self._problem.tiers)
        placer = Placer(self._problem, Room(self._problem))
        for number, layer in enumerate(self._problem.layers):
            if layer.weight_bytes:
                placer.weights(number, spill_order(wanted.weight_tiers[number], tiers))
            placer.output(number, spill_order(wanted.output_tiers[number], tiers))
        return placer.map()
