"""``stowplan fit-jax``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stowplan import files
from stowplan.cli import INTERRUPTED, stopping
from stowplan.cli.options import Arguments, CompileFolder, CompileLimit, Donated, OpenTimeLimit, Quiet, Shapes, option
from stowplan.cli.output import LinePrinter, say, say_json
from stowplan.cli.outputs import check_folder, check_outputs
from stowplan.errors import TimeLimitError


def fit_jax_command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="JAX loss, or step with a marked loss, not jitted; or a call that makes it, as tune-xla takes it.",
        ),
    ],
    hbm: Annotated[str, option("--hbm", "BYTES", "Most bytes on a device, e.g. 14GiB.")],
    shapes: Shapes = None,
    arguments: Arguments = "",
    donate: Donated = None,
    target: Annotated[str, option("--target", "NAME", "Machine to compile for.")] = "tpu-v5e",
    previews: Annotated[int, option("--previews", "N", "Short compiles at most.")] = 6,
    compiles: Annotated[int, option("--compiles", "N", "Full compiles at most, to compare cycles.")] = 4,
    time_limit: OpenTimeLimit = None,
    compile_limit: CompileLimit = 900.0,
    folder: CompileFolder = None,
    output: Annotated[
        list[Path] | None,
        option("-o --output", "FILE", "Write the report, as JSON, or, to any other name, the policy; again and again."),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the report as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Fit a JAX training step into so many bytes of HBM.

    What is saved for the backward pass is planned, and corrected by short compiles ahead of time. No TPU is needed. Needs the
    extra 'xla'.
    """
    check_outputs(tuple(output or ()))
    if folder is not None:
        check_folder(folder)
    from stowplan.backends.fallback import require
    from stowplan.backends.jax import fit
    from stowplan.backends.xla import CompileError, by_name
    from stowplan.backends.xla.child import load
    from stowplan.backends.xla.workload import PACKAGES, ArrayShape

    require("fitting a program of jax", (*PACKAGES, "cloudpickle"), "xla")
    # It is traced here, on no accelerator.
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    given = [shape for text in shapes or () for shape in re.split(r"(?<=\])[\s;,]*(?=\w)", text.strip())]
    workload = by_name(function, given, arguments=arguments, donated=donate or ())
    try:
        loaded, values, donated, _ = load(workload, None, None)
    except (Exception, SystemExit) as error:
        raise CompileError(f"{workload.name}: cannot import the function: {type(error).__name__}: {error}") from error
    with stopping() as cancel:
        try:
            with LinePrinter(quiet, every=0.0) as progress:
                fitted = fit(
                    loaded,
                    tuple(
                        jax.ShapeDtypeStruct(value.dims, value.dtype) if isinstance(value, ArrayShape) else value
                        for value in values
                    ),
                    hbm,
                    target,
                    donated=donated,
                    previews=previews,
                    compiles=compiles,
                    folder=folder,
                    time_limit=time_limit,
                    compile_limit=compile_limit,
                    on_progress=progress.show,
                    cancel=cancel,
                )
        except TimeLimitError:
            if cancel.is_set():
                raise typer.Exit(INTERRUPTED) from None
            raise
    report = fitted.report
    for path in output or ():
        files.write_atomic(path, files.encode(report) if path.suffix == ".json" else f"{fitted.policy}\n".encode())
    if as_json:
        say_json(msgspec.to_builtins(report) | {"text": fitted.policy})
    else:
        say(f"{report.summary()}\n{fitted.policy}")
