"""Form ``prices`` for items that are in one memory all their life: tensors in tiers, buffers in banks, tensors on or off chip.

A proof gives each byte of a memory a price at each moment. In tier placement, it also gives each use of a tensor an amount that
the use earns in each tier. A plan then costs at least as much as every layer at its minimum and every item in its cheapest
memory, minus the price of all memory. Offsets are ignored, which can only make the bound smaller. One function for each kind
reads its problems, following docs/reference/tier-placement.md, banked-packing.md and bank-mapping.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from stowplan.certificates.checker.packing import aligned
from stowplan.certificates.checker.prices import Splits, cheapest, rounded
from stowplan.certificates.checker.reading import LARGEST, Fields, bound_of, list_field, rows, whole

#: Picoseconds in a second.
PICOSECONDS = 10**12

#: The two memories of bank mapping.
ON_CHIP, OFF_CHIP = 0, 1


class Item(NamedTuple):
    """A tensor or buffer that is live in ``[start, end)``, counted in layers, operators or the time of buffers."""

    start: int
    end: int
    taken: dict[int, int]
    """Bytes that it occupies, by memory that it fits into."""
    costs: dict[int, int]
    """Its cost in each of these memories, as a multiple of one over the denominator."""


class Placed(NamedTuple):
    """A problem as memories and items, each of which is placed in one of the memories."""

    room: list[int]
    """Bytes of each memory."""
    items: list[Item]
    total: int
    """Cost that all plans have in addition to the items, as a multiple of one over the denominator."""


def prices(read: Callable[[Fields, Fields], Placed], problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Returns the bound on the cost that the prices of memory show. ``read`` makes memories and items of the problem. Each row
    ``memory`` of the proof gives a byte of one memory a price at one moment. If the row has ``rounds``, the price is that of a
    unit of the rounded row (:func:`stowplan.certificates.checker.prices.rounded`). ``splits`` has the costs that a tree of
    splits adds to decisions; decision (i, m) is whether item i is in memory m.

    denominator * cost >= total + sum over items of the minimum over memories (cost there + price * units there) - price * room

    Returns None if a denominator of 0, with which costs are ignored, shows that the items do not fit.
    """
    room, items, total = read(problem, proof)
    if not all(item.taken for item in items):
        return None
    for row in list_field(proof, "memory"):
        memory, moment, price = whole(row, "memory"), whole(row, "moment", -LARGEST), whole(row, "price")
        taken = [item.taken.get(memory, 0) if item.start <= moment < item.end else 0 for item in items]
        units, most = rounded(row, taken, room[memory])
        total -= price * most
        for item, own in zip(items, units, strict=True):
            if own:
                item.costs[memory] += price * own
    for number, item in enumerate(items):
        total += min(cost + splits[number, memory] for memory, cost in item.costs.items())
    return bound_of(total + splits[()], whole(proof, "denominator"))


def tiers(problem: Fields, proof: Fields) -> Placed:
    """Reads tier placement. The memories are the tiers. The items are the weights (item 2i) and the output (item 2i + 1) of
    each layer i. The total is the least latency of all layers in ps, plus the amounts that uses earn.

    The amount that a use of an item earns in a tier is subtracted from the cost of the item there and added to the times of the
    layer:

    latency of a layer = overhead + max(compute, time of the first tier for other bytes, time of each tier for its uses)
    """
    layers, memories, denominator = problem["layers"], problem["tiers"], whole(proof, "denominator")
    last_reader = {source: number for number, layer in enumerate(layers) for source in layer["inputs"]}
    earned = Counter({(layer, item, tier): price for layer, item, tier, price in rows(proof, "access", 4, -LARGEST)})
    items, total = list[Item](), 0
    for number, layer in enumerate(layers):
        items.append(_in_tiers(memories, 0, len(layers), layer["weight_bytes"]))
        items.append(_in_tiers(memories, number, last_reader.get(number, number) + 1, layer["output_bytes"]))
        choices = []
        for item, size in _moved(layers, number):
            costs = items[item].costs
            earns = {tier: earned[number, item, tier] for tier in costs}
            costs.update({tier: cost - earns[tier] for tier, cost in costs.items()})
            choices.append([[paid, paid + denominator * _transfer(memories[tier], size)] for tier, paid in earns.items()])
        times = [denominator * layer["compute_ps"], denominator * _transfer(memories[0], layer["external_bytes"])]
        total += denominator * layer["overhead_ps"] + (cheapest(times, choices) if all(choices) else 0)
    return Placed([memory["capacity"] for memory in memories], items, total)


def _in_tiers(memories: list[Fields], start: int, end: int, size: int) -> Item:
    """A tensor, which may be in each tier that is large enough. It has no cost besides those of its uses."""
    fits = [tier for tier, memory in enumerate(memories) if size <= memory["capacity"]]
    return Item(start, end, dict.fromkeys(fits, size), dict.fromkeys(fits, 0))


