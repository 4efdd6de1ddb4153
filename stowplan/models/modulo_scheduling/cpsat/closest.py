"""The schedule of one initiation interval that changes the fewest decisions of an earlier one, as a CP-SAT model.

It is the whole model (:class:`~stowplan.models.modulo_scheduling.cpsat.model.ModuloModel`) without its breaking of symmetry,
which would forbid the earlier tiles. A Boolean variable for each instruction is 1 only where it keeps tile and time, one for
each value only where both its ends do: then it goes and waits as it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Limits
from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel, size
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.structure import Structure

#: Models with more literals than this are not built.
MOST_LITERALS = 100_000


def literals(structure: Structure, ii: int) -> int:
    """Number of literals of the model, roughly."""
    return size(structure, ii, links=structure.problem.rules.pass_through)


def solve_closest(
    structure: Structure, earlier: Sequence[tuple[int, int] | None], start: Plan, makespan: int, **limits: Unpack[Limits]
) -> Plan | None:
    """The closest plan of the II of ``start``.

    Parameters
    ----------
    earlier
        Earlier tile and time of each instruction; None for one that has none.
    start
        A valid plan.
    makespan
        Clocks that the plan may take at most, no fewer than ``start`` does.
    limits
        As :func:`stowplan.models.cpsat_runner.run` takes them.

    Returns
    -------
    Plan or None
        Unverified; None where the model is too large, or nothing was found.
    """
    problem = structure.problem
    links = problem.rules.pass_through
    if not structure.count or literals(structure, start.ii) > MOST_LITERALS:
        return None
    last_time = makespan - min(problem.latencies)
    built = ModuloModel(
        structure,
        start.ii,
        whole=True,
        last_time=last_time,
        links=links,
        makespan=(0, makespan),
        windows=[range(problem.machine.tiles)] * structure.count,
    )
    model = built.model
    built.add_hint(start)
    model.clear_objective()  # type: ignore[no-untyped-call]
    keeps = {}
    for number, place in enumerate(earlier):
        if place is None or place[0] >= problem.machine.tiles or not 0 <= place[1] <= last_time:
            continue
        keeps[number] = model.new_bool_var(f"keeps {number}")
        model.add_implication(keeps[number], built.tile(number)[place[0]])
        model.add(built.time[number] == place[1]).only_enforce_if(keeps[number])
    values = []
    for at, edge in enumerate(problem.edges):
        if edge.source in keeps and edge.target in keeps and edge.source != edge.target:
            both = model.new_bool_var(f"keeps value {at}")
            model.add_implication(both, keeps[edge.source])
            model.add_implication(both, keeps[edge.target])
            values.append(both)
    model.maximize(sum(keeps.values()) + sum(values))
    done = cpsat_runner.run(model, **limits)
    return built.extract(done.value) if done.is_found else None
