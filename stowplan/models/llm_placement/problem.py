"""The problem of LLM placement: a language model in layers, devices with their speeds, and one request.

The rules and the times are on docs/reference/llm-placement.md. Sizes are in bytes, rates per second, and times in picoseconds.
A *memory* is that of the host or of a device. A *step* of generation computes one token for every slot, that is, for every
sequence that is generated at the same time. A prompt is computed in *micro-batches* of tokens. A part of a layer is *spilled*
if it is on the host although the layer is on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stowplan import files
from stowplan.checks import expect, expect_range, expect_unique
from stowplan.document import ProblemDocument
from stowplan.models.placement.items import Item, Memory, Placement

if TYPE_CHECKING:
    from stowplan.models.llm_placement.plan import Plan  # noqa: F401

#: All numbers of a problem must be less than this.
LIMIT = 1 << 60

#: Number of picoseconds in a second, and in a nanosecond, to which costs are rounded.
SECOND, ROUNDED = 10**12, 1000

#: Number of the host among the memories; device ``d`` is memory ``d + 1``.
HOST = 0

#: Smallest number of tokens in a micro-batch with which a device that copies weights computes the host's layers
#: (``GGML_OP_OFFLOAD_MIN_BATCH`` of llama.cpp).
LEAST_COPIED = 32


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device with a memory of its own, or the host: the CPU with its RAM."""

    name: str
    """Name of the device, which no other device has."""
    capacity: int
    """Number of bytes that are free."""
    margin: int = 0
    """Number of these bytes that must stay free."""
    compute_bytes: tuple[int, ...]
    """For each choice of a micro-batch, the bytes of the buffers that hold intermediate results."""
    weight_rate: int
    """Bytes of weights that it reads in a second."""
    cache_rate: int
    """Bytes of the key-value cache that it reads in a second."""
    compute_rate: int
    """Floating-point operations that it computes in a second, for prompts."""
    link_rate: int = LIMIT - 1
    """Bytes that are transferred in a second between it and the host."""
    link_ps: int = 0
    """Latency of one transfer between it and the host, in ps."""
    layer_ps: int = 0
    """Fixed time of one layer in one step of generation and in one micro-batch, in ps."""
    copies_weights: bool = False
    """Whether it computes prompts with weights that are copied to it from the host, as CUDA and Vulkan devices do."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Weights of a layer that are placed together."""

    name: str = ""
    """For a part that may be spilled, ``down``, ``gate``, ``up`` or ``gate_up``, as in the names of its tensors."""
    bytes: int
    """Size in bytes."""
    step_bytes: int
    """Number of bytes that one step of generation reads. If the part has experts, only those count that the step is expected to
    use."""
    batch_bytes: tuple[int, ...]
    """For each choice of a micro-batch, the number of bytes that one micro-batch of the prompt reads."""
    batch_flops: tuple[int, ...]
    """For each choice of a micro-batch, the number of floating-point operations of one micro-batch of the prompt."""


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer of the model; the last layer of a problem is the output layer."""

    name: str
    """Name of the layer, which no other layer has."""
    fixed: Part
    """The part that is always in the memory of the layer."""
    spillable: tuple[Part, ...] = ()
    """Parts that may stay on the host while the layer is on a device. A part may be spilled only together with all parts before
    it."""
    cache_bytes: int = 0
    """Number of bytes of cache or state that are allocated for the layer."""
    step_cache_bytes: int = 0
    """Number of bytes of the cache that a step of generation reads, on average over all steps."""
    batch_cache_bytes: tuple[int, ...] = ()
    """For each choice of a micro-batch, the number of bytes of the cache that one micro-batch of the prompt reads, on average.
    If it is empty, they are 0."""
    batch_cache_flops: tuple[int, ...] = ()
    """For each choice of a micro-batch, the operations of attention of one micro-batch of the prompt, on average. If it is
    empty, they are 0."""


class MicroBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A choice of the number of tokens of the prompt that are computed at once."""

    size: int
    """Largest number of tokens that the runtime may compute at once."""
    tokens: int
    """Number of tokens that each micro-batch of this prompt has, on average, rounded up."""
    batches: int
    """Number of micro-batches of the prompt."""


