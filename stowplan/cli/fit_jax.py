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

#: The first size that is tried in the search for the largest one (``--largest``).
_FIRST_SIZE = 8


def fit_jax_command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="The JAX function itself, not the result of jax.jit: a loss, or a training step whose loss has the "
            "decorator stowplan.backends.jax.marked (docs/guide/fit-jax.md). The module may be in the current folder. You "
            "may also write a call such as 'module:make(4,64)': the function make gets the strings '4' and '64', and "
            "returns the JAX function, a tuple of its arguments, and the positions of its donated arguments.",
        ),
    ],
    hbm: Annotated[
        str, option("--hbm", "BYTES", "Memory limit of one device (HBM), in bytes or with a unit, for example 14GiB.")
    ],
    shapes: Shapes = None,
    arguments: Arguments = "",
    donate: Donated = None,
    largest: Annotated[
        str,
        option(
            "--largest",
            "NAME[:N]",
            "Find the largest size, for example the largest batch size, with which the training step fits into --hbm. "
            "Write NAME in place of the size: in --shapes, as in 's32[batch,512]', or in the call, as in "
            "'module:make(batch)'. The size that is found is a multiple of N; the default of N is 1.",
        ),
    ] = "",
    own_names: Annotated[
        bool,
        option(
            "--own-names",
            "",
            "Let the policy save only values to which the program gives a name, with checkpoint_name of JAX. By "
            "default, it may save any value.",
        ),
    ] = False,
    check: Annotated[
        bool,
        option(
            "--check",
            "",
            "Also compare the gradients with and without the policy. They are computed on the CPU of this machine, with "
            "arrays of full size.",
        ),
    ] = False,
    target: Annotated[
        str,
        option(
            "--target", "NAME", "TPU to compile for. NAME is one of the TPUs that 'stowplan targets' lists, except tpu-v4i."
        ),
    ] = "tpu-v5e",
    previews: Annotated[int, option("--previews", "N", "Maximum number of previews.")] = 6,
    compiles: Annotated[
        int,
        option(
            "--compiles",
            "N",
            "Maximum number of full compilations, which compare policies by the clock cycles that XLA estimates. With 0, "
            "policies are compared by the time for recomputation, according to a roofline model.",
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
            "Write the result to this file. If its name ends in .json, the file gets a report on all policies. A file with "
            "any other name gets only the best policy, as Python code. May be given several times.",
        ),
    ] = None,
    png: Annotated[
        Path | None,
        option(
            "--png",
            "FILE",
            "Draw a diagram of the policies to this file: their peak memory, and the time and FLOPs of their "
            "recomputation. The ending of its name chooses the format: .svg, .png or .pdf. The last two need matplotlib, "
            "which the Python extra 'viz' installs.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the report as JSON instead of a summary.")] = False,
    quiet: Quiet = False,
) -> None:
    """Fit a JAX training step into a given amount of TPU memory.

    The command finds a policy for jax.checkpoint. A policy says which values of the forward pass are saved for the backward
    pass; all other values are computed again. Each policy is tried in a preview, a compilation that stops once XLA has assigned
    memory, because the peak is then known. If the peak is above the limit, the next policy saves less. After Ctrl-C, the
    command prints the best policy that it has found so far. The command needs jax and libtpu (the Python extra 'xla'), but no
    TPU.
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
    """Parses the option ``--largest``: returns the name of the size to maximize, and a number that must divide this size.
    Without the option, the name is empty. Raises UsageError if the text is not valid, or if the name is neither in the shapes
    nor in the call."""
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
    """Imports the function, and returns it with its arguments and the positions of its donated arguments. Raises CompileError
    if that fails."""
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
    """A picture of the recomputed work against the peak: plans of the greedy method with their estimated peaks, and policies
    with the peaks that the compiler reported."""
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
