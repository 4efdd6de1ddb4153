"""A plan's copies between banks as memcopies of the program, so that it can be run and looked at as the chip would run it."""

from __future__ import annotations

from dataclasses import replace

from stowplan.hardware.affine.program import Copy, Load, Piece, Program, Statement, Store, Tensor, identity
from stowplan.hardware.inferentia.problem import MappedProgram
from stowplan.models.bank_mapping.plan import Plan


def insert_copies(mapped: MappedProgram, plan: Plan) -> Program:
    """The program with a tensor and a memcopy for every copy of the plan, and readers that read those."""
    program, problem = mapped.program, mapped.problem
    tensors = dict(program.tensors)
    made: dict[tuple[int, int], tuple[str, bool]] = {}
    before: dict[int, list[Copy]] = {}
    for copy in plan.copies:
        tensor = program.tensors[problem.tensors[copy.tensor].name]
        is_view = copy.layout >= len(tensor.shape)
        where = f"view{copy.layout - len(tensor.shape)}" if is_view else f"dim{copy.layout}" if copy.layout >= 0 else "unspread"
        name = f"{tensor.name}@{where}"
        if is_view:
            source, _ = mapped.views[tensor.name, copy.layout - len(tensor.shape)]
            own = tuple(piece for piece in source.pieces if piece.tensor == tensor.name)
            # Iterations that read something else are not read from here.
            load = Load(source.extents, (*own, Piece(None)) if own[-1].domain else own)
        else:
            load = Load(tensor.shape, (Piece(tensor.name, identity(len(tensor.shape))),))
        tensors[name] = Tensor(name, load.extents, tensor.item_bytes)
        store = Store(name, identity(len(load.extents)))
        before.setdefault(copy.before, []).append(Copy(f"memcopy {name}", "memcopy", load, store))
        made[copy.tensor, copy.layout] = name, is_view
    statements: list[Statement] = []
    numbers = {each.name: number for number, each in enumerate(problem.tensors)}
    for number, statement in enumerate(program.statements):
        statements += before.get(number, [])
        chosen = problem.operators[number].options[plan.options[number]]
        loads = list(statement.loads)
        for access, layout in zip(mapped.accesses[number], chosen, strict=False):
            found = made.get((numbers[access.tensor], layout))
            if found is not None:
                loads[access.load] = _reading(loads[access.load], access.tensor, *found)
        if isinstance(statement, Copy):
            statements.append(replace(statement, load=loads[0]))
        else:
            statements.append(replace(statement, loads=tuple(loads)))
    return replace(program, statements=tuple(statements), tensors=tensors)


def _reading(load: Load, old: str, new: str, is_view: bool) -> Load:
    """A load that reads a copy in place of a tensor; a view is as large as the load's loops."""
    pieces = tuple(
        piece
        if piece.tensor != old
        else replace(piece, tensor=new, index=identity(len(load.extents)) if is_view else piece.index)
        for piece in load.pieces
    )
    return replace(load, pieces=pieces)
