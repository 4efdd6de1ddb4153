"""The instance of LLM placement: a language model in layers, devices with their speeds, and one request.

See docs/reference/llm-placement.md. Sizes are bytes, rates are per second, times are picoseconds.
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

#: Picoseconds in a second, and in the unit that costs are rounded to, a nanosecond.
SECOND, ROUNDED = 10**12, 1000

#: Number of the host among the memories; device ``d`` is memory ``d + 1``.
HOST = 0

#: Tokens in a micro-batch from which a device that copies weights computes the host's layers in a prompt
#: (``GGML_OP_OFFLOAD_MIN_BATCH`` of llama.cpp).
LEAST_COPIED = 32


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device with a memory of its own, or the host: the CPU with its RAM."""

    name: str
    capacity: int
    """Bytes that are free."""
    margin: int = 0
    """Number of these bytes that must stay free."""
    compute_bytes: tuple[int, ...]
    """For each micro-batch: bytes of the buffers that hold intermediate results."""
    weight_rate: int
    """Bytes of weights that it reads in a second while it generates tokens."""
    cache_rate: int
    """Bytes of the key-value cache that it reads in a second."""
    compute_rate: int
    """Floating-point operations in a second, for prompts."""
    link_rate: int = LIMIT - 1
    """Bytes in a second between it and the host."""
    link_ps: int = 0
    """Latency of one transfer between it and the host."""
    layer_ps: int = 0
    """Fixed time of one layer in one step."""
    copies_weights: bool = False
    """Whether it computes prompts with weights that are copied to it from the host, as CUDA and Vulkan devices do."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tensors of a layer that are placed together."""

    name: str = ""
    """Of a part that may be spilled: ``down``, ``gate``, ``up`` or ``gate_up``, as in the names of its tensors."""
    bytes: int
    step_bytes: int
    """Bytes read in one step of generation: of experts, those that the step is expected to use."""
    batch_bytes: tuple[int, ...]
    """For each micro-batch: bytes read when one batch of the prompt is computed."""
    batch_flops: tuple[int, ...]
    """For each micro-batch: floating-point operations for one batch of the prompt."""


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer of the model; the last one of a problem is the output layer."""

    name: str
    fixed: Part
    """What goes where the layer goes."""
    spillable: tuple[Part, ...] = ()
    """Parts that may stay on the host while the layer is on a device, in this order: a later one only with those before it."""
    cache_bytes: int = 0
    """Bytes of cache or state that are allocated for the layer."""
    step_cache_bytes: int = 0
    """Bytes of cache read in a step of generation, in the mean over all steps."""
    batch_cache_bytes: tuple[int, ...] = ()
    """For each micro-batch: bytes of cache that a batch of the prompt reads, in the mean; empty for none."""
    batch_cache_flops: tuple[int, ...] = ()
    """For each micro-batch: operations of attention for a batch of the prompt, in the mean; empty for none."""


class MicroBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A choice of how many tokens of the prompt are computed at once."""

    size: int
    """The limit that the runtime is given, in tokens."""
    tokens: int
    """Tokens that a batch of this prompt has, in the mean, rounded up."""
    batches: int
    """Batches of the prompt."""


