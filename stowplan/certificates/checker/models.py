"""Form ``prices`` of LLM placement: a byte of each memory has a price, and what is left is a shortest path over the layers.

Read from docs/reference/llm-placement.md. A *case* is a micro-batch and the device that computes the host's weights in prompts,
or none; every plan is of one case. The proof has a row of prices for each case, in this order: for each micro-batch, each
device that copies weights, then none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, bound_of, need, rows, whole

#: Picoseconds in a second, and in what the time of a layer is rounded to.
SECOND, ROUNDED = 10**12, 1000

#: The host's number among the memories, and tokens of a micro-batch from which weights are copied.
HOST, LEAST_COPIED = 0, 32

#: Steps of shortest paths, of all cases together: some seconds.
MOST_STEPS = 3_000_000


class Case(NamedTuple):
    """A micro-batch, and the memory of the device that computes the host's weights in prompts."""

    batch: int
    copier: int | None


def cases(problem: Fields) -> Iterator[Case]:
    """All of them, in order."""
    copiers = [number + 1 for number, device in enumerate(problem["devices"]) if device["copies_weights"]]
    for batch in range(len(problem["micro_batches"])):
        for copier in (*copiers, None):
            yield Case(batch, copier)


def prices(problem: Fields, proof: Fields) -> int | None:
    """A lower bound for all plans: the least cost of a path of any case at the prices of that case; None if no case has a plan.

    denominator * time >= least over paths of (sum of denominator * times + price * bytes) - sum of price * room

    A path gives each layer a memory and a number of spilled parts; the layers of a device are consecutive.
    """
    every, denominator = [*cases(problem)], whole(proof, "denominator")
    given = rows(proof, "cases", 1 + len(problem["devices"]))
    need(len(given) == len(every), "proof.cases", f"it has {len(given)} rows, and there are {len(every)} cases")
    steps = len(every) * len(problem["layers"]) * (1 + len(problem["devices"])) << len(problem["devices"])
    need(steps <= MOST_STEPS, "proof.cases", "there are more paths than can be looked at")
    paths = (_path(problem, case, row, denominator) for case, row in zip(every, given, strict=True))
    bounds = [bound_of(total, denominator) for total in paths if total is not None]
    return min((bound for bound in bounds if bound is not None), default=None)


def _path(problem: Fields, case: Case, paid: list[int], denominator: int) -> int | None:
    """The cost of the cheapest path of a case; None if it has no path."""
    memories = [problem["host"], *problem["devices"]]
    total = 0
    for number, memory in enumerate(memories):
        room = memory["capacity"] - memory["margin"] - memory["compute_bytes"][case.batch]
        # A device that is not used needs no room, not even for its buffers.
        total -= paid[number] * (room - problem["host_bytes"] if number == HOST else max(0, room))
    moved = [denominator * transfer(problem, case, number) for number in range(len(memories))]
    # Where a path is, and the devices that it has been to, as bits.
    best: dict[tuple[int, int], int] = {(HOST, 0): 0}
    for number in range(len(problem["layers"])):
        costs = [_cheapest(problem, case, number, memory, paid, denominator) for memory in range(len(memories))]
        reached: dict[tuple[int, int], int] = {}
        for (at, been), cost in best.items():
            for memory in range(len(memories)):
                bit = 1 << memory if memory else 0
                is_new = memory not in (HOST, at)
                if (memory == HOST and at != HOST) or (is_new and (been & bit or not _may_enter(problem, case, memory, been))):
                    continue
                # A transfer to it, and another on from it, which the last device does without.
                more = cost + costs[memory] + (2 * moved[memory] if is_new else 0)
                state = (memory, been | bit)
                if state not in reached or more < reached[state]:
                    reached[state] = more
        best = reached
    ends = [
        cost - (moved[at] if at else 0) for (at, been), cost in best.items() if case.copier is None or been & 1 << case.copier
    ]
    return total + min(ends) if ends else None


