"""Form ``prices`` where everything stands in one memory for life: tiers of networks, and banks of buffers.

Lagrangian duality: a byte of a memory has a price at a moment, a use of a tensor what it earns in each tier. Then every layer
at its least and every tensor in its cheapest memory, less what all memory would cost, is what no plan is below. Read from
docs/reference/tier-placement.md and banked-packing.md; offsets are left out.
"""

from __future__ import annotations

from itertools import accumulate
from math import lcm
from typing import Any

from stowplan.certificates.checker.reading import Part, need, numbers, pick
from stowplan.certificates.checker.steps import cheapest


def tiers(problem: dict[str, Any], proof: Part, bound: int | None) -> int:
    """Least latency of the network in ps."""
    layers, memories = problem["layers"], problem["tiers"]
    count, kinds = len(layers), range(len(memories))
    unit = proof.whole("denominator", 1)
    rows = proof.get("memory")
    need(isinstance(rows, list) and len(rows) == len(memories), "proof.memory", "not a list of prices for each tier")
    until = [[0, *accumulate(numbers(row, f"proof.memory[{at}]", 0, count))] for at, row in enumerate(rows)]
    last = list(range(count))
    for number, layer in enumerate(layers):
        for source in layer["inputs"]:
            last[source] = number
    # Of each tensor, what it costs in each tier: its place, less what its uses earn there.
    place: dict[tuple[int, bool], list[int]] = {}
    fits: dict[tuple[int, bool], list[int]] = {}
    for number, layer in enumerate(layers):
        outputs = (number, True), layer["output_bytes"], number, last[number] + 1
        for tensor, size, start, end in (((number, False), layer["weight_bytes"], 0, count), outputs):
            fits[tensor] = [k for k in kinds if size <= memories[k]["capacity"]]
            need(bool(fits[tensor]), f"layers[{number}]", "a tensor fits into no tier")
            place[tensor] = [size * (prices[end] - prices[start]) for prices in until]
    earned = iter(proof.rows("access", len(memories), -(1 << 200)))
    total = 0
    for number, layer in enumerate(layers):
        moved = [((source, True), layers[source]["output_bytes"]) for source in layer["inputs"]]
        if layer["weight_bytes"]:
            read = layer["weight_read_bytes"]
            moved.append(((number, False), layer["weight_bytes"] if read is None else read))
        choices = []
        for tensor, size in (*moved, ((number, True), layer["output_bytes"])):
            prices = next(earned, [])
            need(bool(prices), "proof.access", "fewer rows than uses")
            choices.append([(prices[k], [0, _move(memories[k], size)]) for k in fits[tensor]])
            place[tensor] = [cost - price for cost, price in zip(place[tensor], prices, strict=True)]
        pieces = [layer["compute_ps"], _move(memories[0], layer["external_bytes"])]
        total += unit * layer["overhead_ps"] + cheapest(unit, pieces, choices)
    need(next(earned, None) is None, "proof.access", "more rows than uses")
    total += sum(min(costs[k] for k in fits[tensor]) for tensor, costs in place.items())
    total -= sum(memory["capacity"] * prices[-1] for memory, prices in zip(memories, until, strict=True))
    return int(-(-total // unit))


def _move(tier: dict[str, Any], size: int) -> int:
    """Picoseconds, to the nearest, halves up."""
    return int((2 * size * 10**12 + tier["bandwidth"]) // (2 * tier["bandwidth"]))


class Banks:
    """Where buffers may be, and what they take there."""

    def __init__(self, problem: dict[str, Any]):
        self.banks, self.buffers = problem["banks"], problem["buffers"]
        self.room = [max(0, bank["capacity"] - _up(bank["reserved"], bank["alignment"])) for bank in self.banks]
        self.allowed = [self._allowed(buffer) for buffer in self.buffers]

    def _allowed(self, buffer: dict[str, Any]) -> list[int]:
        return [
            number
            for number, bank in enumerate(self.banks)
            if (not buffer["banks"] or bank["name"] in buffer["banks"])
            and _up(bank["reserved"], lcm(buffer["alignment"], bank["alignment"])) + self.taken(buffer, number)
            <= bank["capacity"]
        ]

    def taken(self, buffer: dict[str, Any], bank: int) -> int:
        """Bytes that a buffer takes in a bank."""
        return _up(buffer["size"], self.banks[bank]["alignment"])


def _up(size: int, unit: int) -> int:
    return int(-(-size // unit) * unit)


def banks(problem: dict[str, Any], proof: Part, bound: int | None) -> int:
    """Least cost of all uses."""
    known = Banks(problem)
    unit = proof.whole("denominator", 1)
    prices: list[list[tuple[int, int]]] = [[] for _ in known.banks]
    total = 0
    for bank, moment, price in proof.rows("memory", 3, -(1 << 62)):
        pick(known.banks, bank, "proof.memory")
        need(price >= 0, "proof.memory", f"found the price {price}, expected at least 0")
        prices[bank].append((moment, price))
        total -= known.room[bank] * price
    for number, (buffer, allowed) in enumerate(zip(known.buffers, known.allowed, strict=True)):
        need(bool(allowed), f"buffers[{number}]", "it fits into no bank")
        costs = []
        for bank in allowed:
            held = sum(price for moment, price in prices[bank] if buffer["lower"] <= moment < buffer["upper"])
            own = buffer["size"] * buffer["uses"] * known.banks[bank]["cost"]
            costs.append(unit * own + held * known.taken(buffer, bank))
        total += min(costs)
    return int(-(-total // unit))


def crowd(problem: dict[str, Any], proof: Part, bound: int | None) -> int | None:
    """None where buffers that live at one moment, and may be nowhere else, are too many for some banks."""
    known = Banks(problem)
    among, moment = set(proof.list("banks")), proof.whole("moment", -(1 << 62))
    inside = [
        buffer["size"]
        for buffer, allowed in zip(known.buffers, known.allowed, strict=True)
        if buffer["lower"] <= moment < buffer["upper"] and buffer["size"] and among.issuperset(allowed)
    ]
    room = sum(pick(known.room, bank, "proof.banks") for bank in among)
    need(bound is None, "bound", "this form says only that nothing fits")
    need(sum(inside) > room, "proof", f"{sum(inside)} bytes fit into {room}")
    return None
