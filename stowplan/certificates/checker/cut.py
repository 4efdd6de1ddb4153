"""A row of memory, rounded: what no set of whole tensors that fits exceeds, be it that fractions of them could."""

from __future__ import annotations

from stowplan.certificates.checker.reading import Fields, fields, listed, numbers, pick, whole


class Cut:
    """Memory at one moment, rounded: no set of tensors that fits takes more than ``room`` of what each takes.

    Mixed-integer rounding of sum(units x) <= room, in which x of some tensors was replaced by 1 - x before (Marchand and Wolsey
    2001; lemma B4 of docs/reference/memory-mapping-models.md); at first of units of memory, then perhaps of what came of it.
    """

    def __init__(self, part: Fields, units: list[int], room: int):
        self.price, self.room = whole(part, "price"), room
        self.rounds: list[tuple[int, int, set[int]]] = []
        for each in listed(part, "rounds"):
            divisor, turned = whole(fields(each, "cuts"), "divisor", 1), set(numbers(each, "turned"))
            taken = [-self.takes(tensor, pick(units, tensor, "cuts")) for tensor in turned]
            whole_, rest = divmod(self.room + sum(taken), divisor)
            self.room = (divisor - rest) * whole_ - sum(_rounded(each, divisor, rest) for each in taken)
            self.rounds.append((divisor, rest, turned))

    def takes(self, tensor: int, units: int) -> int:
        """What a tensor takes of the room."""
        for divisor, rest, turned in self.rounds:
            units = -_rounded(-units, divisor, rest) if tensor in turned else _rounded(units, divisor, rest)
        return units


def _rounded(units: int, divisor: int, rest: int) -> int:
    return (divisor - rest) * (units // divisor) + max(0, units % divisor - rest)
