"""Form ``prices`` where everything stands in one memory for life: tiers of networks, and banks of buffers.

Lagrangian duality: a byte of a memory has a price at a moment, a use of a tensor what it earns in each tier. Then every layer
at its least and every tensor in its cheapest memory, less what all memory would cost, is what no plan is below. Read from
docs/reference/tier-placement.md and banked-packing.md; offsets are left out.
"""

from __future__ import annotations

from math import lcm
from typing import Any

from stowplan.certificates.checker.cut import Cut
from stowplan.certificates.checker.reading import Fields, fields, listed, need, pick, rows, whole
from stowplan.certificates.checker.steps import cheapest
from stowplan.certificates.checker.tree import Splits

#: Of a tensor or buffer: the moments from which and until which it lives.
Life = tuple[int, int]

#: Numbers by memory, of those it fits into.
Each = dict[int, int]


def _placed(proof: Fields, splits: Splits, room: list[int], items: list[tuple[Life, Each, Each]]) -> int | None:
    """Least bound of what all items cost, at the prices of memory; None where that shows that they do not fit.

    Items have their lives, what they take in each memory that they fit into, and what they cost there, as multiples of one over
    the denominator. A denominator of 0 lets costs count nothing.
    """
    unit = whole(proof, "denominator")
    if not all(taken for _, taken, _ in items):
        return None
    total = -splits.total
    for memory, moment, price in rows(proof, "memory", 3, -(1 << 62)):
        need(price >= 0, "proof.memory", f"found the price {price}, expected at least 0")
        total -= price * pick(room, memory, "proof.memory")
        for (start, end), taken, costs in items:
            if memory in taken and start <= moment < end:
                costs[memory] += price * taken[memory]
    for each in listed(proof, "cuts"):
        memory, moment = whole(fields(each, "proof.cuts"), "memory"), whole(each, "moment", -(1 << 62))
        units = [taken.get(memory, 0) if start <= moment < end else 0 for (start, end), taken, _ in items]
        cut = Cut(each, units, pick(room, memory, "proof.cuts"))
        total -= cut.price * cut.room
        for number, ((start, end), _, costs) in enumerate(items):
            if memory in costs and start <= moment < end:
                costs[memory] += cut.price * cut.takes(number, units[number])
    for number, (_, _, costs) in enumerate(items):
        total += min(cost + splits.price.get((number, memory), 0) for memory, cost in costs.items())
    if unit:
        return -(-total // unit)
    need(total > 0, "proof", "everything fits, as far as this shows")
    return None


def tiers(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least latency of the network in ps. Item 2i are the weights of layer i, item 2i + 1 is its output."""
    layers, memories = problem["layers"], problem["tiers"]
    unit = whole(proof, "denominator")
    last = list(range(len(layers)))
    for number, layer in enumerate(layers):
        for source in layer["inputs"]:
            last[source] = number
    items: list[tuple[Life, Each, Each]] = []
    for number, layer in enumerate(layers):
        lives = (0, len(layers), layer["weight_bytes"]), (number, last[number] + 1, layer["output_bytes"])
        for start, end, size in lives:
            fits = [tier for tier, memory in enumerate(memories) if size <= memory["capacity"]]
            items.append(((start, end), dict.fromkeys(fits, size), dict.fromkeys(fits, 0)))
    # What each use of each layer earns in each tier: inputs, weights where there are any, output.
    earned = {(use, tier): price for use, tier, price in rows(proof, "access", 3, -(1 << 200))}
    total = use = 0
    for number, layer in enumerate(layers):
        read = layer["weight_bytes"] if layer["weight_read_bytes"] is None else layer["weight_read_bytes"]
        moved = [(2 * source + 1, layers[source]["output_bytes"]) for source in layer["inputs"]]
        moved += [(2 * number, read)] if layer["weight_bytes"] else []
        choices = []
        for item, size in (*moved, (2 * number + 1, layer["output_bytes"])):
            costs = items[item][2]
            choices.append([(earned.get((use, tier), 0), [0, _move(memories[tier], size)]) for tier in costs])
            for tier in costs:
                costs[tier] -= earned.get((use, tier), 0)
            use += 1
        pieces = [layer["compute_ps"], _move(memories[0], layer["external_bytes"])]
        total += unit * layer["overhead_ps"] + (cheapest(unit, pieces, choices) if all(choices) else 0)
    return _placed(proof, Splits(splits.price, splits.total - total), [each["capacity"] for each in memories], items)


def _move(tier: dict[str, Any], size: int) -> int:
    """Picoseconds, to the nearest, halves up."""
    return int((2 * size * 10**12 + tier["bandwidth"]) // (2 * tier["bandwidth"]))


def items_of_banks(problem: Fields, unit: int) -> tuple[list[int], list[tuple[Life, Each, Each]]]:
    """Room in each bank, and the buffers with what they take and cost in each."""
    known = problem["banks"]
    items: list[tuple[Life, Each, Each]] = []
    for buffer in problem["buffers"]:
        taken = {
            number: _up(buffer["size"], bank["alignment"])
            for number, bank in enumerate(known)
            if (not buffer["banks"] or bank["name"] in buffer["banks"])
            and _up(bank["reserved"], lcm(buffer["alignment"], bank["alignment"])) + _up(buffer["size"], bank["alignment"])
            <= bank["capacity"]
        }
        costs = {number: unit * buffer["size"] * buffer["uses"] * known[number]["cost"] for number in taken}
        items.append(((buffer["lower"], buffer["upper"]), taken, costs))
    return [max(0, bank["capacity"] - _up(bank["reserved"], bank["alignment"])) for bank in known], items


def banks(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least cost of all uses. Item i is buffer i."""
    return _placed(proof, splits, *items_of_banks(problem, whole(proof, "denominator")))


def _up(size: int, unit: int) -> int:
    return int(-(-size // unit) * unit)
