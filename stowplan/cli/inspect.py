"""Commands that inspect existing files and the package itself: ``verify``, ``show``, ``cache``, ``targets``, ``settings`` and
``show-versions``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from stowplan import files
from stowplan.cli.options import TARGET_OF_PLAN, ExistingCache, Input, Picture, PlanFile, option, setting, with_options
from stowplan.cli.output import note, open_with_notes, say, say_json
from stowplan.cli.outputs import Outputs, check_outputs, check_picture
from stowplan.cli.plan_files import format_of_command, in_order, refuse_options, rejection, show_llm, verify_llm, verify_tflm
from stowplan.errors import InputError, UsageError, VerificationError
from stowplan.file_uses import LLM_PLAN, TFLM_PLAN
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.targets.toml_files import template_kinds
from stowplan.result_text import format_gap
from stowplan.tables import aligned
from stowplan.units import BYTES, PS, Unit, counted
from stowplan.version import VERSION

if TYPE_CHECKING:
    from stowplan.certificates.checker import Verdict
    from stowplan.kernel.plan_cache import PlanCache
    from stowplan.report.presenter import Presenter


@with_options(texts=TARGET_OF_PLAN)
def verify_command(
    first: Input,
    second: PlanFile,
    emit: Annotated[
        list[str] | None,
        option(
            "--emit",
            "FORMAT=FILE",
            "Write the plan in a format for other programs, if it is valid. 'stowplan solve --help' lists the formats. May "
            "be given several times.",
        ),
    ] = None,
    bound: Annotated[
        Path | None,
        option("--bound", "PROOF", "Also check the proof of a bound in this file, which 'stowplan solve --certificate' wrote."),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the result of the check as JSON.")] = False,
    *,
    options: ReadOptions,
) -> None:
    """Check a plan against its problem, without any solver.

    The command reads INPUT with the same options as 'stowplan solve'. If the plan is valid, it prints the objective of the
    plan, which is the number that 'stowplan solve' minimizes. Otherwise, it prints every rule that the plan breaks. The exit
    code is 4 if the plan is not valid, or if the proof that --bound names fails.

    PLAN may also be a file that 'stowplan tflm -o FILE.json' or 'stowplan llm -o FILE.json' wrote; INPUT is then the model. The
    two files may be given in either order, because a plan file states that it is one.
    """
    problem, plan = in_order(first, second)
    outputs = Outputs.of(None, emit)
    outputs.check(inputs=(problem, plan, *options.files))
    command_format = format_of_command(plan)
    if command_format is not None:
        refuse_options(plan, command_format, {"--bound": bound is not None, "--emit": bool(emit)})
        (verify_tflm if command_format == TFLM_PLAN else verify_llm)(problem, plan, as_json)
        return
    loaded, loaded_plan, assumed = open_both(problem, plan, options)
    outputs.check_problem(loaded, problem)
    from stowplan.kernel.kind import check as check_plan
    from stowplan.kernel.kind import kind_of

    kind = kind_of(loaded)
    unit = kind.unit_for(loaded)
    check = check_plan(kind, loaded, loaded_plan)
    proven, failure = (None, "") if bound is None else _check_bound(bound, loaded, check.objective if check.ok else None)
    if as_json:
        values = {"ok": check.ok and not failure, "objective": check.objective, "violations": check.lines}
        bound_values = {} if proven is None else {"bound": proven.bound, "proof": proven.form}
        say_json(values | bound_values | ({"bound_failure": failure} if failure else {}))
    elif check.ok and check.objective is not None:
        exact = f" ({check.objective} {unit.name})" if unit == PS else ""
        say(f"valid: {unit.write(check.objective)}{exact}{_of_capacity(kind.unit, loaded)}")
    elif check.lines:
        say("\n".join(check.lines))
    if not check.ok:
        raise rejection(plan, check.lines, target_hint(assumed) if loaded_plan.problem != loaded.digest else "")
    if failure:
        raise VerificationError(f"{bound}: the bound is not proven: {failure}")
    if proven is not None and proven.bound is not None and check.objective is not None and not as_json:
        gap = (check.objective - proven.bound) / check.objective if check.objective else 0.0
        exact = f" ({proven.bound} {unit.name})" if unit == PS else ""
        shown = f"{unit.write(proven.bound)}{exact}, by {proven.form}"
        say(f"proven bound: {shown}" + (f": within {format_gap(gap)} of the optimum" if unit.has_ratios else ""))
    outputs.write(loaded, loaded_plan, None, problem)


def _of_capacity(unit: Unit, problem: Any) -> str:
    """The end of the line about a valid plan, which names the capacity that the plan stays within. It is empty for kinds of
    problems that have no capacity."""
    if unit != BYTES or not hasattr(problem, "capacity"):
        return ""
    none = "; there was no capacity to compare it with (--capacity SIZE gives one)"
    return none if problem.capacity is None else f", within the capacity of {BYTES.write(problem.capacity)}"


def _check_bound(path: Path, problem: Any, objective: int | None) -> tuple[Verdict | None, str]:
    """Checks the certificate of a bound; returns (verdict, "") if its proof holds, and otherwise (None, the reason why it
    fails).

    ``objective`` is the objective of a valid plan, if there is one. Raises InputError if the file is not a certificate.
    """
    from stowplan.certificates.checker import check
    from stowplan.certificates.checker.reading import MalformedError, UnprovenError

    data = files.read_bytes(path)
    try:
        verdict = check(files.encode(problem), data)
    except UnprovenError as error:
        return None, str(error)
    except MalformedError as error:
        raise InputError(str(error), source=path) from None
    if objective is not None and (verdict.bound is None or verdict.bound > objective):
        # A valid plan below a proven bound means that the verifier or the checker is wrong.
        return None, f"it proves that no plan is as good as this one, of {objective}"
    return verdict, ""


@with_options(texts=TARGET_OF_PLAN)
def show_command(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help="File for which the plan was made, in one of the formats that 'stowplan solve' reads."
        ),
    ],
    second: PlanFile,
    compare: Annotated[
        Path | None, option("--compare", "PLAN", "Second plan for the same INPUT, which is shown beside the first one.")
    ] = None,
    png: Picture = None,
    seconds: Annotated[
        bool, setting("", "For compiled programs: draw the time axis in seconds instead of instructions (steps).")
    ] = False,
    everything: Annotated[
        bool, option("--all", "", "Print all rows of a table. By default, the first 40 are printed.")
    ] = False,
    iterations: Annotated[
        int | None,
        option(
            "--simulate",
            "N",
            "For data-flow graphs of loops: simulate N iterations of the loop with this plan, clock by clock, and compare "
            "the computed values with those that NumPy computes.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        option(
            "--json",
            "",
            "For data-flow graphs of loops: print the configuration of the processing elements (tiles) as JSON instead of "
            "the table.",
        ),
    ] = False,
    *,
    options: ReadOptions,
) -> None:
    """Print a plan as a table, or draw it.

    The command reads INPUT with the same options as 'stowplan solve'. It prints a table unless --png, --json or --simulate is
    given. PLAN may also be a file that 'stowplan llm -o FILE.json' wrote; INPUT is then the model. The two files may be given
    in either order, because a plan file states that it is one.
    """
    problem, plan = in_order(first, second)
    if format_of_command(plan) == LLM_PLAN:
        given = {"--compare": compare is not None, "--png": png is not None, "--simulate": iterations is not None}
        refuse_options(plan, LLM_PLAN, given | {"--json": as_json})
        show_llm(problem, plan)
        return
    check_outputs((png,), inputs=(plan, problem, compare, *options.files))
    loaded, loaded_plan, assumed = open_both(problem, plan, options)
    from stowplan.frontends.read import read_plan
    from stowplan.report.presenter import draw, presenter_for

    presenter = presenter_for(loaded)
    for flag, is_given in (("--simulate", iterations is not None), ("--json", as_json)):
        if is_given:
            presenter.check_configurable(flag)
    if iterations is not None and iterations < 1:
        raise UsageError(f"--simulate: found {iterations} iterations, expected 1 or more")
    check_picture(loaded, png)
    presenter.check_options(plans=1 if compare is None else 2, seconds=seconds)
    others = presenter.references(loaded) if compare is None else [(compare.stem, read_plan(compare, loaded))]
    for path, contents in ((plan, loaded_plan), *([(compare, others[0][1])] if compare is not None else [])):
        _check_fits(presenter, loaded, path, contents, assumed)
    if png is not None:
        draw(loaded, [("this plan" if compare is None else plan.stem, loaded_plan), *others], png, seconds=seconds)
        note(str(png))
    if iterations is not None:
        say(presenter.simulate(loaded, loaded_plan, iterations))
    if as_json:
        say_json(presenter.configuration(loaded, loaded_plan))
    if iterations is None and not as_json and png is None:
        say(presenter.summarize(loaded, loaded_plan, others=others, everything=everything))


def _check_fits(presenter: Presenter, problem: Any, path: Path, plan: Any, assumed: str | None) -> None:
    """Raises an error if a plan cannot be shown for a problem. The error names the file of the plan and, because it may be the
    reason, the target that was assumed."""
    from stowplan.kernel.kind import describe_plan, kind_of

    kind = kind_of(problem)
    if not isinstance(plan, kind.plan):
        raise InputError(f"found {describe_plan(plan)}, expected a plan of {kind.name}", source=path)
    hint = target_hint(assumed) if plan.problem != problem.digest else ""
    try:
        presenter.check_fits(problem, plan)
    except InputError as error:
        raise InputError(f"{error.message}{hint}", source=path, place=error.place) from None
    except VerificationError as error:
        raise VerificationError(f"{path}: {error}{hint}") from None


def open_both(problem: Path, plan: Path, options: ReadOptions) -> tuple[Any, Any, str | None]:
    """Reads a problem and a plan; returns them, and the name of the target if it was derived from the plan.

    If the input needs a target and the options name none, the target that the plan names is used. A plan of a kind without
    targets, such as the offsets of an ONNX model, names none; then the input is read for its only target of this kind.

    Raises
    ------
    InputError
        A file cannot be read or is not valid.
    UsageError
        The plan names a target that does not come with the package, so it was made with a target file of the user; or an option
        does not apply to the input; or a target is needed, and neither the options nor the plan name one.
    """
    from stowplan.frontends.formats import check_regular, format_of, look
    from stowplan.frontends.read import only_target, read_plan

    check_regular(plan)
    # A plan that is not JSON can be read only together with its problem.
    loaded_plan = read_plan(plan) if files.is_json(plan) else None
    assumed: str | None = None
    if loaded_plan is not None and options.target is None and format_of(look(problem)).targets is not None:
        assumed = loaded_plan.target or only_target(problem, loaded_plan.format.split(".")[1])
        options = msgspec.structs.replace(options, target=assumed)
    if assumed is not None and not _is_shipped(assumed):
        raise UsageError(f"{plan}: was made for target {assumed!r}, which does not come with stowplan: pass --target FILE")
    opened = open_with_notes(problem, options)
    return opened, read_plan(plan, opened) if loaded_plan is None else loaded_plan, assumed


def _is_shipped(target: str) -> bool:
    """Whether a target of this name comes with the package."""
    from stowplan.frontends.formats import target_family

    try:
        target_family(target)
    except InputError:
        return False
    return True


def target_hint(assumed: str | None) -> str:
    """A hint for the error that a plan belongs to another problem. It is empty if the target was not derived from the plan."""
    if assumed is None:
        return ""
    how = "pass --target FILE if that was a file of yours, and all options of the solve"
    return f"; the input was read for the plan's own target {assumed!r}: {how}"


def targets_command(
    template: Annotated[
        str | None,
        option(
            "--template",
            "KIND",
            f"Print a complete target file, from which you can make your own. KIND is one of {', '.join(template_kinds())}. "
            "The list that the command prints without this option says which inputs each of these kinds is for.",
        ),
    ] = None,
) -> None:
    """List the targets that come with the package.

    A target says what an input is planned for. It is either a chip, with its memories and speeds, or a question that needs no
    chip, such as 'order', the order of operators with the smallest memory peak. The list is grouped by the inputs that the
    targets are for. Options named --target take a name from this list, or the path of a target file.
    """
    if template is not None:
        from stowplan.hardware.targets.toml_files import template as template_of

        say(template_of(template).rstrip("\n"))
        return
    from stowplan.frontends.formats import formats

    families = [input_format.targets for input_format in reversed(formats()) if input_format.targets is not None]
    for number, family in enumerate(families):
        say(("\n" if number else "") + f"for {family.inputs} ({family.kind})")
        rows = family.rows()
        name, size = (max(map(len, column)) for column in list(zip(*rows, strict=True))[:2])
        for row in rows:
            say(f"  {row.name:<{max(name, 12)}}  {row.size:<{size}}  {row.description}".rstrip())


def _open_cache(folder: Path | None) -> PlanCache:
    """Opens the plan cache in a folder. Raises UsageError if no folder is named, and InputError if it is no folder."""
    from stowplan.kernel.plan_cache import PlanCache

    if folder is None:
        raise UsageError("found no cache, expected --cache DIR, or a folder in STOWPLAN_CACHE")
    try:
        is_no_folder = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=folder) from error
    if is_no_folder:
        raise InputError("found a file, expected the folder of a plan cache", source=folder)
    return PlanCache(folder)


def cache_info_command(
    folder: ExistingCache = None,
    as_json: Annotated[bool, option("--json", "", "Print these numbers as JSON.")] = False,
) -> None:
    """Print how many results a plan cache has, and how many bytes."""
    info = _open_cache(folder).info()
    if as_json:
        say_json(info._asdict())
    else:
        say(f"{info.folder}: {counted(info.entries, 'result')}, {BYTES.write(info.bytes)} ({info.file_bytes:,} on disk)")


def cache_clear_command(folder: ExistingCache = None) -> None:
    """Delete all results of a plan cache."""
    say(f"{folder}: threw away {counted(_open_cache(folder).clear(), 'result')}")


class Setting(NamedTuple):
    """One row of the list of settings."""

    heading: str
    """What the setting applies to: inputs, the search, or a single command."""
    usage: str
    """The name and a placeholder of the value: ``NAME=VALUE``."""
    text: str
    """Its description."""


def settings() -> Iterator[Setting]:
    """All settings of all commands. A setting that several commands share is listed once."""
    from stowplan.cli.app import commands
    from stowplan.frontends.dfg import RULES, describe_rule

    seen = set()
    for command, function in commands().items():
        for name, declared in getattr(function, "settings", {}).items():
            heading = declared.heading or f"stowplan {command}"
            if (heading, name) in seen:
                continue
            seen.add((heading, name))
            if name == "rules":
                yield from (Setting(heading, f"{rule}=VALUE", describe_rule(rule)) for rule in RULES)
            else:
                yield Setting(heading, declared.usage, declared.help)


def settings_command() -> None:
    """List the advanced options that --set NAME=VALUE sets.

    For example, 'stowplan solve module.hlo.txt --target tpu-v4 --set stalls=forbidden' sets the option stalls. Each heading of
    the list says which inputs or which command the options below it apply to.
    """
    rows = list(settings())
    for number, heading in enumerate(dict.fromkeys(row.heading for row in rows)):
        lines = aligned([(f"  {row.usage}", row.text) for row in rows if row.heading == heading], ("", ""))
        say(("\n" if number else "") + "\n".join([f"{heading}:", *lines]))


#: Packages on which plans can depend, and packages that the extras install.
PACKAGES = (
    *("numpy", "scipy", "ortools", "highspy", "pulp", "numba", "joblib", "msgspec", "typer", "rich"),
    *("torch", "torch-geometric", "gymnasium", "sb3-contrib", "onnx", "executorch", "tflite-micro", "jax", "jaxlib", "libtpu"),
    *("scikit-learn", "distributed", "islpy", "matplotlib", "lightning", "transformers", "accelerate"),
)


def show_versions_command(as_json: Annotated[bool, option("--json", "", "Print the list as JSON.")] = False) -> None:
    """Print the versions of packages and facts about the machine.

    A bug report should contain this list. It has the versions of stowplan, of Python and of the packages that stowplan can use;
    the platform and the number of processor cores; and whether the heuristics are compiled to machine code.
    """
    details = versions()
    say_json(details) if as_json else say("\n".join(aligned([(name, str(value)) for name, value in details.items()], ("", ""))))


def versions() -> dict[str, str | int]:
    """Versions and facts about the machine, by name. Packages are not imported, because their metadata states their
    versions."""
    from stowplan.compiled.library import trouble

    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "stowplan": VERSION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "processor cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "heuristics": trouble() or "compiled",
        "executable": sys.executable,
        **{name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    """The version of an installed package, from its metadata."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
