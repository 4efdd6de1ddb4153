"""What the commands do with modulo schedules: tables for the tiles, pictures, and runs in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stowplan.cli.output import note, say, say_json
from stowplan.errors import UsageError, VerificationError


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


def show_schedule(
    problem: Any, plan: Any, path: Path, *, png: Path | None, config: Path | None, simulate: int | None, as_json: bool
) -> None:
    """Print the tables of a plan, or draw, write or run them.

    Raises
    ------
    VerificationError
        The plan is not valid, or the simulator's numbers are not those of the graph.
    """
    from stowplan.hardware.se import compare, configure
    from stowplan.models.modulo_scheduling.verify import verify

    if simulate is not None and simulate < 1:
        raise UsageError(f"--simulate: found {simulate} iterations, expected 1 or more")
    found = verify(problem, plan)
    if not found.ok:
        first = found.violations[0]
        more = f" (and {len(found.violations) - 1} more)" if len(found.violations) > 1 else ""
        raise VerificationError(f"{path}: not a valid plan: {first.code}: {first.message}{more}")
    if png is not None:
        from stowplan.report.schedule_chart import save_schedule_picture

        save_schedule_picture(problem, plan, png)
        note(str(png))
    tables = configure(problem, plan)
    if config is not None:
        tables.save(config)
        note(str(config))
    if simulate is not None:
        run = compare(problem, plan, simulate)
        results = simulate * len(problem.instructions)
        say(f"simulated {simulate} iterations in {run.clocks} clocks: all {results} results are those of NumPy")
    if as_json:
        say_json(tables)
    elif png is None and config is None and simulate is None:
        from stowplan.report.schedule import summarize_schedule

        say(summarize_schedule(problem, plan))
