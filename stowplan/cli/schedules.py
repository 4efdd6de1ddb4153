"""What the commands do with the tables of modulo schedules: write them, and run them in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stowplan.cli.output import note, say, say_json
from stowplan.errors import UsageError


def is_schedule_problem(problem: Any) -> bool:
    """Whether it is a modulo scheduling problem."""
    from stowplan.models.modulo_scheduling.problem import Problem

    return isinstance(problem, Problem)


def check_config(problem: Any, config: Path | None) -> None:
    """Raise UsageError where tables are asked for that a problem of this kind has not."""
    if config is not None and not is_schedule_problem(problem):
        raise UsageError("--config: tables of tiles are for data-flow graphs on a machine with tiles")


def save_config(problem: Any, plan: Any, path: Path) -> None:
    """Write the tables of a valid plan."""
    from stowplan.hardware.se import configure

    configure(problem, plan).save(path)


def check_tables(problem: Any, config: Path | None, simulate: int | None, as_json: bool) -> None:
    """Raise UsageError where tables are asked for that a problem of this kind has not, or a run of no iterations."""
    check_config(problem, config)
    if (simulate is not None or as_json) and not is_schedule_problem(problem):
        raise UsageError(f"--{'json' if as_json else 'simulate'}: is for data-flow graphs on a machine with tiles")
    if simulate is not None and simulate < 1:
        raise UsageError(f"--simulate: found {simulate} iterations, expected 1 or more")


def show_tables(problem: Any, plan: Any, *, config: Path | None, simulate: int | None, as_json: bool) -> None:
    """Write, run or print the tables of a valid plan.

    Raises
    ------
    VerificationError
        The simulator's numbers are not those of the graph.
    """
    from stowplan.hardware.se import compare, configure

    if config is not None:
        save_config(problem, plan, config)
        note(str(config))
    if simulate is not None:
        run = compare(problem, plan, simulate)
        results = simulate * len(problem.instructions)
        say(f"simulated {simulate} iterations in {run.clocks} clocks: all {results} results are those of NumPy")
    if as_json:
        say_json(configure(problem, plan))
