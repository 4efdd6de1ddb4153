"""Commands that look at things: ``verify``, ``convert``, ``show``, ``targets``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan.cli.builds import emissions
from stowplan.cli.common import Input, PlanFile, check_outputs, files_of, with_input_options
from stowplan.cli.opening import open_both, target_hint
from stowplan.cli.output import note, say, say_json
from stowplan.cli.pictures import check_picture
from stowplan.errors import InputError, UsageError, VerificationError
from stowplan.frontends.options import ReadOptions
from stowplan.result import format_quantity

if TYPE_CHECKING:
    from stowplan.report.presenter import Presenter


@with_input_options()
def verify_command(
    problem: Input,
    plan: PlanFile,
    emit: Annotated[
        list[str] | None,
        typer.Option(
            "--emit", metavar="FORMAT=FILE", help="Write the offsets of a valid plan as c-header, json, csv or tflite."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    *,
    options: ReadOptions,
) -> None:
    """Check a plan against its problem, without any solver.

    Lists every broken rule on standard output; the exit code is 4 where there is one.
    """
    wanted = emissions(None, emit)
    check_outputs(wanted.outputs, inputs=(problem, plan, *files_of(options)))
    found, given, assumed = open_both(problem, plan, options)
    wanted.check(found, problem)
    from stowplan.portfolio.kind import check as check_plan
    from stowplan.portfolio.kind import kind_of

    kind = kind_of(found)
    check = check_plan(kind, found, given)
    if as_json:
        say_json({"ok": check.ok, "objective": check.objective, "violations": check.violations})
    elif check.ok and check.objective is not None:
        exact = f" ({check.objective} {kind.unit})" if kind.unit == "ps" else ""
        say(f"valid: {format_quantity(check.objective, kind.unit)}{exact}")
    elif check.violations:
        say("\n".join(check.violations))
    if not check.ok:
        others = len(check.violations) - 1
        more = f" (and {others} more)" if others > 0 else ""
        hint = target_hint(assumed) if given.problem != found.digest else ""
        raise VerificationError(f"{plan}: not a valid plan: {''.join(check.violations[:1])}{more}{hint}")
    wanted.write(found, given, problem)


@with_input_options()
def convert_command(
    source: Input,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Write the problem here.")],
    *,
    options: ReadOptions,
) -> None:
    """Turn an input and a target into a problem file."""
    from stowplan.frontends.read import open_input
    from stowplan.portfolio.kind import kind_of

    check_outputs((output,), inputs=(source, *files_of(options)))
    problem = open_input(source, options).problem
    problem.save(output)
    kind = kind_of(problem)
    facts = kind.facts(problem, None)
    counts = ", ".join(f"{facts[name]} {name}" for name in kind.counts)
    note(f"{output}: {counts}")


@with_input_options()
def show_command(
    plan: PlanFile,
    problem: Annotated[Path, typer.Argument(metavar="INPUT", help="The compiled program or problem file it is for.")],
    compare: Annotated[Path | None, typer.Option("--compare", metavar="PLAN", help="A second plan to show beside it.")] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            "--png", metavar="FILE", help="Draw the plan here: .png, .svg or .pdf (.svg needs no extra, the others viz)."
        ),
    ] = None,
    seconds: Annotated[
        bool, typer.Option("--seconds", help="For compiled programs: draw time in seconds, not in steps.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="List everything, not the first 40 rows.")] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="For data-flow graphs: write the tables of all tiles here, as JSON."),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--simulate",
            metavar="N",
            help="For data-flow graphs: run N iterations on random numbers, clock by clock, and compare with NumPy.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For data-flow graphs: print the tables as JSON.")] = False,
    *,
    options: ReadOptions,
) -> None:
    """Print a plan for people to read, or draw it."""
    check_outputs((png, config), inputs=(plan, problem, compare, *files_of(options)))
    found, given, assumed = open_both(problem, plan, options)
    from stowplan.frontends.read import read_plan
    from stowplan.report.presenter import draw, presenter_for

    presenter = presenter_for(found)
    for option, is_given in (("--config", config is not None), ("--simulate", iterations is not None), ("--json", as_json)):
        if is_given:
            presenter.check_configurable(option)
    if iterations is not None and iterations < 1:
        raise UsageError(f"--simulate: found {iterations} iterations, expected 1 or more")
    check_picture(found, png)
    presenter.check_options(plans=1 if compare is None else 2, seconds=seconds)
    others = presenter.references(found) if compare is None else [(compare.stem, read_plan(compare, found))]
    for path, each in ((plan, given), *([(compare, others[0][1])] if compare is not None else [])):
        _check_fits(presenter, found, path, each, assumed)
    if png is not None:
        draw(found, [("this plan" if compare is None else plan.stem, given), *others], png, seconds=seconds)
        note(str(png))
    if config is not None:
        presenter.configuration(found, given).save(config)
        note(str(config))
    if iterations is not None:
        say(presenter.simulate(found, given, iterations))
    if as_json:
        say_json(presenter.configuration(found, given))
    if config is None and iterations is None and not as_json and png is None:
        say(presenter.summarize(found, given, others=others, everything=everything))


def _check_fits(presenter: Presenter, problem: Any, path: Path, plan: Any, assumed: str | None) -> None:
    """Raise where a plan cannot be shown for a problem: the error names the file, and a target not named that may be why."""
    from stowplan.portfolio.kind import describe_plan, kind_of

    kind = kind_of(problem)
    if not isinstance(plan, kind.plan_type):
        raise InputError(f"found {describe_plan(plan)}, expected a plan of {kind.name}", source=path)
    hint = target_hint(assumed) if plan.problem != problem.digest else ""
    try:
        presenter.check_fits(problem, plan)
    except InputError as error:
        raise InputError(f"{error.message}{hint}", source=path, place=error.place) from None
    except VerificationError as error:
        raise VerificationError(f"{path}: {error}{hint}") from None


def targets_command(
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="KIND",
            help="Print a target file to start your own from instead, every field with a comment: memory-mapping, "
            "tier-placement, bank-mapping or modulo-scheduling.",
        ),
    ] = None,
) -> None:
    """List the targets that come with the package."""
    if template is not None:
        from stowplan.hardware.targets.toml_files import template as template_of

        say(template_of(template).rstrip("\n"))
        return
    from stowplan.frontends.formats import formats

    families = [each.targets for each in reversed(formats()) if each.targets is not None]
    for number, family in enumerate(families):
        say(("\n" if number else "") + f"for {family.inputs} ({family.kind})")
        rows = family.rows()
        name, size = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:2])
        for row in rows:
            say(f"  {row.name:<{max(name, 12)}}  {row.size:<{size}}  {row.description}".rstrip())
