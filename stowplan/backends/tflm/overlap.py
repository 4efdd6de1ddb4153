"""Pairs of buffers that may share bytes, by what kernels read and write."""

from __future__ import annotations

from typing import NamedTuple

from stowplan.frontends.arena.tflite_file import TfliteModel

#: Sets of kernels that are modelled.
KERNELS = ("none",)


class Pair(NamedTuple):
    """A result that may begin inside its dying operand; tensors by their numbers in the list over all subgraphs."""

    operand: int
    result: int
    distance: int
    """Bytes below the operand's end at which the result may begin, at most."""


def overlaps(model: TfliteModel, kernels: str) -> tuple[Pair, ...]:
    """All pairs of a model under a set of kernels; those of none share nothing."""
    return ()
