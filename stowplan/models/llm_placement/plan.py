"""The plan of an LLM placement problem: a memory for every layer, its spilled parts, and a micro-batch.

This module holds data only; the rules are in the verifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.llm_placement.problem import HOST, Problem, Times, layer_bytes


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Memories of layers; :func:`stowplan.models.llm_placement.verify.verify` says whether they are valid.

    The objective is the time of the request in picoseconds.
    """

    memories: tuple[int, ...]
    """For each layer: 0 for the host, ``d + 1`` for device ``d``."""
    spilled: tuple[int, ...]
    """For each layer: how many of its spillable parts are on the host, the first ones; 0 for layers on the host."""
    micro_batch: int
    """Number of the micro-batch."""
    name: str = ""
    """Name of the problem, for people. A plan belongs to the problem whose digest its field ``problem`` has."""
    target: str = ""
    """Name of the machine, for people."""
    format: str = "stowplan.llm_placement.plan"
    version: int = 1


def used_devices(memories: Sequence[int]) -> list[int]:
    """Memories other than the host, in the order of the layers that they hold."""
    return [memory for memory in dict.fromkeys(memories) if memory != HOST]


def used_bytes(problem: Problem, memories: Sequence[int], spilled: Sequence[int]) -> list[int]:
    """[memories] bytes of layers and caches that each memory holds, without ``host_bytes`` and intermediate results."""
    used = [0] * len(problem.memories)
    for layer, memory, parts in zip(problem.layers, memories, spilled, strict=True):
        used[memory] += layer_bytes(layer, parts)
        used[HOST] += layer_bytes(layer) - layer_bytes(layer, parts)
    return used


def fits(problem: Problem, memories: Sequence[int], spilled: Sequence[int], batch: int) -> bool:
    """Whether the host and the devices in use have room for what they hold, with a micro-batch."""
    used = used_bytes(problem, memories, spilled)
    return all(used[memory] <= problem.room(memory, batch) for memory in {HOST, *memories})


def request_ps(problem: Problem, memories: Sequence[int], spilled: Sequence[int], batch: int) -> int:
    """Time of the request in picoseconds: of the layers, and of moving activations to each device and on to the next one."""
    used = used_devices(memories)
    copier = problem.copier(used)
    layers = sum(problem.cost(number, memory, batch, copier, spilled[number]) for number, memory in enumerate(memories))
    return layers + transfers_ps(problem, used, batch)


def transfers_ps(problem: Problem, devices: Sequence[int], batch: int) -> int:
    """Time in picoseconds of moving activations to each of these devices, in their order, and on to the next one."""
    transfers = [problem.transfer(memory, batch) for memory in devices]
    # The last device passes its activations to no other device.
    return 2 * sum(transfers) - (transfers[-1] if transfers else 0)


class Case(NamedTuple):
    """What the time of a layer in a memory depends on. Each exact model and each bound is for one case."""

    batch: int
    """Number of the micro-batch."""
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
    """What the request time of a valid plan consists of; without the rounding of its terms."""
    used = used_devices(plan.memories)
    copier = problem.copier(used)
    rows = [
        problem.times(number, memory, plan.micro_batch, copier, plan.spilled[number])
        for number, memory in enumerate(plan.memories)
    ]
    total = Times(*map(sum, zip(*rows, strict=True)))
    hops = plan.objective - sum(total)
    return total._replace(transfers=total.transfers + hops)


def plan_of(problem: Problem, memories: Sequence[int], spilled: Sequence[int], batch: int) -> Plan:
    """A plan with its request time."""
    return Plan(
        problem=problem.digest,
        objective=request_ps(problem, memories, spilled, batch),
        memories=tuple(memories),
        spilled=tuple(spilled),
        micro_batch=batch,
    )


def _layers(problem: Problem, plan: Plan) -> dict[int, Values]:
    places = zip(plan.memories, plan.spilled, strict=True)
    return {at: {"device": problem.memories[memory].name, "spilled": count} for at, (memory, count) in enumerate(places)}


def _batch(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {0: {"tokens": problem.micro_batches[plan.micro_batch].size}}


DECISIONS = (
    Decision("layer", lambda problem, at: problem.layers[at].name, _layers),
    Decision("micro-batch", lambda problem, at: "micro-batch", _batch),
)
