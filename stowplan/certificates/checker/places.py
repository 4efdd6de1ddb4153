"""Where everything stands in one place for life: packing, tiers of networks, banks of buffers, and tensors on chip or not.

Packing has ``load``, bytes that live at one moment, and ``search``, all ways to lie above each other. The others have
``prices`` (Lagrangian duality): a byte of a memory has a price at a moment, a use of a tensor what it earns in each tier. Then
every layer at its least and every tensor in its cheapest memory, less what all memory would cost, is what no plan is below;
offsets are left out. Read from docs/reference/packing.md, tier-placement.md, banked-packing.md and bank-mapping.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from math import lcm
from typing import NamedTuple

from stowplan.certificates.checker.prices import NONE, Splits, cheapest, rounded
from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, listed, need, pick, rows, walk, whole


def load(problem: Fields, proof: Fields) -> int | None:
    """Least height in bytes, or None where that is more than the capacity."""
    moment, capacity = whole(proof, "moment", -(1 << 62)), problem["capacity"]
    height = int(sum(buffer["size"] for buffer in problem["buffers"] if _lives(buffer, moment)))
    return None if capacity is not None and height > capacity else height


def _lives(buffer: Fields, moment: int) -> bool:
    is_gone = any(start <= moment < end for start, end in buffer["gaps"])
    return bool(buffer["size"] > 0 and buffer["lower"] <= moment < buffer["upper"] and not is_gone)


def search(problem: Fields, proof: Fields) -> int | None:
    """Height ``below`` which nothing packs, or None where that is not named, and nothing packs at all.

    Buffers lie as low as they can. Of two that share bytes and a moment then, one lies above the other, or the other above it.
    """
    buffers, below = problem["buffers"], whole(proof, "below") if "below" in proof else None
    capacity = LARGEST if problem["capacity"] is None else problem["capacity"]
    top = capacity if below is None else below - 1
    need(len(buffers) ** 2 <= LOOKS, "proof", "the search takes too long")
    begun = {at for each in buffers for at in (each["lower"], *(end for _, end in each["gaps"]))}
    alive = [{at for at in begun if _lives(each, at)} for each in buffers]
    pairs = [(one, other) for one, other in combinations(range(len(buffers)), 2) if alive[one] & alive[other]]
    highest = [min(top - each["size"], top if each["offset"] is None else each["offset"]) for each in buffers]
    waiting = [([each["offset"] or 0 for each in buffers], list[tuple[int, int]]())]
    for low, above in walk(waiting, lambda _: len(pairs) + 1):
        raised = [*low]
        for one, other in above:
            raised[other] = max(raised[other], _up(raised[one] + buffers[one]["size"], buffers[other]["alignment"]))
        if any(at > most for at, most in zip(raised, highest, strict=True)):
            continue
        if raised != low:
            waiting.append((raised, above))
            continue
        ends = [at + each["size"] for at, each in zip(low, buffers, strict=True)]
        clash = [(one, other) for one, other in pairs if low[one] < ends[other] and low[other] < ends[one]]
        need(bool(clash), "proof", "there is a packing")
        waiting += [(low, [*above, pair]) for pair in (clash[0], clash[0][::-1])]
    return below


def _up(size: int, unit: int) -> int:
    return int(-(-size // unit) * unit)


class Item(NamedTuple):
    """A tensor or buffer, which lives in ``[start, end)``."""

    start: int
    end: int
    taken: dict[int, int]
    """What it takes, by memory that it fits into."""
    costs: dict[int, int]
    """What it costs there, as a multiple of one over the denominator."""


#: Room in each memory, and what stands there.
Placed = tuple[list[int], list[Item]]

#: Operator, and the layouts that it may read or write a tensor in.
Access = tuple[int, set[int]]


def prices(read: Callable[[Fields, int], Placed], problem: Fields, proof: Fields, splits: Splits = NONE) -> int | None:
    """Least cost of the items that are read from a problem; item i is the i-th thing there."""
    return _placed(proof, splits, *read(problem, whole(proof, "denominator")))


def _placed(proof: Fields, splits: Splits, room: list[int], items: list[Item]) -> int | None:
    """Least bound of what all items cost, at the prices of memory; None where that shows that they do not fit.

    A denominator of 0 lets costs count nothing.
    """
    unit, total = whole(proof, "denominator"), -splits.total
    if not all(item.taken for item in items):
        return None
    priced = ({"memory": memory, "moment": at, "price": paid} for memory, at, paid in rows(proof, "memory", 3, -(1 << 62)))
    for each in (*priced, *listed(proof, "cuts")):
        memory, moment, price = whole(each, "memory"), whole(each, "moment", -(1 << 62)), whole(each, "price")
        units = [item.taken.get(memory, 0) if item.start <= moment < item.end else 0 for item in items]
        units, most = rounded(each, units, pick(room, memory, "proof.memory"))
        total -= price * most
        for item, taken in zip(items, units, strict=True):
            if taken:
                item.costs[memory] += price * taken
    for number, item in enumerate(items):
        total += min(cost + splits.price[number, memory] for memory, cost in item.costs.items())
    need(unit > 0 or total > 0, "proof", "everything fits, as far as this shows")
    return -(-total // unit) if unit else None


def tiers(problem: Fields, proof: Fields, splits: Splits = NONE) -> int | None:
    """Least latency of the network in ps. Item 2i are the weights of layer i, item 2i + 1 is its output."""
    layers, memories, unit = problem["layers"], problem["tiers"], whole(proof, "denominator")
    last = {source: number for number, layer in enumerate(layers) for source in layer["inputs"]}
    # What each use of each layer earns in each tier: inputs, weights where there are any, output.
    earned = Counter({(use, tier): price for use, tier, price in rows(proof, "access", 3, -(1 << 200))})
    items, total, use = list[Item](), 0, 0
    for number, layer in enumerate(layers):
        for start, end, size in ((0, len(layers), "weight_bytes"), (number, last.get(number, number) + 1, "output_bytes")):
            fits = [tier for tier, memory in enumerate(memories) if layer[size] <= memory["capacity"]]
            items.append(Item(start, end, dict.fromkeys(fits, layer[size]), dict.fromkeys(fits, 0)))
        read = layer["weight_bytes"] if layer["weight_read_bytes"] is None else layer["weight_read_bytes"]
        moved = [(2 * source + 1, layers[source]["output_bytes"]) for source in layer["inputs"]]
        moved += [(2 * number, read)] if layer["weight_bytes"] else []
        choices = []
        for item, size in (*moved, (2 * number + 1, layer["output_bytes"])):
            costs = items[item].costs
            choices.append([[earned[use, tier], earned[use, tier] + unit * _move(memories[tier], size)] for tier in costs])
            for tier in costs:
                costs[tier] -= earned[use, tier]
            use += 1
        times = [unit * layer["compute_ps"], unit * _move(memories[0], layer["external_bytes"])]
        total += unit * layer["overhead_ps"] + (cheapest(times, choices) if all(choices) else 0)
    return _placed(proof, Splits(splits.price, splits.total - total), [each["capacity"] for each in memories], items)


def _move(tier: Fields, size: int) -> int:
    """Picoseconds, to the nearest, halves up."""
    return int((2 * size * 10**12 + tier["bandwidth"]) // (2 * tier["bandwidth"]))


def banks(problem: Fields, unit: int) -> Placed:
    """Room in each bank, and the buffers, with the costs of their uses."""
    known, items = problem["banks"], list[Item]()
    for buffer in problem["buffers"]:
        size = {number: _up(buffer["size"], bank["alignment"]) for number, bank in enumerate(known)}
        start = [_up(bank["reserved"], lcm(buffer["alignment"], bank["alignment"])) for bank in known]
        may = [number for number, bank in enumerate(known) if not buffer["banks"] or bank["name"] in buffer["banks"]]
        taken = {number: size[number] for number in may if start[number] + size[number] <= known[number]["capacity"]}
        costs = {number: unit * buffer["size"] * buffer["uses"] * known[number]["cost"] for number in taken}
        items.append(Item(buffer["lower"], buffer["upper"], taken, costs))
    return [max(0, bank["capacity"] - _up(bank["reserved"], bank["alignment"])) for bank in known], items


def chip(problem: Fields, unit: int) -> Placed:
    """Room on chip (0) and in main memory (1), and the tensors of bank mapping, with the bytes that they cost.

    Of copies between banks no more than one a tensor is counted: the largest that a read needs whatever its operator does.
    """
    used: list[tuple[list[Access], list[Access]]] = [([], []) for _ in problem["tensors"]]
    """Of each tensor who reads it, and who writes it."""
    loaded, items = Counter[int](), list[Item]()
    for number, op in enumerate(problem["operators"]):
        for at, tensor in enumerate((*op["reads"], *op["writes"])):
            used[tensor][at >= len(op["reads"])].append((number, {option[at] for option in op["options"]}))
        for tensor, size in zip(op["reads"], op["read_bytes"], strict=True):
            loaded[tensor] += size
    for number, (tensor, (reads, writes)) in enumerate(zip(problem["tensors"], used, strict=True)):
        size, rank = tensor["bytes"], len(tensor["shape"])
        sizes = dict(enumerate([size] * (rank + 1) + [view["bytes"] for view in tensor["views"]], -1))
        own = {*range(-1, rank)}.intersection(*(layouts for _, layouts in writes))
        needed = [[min(sizes[each] for each in wanted) for _, wanted in reads if layout not in wanted] for layout in own]
        copied = problem["copy_weight"] * min(max(each, default=0) for each in needed)
        kept, moved = size * (tensor["is_output"] if writes else bool(reads)), loaded[number] + size * bool(writes)
        costs = {0: problem["off_chip_weight"] * kept + copied, 1: problem["off_chip_weight"] * moved}
        fits = (0, 1) if size <= problem["capacity"] else (1,)
        lives = [op for op, _ in (*reads, *writes)] or [0]
        taken = {memory: size * (memory == 0) for memory in fits}
        items.append(Item(min(lives), max(lives) + 1, taken, {memory: unit * costs[memory] for memory in fits}))
    return [problem["capacity"], 0], items
