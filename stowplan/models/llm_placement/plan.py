"""The plan of an LLM placement problem: a memory for every layer, its spilled parts, and a micro-batch.

A *memory* is that of the host or of a device. A part of a layer is *spilled* if it is on the host although the layer is on a
device. The *micro-batch* is the number of tokens of a prompt that are computed at once, and a *request* is a prompt and a
number of steps of generation. This module defines the data and computes the time of a request; the verifier checks the rules.
Lists of memories and of numbers of spilled parts must have an entry for each layer; then nothing here raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.llm_placement.problem import HOST, Problem, Times, layer_bytes


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory for every layer, the number of its spilled parts, and a choice of a micro-batch.

    :func:`stowplan.models.llm_placement.verify.verify` says whether the plan is valid. The objective is the time of the request
    in picoseconds.
    """

    memories: tuple[int, ...]
    """For each layer, the number of its memory: 0 for the host, ``d + 1`` for device ``d``."""
    spilled: tuple[int, ...]
    """For each layer, the number of its spilled parts, which are the first ones of its ``spillable``; 0 for layers on the
    host."""
    micro_batch: int
    """Number of the chosen micro-batch, in ``problem.micro_batches``."""
    name: str = ""
    """Name of the problem, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Name of the machine, for people."""
    format: str = "stowplan.llm_placement.plan"
    version: int = 1


def used_devices(memories: Sequence[int]) -> list[int]:
    """The memories of the devices that have layers, in the order of these layers."""
    return [memory for memory in dict.fromkeys(memories) if memory != HOST]


def used_bytes(problem: Problem, memories: Sequence[int], spilled: Sequence[int]) -> list[int]:
    """Returns, for each memory, the bytes of layers and caches in it. They do not include ``host_bytes`` and the buffers of
    intermediate results. ``memories`` and ``spilled`` have an entry for each layer, as in :class:`Plan`."""
    used = [0] * len(problem.memories)
    for layer, memory, parts in zip(problem.layers, memories, spilled, strict=True):
        used[memory] += layer_bytes(layer, parts)
        used[HOST] += layer_bytes(layer) - layer_bytes(layer, parts)
    return used


def fits(problem: Problem, memories: Sequence[int], spilled: Sequence[int], batch: int) -> bool:
    """Whether layers and caches fit into the host and the devices in use. ``batch`` is the number of the chosen micro-batch.
    Devices without layers are not checked."""
    used = used_bytes(problem, memories, spilled)
    return all(used[memory] <= problem.room(memory, batch) for memory in {HOST, *memories})


def request_ps(problem: Problem, memories: Sequence[int], spilled: Sequence[int], batch: int) -> int:
    """Time of the request in ps: the times of all layers, and the transfers of activations (:func:`transfers_ps`). ``batch`` is
    the number of the chosen micro-batch."""
    used = used_devices(memories)
    copier = problem.copier(used)
    layers = sum(problem.cost(number, memory, batch, copier, spilled[number]) for number, memory in enumerate(memories))
    return layers + transfers_ps(problem, used, batch)


def transfers_ps(problem: Problem, devices: Sequence[int], batch: int) -> int:
    """Time in ps of the transfers of activations to each of these devices, in their order, and from there to the next one."""
    transfers = [problem.transfer(memory, batch) for memory in devices]
    # The last device passes its activations to no other device.
    return 2 * sum(transfers) - (transfers[-1] if transfers else 0)


class Case(NamedTuple):
    """The choices of a plan on which the time of each layer in each memory depends.

    Each exact model and each bound is for one case.
    """

    batch: int
    """Number of the chosen micro-batch."""
    copier: int | None
    """Memory of the device that computes the host's weights in prompts; None if none of the devices in use copies weights."""


def cases(problem: Problem) -> Iterator[Case]:
    """All cases; each plan belongs to one of them."""
    copiers = [memory for memory, device in enumerate(problem.memories) if memory != HOST and device.copies_weights]
    for batch in range(len(problem.micro_batches)):
        for copier in (*copiers, None):
            yield Case(batch, copier)


def case_of(problem: Problem, plan: Plan) -> Case:
    """The case that a plan belongs to."""
    return Case(plan.micro_batch, problem.copier(used_devices(plan.memories)))


def times_of(problem: Problem, plan: Plan) -> Times:
    """Returns the components of the request time of a valid plan, which add up to the objective. The rounding of the times of
    layers makes small differences, which are part of ``transfers``."""
    used = used_devices(plan.memories)
    copier = problem.copier(used)
    rows = [
        problem.times(number, memory, plan.micro_batch, copier, plan.spilled[number])
        for number, memory in enumerate(plan.memories)
    ]
    total = Times(*map(sum, zip(*rows, strict=True)))
    transfers_between_devices = plan.objective - sum(total)
    return total._replace(transfers=total.transfers + transfers_between_devices)


def plan_of(problem: Problem, memories: Sequence[int], spilled: Sequence[int], batch: int) -> Plan:
    """Build the plan with these memories, numbers of spilled parts and number of the chosen micro-batch, and compute its
    request time. The plan is not checked."""
    return Plan(
        problem=problem.digest,
        objective=request_ps(problem, memories, spilled, batch),
        memories=tuple(memories),
        spilled=tuple(spilled),
        micro_batch=batch,
    )


def _layers(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The device and the number of spilled parts of each layer, by its number, as a decision that can be compared."""
    places = zip(plan.memories, plan.spilled, strict=True)
    return {at: {"device": problem.memories[memory].name, "spilled": count} for at, (memory, count) in enumerate(places)}


def _batch(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The size of the micro-batch as a decision that can be compared."""
    return {0: {"tokens": problem.micro_batches[plan.micro_batch].size}}


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (
    Decision("layer", lambda problem, at: problem.layers[at].name, _layers),
    Decision("micro-batch", lambda problem, at: "micro-batch", _batch),
)
