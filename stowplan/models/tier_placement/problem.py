"""The tier-placement problem: the layers of a network in the order in which they run, and memories (tiers) of different speed.

The rules are on docs/reference/tier-placement.md. This module has the data of problems and checks them when they are created.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from stowplan import files
from stowplan.checks import expect, expect_range, expect_unique
from stowplan.document import ProblemDocument
from stowplan.errors import InputError

if TYPE_CHECKING:
    from stowplan.models.tier_placement.plan import Plan  # noqa: F401

#: Bytes, offsets and picoseconds, and their sums over the whole network, stay below this, so that the sum of two of these
#: numbers fits in 64 bits.
LIMIT = 1 << 61

_PS_PER_SECOND = 10**12


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tier: a memory, or a level of the memory hierarchy."""

    name: str
    """Name of the tier, which no other tier has."""
    capacity: int
    """Size in bytes."""
    bandwidth: int
    """Bytes per second, for reads and for writes."""
    alignment: int = 1
    """If tiers are address spaces, offsets in this tier are multiples of this number of bytes."""

    def move_ps(self, size: int) -> int:
        """Time in ps to read or write ``size`` bytes, rounded to the nearest picosecond (halves up)."""
        return (2 * size * _PS_PER_SECOND + self.bandwidth) // (2 * self.bandwidth)


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One layer of the network. It reads its weights and the outputs of earlier layers, and writes its output."""

    name: str
    """Name of the layer, for people."""
    op: str = ""
    """Name of the operation, for people."""
    inputs: tuple[int, ...] = ()
    """Numbers of the layers whose outputs it reads, ascending; all are smaller than its own number."""
    output_bytes: int
    """Size of its output in bytes."""
    weight_bytes: int = 0
    """Size of its weights in bytes; 0 if it has none."""
    weight_read_bytes: int | None = None
    """Number of bytes of the weights that one inference reads; None for all. An embedding reads only a few rows of its
    table."""
    external_bytes: int = 0
    """Number of bytes of network inputs that it reads. They are in tier 0, and their memory is not part of the plan."""
    compute_ps: int = 0
    """Time in ps to compute the layer if memory were infinitely fast."""
    overhead_ps: int = 0
    """Fixed time in ps that is added to the longer of computation and memory traffic."""

    @property
    def weights_read(self) -> int:
        """Number of bytes of the weights that one inference reads."""
        return self.weight_bytes if self.weight_read_bytes is None else self.weight_read_bytes


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A tier-placement problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    tiers: tuple[Tier, ...]
    """The tiers, slowest first. A tier is identified by its index."""
    layers: tuple[Layer, ...]
    """The layers in the order in which they run. The index of a layer is also its step."""
    address_spaces: bool = False
    """Whether every tier is an address space in which each of its tensors needs an offset; otherwise only bytes are counted."""
    features: tuple[tuple[int, ...], ...] = ()
    """Node features for learned policies, a row for each layer. No rule depends on them."""
    name: str = ""
    """Name of the network."""
    target: str = ""
    """Name of the hardware target."""
    cost_model: str = ""
    """Name of the cost model that gave the times, for example ``roofline int8``."""
    notes: tuple[str, ...] = ()
    """Remarks of the reader about parts of the input that it could not represent exactly. No rule depends on them."""
    format: str = "stowplan.tier_placement.problem"
    version: int = 1

    def __post_init__(self) -> None:
        _check_tiers(self.tiers)
        _check_layers(self.layers)
        if self.features and len(self.features) != len(self.layers):
            message = f"found {len(self.features)} rows, expected none or one for each of the {len(self.layers)} layers"
            raise InputError(message, place="features")
        for number, row in enumerate(self.features):
            if len(row) != len(self.features[0]):
                message = f"found {len(row)} features, expected {len(self.features[0])} as in the first row"
                raise InputError(message, place=f"features[{number}]")
        worst = sum(
            max(layer.compute_ps, self.tiers[0].move_ps(bytes_moved(layer, self.layers)) + 3 + len(layer.inputs))
            + layer.overhead_ps
            for layer in self.layers
        )
        total = sum(layer.weight_bytes + layer.output_bytes for layer in self.layers)
        total += 2 * sum(tier.alignment for tier in self.tiers) * len(self.layers)
        for what, amount in ((f"a latency of {worst} ps in the slowest tier", worst), (f"{total} bytes in all", total)):
            expect(amount < LIMIT, "layers", what, f"less than {LIMIT}")

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """[layers] step of the last layer that reads the layer's output; its own step if no layer does."""
        last = list(range(len(self.layers)))
        for number, layer in enumerate(self.layers):
            for source in layer.inputs:
                last[source] = number
        return tuple(last)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on: tiers, layers and whether tiers are address spaces."""
        return files.digest((self.tiers, self.layers, self.address_spaces))


def bytes_moved(layer: Layer, layers: tuple[Layer, ...]) -> int:
    """Number of bytes that a layer reads and writes in total."""
    read = sum(layers[source].output_bytes for source in layer.inputs)
    return layer.weights_read + layer.external_bytes + layer.output_bytes + read


def _check_tiers(tiers: tuple[Tier, ...]) -> None:
    """Raise InputError if a tier breaks a rule."""
    expect(bool(tiers), "tiers", "no tiers", "at least one")
    expect_unique((tier.name for tier in tiers), "tiers", "name")
    for number, tier in enumerate(tiers):
        for field, least in (("capacity", 0), ("bandwidth", 1), ("alignment", 1)):
            expect_range(f"tiers[{number}] ({tier.name})", field, getattr(tier, field), least, LIMIT)
    for slower, faster in pairwise(tiers):
        if slower.bandwidth > faster.bandwidth:
            message = f"found {faster.name} after {slower.name}, which is faster; expected the slowest tier first"
            raise InputError(message, place="tiers")


def _check_layers(layers: tuple[Layer, ...]) -> None:
    """Raise InputError if a layer breaks a rule."""
    expect(bool(layers), "layers", "no layers", "at least one")
    for number, layer in enumerate(layers):
        place = f"layers[{number}] ({layer.name})"
        for field in ("output_bytes", "weight_bytes", "external_bytes", "compute_ps", "overhead_ps"):
            expect_range(place, field, getattr(layer, field), 0, LIMIT)
        expect_range(place, "weight_read_bytes", layer.weights_read, 0, LIMIT)
        expect(
            bool(layer.weight_bytes) or not layer.weights_read, place, f"{layer.weights_read} bytes read of weights", "weights"
        )
        before = -1
        for source in layer.inputs:
            at, found = f"{place}.inputs", f"layer {source}"
            expect(0 <= source < len(layers), at, found, f"the number of a layer, 0 to {len(layers) - 1}")
            expect(source < number, at, found, "one that runs before it: layers stand in order, without cycles")
            expect(source > before, at, list(layer.inputs), "layer numbers that ascend, each once")
            before = source


def amended(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    """The problem with another size of the fastest tier, which is the last one.

    ``changes["capacity"]`` is this size in bytes, given by the option ``--capacity``. Other changes are ignored. Raises
    KeyError if there is no capacity, and InputError if it is out of range.
    """
    tiers = (*problem.tiers[:-1], msgspec.structs.replace(problem.tiers[-1], capacity=changes["capacity"]))
    return msgspec.structs.replace(problem, tiers=tiers)
