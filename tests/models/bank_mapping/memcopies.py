"""A plan's copies between banks as memcopies of the program, so that it can be run and looked at as the chip would run it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stowplan.hardware.affine.expression import Expression, Extents, add, constant, index
from stowplan.hardware.affine.program import Bound, Copy, Load, Piece, Program, Statement, Store, Tensor, identity
from stowplan.hardware.inferentia.problem import MappedProgram
from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Tile


@dataclass(frozen=True)
class _Made:
    """A tensor that a memcopy writes."""

    name: str
    is_view: bool
    """As large as the loops of the load that reads it, not as what was copied."""
    tile: Tile


def insert_copies(mapped: MappedProgram, plan: Plan) -> Program:
    """The program with a tensor and a memcopy for every copy of the plan, and readers that read those."""
    program, problem = mapped.program, mapped.problem
    tensors = dict(program.tensors)
    made: dict[tuple[int, int], _Made] = {}
    before: dict[int, list[Copy]] = {}
    for copy in plan.copies:
        found, load = _source(mapped, copy)
        tensors[found.name] = Tensor(found.name, load.extents, program.tensors[mapped.names[copy.tensor]].item_bytes)
        store = Store(found.name, identity(len(load.extents)))
        before.setdefault(copy.before, []).append(Copy(f"memcopy {found.name}", "memcopy", load, store))
        made[copy.tensor, copy.layout] = found
    statements: list[Statement] = []
    for number, statement in enumerate(program.statements):
        statements += before.get(number, [])
        operator = problem.operators[number]
        chosen = operator.options[plan.options[number]]
        loads = list(statement.loads)
        for access, tensor, layout in zip(mapped.accesses[number], operator.reads, chosen, strict=False):
            new = made.get((tensor, layout))
            if new is not None:
                loads[access.load] = _reading(loads[access.load], access.tensor, new)
        if isinstance(statement, Copy):
            statements.append(replace(statement, load=loads[0]))
        else:
            statements.append(replace(statement, loads=tuple(loads)))
    return replace(program, statements=tuple(statements), tensors=tensors)


def _source(mapped: MappedProgram, copy: BankCopy) -> tuple[_Made, Load]:
    """What a copy makes, and the load it makes it from."""
    tensor, tile = mapped.program.tensors[mapped.names[copy.tensor]], mapped.tiles[copy.tensor]
    rank = len(tensor.shape)
    is_view = copy.layout >= rank
    where = f"view{copy.layout - rank}" if is_view else f"dim{copy.layout}" if copy.layout >= 0 else "unspread"
    found = _Made(f"{mapped.problem.tensors[copy.tensor].name}@{where}", is_view, tile)
    if is_view:
        source, _ = mapped.views[tensor.name, copy.layout - rank]
        own = [
            replace(piece, domain=(*piece.domain, *_rows(piece, tile)))
            for piece in source.pieces
            if piece.tensor == tensor.name
        ]
        # Iterations that read something else are not read from here.
        return found, Load(source.extents, (*own, Piece(None)) if own[-1].domain else tuple(own))
    extents, indices = list(tensor.shape), list(identity(rank))
    if tile.dimension is not None:
        extents[tile.dimension] = tile.end - tile.first
        indices[tile.dimension] = _moved(index(tile.dimension), tile.first, tuple(extents))
    return found, Load(tuple(extents), (Piece(tensor.name, tuple(indices)),))


def _rows(piece: Piece, tile: Tile) -> tuple[Bound, ...]:
    """Where a piece reads the rows of a tile."""
    return () if tile.dimension is None else (Bound(piece.index[tile.dimension], tile.first, tile.end - 1),)


def _moved(expression: Expression, by: int, extents: Extents) -> Expression:
    return add(expression, constant(by), extents)


def _reading(load: Load, old: str, new: _Made) -> Load:
    """A load that reads a copy in place of a tensor, where that is what it reads; a view is as large as the load's loops."""
    pieces: list[Piece] = []
    for piece in load.pieces:
        if piece.tensor != old:
            pieces.append(piece)
            continue
        indices = list(identity(len(load.extents)) if new.is_view else piece.index)
        dimension = new.tile.dimension
        if dimension is not None and not new.is_view:
            indices[dimension] = _moved(indices[dimension], -new.tile.first, load.extents)
        pieces.append(Piece(new.name, tuple(indices), (*piece.domain, *_rows(piece, new.tile)), piece.fill))
        if dimension is not None:
            pieces.append(piece)
    return replace(load, pieces=tuple(pieces))
