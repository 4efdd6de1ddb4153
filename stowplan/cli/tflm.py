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
from stowplan.cli.output import note, say, say_json
from stowplan.cli.outputs import check_outputs, check_picture
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import Options

if TYPE_CHECKING:
    from stowplan.backends.tflm.planning import Planned, Summary
    from stowplan.backends.tflm.runtime import Run
    from stowplan.certificates.certificate import Certificate

#: Extensions of output files.
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
            "Write the model with its plan as .tflite or as an array in C (.c) or C++ (.cc), the header for this array (.h), "
            "or the plan and the summary alone (.json). The ending of the name says which. May be given several times.",
        ),
    ] = None,
    scratch: Annotated[
        list[str] | None,
        option(
            "--scratch",
            "FILE|OPERATOR=BYTES",
            "Sizes of the scratch buffers that the device's kernels use: a JSON file (docs/guide/tflm.md), the log of a "
            "firmware that was built with TF_LITE_SHOW_MEMORY_USE, or the bytes of one operator, given by its number, "
            "counted from 0 (2=2048). May be given several times. By default they are measured on this machine or, if the "
            "runtime is not installed, those of the reference kernels.",
        ),
    ] = None,
    kernels: Annotated[
        Literal["none", "reference", "cmsis-nn"],
        option(
            "--kernels",
            "SET",
            "The kernels of your firmware: reference or cmsis-nn; none if it has others, or if you do not know. With reference "
            "and cmsis-nn, the output of an operator may overwrite an input that is no longer needed, where these kernels "
            "allow it. If you name kernels that the firmware does not have, its outputs may be wrong without an error.",
        ),
    ] = "none",
    keep_order: Annotated[bool, option("--keep-order", "", "Keep the order of the operators in the file.")] = False,
    no_run: Annotated[bool, option("--no-run", "", "Do not run the model, even if the runtime is installed.")] = False,
    inputs: Annotated[
        Path | None,
        option(
            "--inputs",
            "FILE.npz",
            "Run the model on the arrays in this NumPy file. Each array has the name of an input, or its number, counted "
            "from 0 (:2 for the third). Inputs without an array are random.",
        ),
    ] = None,
    time_limit: Annotated[
        float,
        option("--time-limit", "SECONDS", "Time limit for finding the order; finding the offsets has the same limit again."),
    ] = 10.0,
    certificate: Annotated[
        Path | None,
        option(
            "--certificate",
            "FILE",
            "Write a proof of a lower bound: with the operators in the order of the plan, no offsets need fewer bytes. "
            "'stowplan verify --bound' checks it with the problem and the plan, which are written beside it (.problem.json "
            "and .plan.json).",
        ),
    ] = None,
    report: Report = None,
    png: Picture = None,
    as_json: Annotated[bool, option("--json", "", "Print the result as JSON.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
) -> None:
    """Plan the arena of a TensorFlow Lite Micro model.

    The command finds an order of the operators and offsets of the tensors with which the head of the arena is as small as
    possible; the head is the part that has activations and scratch buffers. It is never larger than with the planner of the
    runtime, unless --keep preserves inputs. If the Python extra 'tflm' is installed, the model is also run with and without the
    plan, to measure the whole arena and to compare the outputs.
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
    """Result for ``--json``."""
    summary = planned.summary
    return {
        **msgspec.to_builtins(summary, str_keys=True),
        "proven": summary.is_proven,
        "runtime": None if run is None else msgspec.to_builtins(run),
    }


def _certify(planned: Planned, seconds: float, should_stop: Callable[[], bool]) -> Certificate:
    """A certificate that no offsets are better than the plan's in its order of operators, or of the best bound that can be
    proven."""
    from stowplan.certificates.maker import certify

    return certify(planned.problem, bound=planned.plan.objective, plan=planned.plan, seconds=seconds, should_stop=should_stop)


def _content(path: Path, planned: Planned, run: Run | None) -> bytes:
    """Content of an output file, chosen by its extension."""
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
    """The summary."""
    gain = summary.greedy - summary.head
    what = "no order and no offsets take less" if summary.any_order else "no offsets take less in this order"
    shares = (
        "live tensors share no bytes" if summary.kernels == "none" else f"bytes are shared as {summary.kernels} kernels allow"
    )
    proof = f"proven: {what} where {shares}" if summary.is_proven else "proven; whether a plan takes as little is not known"
    lines = [
        f"tflm {summary.model}: {summary.operators} operators, {summary.tensors} tensors, {summary.subgraphs} subgraphs",
        f"  head       {summary.head:,} bytes, {_difference(gain, summary.greedy)} of the runtime's own planner",
        f"  bound      {summary.bound:,} bytes ({proof})",
        f"  remains    {summary.head - summary.bound:,} bytes above the bound",
        f"  order      {f'{summary.moved} operators moved' if summary.moved else 'as in the file'}",
    ]
    if summary.kept:
        lines.append(f"  kept       {summary.kept:,} bytes of inputs that survive the run; the runtime's own keeps none")
    if summary.kernels != "none":
        modelled = f"{summary.operators - summary.unmodelled} of {summary.operators} operators are modelled"
        lines.append(f"  shared     {summary.shared:,} bytes of operands ({summary.kernels} kernels; {modelled})")
    if summary.scratch:
        peak = max(sum(sizes) for sizes in summary.scratch.values())
        lines.append(f"  scratch    {peak:,} bytes at most, for {len(summary.scratch)} operators ({summary.scratch_from})")
    if run is None:
        return [*lines, f"  run        nothing was run: {why}"]
    # Scratch sizes that the user gave are only in the plan. Without a plan, the runtime's own planner uses the sizes of this
    # machine's kernels.
    other = (
        f"without the plan {run.greedy_arena:,} with the scratch memory of this machine's kernels"
        if summary.scratch_from == "given"
        else f"{_difference(run.greedy_arena - run.arena, run.greedy_arena)} without the plan"
    )
    lines += [
        f"  tail       {run.tail:,} bytes here; pointers of a 32-bit device are smaller",
        f"  arena      {run.arena:,} bytes at least, {other}",
    ]
    early = f"the runtime ended {run.ended_early} inferences early{f' ({run.message})' if run.message else ''}"
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
    return f"{abs(gain):,} {'less' if gain > 0 else 'more'} than the {before:,}" if gain else f"as the {before:,}"


def _draw(planned: Planned, png: Path | None, report: Path | None) -> None:
    """Draws the arena next to that of the runtime's own planner."""
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
