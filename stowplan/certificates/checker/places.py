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
from typing import NamedTuple

from stowplan.certificates.checker.prices import Splits, cheapest, rounded
from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, listed, need, rounded_up, rows, walk, whole

#: In a second.
PICOSECONDS = 10**12


def load(problem: Fields, proof: Fields) -> int | None:
    """Least height in bytes, or None where that is more than the capacity."""
    moment, capacity = whole(proof, "moment", -LARGEST), problem["capacity"]
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
    waiting = [([each["offset"] or 0 for each in buffers], frozenset[tuple[int, int]]())]
    for low, above in walk(waiting, lambda _: len(pairs) + 1):
        if any(at > most for at, most in zip(low, highest, strict=True)):
            continue
        ends = [at + each["size"] for at, each in zip(low, buffers, strict=True)]
        clash = [(one, other) for one, other in pairs if low[one] < ends[other] and low[other] < ends[one]]
        need(bool(clash), "proof", "there is a packing")
        for one, other in (clash[0], clash[0][::-1]):
            if (other, one) not in above:
                raised = [*low]
                raised[other] = _up(ends[one], buffers[other]["alignment"])
                waiting.append((raised, above | {(one, other)}))
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


#: Room in each memory, what stands there, and what all plans cost beside that.
Placed = tuple[list[int], list[Item], int]


def prices(read: Callable[[Fields, Fields], Placed], problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least cost of the items that are read from a problem at the prices of memory; item i is the i-th thing there.

    None where a denominator of 0, which lets costs count nothing, shows that they do not fit.
    """
    room, items, total = read(problem, proof)
    if not all(item.taken for item in items):
        return None
    for each in listed(proof, "memory"):
        memory, moment, price = whole(each, "memory"), whole(each, "moment", -LARGEST), whole(each, "price")
        units = [item.taken.get(memory, 0) if item.start <= moment < item.end else 0 for item in items]
        units, most = rounded(each, units, room[memory])
        total -= price * most
        for item, taken in zip(items, units, strict=True):
            if taken:
                item.costs[memory] += price * taken
    for number, item in enumerate(items):
        total += min(cost + splits[number, memory] for memory, cost in item.costs.items())
    return rounded_up(total + splits[()], whole(proof, "denominator"))


def tiers(problem: Fields, proof: Fields) -> Placed:
    """The tiers, the weights (item 2i) and the output (2i + 1) of each layer i, and the latency less what uses earn, in ps."""
    layers, memories, unit = problem["layers"], problem["tiers"], whole(proof, "denominator")
    last = {source: number for number, layer in enumerate(layers) for source in layer["inputs"]}
    # What each layer earns by each item that it uses, in each tier.
    earned = Counter({(layer, item, tier): price for layer, item, tier, price in rows(proof, "access", 4, -LARGEST)})
    items, total = list[Item](), 0
    for number, layer in enumerate(layers):
        for start, end, size in ((0, len(layers), "weight_bytes"), (number, last.get(number, number) + 1, "output_bytes")):
            fits = [tier for tier, memory in enumerate(memories) if layer[size] <= memory["capacity"]]
            items.append(Item(start, end, dict.fromkeys(fits, layer[size]), dict.fromkeys(fits, 0)))
        read = layer["weight_bytes"] if layer["weight_read_bytes"] is None else layer["weight_read_bytes"]
        moved = [(2 * each + 1, layers[each]["output_bytes"]) for each in (*layer["inputs"], number)]
        moved += [(2 * number, read)] if layer["weight_bytes"] else []
        choices = []
        for item, size in moved:
            costs, own = items[item].costs, {tier: earned[number, item, tier] for tier in items[item].costs}
            choices.append([[paid, paid + unit * _move(memories[tier], size)] for tier, paid in own.items()])
            costs.update({tier: cost - own[tier] for tier, cost in costs.items()})
        times = [unit * layer["compute_ps"], unit * _move(memories[0], layer["external_bytes"])]
        total += unit * layer["overhead_ps"] + (cheapest(times, choices) if all(choices) else 0)
    return [each["capacity"] for each in memories], items, total


def _move(tier: Fields, size: int) -> int:
    """Picoseconds, to the nearest, halves up."""
    return int((2 * size * PICOSECONDS + tier["bandwidth"]) // (2 * tier["bandwidth"]))


def banks(problem: Fields, proof: Fields) -> Placed:
    """The banks, and the buffers with the costs of their uses."""
    known, unit, items = problem["banks"], whole(proof, "denominator"), list[Item]()
    room = [max(0, bank["capacity"] - _up(bank["reserved"], bank["alignment"])) for bank in known]
    for buffer in problem["buffers"]:
        may = [number for number, bank in enumerate(known) if not buffer["banks"] or bank["name"] in buffer["banks"]]
        size = {number: _up(buffer["size"], known[number]["alignment"]) for number in may}
        taken = {number: each for number, each in size.items() if each <= room[number]}
        costs = {number: unit * buffer["size"] * buffer["uses"] * known[number]["cost"] for number in taken}
        items.append(Item(buffer["lower"], buffer["upper"], taken, costs))
    return room, items, 0


def chip(problem: Fields, proof: Fields) -> Placed:
    """The chip (0) and main memory (1), and the tensors of bank mapping with the bytes that they cost.

    Of copies between banks no more than one a tensor is counted: the largest that a read needs whatever its operator does.
    """
    # Of each tensor who reads and who writes it: operator, layouts that it may do so in, bytes that it loads.
    used: list[tuple[list[tuple[int, set[int], int]], ...]] = [([], []) for _ in problem["tensors"]]
    unit, items = whole(proof, "denominator"), list[Item]()
    for number, op in enumerate(problem["operators"]):
        loaded = [*op["read_bytes"], *(0 for _ in op["writes"])]
        for at, (tensor, size) in enumerate(zip((*op["reads"], *op["writes"]), loaded, strict=True)):
            used[tensor][at >= len(op["reads"])].append((number, {option[at] for option in op["options"]}, size))
    for tensor, (reads, writes) in zip(problem["tensors"], used, strict=True):
        size, rank = tensor["bytes"], len(tensor["shape"])
        sizes = dict(enumerate([size] * (rank + 1) + [view["bytes"] for view in tensor["views"]], -1))
        own = {*range(-1, rank)}.intersection(*(layouts for _, layouts, _ in writes))
        needed = [[min(sizes[each] for each in wanted) for _, wanted, _ in reads if layout not in wanted] for layout in own]
        copied = problem["copy_weight"] * min(max(each, default=0) for each in needed)
        kept = size * (tensor["is_output"] if writes else bool(reads))
        moved = size * bool(writes) + sum(loaded for *_, loaded in reads)
        costs = {0: problem["off_chip_weight"] * kept + copied, 1: problem["off_chip_weight"] * moved}
        lives = [op for op, *_ in (*reads, *writes)] or [0]
        taken = {0: size, 1: 0} if size <= problem["capacity"] else {1: 0}
        items.append(Item(min(lives), max(lives) + 1, taken, {memory: unit * costs[memory] for memory in taken}))
    return [problem["capacity"], 0], items, 0
