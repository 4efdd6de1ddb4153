"""Bank mapping as a mixed-integer linear program, for any solver of :mod:`stowplan.models.mip`.

Columns are options, own layouts of inputs, what stays on chip, and copies. Copies need no integrality: at integral values of
the rest, each is wanted wholly or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import Structure, analyse, assemble, objective_bound, off_chip_cost
from stowplan.models.mip.matrix import FloatArray, MatrixModel
from stowplan.models.mip.outcome import Outcome, lowered
from stowplan.models.mip.solve import solve as solve_matrix


@dataclass(frozen=True)
class Model:
    """A built model. Costs are in units of ``unit`` weighted bytes, so that the largest is near one."""

    problem: Problem
    structure: Structure
    matrix: MatrixModel
    unit: float
    option_columns: tuple[int, ...]
    """First column of each operator's options."""
    own_columns: dict[tuple[int, int], int]
    """(input, layout) to its column."""
    stay_columns: dict[int, int]
    """Tensor to its column, where its place is to be decided."""
    copy_columns: dict[tuple[int, int], int]
    moments: tuple[_Moment, ...]
    """One for each crowded moment."""

    def add_hint(self, plan: Plan) -> FloatArray:
        """The plan as a point ``[columns]`` to start from."""
        stays = [
            known if known is not None else chosen for known, chosen in zip(self.structure.on_chip, plan.on_chip, strict=True)
        ]
        better = assemble(self.problem, plan.options, stays)
        point = np.zeros(self.matrix.columns)
        for first, option in zip(self.option_columns, plan.options, strict=True):
            point[first + option] = 1.0
        for (tensor, layout), column in self.own_columns.items():
            point[column] = float(better.layouts[tensor] == layout)
        for (tensor, _), column in self.own_columns.items():
            # An input that nobody wants in a layout of its own has the first one.
            mine = [each for (other, _), each in self.own_columns.items() if other == tensor] if not point[column] else []
            if mine and not point[mine].any():
                point[mine[0]] = 1.0
        for tensor, column in self.stay_columns.items():
            point[column] = float(stays[tensor])
        for copy in better.copies:
            point[self.copy_columns[copy.tensor, copy.layout]] = 1.0
        unit = self.structure.unit
        rest = [tensor.bytes % unit if stay else 0 for tensor, stay in zip(self.problem.tensors, stays, strict=True)]
        for copy in better.copies:
            size = self.problem.tensors[copy.tensor].layout_bytes(copy.layout)
            rest[copy.tensor] += size % unit
        spare = self.problem.capacity % unit
        for moment, live in zip(self.moments, self.structure.crowded, strict=True):
            rests = sum(rest[tensor] for tensor in live)
            point[moment.rests] = rests / unit
            point[moment.rounded] = max(0, -(-(rests - spare) // unit))
        return point

    def extract(self, values: FloatArray) -> Plan:
        """Plan of a point.

        Parameters
        ----------
        values
            Of the columns, shape ``[columns]``; integral but for rounding.

        Returns
        -------
        Plan
            With its objective.
        """
        options = [
            int(np.argmax(values[first : first + len(operator.options)]))
            for first, operator in zip(self.option_columns, self.problem.operators, strict=True)
        ]
        stays = [
            known if known is not None else bool(values[self.stay_columns[tensor]] > 0.5)
            for tensor, known in enumerate(self.structure.on_chip)
        ]
        return assemble(self.problem, options, stays)

    def bound(self, value: float) -> int:
        """Weighted bytes that no plan is below, from a solver's bound, its tolerances taken off."""
        spread = float(np.abs(self.matrix.cost).sum())
        return max(objective_bound(self.problem), int(np.ceil(lowered(value, min(spread, abs(value) + 1.0)) * self.unit)))


class _Rows:
    """Rows of a sparse matrix being collected."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def add(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        for column, value in terms:
            self.rows.append(len(self.lower))
            self.columns.append(column)
            self.values.append(value)
        self.lower.append(lower)
        self.upper.append(upper)


def build(problem: Problem) -> Model:
    """Variables, constraints, objective.

    Returns
    -------
    Model
        Its matrix ``[rows, columns]``, scaled, and what its columns stand for.
    """
    structure = analyse(problem)
    columns = _Columns()
    unit = float(max(1, max(map(abs, structure.gain), default=1)))
    option_columns = []
    for number, operator in enumerate(problem.operators):
        option_columns.append(len(columns.cost))
        for option in range(len(operator.options)):
            columns.add(f"x_{number}_{option}")
    own_columns: dict[tuple[int, int], int] = {}
    stay_columns: dict[int, int] = {}
    copy_columns: dict[tuple[int, int], int] = {}
    constant = float(sum(off_chip_cost(problem, tensor) for tensor in range(len(problem.tensors))))
    for tensor, known in enumerate(structure.on_chip):
        if known is False:
            continue
        if not problem.writers[tensor]:
            for layout in structure.writable[tensor]:
                own_columns[tensor, layout] = columns.add(f"h_{tensor}_{layout + 1}")
        if known is None:
            stay_columns[tensor] = columns.add(f"r_{tensor}", -structure.gain[tensor] / unit)
        else:
            constant -= structure.gain[tensor]
        for layout in structure.readable[tensor]:
            price = problem.copy_weight * problem.tensors[tensor].layout_bytes(layout) / unit
            copy_columns[tensor, layout] = columns.add(f"c_{tensor}_{layout + 1}", price, whole=False)
    rows = _Rows()
    _add_choices(problem, structure, rows, option_columns, own_columns)
    _add_layouts(problem, structure, rows, option_columns, own_columns, stay_columns, copy_columns)
    moments = _add_capacity(problem, structure, columns, rows, stay_columns, copy_columns)
    size = len(columns.cost)
    matrix = MatrixModel(
        name="bank_mapping",
        cost=np.array(columns.cost),
        lower=np.zeros(size),
        upper=np.array(columns.upper),
        is_integer=np.array(columns.integer, dtype=bool),
        matrix=sparse.csr_matrix((rows.values, (rows.rows, rows.columns)), shape=(len(rows.lower), size)),
        row_lower=np.array(rows.lower),
        row_upper=np.array(rows.upper),
        offset=constant / unit,
        column_names=columns.names,
    )
    return Model(problem, structure, matrix, unit, tuple(option_columns), own_columns, stay_columns, copy_columns, moments)


def _choosing(problem: Problem, columns: list[int], number: int, at: int, layout: int) -> list[int]:
    """Columns of the options of an operator that have a layout at one of its accesses."""
    first = columns[number]
    return [first + k for k, option in enumerate(problem.operators[number].options) if option[at] == layout]


def _write_place(problem: Problem, number: int, tensor: int) -> int:
    operator = problem.operators[number]
    return len(operator.reads) + operator.writes.index(tensor)


def _add_choices(
    problem: Problem, structure: Structure, rows: _Rows, option_columns: list[int], own_columns: dict[tuple[int, int], int]
) -> None:
    """One option an operator, one own layout an input, writers that agree."""
    for first, operator in zip(option_columns, problem.operators, strict=True):
        rows.add([(first + k, 1.0) for k in range(len(operator.options))], 1.0, 1.0)
    inputs: dict[int, list[int]] = {}
    for (tensor, _), each in own_columns.items():
        inputs.setdefault(tensor, []).append(each)
    for columns in inputs.values():
        rows.add([(each, 1.0) for each in columns], 1.0, 1.0)
    for tensor, writers in enumerate(problem.writers):
        for number in writers[1:]:
            at = _write_place(problem, number, tensor)
            layouts = {option[at] for option in problem.operators[number].options} | set(structure.writable[tensor])
            for layout in sorted(layouts):
                theirs = _choosing(problem, option_columns, number, at, layout)
                first_at = _write_place(problem, writers[0], tensor)
                mine = _choosing(problem, option_columns, writers[0], first_at, layout)
                rows.add([*((each, 1.0) for each in theirs), *((each, -1.0) for each in mine)], 0.0, 0.0)


def _add_layouts(
    problem: Problem,
    structure: Structure,
    rows: _Rows,
    option_columns: list[int],
    own_columns: dict[tuple[int, int], int],
    stay_columns: dict[int, int],
    copy_columns: dict[tuple[int, int], int],
) -> None:
    """What a reader wants of a tensor on chip is its own layout or a copy: want - own - copy + stays <= 1."""
    for number, operator in enumerate(problem.operators):
        for at, tensor in enumerate(operator.reads):
            if structure.on_chip[tensor] is False:
                continue
            for layout in sorted({option[at] for option in operator.options}):
                terms = [(each, 1.0) for each in _choosing(problem, option_columns, number, at, layout)]
                writers = problem.writers[tensor]
                if writers:
                    place = _write_place(problem, writers[0], tensor)
                    own = _choosing(problem, option_columns, writers[0], place, layout)
                    terms += [(each, -1.0) for each in own]
                elif (tensor, layout) in own_columns:
                    terms.append((own_columns[tensor, layout], -1.0))
                terms.append((copy_columns[tensor, layout], -1.0))
                if tensor in stay_columns:
                    terms.append((stay_columns[tensor], 1.0))
                rows.add(terms, -np.inf, 1.0 if tensor in stay_columns else 0.0)


#: Small tensors at a moment, of those that save most, that get a row of their own: one of them on chip takes a unit.
_MOST_SMALL = 3


class _Columns:
    """Columns being collected."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.integer: list[bool] = []
        self.names: list[str] = []

    def add(self, name: str, cost: float = 0.0, upper: float = 1.0, whole: bool = True) -> int:
        """A column from 0 to ``upper``."""
        self.cost.append(cost)
        self.upper.append(upper)
        self.integer.append(whole)
        self.names.append(name)
        return len(self.cost) - 1


@dataclass(frozen=True)
class _Moment:
    """Columns of a crowded moment, all in units."""

    rests: int
    """Rests on chip."""
    rounded: int
    """Units that the rests take."""


def _add_capacity(
    problem: Problem,
    structure: Structure,
    columns: _Columns,
    rows: _Rows,
    stay_columns: dict[int, int],
    copy_columns: dict[tuple[int, int], int],
) -> tuple[_Moment, ...]:
    """What is on chip at every crowded moment fits, whole units and rests apart (see :attr:`Structure.unit`).

    Moments share most of what lives: each load is the one before, less what died and plus what was born since. Rows of all that
    lives would say the same in hundreds of times as many numbers.
    """
    unit = structure.unit
    whole, spare = divmod(problem.capacity, unit)
    moments: list[_Moment] = []
    before: set[int] = set()
    for number, each in enumerate(structure.crowded):
        now = set(each)
        moment = _Moment(
            columns.add(f"m_{number}", upper=problem.capacity / unit, whole=False),
            columns.add(f"w_{number}", upper=float(whole)),
        )
        whole_terms, rest_terms = [(moment.rounded, 1.0)], [(moment.rests, -1.0)]
        fixed_whole = fixed_rest = 0.0
        for tensor in each:
            for column, size in _items(problem, structure, tensor, stay_columns, copy_columns):
                units = size // unit
                if column is None:
                    fixed_whole += units
                elif units:
                    whole_terms.append((column, float(units)))
        if moments and len(now ^ before) < len(now):
            rest_terms.append((moments[-1].rests, 1.0))
        else:
            before = set()
        for tensor in sorted(now ^ before):
            sign = 1.0 if tensor in now else -1.0
            for column, size in _items(problem, structure, tensor, stay_columns, copy_columns):
                rest = sign * (size % unit) / unit
                if column is None:
                    fixed_rest += rest
                elif rest:
                    rest_terms.append((column, rest))
        rows.add(whole_terms, -np.inf, whole - fixed_whole)
        rows.add(rest_terms, -fixed_rest, -fixed_rest)
        rows.add([(moment.rests, 1.0), (moment.rounded, -1.0)], -np.inf, spare / unit)
        small = [tensor for tensor in each if tensor in stay_columns and spare < problem.tensors[tensor].bytes < unit]
        for tensor in sorted(small, key=lambda one: -structure.gain[one])[:_MOST_SMALL]:
            rows.add([(stay_columns[tensor], 1.0), (moment.rounded, -1.0)], -np.inf, 0.0)
        moments.append(moment)
        before = now
    return tuple(moments)


def _items(
    problem: Problem,
    structure: Structure,
    tensor: int,
    stay_columns: dict[int, int],
    copy_columns: dict[tuple[int, int], int],
) -> Iterator[tuple[int | None, int]]:
    """(column, bytes) of a tensor and its copies; no column for what is on chip for certain."""
    yield stay_columns.get(tensor), problem.tensors[tensor].bytes
    for layout in structure.readable[tensor]:
        yield copy_columns[tensor, layout], problem.tensors[tensor].layout_bytes(layout)


def solve(
    problem: Problem,
    solver: str = "mathopt-highs",
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    plan: Plan | None = None,
    node_limit: int | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[Outcome, Plan | None, int | None]:
    """Solve the MILP of a problem.

    Parameters
    ----------
    plan
        A valid plan to start from.
    on_bound
        Called with bounds in weighted bytes.

    Others are those of :func:`stowplan.models.mip.solve.solve`, which also says what is raised.

    Returns
    -------
    tuple
        What the solver said, its plan, and its bound in weighted bytes; None for what it did not find.
    """
    built = build(problem)
    outcome = solve_matrix(
        built.matrix,
        solver,
        time_limit=time_limit,
        seed=seed,
        start=None if plan is None else built.add_hint(plan),
        node_limit=node_limit,
        on_bound=None if on_bound is None else lambda bound: on_bound(built.bound(bound)),
        should_stop=should_stop,
    )
    found = None if outcome.values is None else built.extract(outcome.values)
    return outcome, found, None if outcome.bound is None else built.bound(outcome.bound)
