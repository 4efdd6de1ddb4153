"""Bank mapping as a CP-SAT model with Boolean variables for options, for tensors that stay on chip, and for copies.

A *layout* says along which dimension a tensor is spread over the banks of on-chip memory. An *option* is a way to compute an
operator, with a layout for each tensor that it reads or writes. Every tensor has its *own* layout, in which it is written or,
for an input of the program, loaded. A tensor on chip can be copied to other layouts.

A hint must be a valid plan; then nothing here raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import Structure, analyse, assemble, objective_bound, off_chip_cost, rests_at
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome


@dataclass
class Model:
    """The CP-SAT model of a problem, with its variables."""

    problem: Problem
    """The problem that the model is for."""
    structure: Structure
    """Facts about the problem that make the model smaller."""
    unit: int
    """Weighted bytes that correspond to 1 in the model's objective."""
    offset: int
    """Objective, in units of ``unit``, if no tensor stays on chip."""
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    """The CP-SAT model."""
    options: list[list[cp_model.IntVar]] = field(default_factory=list)
    """For each operator, a Boolean variable for each option; the constant 1 if it has a single option."""
    on_chip: list[cp_model.IntVar | None] = field(default_factory=list)
    """For each tensor, a Boolean variable: whether it stays on chip. None if :attr:`Structure.on_chip` decides that."""
    own: dict[tuple[int, int], list[cp_model.IntVar]] = field(default_factory=dict)
    """For each (tensor, layout), Boolean variables: exactly one of them is true if the layout is the tensor's own layout, and
    none otherwise."""
    copies: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    """For each (tensor, layout), a Boolean variable: whether the tensor is copied to the layout."""
    rounded: dict[int, cp_model.IntVar] = field(default_factory=dict)
    """For each set in :attr:`Structure.crowded`, by its index, the sum of all rests (:attr:`Structure.unit`), rounded up to
    units. Sets without a tensor or copy of at least one unit have no such variable."""

    def add_hint(self, plan: Plan) -> None:
        """Let the solver start from a valid plan; every variable gets a value."""
        values: list[tuple[cp_model.IntVar, int]] = []

        stays = self.structure.followed(plan.on_chip)
        better = assemble(self.problem, plan.options, stays)
        copied = {(copy.tensor, copy.layout) for copy in better.copies}
        for number, variables in enumerate(self.options):
            if len(variables) > 1:
                values += [(variable, option == plan.options[number]) for option, variable in enumerate(variables)]
        for tensor, stay in enumerate(self.on_chip):
            if stay is not None:
                values.append((stay, stays[tensor]))
        for (tensor, layout), variables in self.own.items():
            if not self.problem.writers[tensor] and len(self.structure.writable[tensor]) > 1:
                values.append((variables[0], better.layouts[tensor] == layout))
        values += [(variable, key in copied) for key, variable in self.copies.items()]
        unit, spare = self.structure.unit, self.problem.capacity % self.structure.unit
        rests = rests_at(self.problem, self.structure, better)
        values += [(variable, max(0, -(-(rests[number] - spare) // unit))) for number, variable in self.rounded.items()]
        cpsat_runner.add_hint(self.model, values)

    def extract(self, value: Value) -> Plan:
        """Returns the plan of a solution, with its objective.

        Parameters
        ----------
        value
            Returns the value of a variable of the model in the solution.
        """
        options = [
            next(option for option, variable in enumerate(variables) if len(variables) == 1 or value(variable))
            for variables in self.options
        ]
        stays = [
            bool(fixed) if variable is None else bool(value(variable))
            for fixed, variable in zip(self.structure.on_chip, self.on_chip, strict=True)
        ]
        return assemble(self.problem, options, stays)


def build(problem: Problem) -> Model:
    """Build the model of a problem, without a hint."""
    structure = analyse(problem)
    weights = [size for tensor in problem.tensors for size in (tensor.bytes, *(view.bytes for view in tensor.views))]
    weights += [size for operator in problem.operators for size in operator.read_bytes]
    unit = gcd(*(problem.copy_weight * size for size in weights), *(problem.off_chip_weight * size for size in weights)) or 1
    offset = sum(off_chip_cost(problem, tensor) for tensor in range(len(problem.tensors))) // unit
    built = Model(problem, structure, unit, offset)
    _add_variables(built)
    _add_layouts(built)
    _add_capacity(built)
    terms: list[cp_model.LinearExprT] = [
        problem.copy_weight * problem.tensors[tensor].layout_bytes(layout) // unit * variable
        for (tensor, layout), variable in built.copies.items()
    ]
    constant = offset
    for tensor, fixed in enumerate(structure.on_chip):
        gain = structure.gain[tensor] // unit
        stay = built.on_chip[tensor]
        if stay is not None:
            terms.append(-gain * stay)
        elif fixed:
            constant -= gain
    built.model.minimize(cp_model.LinearExpr.sum(terms) + constant)
    return built


def _add_variables(built: Model) -> None:
    """Add the variables of all decisions."""
    model, problem = built.model, built.problem
    one = model.new_constant(1)
    for number, operator in enumerate(problem.operators):
        if len(operator.options) == 1:
            built.options.append([one])
            continue
        variables = [model.new_bool_var(f"option {number} {option}") for option in range(len(operator.options))]
        model.add_exactly_one(variables)
        built.options.append(variables)
    for tensor, fixed in enumerate(built.structure.on_chip):
        built.on_chip.append(model.new_bool_var(f"on chip {tensor}") if fixed is None else None)
    for tensor in range(len(problem.tensors)):
        layouts = built.structure.writable[tensor]
        if problem.writers[tensor]:
            for layout in layouts:
                built.own[tensor, layout] = _options_that_write(built, problem.writers[tensor][0], tensor, layout)
        elif len(layouts) == 1:
            built.own[tensor, layouts[0]] = [one]
        else:
            variables = [model.new_bool_var(f"own {tensor} {layout}") for layout in layouts]
            model.add_exactly_one(variables)
            built.own.update({(tensor, layout): [variable] for layout, variable in zip(layouts, variables, strict=True)})


def _options_that_write(built: Model, number: int, tensor: int, layout: int) -> list[cp_model.IntVar]:
    """The variables of those options of operator ``number`` that write a tensor in a layout."""
    operator = built.problem.operators[number]
    at = operator.write_place(tensor)
    return [variable for option, variable in zip(operator.options, built.options[number], strict=True) if option[at] == layout]


def _add_layouts(built: Model) -> None:
    """Require that all writers of a tensor agree on its layout, and that a reader of a tensor on chip finds the layout that it
    needs: the tensor's own layout or a copy."""
    model, problem = built.model, built.problem
    for tensor, writers in enumerate(problem.writers):
        for number in writers[1:]:
            operator = problem.operators[number]
            at = operator.write_place(tensor)
            layouts = {option[at] for option in operator.options} | set(built.structure.writable[tensor])
            for layout in layouts:
                writing_options = _options_that_write(built, number, tensor, layout)
                model.add(sum(writing_options) == sum(built.own.get((tensor, layout), [])))
    for number, operator in enumerate(problem.operators):
        for at, tensor in enumerate(operator.reads):
            if built.structure.on_chip[tensor] is False:
                continue
            for layout in sorted({option[at] for option in operator.options}):
                needing_options = [
                    variable
                    for option, variable in zip(operator.options, built.options[number], strict=True)
                    if option[at] == layout
                ]
                available: list[cp_model.LinearExprT] = list(built.own.get((tensor, layout), []))
                if (tensor, layout) not in built.copies:
                    built.copies[tensor, layout] = model.new_bool_var(f"copy {tensor} {layout}")
                available.append(built.copies[tensor, layout])
                stay = built.on_chip[tensor]
                if stay is not None:
                    available.append(1 - stay)
                # At most one option is chosen. One constraint for all options that need this layout is therefore valid, and it
                # is tighter than a constraint for each option.
                model.add(cp_model.LinearExpr.sum(needing_options) <= cp_model.LinearExpr.sum(available))


def _add_capacity(built: Model) -> None:
    """Require that the tensors and copies of every set in :attr:`Structure.crowded` fit. A size is counted as a number of whole
    units and a rest (:attr:`Structure.unit`)."""
    problem, structure, unit = built.problem, built.structure, built.structure.unit
    layouts: dict[int, list[int]] = {}
    for tensor, layout in built.copies:
        layouts.setdefault(tensor, []).append(layout)
    full_units, spare = divmod(problem.capacity, unit)
    for number, tensors in enumerate(structure.crowded):
        items: list[tuple[cp_model.LinearExprT, int]] = []
        for tensor in tensors:
            stay = built.on_chip[tensor]
            items.append((1 if stay is None else stay, problem.tensors[tensor].bytes))
            items.extend(
                (built.copies[tensor, layout], problem.tensors[tensor].layout_bytes(layout))
                for layout in layouts.get(tensor, [])
            )
        large = [(item, size // unit) for item, size in items if size >= unit]
        if not large:
            built.model.add(cp_model.LinearExpr.sum([size * item for item, size in items]) <= problem.capacity)
            continue
        rounded = built.model.new_int_var(0, full_units, f"rounded {number}")
        built.rounded[number] = rounded
        built.model.add(cp_model.LinearExpr.sum([units * item for item, units in large]) + rounded <= full_units)
        rests = [size % unit * item for item, size in items if size % unit]
        built.model.add(cp_model.LinearExpr.sum(rests) <= unit * rounded + spare)


def solve(problem: Problem, **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve a problem with CP-SAT. Objective and bounds are weighted bytes (:mod:`stowplan.models.bank_mapping.structure`).

    Parameters
    ----------
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``.
    """
    built = build(problem)
    return cpsat_runner.find_plan(
        built,
        objective=lambda units: units * built.unit,
        least=objective_bound(problem),
        parameters={"linearization_level": 2},
        **search,
    )