class Times(NamedTuple):
    """What the time of a request consists of, in picoseconds."""

    device_weights: int
    """Generation: reading weights on devices."""
    host_weights: int
    """Generation: reading weights on the host."""
    caches: int
    """Generation: reading caches."""
    prompt: int
    """Computing the prompt, with all that it reads and copies, and with the transfers of activations for spilled parts."""
    transfers: int
    """Transfers of activations between devices, of the prompt as well; in generation also those of spilled parts, and fixed
    times of layers."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A validated instance; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    layers: tuple[Layer, ...]
    host: Device
    devices: tuple[Device, ...]
    micro_batches: tuple[MicroBatch, ...]
    steps: int
    """Steps of generation in the request; each makes one token for every slot."""
    host_bytes: int = 0
    """Bytes that the host holds in any case, such as the input embeddings."""
    hidden_bytes: int = 0
    """Bytes of the activations of one token between two layers."""
    slots: int = 1
    """Sequences that are generated side by side."""
    experts: int = 0
    """Experts of each layer of a mixture of experts; 0 for a dense model. The spillable parts of a mixture are its experts."""
    name: str = ""
    target: str = ""
    """Name of the machine."""
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
        """The host, then the devices."""
        return (self.host, *self.devices)

    def room(self, memory: int, batch: int) -> int:
        """Bytes of a memory for layers, with a micro-batch."""
        device = self.memories[memory]
        return device.capacity - device.margin - device.compute_bytes[batch] - (self.host_bytes if memory == HOST else 0)

    def copier(self, devices: Sequence[int]) -> int | None:
        """The memory that computes the host's layers in prompts: the first of those in use, in order, that copies weights."""
        return next((memory for memory in devices if self.memories[memory].copies_weights), None)

    def cost(self, layer: int, memory: int, batch: int, copier: int | None, spilled: int = 0) -> int:
        """Time that a layer adds to the request: the sum of :meth:`times`, in picoseconds, rounded to nanoseconds."""
        return _rounded(sum(self.times(layer, memory, batch, copier, spilled)))

    def times(self, layer: int, memory: int, batch: int, copier: int | None, spilled: int = 0) -> Times:
        """What a layer adds to the request.

        Parameters
        ----------
        layer, memory
            Number of the layer, and of the memory that holds it.
        batch
            Number of the micro-batch.
        copier
            Memory of the device that computes the host's weights in prompts (:meth:`copier`); None for none.
        spilled
            How many of its spillable parts are on the host.
        """
        row = self.layers[layer]
        device, chosen = self.memories[memory], self.micro_batches[batch]
        # The logits of the prompt's last token alone are computed: too few for a copy.
        may_copy = chosen.tokens >= LEAST_COPIED and layer < len(self.layers) - 1
        other = self.memories[copier] if may_copy and copier is not None else None
        read = [0, 0]
        prompt = device.layer_ps + self._attention(row, batch, device, other if memory == HOST else None)
        for number, part in enumerate((row.fixed, *row.spillable)):
            on_host = memory == HOST or 0 < number <= spilled
            where = self.host if on_host else device
            read[on_host] += _time(part.step_bytes, where.weight_rate)
            size, flops = part.batch_bytes[batch], part.batch_flops[batch]
            if on_host and other is not None:
                prompt += _time(size, other.link_rate) + _time(flops, other.compute_rate)
            else:
                prompt += max(_time(size, where.weight_rate), _time(flops, where.compute_rate))
        hops = 2 if spilled else 0
        return Times(
            device_weights=self.steps * read[False],
            host_weights=self.steps * read[True],
            caches=self.steps * _time(row.step_cache_bytes, device.cache_rate),
            prompt=chosen.batches * (prompt + hops * self._hop(device, chosen.tokens)),
            transfers=self.steps * (device.layer_ps + hops * self._hop(device, self.slots)),
        )

    def _attention(self, row: Layer, batch: int, device: Device, other: Device | None) -> int:
        size = row.batch_cache_bytes[batch] if row.batch_cache_bytes else 0
        flops = row.batch_cache_flops[batch] if row.batch_cache_flops else 0
        if other is not None:
            return _time(size, other.link_rate) + _time(flops, other.compute_rate)
        return max(_time(size, device.cache_rate), _time(flops, device.compute_rate))

    def _hop(self, device: Device, tokens: int) -> int:
        return device.link_ps + _time(tokens * self.hidden_bytes, device.link_rate)

    def transfer(self, memory: int, batch: int) -> int:
        """Picoseconds of the request in which activations move between the host and a device, once in each step, one way."""
        device, chosen = self.memories[memory], self.micro_batches[batch]
        return _rounded(self.steps * self._hop(device, self.slots) + chosen.batches * self._hop(device, chosen.tokens))

    @cached_property
    def classes(self) -> list[list[int]]:
        """Groups of layers, by number, that differ in no more than their names; the output layer is alone."""
        alike: dict[Layer, list[int]] = {}
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            # The output layer is priced as no other is.
            key = msgspec.structs.replace(layer, name="output" if number == last else "")
            alike.setdefault(key, []).append(number)
        return list(alike.values())

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of what a plan depends on: everything but the names of the problem and of the machine."""
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
    """Bytes that a layer takes where it is placed, without the parts that are spilled."""
    return layer.fixed.bytes + layer.cache_bytes + sum(part.bytes for part in layer.spillable[spilled:])


def floor(problem: Problem) -> int:
    """A lower bound in picoseconds: the time if each layer were where it takes least time, whether it fits or not."""
    memories, batches = range(len(problem.memories)), range(len(problem.micro_batches))
    least = []
    for batch in batches:
        total = 0
        for same in problem.classes:
            number, options = same[0], range(1 + len(problem.layers[same[0]].spillable))
            copiers = [None, *(memory for memory in memories if problem.memories[memory].copies_weights)]
            costs = (
                problem.cost(number, memory, batch, copier, spilled)
                for memory in memories
                for copier in copiers
                for spilled in (options if memory != HOST else range(1))
            )
            total += len(same) * min(costs)
        least.append(total)
    return min(least)


def placement_of(problem: Problem) -> Placement:
    """The layers as items that are always live, each with all of its bytes, and memories that have room for all layers."""
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
    expect(len(values) == count, place, f"{field} with {len(values)} entries", f"{count}, one for each micro-batch")
    for value in values:
        expect_range(place, field, value, 0, LIMIT)


def _time(amount: int, rate: int) -> int:
    """The time in picoseconds, rounded to the nearest, halves up."""
    return (2 * amount * SECOND + rate) // (2 * rate)


def _rounded(picoseconds: int) -> int:
    """Rounded to whole nanoseconds, halves up; in picoseconds."""
    return (picoseconds + ROUNDED // 2) // ROUNDED * ROUNDED
