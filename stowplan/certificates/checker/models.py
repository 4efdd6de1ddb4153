"""Form ``prices`` of LLM placement: a byte of each memory has a price, and the bound is a shortest path over the layers.

The rules are those of docs/reference/llm-placement.md. While a prompt is processed, weights that stay on the host may be copied
to one device, which computes with them. A *case* is a size of micro-batch together with this device, or with none if no device
does so. Every plan belongs to one case. The proof has a row of prices for each case, in this order: for each micro-batch, each
device that copies weights, then the case without one.

Memories are numbered: 0 is the host, and i + 1 is device i. A layer on a device has a number of *spilled* parts: the first ones
of its list ``spillable``, which stay on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, bound_of, need, rows, whole

#: Picoseconds in a second, and in a nanosecond, to which the time of a layer is rounded.
SECOND, ROUNDED = 10**12, 1000

#: The host's number among the memories, and the least number of tokens of a micro-batch for which weights are copied.
HOST, LEAST_COPIED = 0, 32

#: Maximum number of steps of the shortest paths of all cases together; they take some seconds.
MOST_STEPS = 3_000_000


class Case(NamedTuple):
    """A size of micro-batch, and the device that computes with the host's weights while a prompt is processed."""

    batch: int
    """Number of the size in the problem's list ``micro_batches``."""
    copier: int | None
    """Number of the device among the memories; None if no device does so."""


def cases(problem: Fields) -> Iterator[Case]:
    """Yields all cases, in the order of the proof's rows."""
    copiers = [number + 1 for number, device in enumerate(problem["devices"]) if device["copies_weights"]]
    for batch in range(len(problem["micro_batches"])):
        for copier in (*copiers, None):
            yield Case(batch, copier)


def prices(problem: Fields, proof: Fields) -> int | None:
    """Returns a lower bound for all plans: the least cost of a path of any case at the prices of that case. It is None if no
    case has a plan.

    denominator * time >= least over paths of (sum of denominator * times + price * bytes) - sum of price * room

    A path gives each layer a memory and a number of spilled parts. The layers of a device are consecutive. The room of a memory
    is the number of bytes that layers may take.
    """
    all_cases, denominator = [*cases(problem)], whole(proof, "denominator")
    given = rows(proof, "cases", 1 + len(problem["devices"]))
    need(len(given) == len(all_cases), "proof.cases", f"it has {len(given)} rows, and there are {len(all_cases)} cases")
    steps = len(all_cases) * len(problem["layers"]) * (1 + len(problem["devices"])) << len(problem["devices"])
    need(steps <= MOST_STEPS, "proof.cases", "there are more paths than can be looked at")
    paths = (_path(problem, case, row, denominator) for case, row in zip(all_cases, given, strict=True))
    bounds = [bound_of(total, denominator) for total in paths if total is not None]
    return min((bound for bound in bounds if bound is not None), default=None)


def _path(problem: Fields, case: Case, byte_prices: list[int], denominator: int) -> int | None:
    """The cost of the cheapest path of a case, with a price for each memory; None if the case has no path."""
    memories = [problem["host"], *problem["devices"]]
    total = 0
    for number, memory in enumerate(memories):
        room = memory["capacity"] - memory["margin"] - memory["compute_bytes"][case.batch]
        # A device that is not used needs no room, not even for its buffers.
        total -= byte_prices[number] * (room - problem["host_bytes"] if number == HOST else max(0, room))
    moved = [denominator * transfer(problem, case, number) for number in range(len(memories))]
    # The least cost of each state of a path: the memory of the last layer, and a mask of the devices that have layers.
    best: dict[tuple[int, int], int] = {(HOST, 0): 0}
    for number in range(len(problem["layers"])):
        costs = [_cheapest(problem, case, number, memory, byte_prices, denominator) for memory in range(len(memories))]
        reached: dict[tuple[int, int], int] = {}
        for (at, seen), cost in best.items():
            for memory in range(len(memories)):
                bit = 1 << memory if memory else 0
                is_new = memory not in (HOST, at)
                if (memory == HOST and at != HOST) or (is_new and (seen & bit or not _may_enter(problem, case, memory, seen))):
                    continue
                # Activations are transferred to a device before its layers and from it after them. The transfer from the last
                # device is subtracted at the end.
                new_cost = cost + costs[memory] + (2 * moved[memory] if is_new else 0)
                state = (memory, seen | bit)
                if state not in reached or new_cost < reached[state]:
                    reached[state] = new_cost
        best = reached
    ends = [
        cost - (moved[at] if at else 0) for (at, seen), cost in best.items() if case.copier is None or seen & 1 << case.copier
    ]
    return total + min(ends) if ends else None


