"""The command ``stowplan tflm``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from stowplan import files
from stowplan.cli import INTERRUPTED, event_on_interrupt
from stowplan.cli.options import Picture, Quiet, Report, option, with_options
from stowplan.cli.output import note, note_missing_code, say, say_json
from stowplan.cli.outputs import check_outputs, check_picture
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import Options
from stowplan.units import counted

if TYPE_CHECKING:
    from stowplan.backends.tflm.planning import Planned, Summary
    from stowplan.backends.tflm.runtime import Run
    from stowplan.certificates.certificate import Certificate

#: Endings of the names of output files.
_ENDINGS = (".tflite", ".c", ".cc", ".h", ".json")


@with_options(inputs=("keep", "replace_offline_plan"), search=("deterministic", "seed", "workers"))
def tflm_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="TensorFlow Lite model (.tflite).")],
    options: ReadOptions,
    output: Annotated[
        list[Path] | None,
        option(
            "-o --output",
            "FILE",
            "Write the planned model to this file. The ending of its name chooses the format: the model with the plan in "
            "it, as a TensorFlow Lite model (.tflite) or as an array in C (.c) or C++ (.cc); the header that declares this "
            "array (.h); or only the plan and a summary (.json). May be given several times.",
        ),
    ] = None,
    scratch: Annotated[
        list[str] | None,
        option(
            "--scratch",
            "FILE|OPERATOR=BYTES",
            "Sizes of the scratch buffers that the kernels on your device use. FILE is a JSON file (docs/guide/tflm.md), or "
            "the log of a firmware that was built with TF_LITE_SHOW_MEMORY_USE. OPERATOR=BYTES states the size for a single "
            "operator. Operators are counted from 0: 2=2048 says that the third one needs 2048 bytes. May be given several "
            "times. By default, the sizes are measured on this machine; if the runtime is not installed, the sizes of the "
            "reference kernels are used.",
        ),
    ] = None,
    kernels: Annotated[
        Literal["none", "reference", "cmsis-nn"],
        option(
            "--kernels",
            "SET",
            "The kernels in your firmware: reference, cmsis-nn, or none if it has other kernels or if you do not know. "
            "With reference and cmsis-nn, the output of an operator may overwrite an input that is no longer needed, where "
            "the kernels allow this. If the firmware has other kernels than those that you name, its outputs may be wrong "
            "without an error message.",
        ),
    ] = "none",
    keep_order: Annotated[
        bool, option("--keep-order", "", "Keep the order that the operators have in the file, and plan only the offsets.")
    ] = False,
    no_run: Annotated[
        bool, option("--no-run", "", "Do not run the model, even if the runtime (the Python extra 'tflm') is installed.")
    ] = False,
    inputs: Annotated[
        Path | None,
        option(
            "--inputs",
            "FILE.npz",
            "Run the model on the arrays in this NumPy file. An array has the name of the input that it is for, or a colon "
            "and the number of the input, counted from 0 (:2 is the third input). Inputs without an array get random "
            "values.",
        ),
    ] = None,
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            "SECONDS",
            "Time limit of each search. The command first searches for an order of the operators. Then it searches for the "
            "offsets of the tensors, once for each order that may be the best one, so that it may take several times as "
            "long as this limit.",
        ),
    ] = 10.0,
    certificate: Annotated[
        Path | None,
        option(
            "--certificate",
            "FILE",
            "Write a proof of a lower bound on the size of the head to this file. The proof shows that every choice of "
            "offsets needs at least that many bytes if the operators run in the order of the plan. The problem and the "
            "plan are written beside it (.problem.json and .plan.json); 'stowplan verify PROBLEM PLAN --bound FILE' checks "
            "the proof.",
        ),
    ] = None,
    report: Report = None,
    png: Picture = None,
    as_json: Annotated[bool, option("--json", "", "Print the result as JSON instead of a summary.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
) -> None:
    """Plan the arena of a TensorFlow Lite Micro model.

    The runtime keeps all data that it writes in a single array, the arena. The head of the arena is the part for activations
    and scratch buffers. The command finds an order of the operators and offsets of the tensors with which the head is as small
    as possible. The planned head is never larger than the one that the runtime's own planner makes, unless --keep preserves an
    input.

    If the Python extra 'tflm' is installed, the command also runs the model with and without the plan. This measures the whole
    arena and shows whether the outputs are the same; if they differ, the exit code is 4.
    """
    written = output or []
    for path in written:
        if path.suffix not in _ENDINGS:
            raise UsageError(f"-o: found {path.name!r}, expected a name that ends in {', '.join(_ENDINGS)}")
    proofs = () if certificate is None else tuple(certificate.with_suffix(end) for end in (".problem.json", ".plan.json"))
    check_outputs((*written, certificate, *proofs, report, png), inputs=(model, inputs))
    from stowplan.backends.tflm.planning import plan_and_run
    from stowplan.log import collecting_unmodelled, unmodelled_lines
    from stowplan.models.packing.problem import Problem

    check_picture(Problem(name=model.stem, buffers=()), png)
    note_missing_code(quiet, "packing", "operator_order")
    with collecting_unmodelled() as unmodelled, event_on_interrupt() as cancel:
        planned, run, why = plan_and_run(
            model,
            scratch=scratch or (),
            replace_offline_plan=options.replace_offline_plan,
            reorder=not keep_order,
            kernels=kernels,
            keep=options.keep,
            options=msgspec.structs.replace(search, time_limit=time_limit),
            cancel=cancel,
            run=not no_run,
            inputs=inputs,
            on_progress=(lambda text: None) if quiet else note,
        )
    for path in written:
        files.write_atomic(path, _content(path, planned, run))
    lines = _lines(planned.summary, run, why)
    if certificate is not None:
        shown = _certify(planned, time_limit, cancel.is_set)
        for path, document in zip((certificate, *proofs), (shown, planned.problem, planned.plan), strict=True):
            document.save(path)
        lines.append(f"  proof      {shown.form}: no offsets take less than {shown.bound:,} bytes in this order")
    warnings = unmodelled_lines(unmodelled)
    if as_json:
        say_json(_as_json(planned, run) | {"warnings": warnings, "not_run": why})
    else:
        say("\n".join((*lines, *(f"  warning    {line}" for line in warnings))))
    if png is not None or report is not None:
        _draw(planned, png, report)
    if cancel.is_set():
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(4 if run is not None and run.differs is not None else 0)


def _as_json(planned: Planned, run: Run | None) -> dict[str, object]:
    """The result as ``--json`` prints it."""
    summary = planned.summary
    return {
        **msgspec.to_builtins(summary, str_keys=True),
        "proven": summary.is_proven,
        "runtime": None if run is None else msgspec.to_builtins(run),
    }


def _certify(planned: Planned, seconds: float, should_stop: Callable[[], bool]) -> Certificate:
    """A certificate that the plan's offsets are the best for the plan's order of operators. If this cannot be proven, it is a
    certificate of the best bound that can be proven."""
    from stowplan.certificates.maker import certify

    return certify(planned.problem, bound=planned.plan.objective, plan=planned.plan, seconds=seconds, should_stop=should_stop)


def _content(path: Path, planned: Planned, run: Run | None) -> bytes:
    """The content of an output file. The ending of its name says which format it has."""
    from stowplan.backends.tflm.write import header_text, source_text

    if path.suffix == ".tflite":
        return planned.data
    if path.suffix == ".json":
        return files.encode(_as_json(planned, run))
    if path.suffix in (".c", ".cc"):
        return source_text(path.stem, planned.data, path.suffix == ".c")
    tail = None if run is None else run.arena - planned.summary.head
    return header_text(path.stem, planned.data, planned.summary.model, planned.summary.head, tail)


def _lines(summary: Summary, run: Run | None, why: str) -> list[str]:
    """The summary as lines of text. ``run`` is the run of the model with the plan, or None; ``why`` then says why there was
    none."""
    gain = summary.greedy - summary.head
    what = "no order and no offsets take less" if summary.any_order else "no offsets take less in this order"
    shares = (
        "live tensors share no bytes" if summary.kernels == "none" else f"bytes are shared as {summary.kernels} kernels allow"
    )
    proof = f"proven: {what} where {shares}" if summary.is_proven else "proven; whether a plan takes as little is not known"
    lines = [
        f"tflm {summary.model}: {counted(summary.operators, 'operator')}, {counted(summary.tensors, 'tensor')}, "
        f"{counted(summary.subgraphs, 'subgraph')}",
        f"  head       {summary.head:,} bytes, {_difference(gain, summary.greedy)} of the runtime's own planner",
        f"  bound      {summary.bound:,} bytes ({proof})",
        f"  remains    {summary.head - summary.bound:,} bytes above the bound",
        f"  order      {counted(summary.moved, 'operator') + ' moved' if summary.moved else 'as in the file'}",
    ]
    if summary.kept:
        lines.append(f"  kept       {summary.kept:,} bytes of inputs that survive the run; the runtime's own keeps none")
    if summary.kernels != "none":
        modelled = f"{summary.operators - summary.unmodelled} of {summary.operators} operators are modelled"
        lines.append(f"  shared     {summary.shared:,} bytes of operands ({summary.kernels} kernels; {modelled})")
    if summary.scratch:
        peak = max(sum(sizes) for sizes in summary.scratch.values())
        lines.append(
            f"  scratch    {peak:,} bytes at most, for {counted(len(summary.scratch), 'operator')} ({summary.scratch_from})"
        )
    if run is None:
        return [*lines, f"  run        nothing was run: {why}"]
    # Sizes of scratch buffers that the user gave are only in the plan. Without a plan, the runtime's own planner uses the sizes
    # that the kernels on this machine ask for.
    other = (
        f"without the plan {run.greedy_arena:,} with the scratch memory of this machine's kernels"
        if summary.scratch_from == "given"
        else f"{_difference(run.greedy_arena - run.arena, run.greedy_arena)} without the plan"
    )
    lines += [
        f"  tail       {run.tail:,} bytes here; pointers of a 32-bit device are smaller",
        f"  arena      {run.arena:,} bytes at least, {other}",
    ]
    early = f"the runtime ended {counted(run.ended_early, 'inference')} early{f' ({run.message})' if run.message else ''}"
    if run.is_undefined:
        what = "they change when no tensors of the model share bytes, so it reads bytes that no operator writes"
        return [*lines, f"  outputs    NOT compared: {what}"]
    if run.differs is None and not run.compared:
        return [*lines, f"  outputs    NOT compared: {early}, all that were run; --inputs FILE.npz gives other inputs"]
    if run.differs is None:
        tried = f"inferences: {run.compared}, seeds: {run.seeds}, {run.version}"
        lines.append(f"  outputs    equal bit by bit ({tried})")
        return [*lines, f"  ended      {early}; their outputs are not compared"] if run.ended_early else lines
    return [*lines, "  outputs    NOT equal: seed {}, inference {}; do not use the plan".format(*run.differs)]


def _difference(gain: int, before: int) -> str:
    """Text that compares a size with the size ``before`` it, given how many bytes smaller it is."""
    return f"{abs(gain):,} {'less' if gain > 0 else 'more'} than the {before:,}" if gain else f"as the {before:,}"


def _draw(planned: Planned, png: Path | None, report: Path | None) -> None:
    """Draws the arena beside the one that the runtime's own planner makes."""
    comparison = [] if planned.runtime is None else [("runtime", planned.runtime)]
    if png is not None:
        from stowplan.report.presenter import draw

        draw(planned.problem, [("plan", planned.plan), *comparison], png)
    if report is not None:
        from stowplan.kernel.solve import solve
        from stowplan.report.html import write_report

        # The plan exists already. This run only makes a result that the report can show.
        result = solve(planned.problem, time_limit=0.1, candidates="search", plans={"plan": planned.plan})
        write_report(planned.problem, result, report, compare=comparison[0] if comparison else None)
