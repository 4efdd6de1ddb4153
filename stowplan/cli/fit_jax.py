"""The command ``stowplan fit-jax``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from stowplan import cli, files
from stowplan.arguments import number
from stowplan.cli import INTERRUPTED, event_on_interrupt
from stowplan.cli.options import Arguments, CompileFolder, CompileLimit, Donated, OpenTimeLimit, Quiet, Shapes, option
from stowplan.cli.output import LinePrinter, note, say, say_json
from stowplan.cli.outputs import check_folder, check_outputs
from stowplan.deadline import limit_after, read_within
from stowplan.errors import TimeLimitError, UsageError

if TYPE_CHECKING:
    from stowplan.backends.jax import FitReport
    from stowplan.report.scene import Picture

#: First size that is tried when the largest one is searched.
_FIRST_SIZE = 8


def fit_jax_command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="JAX function, without jax.jit: a loss, or a training step whose loss has the decorator "
            "stowplan.backends.jax.marked. The module may be in the current folder. Or a call such as "
            "'module:make(4,64)': make gets '4' and '64' as strings, and returns the JAX function, its arguments, and "
            "the positions of donated arguments.",
        ),
    ],
    hbm: Annotated[str, option("--hbm", "BYTES", "Memory limit of one device, for example 14GiB.")],
    shapes: Shapes = None,
    arguments: Arguments = "",
    donate: Donated = None,
    largest: Annotated[
        str,
        option(
            "--largest",
            "NAME[:N]",
            "Find the largest size, such as a batch size, with which the step fits into --hbm. Write NAME in place of the "
            "size in --shapes, as in 's32[batch,512]', or in the call, as in 'module:make(batch)'. The size is a multiple of "
            "N, by default 1.",
        ),
    ] = "",
    own_names: Annotated[
        bool,
        option(
            "--own-names", "", "Save only values that the program names with checkpoint_name of JAX; by default, any values."
        ),
    ] = False,
    check: Annotated[
        bool,
        option(
            "--check",
            "",
            "Compare the gradients with and without the policy, on this machine's CPU and with arrays of full size.",
        ),
    ] = False,
    target: Annotated[
        str, option("--target", "NAME", "TPU to compile for, one of those that 'stowplan targets' lists.")
    ] = "tpu-v5e",
    previews: Annotated[int, option("--previews", "N", "Maximum number of previews.")] = 6,
    compiles: Annotated[
        int,
        option(
            "--compiles",
            "N",
            "Maximum number of full compilations. They compare policies by the cycles that XLA estimates. With 0, policies are "
            "compared by the time that recomputation takes according to a roofline model.",
        ),
    ] = 6,
    time_limit: OpenTimeLimit = None,
    compile_limit: CompileLimit = 900.0,
    folder: CompileFolder = None,
    output: Annotated[
        list[Path] | None,
        option(
            "-o --output",
            "FILE",
            "Write the report to a file whose name ends in .json, or the policy, as Python code, to any other file. May be "
            "given several times.",
        ),
    ] = None,
    png: Annotated[
        Path | None,
        option(
            "--png",
            "FILE",
            "Draw the peak memory of each policy and the time and FLOPs of its recomputation to this file: .svg, or .png or "
            ".pdf, which need the Python extra 'viz'.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the report as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Fit a JAX training step into a given amount of TPU memory.

    The command finds a policy for jax.checkpoint, which says which values are saved for the backward pass; the others are
    computed again. Each policy is tried in a preview, a compilation that stops once XLA has assigned memory and reports the
    peak. If the peak is above the limit, the next policy saves less. After Ctrl-C, the best policy so far is printed. The
    command needs jax and libtpu (the Python extra 'xla'), but no TPU.
    """
    check_outputs((*(output or ()), png))
    if folder is not None:
        check_folder(folder)
    if png is not None:
        from stowplan.report.figures import check_format

        check_format(png)
    name, multiple = _read_largest(largest, function, shapes or ())
    if time_limit is not None:
        number("--time-limit {}", time_limit, least=0, or_least=False)
    from stowplan.backends.fallback import require
    from stowplan.backends.jax import fit, fit_largest
    from stowplan.backends.xla.workload import PACKAGES

    require("fitting a program of jax", (*PACKAGES, "cloudpickle"), "xla")
    # The function is traced in this process, which must not use an accelerator.
    os.environ["JAX_PLATFORMS"] = "cpu"

    def load_function(size: int | None = None) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
        def sized(text: str) -> str:
            return text if size is None else re.sub(rf"\b{name}\b", str(size), text)

        place, call, texts = function.partition("(")
        return _loaded(place + call + sized(texts), [sized(text) for text in shapes or ()], arguments, donate or ())

    with event_on_interrupt() as cancel:
        try:
            with LinePrinter(quiet, every=0.0) as progress:
                if not name:
                    loaded, values, donated = read_within(time_limit, load_function, cli.began())
                options: dict[str, Any] = {
                    "previews": previews,
                    "compiles": compiles,
                    "folder": folder,
                    "time_limit": time_limit and limit_after(cli.began(), time_limit),
                    "compile_limit": compile_limit,
                    "own_names": own_names,
                    "check": check,
                    "on_progress": progress.show,
                    "cancel": cancel,
                }
                if name:
                    size, fit_result = fit_largest(load_function, hbm, target, start=_FIRST_SIZE, multiple=multiple, **options)
                else:
                    fit_result = fit(loaded, values, hbm, target, donated=donated, **options)
        except TimeLimitError:
            if cancel.is_set():
                raise typer.Exit(INTERRUPTED) from None
            raise
    report = fit_result.report
    for path in output or ():
        files.write_atomic(path, files.encode(report) if path.suffix == ".json" else f"{fit_result.policy}\n".encode())
    sizes = {name: size} if name else {}
    if as_json:
        say_json(msgspec.to_builtins(report) | {"text": fit_result.policy} | sizes)
    else:
        say("\n".join([*(f"{name} = {size} is the largest that fits" for name in sizes), report.summary(), fit_result.policy]))
    if png is not None:
        from stowplan.report.figures import save_picture

        save_picture(_picture(report), png)
        note(str(png))
    raise typer.Exit(INTERRUPTED if report.stop_reason == "cancelled" else 0)