def _may_enter(problem: Fields, case: Case, memory: int, been: int) -> bool:
    """Of devices that copy weights, that of the case comes first; where it has none, there is none."""
    if not problem["devices"][memory - 1]["copies_weights"] or memory == case.copier:
        return True
    return case.copier is not None and bool(been & 1 << case.copier)


def _cheapest(problem: Fields, case: Case, layer: int, memory: int, paid: list[int], denominator: int) -> int:
    """Time and bytes of a layer in a memory, at the prices, with as many spilled parts as cost least."""
    row = problem["layers"][layer]
    fixed = row["cache_bytes"] + row["fixed"]["bytes"]
    sizes = [part["bytes"] for part in row["spillable"]]
    choices = list[int]()
    for spilled in range(1 + (len(sizes) if memory else 0)):
        here, away = fixed + sum(sizes[spilled:]), sum(sizes[:spilled])
        time = denominator * time_of(problem, case, layer, memory, spilled)
        choices.append(time + paid[memory] * here + paid[HOST] * away)
    return min(choices)


def time_of(problem: Fields, case: Case, layer: int, memory: int, spilled: int) -> int:
    """Picoseconds that a layer adds to the request."""
    row, batch = problem["layers"][layer], problem["micro_batches"][case.batch]
    host, device = problem["host"], problem["devices"][memory - 1] if memory else problem["host"]
    copies = case.copier is not None and batch["tokens"] >= LEAST_COPIED and layer + 1 < len(problem["layers"])
    copier = problem["devices"][case.copier - 1] if copies and case.copier is not None else None
    step = device["layer_ps"] + _time(row["step_cache_bytes"], device["cache_rate"])
    prompt = device["layer_ps"]
    read, work = (row[name][case.batch] if row[name] else 0 for name in ("batch_cache_bytes", "batch_cache_flops"))
    if memory == HOST and copier is not None:
        prompt += _time(read, copier["link_rate"]) + _time(work, copier["compute_rate"])
    else:
        prompt += max(_time(read, device["cache_rate"]), _time(work, device["compute_rate"]))
    for number, part in enumerate([row["fixed"], *row["spillable"]]):
        is_away = memory == HOST or 0 < number <= spilled
        where = host if is_away else device
        step += _time(part["step_bytes"], where["weight_rate"])
        size, flops = part["batch_bytes"][case.batch], part["batch_flops"][case.batch]
        if is_away and copier is not None:
            prompt += _time(size, copier["link_rate"]) + _time(flops, copier["compute_rate"])
        else:
            prompt += max(_time(size, where["weight_rate"]), _time(flops, where["compute_rate"]))
    total = problem["steps"] * step + batch["batches"] * prompt
    return _rounded(int(total + (2 * _transfers(problem, case, device) if spilled else 0)))


def transfer(problem: Fields, case: Case, memory: int) -> int:
    """Picoseconds of activations, once in every step and batch, one way between the host and a device; 0 for the host."""
    return _rounded(_transfers(problem, case, problem["devices"][memory - 1])) if memory else 0


def _transfers(problem: Fields, case: Case, device: Fields) -> int:
    batch = problem["micro_batches"][case.batch]
    step = device["link_ps"] + _time(problem["slots"] * problem["hidden_bytes"], device["link_rate"])
    prompt = device["link_ps"] + _time(batch["tokens"] * problem["hidden_bytes"], device["link_rate"])
    return int(problem["steps"] * step + batch["batches"] * prompt)


def _time(amount: int, rate: int) -> int:
    """The time in picoseconds, rounded to the nearest, halves up."""
    return (2 * amount * SECOND + rate) // (2 * rate)


def _rounded(picoseconds: int) -> int:
    """Rounded to whole nanoseconds, halves up; in picoseconds."""
    return (picoseconds + ROUNDED // 2) // ROUNDED * ROUNDED