def _moved(layers: list[Fields], number: int) -> list[tuple[int, int]]:
    """(item, bytes) for each item that a layer reads or writes: the outputs of other layers, its own output, and the part of
    its weights that it reads."""
    layer = layers[number]
    moved = [(2 * source + 1, layers[source]["output_bytes"]) for source in (*layer["inputs"], number)]
    read = layer["weight_bytes"] if layer["weight_read_bytes"] is None else layer["weight_read_bytes"]
    return [*moved, (2 * number, read)] if layer["weight_bytes"] else moved


def _transfer(tier: Fields, size: int) -> int:
    """Time of a transfer in picoseconds, rounded to the nearest, halves up."""
    return int((2 * size * PICOSECONDS + tier["bandwidth"]) // (2 * tier["bandwidth"]))


def banks(problem: Fields, proof: Fields) -> Placed:
    """Reads banked packing: the banks, and the buffers, each of which costs size x uses x cost of its bank."""
    memories, denominator, items = problem["banks"], whole(proof, "denominator"), list[Item]()
    room = [max(0, bank["capacity"] - aligned(bank["reserved"], bank["alignment"])) for bank in memories]
    for buffer in problem["buffers"]:
        allowed = [number for number, bank in enumerate(memories) if not buffer["banks"] or bank["name"] in buffer["banks"]]
        size = {number: aligned(buffer["size"], memories[number]["alignment"]) for number in allowed}
        sizes = {number: units for number, units in size.items() if units <= room[number]}
        costs = {number: denominator * buffer["size"] * buffer["uses"] * memories[number]["cost"] for number in sizes}
        items.append(Item(buffer["lower"], buffer["upper"], sizes, costs))
    return Placed(room, items, 0)


class Access(NamedTuple):
    """A read or write of a tensor by an operator of bank mapping."""

    op: int
    layouts: set[int]
    """Layouts in which the operator may access it."""
    loaded: int
    """Bytes that the operator loads if the tensor is off chip."""


def chip(problem: Fields, proof: Fields) -> Placed:
    """Reads bank mapping: the memory on chip and the memory off chip, and the tensors with the cost of the bytes that they
    move.

    On chip: off_chip_weight x bytes that must be loaded or stored once + copy_weight x bytes of a copy between banks.
    Off chip: off_chip_weight x bytes that all its operators load and store.
    """
    reads, writes = _accesses(problem)
    denominator, items = whole(proof, "denominator"), list[Item]()
    for tensor, readers, writers in zip(problem["tensors"], reads, writes, strict=True):
        size = tensor["bytes"]
        once = size * (tensor["is_output"] if writers else bool(readers))
        moved = size * bool(writers) + sum(access.loaded for access in readers)
        copied = problem["copy_weight"] * _copied(tensor, readers, writers)
        costs = {ON_CHIP: problem["off_chip_weight"] * once + copied, OFF_CHIP: problem["off_chip_weight"] * moved}
        moments = [access.op for access in (*readers, *writers)] or [0]
        sizes = {ON_CHIP: size, OFF_CHIP: 0} if size <= problem["capacity"] else {OFF_CHIP: 0}
        paid = {memory: denominator * costs[memory] for memory in sizes}
        items.append(Item(min(moments), max(moments) + 1, sizes, paid))
    return Placed([problem["capacity"], 0], items, 0)


def _accesses(problem: Fields) -> tuple[list[list[Access]], list[list[Access]]]:
    """Reads and writes of each tensor."""
    reads: list[list[Access]] = [[] for _ in problem["tensors"]]
    writes: list[list[Access]] = [[] for _ in problem["tensors"]]
    for number, op in enumerate(problem["operators"]):
        loaded = [*op["read_bytes"], *(0 for _ in op["writes"])]
        for place, (tensor, size) in enumerate(zip((*op["reads"], *op["writes"]), loaded, strict=True)):
            accesses = reads if place < len(op["reads"]) else writes
            accesses[tensor].append(Access(number, {option[place] for option in op["options"]}, size))
    return reads, writes


def _copied(tensor: Fields, readers: list[Access], writers: list[Access]) -> int:
    """A lower bound on the bytes that are copied between banks for a tensor.

    Layouts have numbers: -1 is a layout that uses no axis, then come the axes of the tensor, and then its views. A reader that
    does not accept the layout in which the tensor is written needs a copy in a layout that it accepts. Only the largest copy is
    counted, for the layout of the writers for which it is smallest.
    """
    size: int = tensor["bytes"]
    sizes = dict(enumerate([size] * (1 + len(tensor["shape"])) + [view["bytes"] for view in tensor["views"]], -1))
    written = {*range(-1, len(tensor["shape"]))}.intersection(*(access.layouts for access in writers))
    copied = ([access.layouts for access in readers if layout not in access.layouts] for layout in written)
    return min(max((min(sizes[layout] for layout in layouts) for layouts in reads), default=0) for reads in copied)
