"""Which tiles of a machine can stand for each other: grid symmetries that keep all links."""

from __future__ import annotations

from itertools import product

from stowplan.models.modulo_scheduling.problem import Problem


def symmetries(problem: Problem) -> list[tuple[int, ...]]:
    """Renumberings of the tiles that turn every valid plan into another, the identity first.

    Found among reflections, transpositions and, in a torus, shifts. Bound tiles and pins leave the identity only.
    """
    machine = problem.machine
    identity = tuple(range(machine.tiles))
    kept = {frozenset(each.tiles) for each in problem.instructions if each.tiles is not None}
    kept |= {frozenset(each.tiles) for each in machine.interfaces if each.tiles is not None}
    bound = any(pin.tile is not None for pin in problem.pins) or any(each.tile is not None for each in problem.variables)
    if bound or problem.rules.pass_through:
        return [identity]
    rows, columns = machine.rows, machine.columns
    hops = machine.one_link
    found = {identity: None}
    shifts = product(range(rows), range(columns)) if machine.wraps else [(0, 0)]
    for (down, right), flip, mirror, turn in product(shifts, (1, -1), (1, -1), (False, True)):
        if turn and rows != columns:
            continue
        moved = []
        for tile in identity:
            row, column = divmod(tile, columns)
            row = (row if flip == 1 else rows - 1 - row) + down
            column = (column if mirror == 1 else columns - 1 - column) + right
            row, column = row % rows, column % columns
            moved.append(column * columns + row if turn else row * columns + column)
        same = all(hops[moved[one]][moved[two]] == hops[one][two] for one in identity for two in identity)
        if same and all({moved[tile] for tile in tiles} == tiles for tiles in kept):
            found[tuple(moved)] = None
    return list(found)


def representatives(renumberings: list[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """For each tile the renumbering that takes it to the least tile that can stand for it."""
    return {tile: min(renumberings, key=lambda each: each[tile]) for tile in range(len(renumberings[0]))}