class Times(NamedTuple):
    """The components of the time of a request, or of one layer, in picoseconds."""

    device_weights: int
    """Time in which generation reads weights on devices."""
    host_weights: int
    """Time in which generation reads weights on the host."""
    caches: int
    """Time in which generation reads caches."""
    prompt: int
    """Time in which the prompt is computed. It includes all that the prompt reads and copies, the transfers of activations for
    spilled parts, and fixed times of layers."""
    transfers: int
    """Fixed times of layers and transfers of activations for spilled parts, both in generation. For a request, also the
    transfers to and from the devices in use, in generation and for the prompt."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A problem of LLM placement. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    layers: tuple[Layer, ...]
    """The layers in the order in which they are computed; the last one is the output layer."""
    host: Device
    """The CPU with its RAM."""
    devices: tuple[Device, ...]
    """The devices, in any order."""
    micro_batches: tuple[MicroBatch, ...]
    """The choices of a micro-batch, at least one."""
    steps: int
    """Number of steps of generation in the request."""
    host_bytes: int = 0
    """Number of bytes that the host holds in any case, such as the input embeddings."""
    hidden_bytes: int = 0
    """Number of bytes of the activations of one token between two layers."""
    slots: int = 1
    """Number of sequences that are generated at the same time."""
    experts: int = 0
    """Number of experts in each layer of a mixture of experts; 0 for a dense model. The spillable parts of a mixture of experts
    are its experts."""
    name: str = ""
    """Name of the model, for people."""
    target: str = ""
    """Name of the machine, for people."""
    format: str = "stowplan.llm_placement.problem"
    version: int = 1

    def __post_init__(self) -> None:
        expect(bool(self.layers), "layers", "no layer", "at least the output layer")
        expect(bool(self.micro_batches), "micro_batches", "no micro-batch", "at least one")
        expect_unique((device.name for device in (self.host, *self.devices)), "devices", "name")
        expect_unique((layer.name for layer in self.layers), "layers", "name")
        count = len(self.micro_batches)
        for field, value, least in (
            ("steps", self.steps, 0),
            ("host_bytes", self.host_bytes, 0),
            ("hidden_bytes", self.hidden_bytes, 0),
            ("slots", self.slots, 1),
            ("experts", self.experts, 0),
        ):
            expect_range(field, field, value, least, LIMIT)
        for number, batch in enumerate(self.micro_batches):
            for field in ("size", "tokens", "batches"):
                expect_range(f"micro_batches[{number}]", field, getattr(batch, field), 0 if field != "size" else 1, LIMIT)
        for memory, device in enumerate((self.host, *self.devices)):
            place = "host" if memory == HOST else f"devices[{memory - 1}] ({device.name})"
            expect_range(place, "capacity", device.capacity, 0, LIMIT)
            expect_range(place, "margin", device.margin, 0, LIMIT)
            for field in ("weight_rate", "cache_rate", "compute_rate", "link_rate"):
                expect_range(place, field, getattr(device, field), 1, LIMIT)
            for field in ("link_ps", "layer_ps"):
                expect_range(place, field, getattr(device, field), 0, LIMIT)
            _expect_counts(place, "compute_bytes", device.compute_bytes, count)
        for number, layer in enumerate(self.layers):
            place = f"layers[{number}] ({layer.name})"
            expect_range(place, "cache_bytes", layer.cache_bytes, 0, LIMIT)
            expect_range(place, "step_cache_bytes", layer.step_cache_bytes, 0, LIMIT)
            for field in ("batch_cache_bytes", "batch_cache_flops"):
                if getattr(layer, field):
                    _expect_counts(place, field, getattr(layer, field), count)
            for part in (layer.fixed, *layer.spillable):
                expect_range(place, "bytes", part.bytes, 0, LIMIT)
                expect_range(place, "step_bytes", part.step_bytes, 0, LIMIT)
                _expect_counts(place, "batch_bytes", part.batch_bytes, count)
                _expect_counts(place, "batch_flops", part.batch_flops, count)
        total = sum(layer_bytes(layer) for layer in self.layers) + self.host_bytes
        expect(total < LIMIT, "layers", f"{total} bytes in all", f"less than {LIMIT}")
        slowest = max(
            self.cost(number, memory, batch, None)
            for number in range(len(self.layers))
            for memory in range(1 + len(self.devices))
            for batch in range(count)
        )
        worst = len(self.layers) * 4 * slowest
        expect(worst < LIMIT, "layers", f"a request of up to {worst} ps", f"less than {LIMIT} ps")

    @property
    def memories(self) -> tuple[Device, ...]:
        """The host and the devices; device ``d`` is memory ``d + 1``."""
        return (self.host, *self.devices)

    def room(self, memory: int, batch: int) -> int:
        """Number of bytes of a memory that layers may use, with a choice of a micro-batch; it may be negative."""
        device = self.memories[memory]
        return device.capacity - device.margin - device.compute_bytes[batch] - (self.host_bytes if memory == HOST else 0)

    def copier(self, devices: Sequence[int]) -> int | None:
        """The memory of the device that computes the host's weights in prompts; None if there is none.

        It is the first of these memories that copies weights. ``devices`` are the memories in use, in the order of their
        layers.
        """
        return next((memory for memory in devices if self.memories[memory].copies_weights), None)

    def cost(self, layer: int, memory: int, batch: int, copier: int | None, spilled: int = 0) -> int:
        """The time in ps that a layer adds to the request: the sum of :meth:`times`, rounded to whole nanoseconds."""
        return _rounded(sum(self.times(layer, memory, batch, copier, spilled)))

    def times(self, layer: int, memory: int, batch: int, copier: int | None, spilled: int = 0) -> Times:
        """The components of the time that a layer adds to the request, without transfers between devices.

        Parameters
        ----------
        layer, memory
            Number of the layer, and of the memory that holds it.
        batch
            Number of the chosen micro-batch.
        copier
            Memory of the device that computes the host's weights in prompts (:meth:`copier`); None for none.
        spilled
            Number of its spillable parts that are on the host.
        """
        row = self.layers[layer]
        device, chosen = self.memories[memory], self.micro_batches[batch]
        # The output layer computes only the last token of the prompt, so its weights are never copied for the prompt.
        may_copy = chosen.tokens >= LEAST_COPIED and layer < len(self.layers) - 1
        copying_device = self.memories[copier] if may_copy and copier is not None else None
        read = [0, 0]
        prompt = device.layer_ps + self._attention(row, batch, device, copying_device if memory == HOST else None)
        for number, part in enumerate((row.fixed, *row.spillable)):
            on_host = memory == HOST or 0 < number <= spilled
            holder = self.host if on_host else device
            read[on_host] += _time(part.step_bytes, holder.weight_rate)
            size, flops = part.batch_bytes[batch], part.batch_flops[batch]
            if on_host and copying_device is not None:
                prompt += _time(size, copying_device.link_rate) + _time(flops, copying_device.compute_rate)
            else:
                prompt += max(_time(size, holder.weight_rate), _time(flops, holder.compute_rate))
        hops = 2 if spilled else 0
        return Times(
            device_weights=self.steps * read[False],
            host_weights=self.steps * read[True],
            caches=self.steps * _time(row.step_cache_bytes, device.cache_rate),
            prompt=chosen.batches * (prompt + hops * self._hop(device, chosen.tokens)),
            transfers=self.steps * (device.layer_ps + hops * self._hop(device, self.slots)),
        )

    def _attention(self, row: Layer, batch: int, device: Device, other: Device | None) -> int:
        """Time in ps of the attention of a layer in one micro-batch of the prompt.

        It is computed on ``device``, or on the device ``other`` to which the cache is copied from the host.
        """
        size = row.batch_cache_bytes[batch] if row.batch_cache_bytes else 0
        flops = row.batch_cache_flops[batch] if row.batch_cache_flops else 0
        if other is not None:
            return _time(size, other.link_rate) + _time(flops, other.compute_rate)
        return max(_time(size, device.cache_rate), _time(flops, device.compute_rate))

    def _hop(self, device: Device, tokens: int) -> int:
        """Time in ps in which the activations of some tokens move between the host and a device, one way."""
        return device.link_ps + _time(tokens * self.hidden_bytes, device.link_rate)

    def transfer(self, memory: int, batch: int) -> int:
        """Time in ps of the transfers of activations between the host and a device in the whole request, one way.

        There is one transfer in each step of generation and one in each micro-batch. The time is rounded to nanoseconds.
        """
        device, chosen = self.memories[memory], self.micro_batches[batch]
        return _rounded(self.steps * self._hop(device, self.slots) + chosen.batches * self._hop(device, chosen.tokens))

    @cached_property
    def classes(self) -> list[list[int]]:
        """Groups of layers, by number, that differ at most in their names. The output layer is a group of its own."""
        alike: dict[Layer, list[int]] = {}
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            # The time of the output layer is computed in a different way from that of all other layers.
            key = msgspec.structs.replace(layer, name="output" if number == last else "")
            alike.setdefault(key, []).append(number)
        return list(alike.values())

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; ``name``, ``target`` and ``experts`` are left out."""
        return files.digest(
            [
                self.layers,
                self.host,
                self.devices,
                self.micro_batches,
                self.steps,
                self.host_bytes,
                self.hidden_bytes,
                self.slots,
            ]
        )