def _may_enter(problem: Fields, case: Case, memory: int, seen: int) -> bool:
    """Whether a device may have the next layers. The first device that copies weights must be that of the case; in a case
    without one, no device that copies weights has layers."""
    if not problem["devices"][memory - 1]["copies_weights"] or memory == case.copier:
        return True
    return case.copier is not None and bool(seen & 1 << case.copier)


def _cheapest(problem: Fields, case: Case, layer: int, memory: int, byte_prices: list[int], denominator: int) -> int:
    """The cost of a layer in a memory, which is its time plus the price of its bytes, with as many spilled parts as cost
    least."""
    row = problem["layers"][layer]
    fixed = row["cache_bytes"] + row["fixed"]["bytes"]
    sizes = [part["bytes"] for part in row["spillable"]]
    choices = list[int]()
    for spilled in range(1 + (len(sizes) if memory else 0)):
        own_bytes, spilled_bytes = fixed + sum(sizes[spilled:]), sum(sizes[:spilled])
        time = denominator * time_of(problem, case, layer, memory, spilled)
        choices.append(time + byte_prices[memory] * own_bytes + byte_prices[HOST] * spilled_bytes)
    return min(choices)


def time_of(problem: Fields, case: Case, layer: int, memory: int, spilled: int) -> int:
    """Picoseconds that a layer adds to the time of the request: in all steps of generation and all micro-batches of the
    prompt."""
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
        is_on_host = memory == HOST or 0 < number <= spilled
        owner = host if is_on_host else device
        step += _time(part["step_bytes"], owner["weight_rate"])
        size, flops = part["batch_bytes"][case.batch], part["batch_flops"][case.batch]
        if is_on_host and copier is not None:
            prompt += _time(size, copier["link_rate"]) + _time(flops, copier["compute_rate"])
        else:
            prompt += max(_time(size, owner["weight_rate"]), _time(flops, owner["compute_rate"]))
    total = problem["steps"] * step + batch["batches"] * prompt
    return _rounded(int(total + (2 * _transfers(problem, case, device) if spilled else 0)))


def transfer(problem: Fields, case: Case, memory: int) -> int:
    """Picoseconds that transfers of activations one way between the host and a device take, one in each step of generation and
    each micro-batch, all together; 0 for the host."""
    return _rounded(_transfers(problem, case, problem["devices"][memory - 1])) if memory else 0


def _transfers(problem: Fields, case: Case, device: Fields) -> int:
    """The time of :func:`transfer` before it is rounded."""
    batch = problem["micro_batches"][case.batch]
    step = device["link_ps"] + _time(problem["slots"] * problem["hidden_bytes"], device["link_rate"])
    prompt = device["link_ps"] + _time(batch["tokens"] * problem["hidden_bytes"], device["link_rate"])
    return int(problem["steps"] * step + batch["batches"] * prompt)


def _time(amount: int, rate: int) -> int:
    """The time in picoseconds of an amount at a rate per second, rounded to the nearest, halves up."""
    return (2 * amount * SECOND + rate) // (2 * rate)


def _rounded(picoseconds: int) -> int:
    """A time in picoseconds, rounded to whole nanoseconds, halves up."""
    return (picoseconds + ROUNDED // 2) // ROUNDED * ROUNDED
