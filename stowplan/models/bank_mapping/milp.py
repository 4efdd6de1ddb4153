"""Bank mapping as a mixed-integer linear program (MILP), which is solved in stages.

A *layout* says along which dimension a tensor is spread over the banks of on-chip memory. An *option* is a way to compute an
operator, with a layout for each tensor that it reads or writes. An *input* is a tensor that is in main memory at the start.
Every tensor has its *own* layout, in which it is written or, for an input, loaded; it can be copied to others.

The columns say which option each operator uses, which own layout each input has, which tensors stay on chip, and which copies
exist. Copies need not be integer columns: if all other columns are integral, each copy is needed completely or not at all.

In the first stage, only the columns of large tensors must be integral, in the next stage also those of smaller tensors, and in
the last stage all. Each stage is a relaxation of the next one, so its bound is a bound for the problem. The few large tensors
decide nearly all of the objective. The first stage takes seconds, while the whole problem would take minutes, and its rounded
solution is nearly as good as its bound. From such a start, the next stage can fix most of its columns by their reduced costs.

Nothing here raises an error for a valid problem and a valid plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import Structure, analyse, assemble, objective_bound, off_chip_cost, rests_at
from stowplan.models.mip import with_highs
from stowplan.models.mip.matrix import FloatArray, MatrixModel, Options, Outcome, Program, lowered


@dataclass(frozen=True)
class Model:
    """The MILP of a problem. Costs are in units of ``unit`` weighted bytes, so that the largest one is near 1."""

    problem: Problem
    """The problem that the MILP is for."""
    structure: Structure
    """Facts about the problem that make the MILP smaller."""
    matrix: MatrixModel
    """The MILP as arrays."""
    unit: float
    """Weighted bytes that correspond to a cost of 1."""
    option_columns: tuple[int, ...]
    """[operators] column of the operator's first option; the columns of its other options follow."""
    own_columns: dict[tuple[int, int], int]
    """For each (input, layout), the column that says whether the layout is the input's own layout. Inputs that are in main
    memory in any case have none."""
    stay_columns: dict[int, int]
    """For each tensor whose place the MILP decides, the column that says whether it stays on chip."""
    copy_columns: dict[tuple[int, int], int]
    """For each (tensor, layout), the column that says whether the tensor is copied to the layout."""
    moments: tuple[_Moment, ...]
    """Columns of each set in :attr:`Structure.crowded`."""

    def add_hint(self, plan: Plan) -> FloatArray:
        """Values of all columns for a valid plan, of shape ``[columns]``, from which solvers can start."""
        stays = self.structure.followed(plan.on_chip)
        better = assemble(self.problem, plan.options, stays)
        point = np.zeros(self.matrix.columns)
        for first, option in zip(self.option_columns, plan.options, strict=True):
            point[first + option] = 1.0
        for (tensor, layout), column in self.own_columns.items():
            point[column] = float(better.layouts[tensor] == layout)
        for (tensor, _), column in self.own_columns.items():
            # If the input's own layout in the plan has no column, its first layout that has one is chosen.
            input_columns = (
                [number for (other, _), number in self.own_columns.items() if other == tensor] if not point[column] else []
            )
            if input_columns and not point[input_columns].any():
                point[input_columns[0]] = 1.0
        for tensor, column in self.stay_columns.items():
            point[column] = float(stays[tensor])
        for copy in better.copies:
            point[self.copy_columns[copy.tensor, copy.layout]] = 1.0
        unit = self.structure.unit
        spare = self.problem.capacity % unit
        for moment, rests in zip(self.moments, rests_at(self.problem, self.structure, better), strict=True):
            point[moment.rests] = rests / unit
            point[moment.rounded] = max(0, -(-(rests - spare) // unit))
        return point

    def extract(self, values: FloatArray) -> Plan:
        """Returns the plan of a solution, with its objective. It may exceed the capacity if the solution was rounded.

        Parameters
        ----------
        values
            Values of the columns, shape ``[columns]``; fractions are rounded. Each operator gets the option of largest value.
        """
        options = [
            int(np.argmax(values[first : first + len(operator.options)]))
            for first, operator in zip(self.option_columns, self.problem.operators, strict=True)
        ]
        stays = [
            fixed if fixed is not None else bool(values[self.stay_columns[tensor]] > 0.5)
            for tensor, fixed in enumerate(self.structure.on_chip)
        ]
        return assemble(self.problem, options, stays)

    def bound(self, value: float) -> int:
        """The lower bound in weighted bytes that ``value``, a solver's bound on the MILP, proves. A margin for the solver's
        tolerances is subtracted (:func:`~stowplan.models.mip.matrix.lowered`)."""
        spread = float(np.abs(self.matrix.cost).sum())
        return max(objective_bound(self.problem), int(np.ceil(lowered(value, min(spread, abs(value) + 1.0)) * self.unit)))


#: A tensor is small if it is smaller than a unit but larger than the bytes that exceed the capacity's whole units. For each
#: crowded set, this many small tensors, those that save most, get a row of their own: if the tensor is on chip, the rests need
#: at least one unit. Without these rows, the relaxation could keep a tensor on chip at the cost of a fraction of a unit.
_MOST_SMALL = 3


@dataclass(frozen=True)
class _Moment:
    """The columns of a set in :attr:`Structure.crowded`. Their values are in units, and the *rest* of a tensor is what its size
    has beyond whole units (:attr:`Structure.unit`)."""

    rests: int
    """Column of the sum of all rests on chip."""
    rounded: int
    """Column of that sum, rounded up."""


def build(problem: Problem) -> Model:
    """Build the MILP of a problem."""
    return _Program(problem).build()


class _Program(Program):
    """Builds the columns and rows; its attributes are those of :class:`Model`."""

    def __init__(self, problem: Problem):
        super().__init__()
        self.problem, self.structure = problem, analyse(problem)
        self.unit = float(max(1, max(map(abs, self.structure.gain), default=1)))
        self.option_columns: list[int] = []
        self.own_columns: dict[tuple[int, int], int] = {}
        self.stay_columns: dict[int, int] = {}
        self.copy_columns: dict[tuple[int, int], int] = {}
        self.moments: list[_Moment] = []
        self._constant = float(sum(off_chip_cost(problem, tensor) for tensor in range(len(problem.tensors))))
        self._add_columns()
        self._add_choices()
        self._add_layouts()
        self._add_capacity()

    def build(self) -> Model:
        """The finished model."""
        return Model(
            self.problem,
            self.structure,
            self.model("bank_mapping", self._constant / self.unit),
            self.unit,
            tuple(self.option_columns),
            self.own_columns,
            self.stay_columns,
            self.copy_columns,
            tuple(self.moments),
        )

    def _add_columns(self) -> None:
        """Add the columns of all decisions."""
        problem, structure, unit = self.problem, self.structure, self.unit
        for number, operator in enumerate(problem.operators):
            self.option_columns.append(len(self.cost))
            for option in range(len(operator.options)):
                self.column(name=f"x_{number}_{option}")
        for tensor, fixed in enumerate(structure.on_chip):
            if fixed is False:
                continue
            if not problem.writers[tensor]:
                for layout in structure.writable[tensor]:
                    self.own_columns[tensor, layout] = self.column(name=f"h_{tensor}_{layout + 1}")
            if fixed is None:
                self.stay_columns[tensor] = self.column(cost=-structure.gain[tensor] / unit, name=f"r_{tensor}")
            else:
                self._constant -= structure.gain[tensor]
            for layout in structure.readable[tensor]:
                price = problem.copy_weight * problem.tensors[tensor].layout_bytes(layout) / unit
                name = f"c_{tensor}_{layout + 1}"
                self.copy_columns[tensor, layout] = self.column(cost=price, integer=False, name=name)

    def _option_columns(self, number: int, at: int, layout: int) -> list[int]:
        """The columns of the options of operator ``number`` that have this layout at position ``at`` of its reads and
        writes."""
        first = self.option_columns[number]
        return [first + k for k, option in enumerate(self.problem.operators[number].options) if option[at] == layout]

    def _writer_columns(self, tensor: int, layout: int) -> list[int]:
        """The columns of those options of a tensor's first writer that write it in this layout."""
        writer = self.problem.writers[tensor][0]
        return self._option_columns(writer, self.problem.operators[writer].write_place(tensor), layout)

    def _add_choices(self) -> None:
        """Add rows that require one option for each operator, one own layout for each input, and agreement of writers."""
        problem = self.problem
        for first, operator in zip(self.option_columns, problem.operators, strict=True):
            self.add_row([(first + k, 1.0) for k in range(len(operator.options))], 1.0, 1.0)
        inputs: dict[int, list[int]] = {}
        for (tensor, _), column in self.own_columns.items():
            inputs.setdefault(tensor, []).append(column)
        for columns in inputs.values():
            self.add_row([(column, 1.0) for column in columns], 1.0, 1.0)
        for tensor, writers in enumerate(problem.writers):
            for number in writers[1:]:
                operator = problem.operators[number]
                at = operator.write_place(tensor)
                layouts = {option[at] for option in operator.options} | set(self.structure.writable[tensor])
                for layout in sorted(layouts):
                    later_columns, first_columns = (
                        self._option_columns(number, at, layout),
                        self._writer_columns(tensor, layout),
                    )
                    self.add_row(
                        [*((column, 1.0) for column in later_columns), *((column, -1.0) for column in first_columns)], 0.0, 0.0
                    )

    def _add_layouts(self) -> None:
        """Add rows for the readers of tensors on chip: the layout that a reader needs is the tensor's own, or there is a copy.

        With columns for "needed", "own", "copy" and "stays on chip", such a row is needed - own - copy + stays <= 1.
        """
        for number, operator in enumerate(self.problem.operators):
            for at, tensor in enumerate(operator.reads):
                if self.structure.on_chip[tensor] is False:
                    continue
                for layout in sorted({option[at] for option in operator.options}):
                    terms = [(column, 1.0) for column in self._option_columns(number, at, layout)]
                    if self.problem.writers[tensor]:
                        terms += [(column, -1.0) for column in self._writer_columns(tensor, layout)]
                    elif (tensor, layout) in self.own_columns:
                        terms.append((self.own_columns[tensor, layout], -1.0))
                    terms.append((self.copy_columns[tensor, layout], -1.0))
                    if tensor in self.stay_columns:
                        terms.append((self.stay_columns[tensor], 1.0))
                    self.add_row(terms, upper=1.0 if tensor in self.stay_columns else 0.0)

    def _add_capacity(self) -> None:
        """Add rows that require the tensors and copies of every crowded set to fit, in whole units and rests
        (:attr:`Structure.unit`).

        Consecutive sets have most of their tensors in common. The sum of the rests of a set is therefore defined by that of the
        set before: the tensors that ended are subtracted, and those that began are added. Rows over all tensors would be
        equivalent, but have hundreds of times as many coefficients.
        """
        problem, unit = self.problem, self.structure.unit
        full_units, spare = divmod(problem.capacity, unit)
        before: set[int] = set()
        for number, live in enumerate(self.structure.crowded):
            live_set = set(live)
            moment = _Moment(
                self.column(problem.capacity / unit, integer=False, name=f"m_{number}"),
                self.column(float(full_units), name=f"w_{number}"),
            )
            whole_terms, rest_terms = [(moment.rounded, 1.0)], [(moment.rests, -1.0)]
            fixed_whole = fixed_rest = 0.0
            for tensor in live:
                for column, size in self._items(tensor):
                    units = size // unit
                    if column is None:
                        fixed_whole += units
                    elif units:
                        whole_terms.append((column, float(units)))
            if self.moments and len(live_set ^ before) < len(live_set):
                rest_terms.append((self.moments[-1].rests, 1.0))
            else:
                before = set()
            for tensor in sorted(live_set ^ before):
                sign = 1.0 if tensor in live_set else -1.0
                for column, size in self._items(tensor):
                    rest = sign * (size % unit) / unit
                    if column is None:
                        fixed_rest += rest
                    elif rest:
                        rest_terms.append((column, rest))
            self.add_row(whole_terms, upper=full_units - fixed_whole)
            self.add_row(rest_terms, -fixed_rest, -fixed_rest)
            self.add_row([(moment.rests, 1.0), (moment.rounded, -1.0)], upper=spare / unit)
            small = [tensor for tensor in live if tensor in self.stay_columns and spare < problem.tensors[tensor].bytes < unit]
            for tensor in sorted(small, key=lambda one: -self.structure.gain[one])[:_MOST_SMALL]:
                self.add_row([(self.stay_columns[tensor], 1.0), (moment.rounded, -1.0)], upper=0.0)
            self.moments.append(moment)
            before = live_set

    def _items(self, tensor: int) -> Iterator[tuple[int | None, int]]:
        """The (column, bytes) of a tensor and of its copies; the column is None if the tensor is on chip in any case."""
        yield self.stay_columns.get(tensor), self.problem.tensors[tensor].bytes
        for layout in self.structure.readable[tensor]:
            yield self.copy_columns[tensor, layout], self.problem.tensors[tensor].layout_bytes(layout)


#: The first stage has integer columns for tensors of at least one unit (:attr:`Structure.unit`), the middle stage for tensors
#: of at least one unit divided by this number.
_MIDDLE = 8

#: Heuristics of HiGHS that are switched off. They would solve MILPs of half the size for tens of seconds, and they are not
#: needed, since the solutions that are rounded come from the nodes of branch and bound.
_HEURISTICS = ("rins", "rens", "root_reduced_cost")


def stages_of(built: Model) -> list[MatrixModel]:
    """Returns the stages, as matrices with an increasing number of integer columns. The last one is the whole problem.

    A stage that would have no more integer columns than the stage before it, or as many as there are columns of tensors, is
    left out. The result has between one and three stages.
    """
    unit, tensors = built.structure.unit, built.problem.tensors
    sizes = {tensor: tensors[tensor].bytes for tensor in built.stay_columns}
    stages: list[MatrixModel] = []
    previous = 0
    for smallest in (unit, unit // _MIDDLE):
        is_integer = np.zeros(built.matrix.columns, dtype=bool)
        is_integer[[column for tensor, column in built.stay_columns.items() if sizes[tensor] >= smallest]] = True
        count = int(is_integer.sum())
        if previous < count < len(sizes):
            stages.append(replace(built.matrix, is_integer=is_integer))
            previous = count
    is_integer = built.matrix.is_integer.copy()
    # The column of rounded rests need not be an integer column. If all other columns are integral, its value can be rounded up,
    # since the other terms and the limit of its row are whole numbers.
    is_integer[[moment.rounded for moment in built.moments]] = False
    return [*stages, replace(built.matrix, is_integer=is_integer)]


def solve_stage(matrix: MatrixModel, options: Options, on_point: Callable[[FloatArray], None] | None = None) -> Outcome:
    """Solve one stage, as :func:`stages_of` returns it, with HiGHS. ``options`` has limits and a start.

    ``on_point`` is called with every better solution ``[columns]``, in which the integer columns of the stage are integral.
    """
    settings = {"mip_heuristic_effort": 0.0, **{f"mip_heuristic_run_{heuristic}": False for heuristic in _HEURISTICS}}
    return with_highs.solve(matrix, options, settings=settings, on_point=on_point)