def layer_bytes(layer: Layer, spilled: int = 0) -> int:
    """Number of bytes that a layer with ``spilled`` spilled parts occupies in the memory where it is placed."""
    return layer.fixed.bytes + layer.cache_bytes + sum(part.bytes for part in layer.spillable[spilled:])


def floor(problem: Problem) -> int:
    """A lower bound in ps on the time of the request: each layer is where it takes the least time, whether it fits or not."""
    memories, batches = range(len(problem.memories)), range(len(problem.micro_batches))
    least = []
    for batch in batches:
        total = 0
        for members in problem.classes:
            number, options = members[0], range(1 + len(problem.layers[members[0]].spillable))
            copiers = [None, *(memory for memory in memories if problem.memories[memory].copies_weights)]
            costs = (
                problem.cost(number, memory, batch, copier, spilled)
                for memory in memories
                for copier in copiers
                for spilled in (options if memory != HOST else range(1))
            )
            total += len(members) * min(costs)
        least.append(total)
    return min(least)


def placement_of(problem: Problem) -> Placement:
    """The problem in the terms of :mod:`stowplan.models.placement.items`, without limits on memory.

    The items are the layers, each with all of its bytes. They are always live, and each memory is large enough for all layers.
    """
    memories = range(len(problem.memories))
    total = sum(map(layer_bytes, problem.layers))
    return Placement(
        items=[Item(0, 1, dict.fromkeys(memories, layer_bytes(layer))) for layer in problem.layers],
        memories=[Memory(total, total) for _ in memories],
        steps={},
        lowest={},
        permanent=range(len(problem.layers)),
    )


def _expect_counts(place: str, field: str, values: tuple[int, ...], count: int) -> None:
    """Raise InputError if a field does not have one number in range for each of the ``count`` choices of a micro-batch."""
    expect(len(values) == count, place, f"{field} with {len(values)} entries", f"{count}, one for each micro-batch")
    for value in values:
        expect_range(place, field, value, 0, LIMIT)


def _time(amount: int, rate: int) -> int:
    """The time in ps for an amount of bytes or operations at a rate per second, rounded to the nearest number, halves up."""
    return (2 * amount * SECOND + rate) // (2 * rate)


def _rounded(picoseconds: int) -> int:
    """A time in ps, rounded to whole nanoseconds, halves up."""
    return (picoseconds + ROUNDED // 2) // ROUNDED * ROUNDED