def _read_largest(text: str, function: str, shapes: Sequence[str]) -> tuple[str, int]:
    """Name of the size to maximize, empty if there is none, and the number that it must be a multiple of."""
    if not text:
        return "", 1
    match = re.fullmatch(r"([A-Za-z_]\w*)(?::([1-9]\d{0,8}))?", text)
    if match is None:
        raise UsageError(f"--largest: found {text!r}, expected a name, or one with what it is a multiple of: batch:8")
    if not any(re.search(rf"\b{match[1]}\b", place) for place in (*shapes, function.partition("(")[2])):
        raise UsageError(
            f"--largest: found no {match[1]!r} in the shapes or the function's call, expected one, as in s32[{match[1]},512] "
            f"or module:make({match[1]})"
        )
    return match[1], int(match[2] or 1)


def _loaded(
    function: str, shapes: Sequence[str], arguments: str, donated: Sequence[int]
) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """Imports the function; returns it with its arguments and the positions of donated arguments."""
    import jax

    from stowplan.backends.xla import CompileError, by_name
    from stowplan.backends.xla.child import load
    from stowplan.backends.xla.workload import ArrayShape

    shape_texts = [shape for text in shapes for shape in re.split(r"(?<=\])[\s;,]*(?=\w)", text.strip())]
    workload = by_name(function, shape_texts, arguments=arguments, donated=donated)
    try:
        loaded, values, places, _ = load(workload, None, None)
    except (Exception, SystemExit) as error:
        raise CompileError(f"{workload.name}: cannot import the function: {type(error).__name__}: {error}") from error
    placed = (jax.ShapeDtypeStruct(value.dims, value.dtype) if isinstance(value, ArrayShape) else value for value in values)
    return loaded, tuple(placed), places


def _picture(report: FitReport) -> Picture:
    """Picture of the recomputed work over the peak: plans of the greedy method with estimated peaks, and policies with the
    compiler's peaks."""
    from stowplan.report.rematerialization import steps_plot
    from stowplan.report.scene import Picture

    compiled = [candidate for candidate in report.candidates if candidate.hbm_bytes]
    rows = []
    for column, (unit, scale) in enumerate((("ms by the roofline", 1e-3), ("TFLOP", 1e12)), 1):
        plans = {"plans, as expected": [(point[0], point[column] / scale) for point in report.frontier]}
        policies: dict[str, list[tuple[int, float]]] = {}
        for candidate in compiled:
            amount = (candidate.recomputed_seconds, candidate.recomputed_flops)[column - 1] / scale
            policies.setdefault(candidate.policy.kind, []).append((candidate.hbm_bytes, amount))
        rows.append(
            [steps_plot(f"What is made again over the peak, {unit}", ("peak", f"made again ({unit})"), plans, policies)]
        )
    return Picture(f"{report.name} on {report.target}", rows, 560)
