"""Commands that look at things: ``verify``, ``convert``, ``show``, ``targets``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from stowplan import files
from stowplan.cli.common import Capacity, CostModel, Cycles, Input, StallMode, TargetOption
from stowplan.errors import InputError
from stowplan.result import format_ps

PlanFile = Annotated[Path, typer.Argument(help="Plan file, as 'stowplan solve -o' writes it.")]


def verify_command(
    problem: Input,
    plan: PlanFile,
    target: TargetOption = None,
    capacity: Capacity = None,
    cost_model: CostModel = None,
    stalls: StallMode = None,
    cycles: Cycles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check a plan against its problem without any solver; exit code 4 where it breaks a rule."""
    found, given = _open_both(problem, plan, target, capacity, cost_model, stalls, cycles)
    from stowplan.portfolio.registry import kind_of

    check = kind_of(found).verify(found, given)
    if as_json:
        typer.echo(json.dumps({"ok": check.ok, "objective": check.objective, "violations": list(check.violations)}, indent=1))
    elif check.ok and check.objective is not None:
        typer.echo(f"valid: {format_ps(check.objective)} ({check.objective} ps)")
    else:
        for line in check.violations:
            typer.echo(line, err=True)
        typer.echo(f"stowplan: {plan}: not a valid plan, {len(check.violations)} violations", err=True)
    if not check.ok:
        raise typer.Exit(4)


def convert_command(
    source: Input,
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the problem here.")],
    target: TargetOption = None,
    capacity: Capacity = None,
    cost_model: CostModel = None,
    stalls: StallMode = None,
    cycles: Cycles = None,
) -> None:
    """Turn a compiled program and a target into a problem file."""
    from stowplan.portfolio.read import read

    problem = read(source, target, capacity=capacity, cost_model=cost_model, stalls=stalls, cycles=cycles)
    problem.save(output)
    typer.echo(f"{output}: {problem.horizon} steps, {len(problem.tensors)} tensors, {problem.use_count} uses", err=True)


def show_command(
    plan: PlanFile,
    problem: Annotated[Path, typer.Argument(help="The compiled program or problem file that the plan is for.")],
    target: TargetOption = None,
    capacity: Capacity = None,
    cost_model: CostModel = None,
    stalls: StallMode = None,
    cycles: Cycles = None,
    compare: Annotated[Path | None, typer.Option("--compare", help="A second plan, drawn beside the first.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the memory layout here (needs the viz extra).")] = None,
    seconds: Annotated[bool, typer.Option("--seconds", help="Draw time in seconds, not in steps.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="List all residencies and copies, not the first 40.")] = False,
) -> None:
    """Print a plan for people to read, or draw its memory layout."""
    found, given = _open_both(problem, plan, target, capacity, cost_model, stalls, cycles)
    from stowplan.hardware.simulator import simulate
    from stowplan.report.scene import check_fits

    check_fits(found, given)
    if png is not None:
        from stowplan.report.layout import save_picture

        drawn = [(plan.stem, given)]
        if compare is not None:
            drawn.append((compare.stem, _load_plan(compare)))
        save_picture(found, drawn, png, time="seconds" if seconds else "steps")
        typer.echo(str(png), err=True)
        return
    from stowplan.report.text import summarize_plan

    typer.echo(summarize_plan(found, given, simulate(found, given), top=None if everything else 40))


def targets_command() -> None:
    """List the targets that come with the package."""
    from stowplan.hardware.targets import load_target, target_names

    for name in target_names():
        described = load_target(name)
        mebibytes = described.fast_memory.capacity / 2**20
        typer.echo(f"{name:<12} {mebibytes:6g} MiB fast memory  {described.description}")


def _load_plan(path: Path) -> Any:
    from stowplan.portfolio.registry import kinds

    data = files.read_bytes(path)
    found = files.peek_format(data)
    for kind in kinds():
        if found == kind.plan_format:
            return kind.decode_plan(data, path)
    raise InputError(f"found format {found!r}, expected a plan: {', '.join(kind.plan_format for kind in kinds())}", source=path)


def _open_both(
    problem: Path,
    plan: Path,
    target: str | None,
    capacity: int | None,
    cost_model: str | None,
    stalls: str | None,
    cycles: tuple[Path, Path] | None,
) -> tuple[Any, Any]:
    """Problem and plan; a compiled program is read for the plan's own target where none is named."""
    from stowplan.portfolio.read import read

    given = _load_plan(plan)
    if target is None and not files.is_json(problem):
        target = given.target or None
    return read(problem, target, capacity=capacity, cost_model=cost_model, stalls=stalls, cycles=cycles), given
