"""The command ``stowplan tune-xla``."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stowplan import files
from stowplan.cli import INTERRUPTED, event_on_interrupt
from stowplan.cli.options import (
    Arguments,
    CompileFolder,
    CompileLimit,
    Donated,
    OpenTimeLimit,
    Quiet,
    Report,
    Seed,
    Shapes,
    option,
)
from stowplan.cli.output import LinePrinter, say, say_json
from stowplan.cli.outputs import check_folder, check_outputs
from stowplan.errors import TimeLimitError, UsageError

if TYPE_CHECKING:
    from stowplan.backends.xla import Tuning
    from stowplan.backends.xla.child import Option

#: Maximum number of characters of the options that are printed. If there are more, the output says how to write them to a file.
_MAX_SHOWN = 600

#: Maximum length in bytes of an environment variable on Linux, including its name.
_MAX_VARIABLE_BYTES = 128 << 10

#: The environment variable from which libtpu reads options of XLA.
_VARIABLE = "LIBTPU_INIT_ARGS"


def tune_xla_command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="The JAX function itself, not the result of jax.jit. The module may be in the current folder. You may also "
            "write a call such as 'module:make(4,64)': the function make gets the strings '4' and '64', and returns "
            "the JAX function, a tuple of its arguments, and the positions of its donated arguments.",
        ),
    ],
    shapes: Shapes = None,
    arguments: Arguments = "",
    donate: Donated = None,
    mesh: Annotated[
        str,
        option(
            "--mesh",
            "AXES",
            "Devices to compile for, as a mesh with named axes and their lengths: data=2,model=2 are four devices. The "
            "default is a single device. The function make in a call such as 'module:make(4,64)', or a function that "
            "--arguments names, gets the mesh as its keyword argument 'mesh'.",
        ),
    ] = "",
    partition: Annotated[
        str,
        option(
            "--partition",
            "AXES",
            "How arrays are divided among the devices of --mesh: one entry for each of --shapes, then ->, then one entry "
            "for each result, separated by spaces. An entry lists the dimensions of its array, separated by commas; each "
            "is the name of the axis of the mesh that divides it, or - if it is not divided. For example, if the only "
            "argument is a matrix and the only result a vector, 'data,model -> data' divides the rows along the axis data, "
            "the columns along the axis model, and the vector along data (docs/guide/tune-xla.md). By default, each device "
            "has all arguments in full, and XLA decides how to divide the results.",
        ),
    ] = "",
    target: Annotated[
        str,
        option(
            "--target", "NAME", "TPU to compile for. NAME is one of the TPUs that 'stowplan targets' lists, except tpu-v4i."
        ),
    ] = "tpu-v4",
    compiles: Annotated[
        int,
        option(
            "--compiles",
            "N",
            "Maximum number of compilations. The compilation with XLA's default options is one of them. A compilation whose "
            "result is already in --folder is counted, too, although it is not repeated. 20 previews count as one "
            "compilation.",
        ),
    ] = 10,
    time_limit: OpenTimeLimit = None,
    jobs: Annotated[
        int,
        option(
            "-j --jobs",
            "N",
            "Number of compilations at the same time. 0 chooses a number that suits the processor cores and the free "
            "memory. The number influences which options are tried.",
        ),
    ] = 1,
    compile_limit: CompileLimit = 900.0,
    folder: CompileFolder = None,
    seed: Seed = 0,
    table: Annotated[
        Path | None,
        option(
            "--table",
            "FILE",
            "Latency table: a JSON file with the clock cycles that XLA estimated for instructions in earlier compilations "
            "(docs/reference/costs.md). With such a table, the command predicts better which options are worth a full "
            "compilation. By default, there is none.",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        option(
            "--option",
            "NAME=VALUE",
            "Option of XLA that is set in every compilation, for example xla_tpu_enable_latency_hiding_scheduler=true. May "
            "be given several times.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        option(
            "-o --output",
            "FILE",
            "Write the result to this file. If its name ends in .json, the file gets all trials and the best options. A file "
            f"with any other name gets only the best options, as text for the environment variable {_VARIABLE}. May be given "
            "several times.",
        ),
    ] = None,
    report: Report = None,
    as_json: Annotated[bool, option("--json", "", "Print the result as JSON instead of a summary.")] = False,
    quiet: Quiet = False,
) -> None:
    """Find XLA options with which a JAX function is faster.

    The command compiles the function ahead of time with different options, and compares the compiled programs by the clock
    cycles that XLA itself estimates. XLA's default options are among those that are tried, so that the result is never worse by
    this estimate. Besides full compilations there are previews, which are compilations that stop as soon as XLA has assigned
    tensors to fast memory. The command needs jax and libtpu (the Python extra 'xla'), but no TPU.
    """
    compiler_options = _read_options(options or ())
    written = output or []
    check_outputs((report, *written), inputs=(table,))
    if folder is not None:
        check_folder(folder)
    from stowplan.backends.xla import by_name, tune_workload
    from stowplan.hardware.costs.signatures import LatencyTable

    workload = by_name(
        function,
        [shape for text in shapes or () for shape in re.split(r"(?<=\])[\s;,]*(?=\w)", text.strip())],
        arguments=arguments,
        donated=donate or (),
        mesh=mesh,
        partition=partition,
    )
    latency_table = None if table is None else LatencyTable.load(table)
    with contextlib.ExitStack() as stack:
        if report is not None and folder is None:
            # The report is made from the results of compilations, so they are kept until it is written.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stowplan-xla-")))
        cancel = stack.enter_context(event_on_interrupt())
        try:
            with LinePrinter(quiet, every=0.0) as progress:
                tuning = tune_workload(
                    workload,
                    target=target,
                    compiles=compiles,
                    time_limit=time_limit,
                    folder=folder,
                    seed=seed,
                    jobs=jobs,
                    compile_limit=compile_limit,
                    table=latency_table,
                    compiler_options=compiler_options,
                    on_progress=lambda done: progress.show(done.line()),
                    cancel=cancel,
                )
        except TimeLimitError:
            if cancel.is_set():
                raise typer.Exit(INTERRUPTED) from None
            raise
        for path in written:
            files.write_atomic(path, files.encode(tuning) if path.suffix == ".json" else f"{tuning.flags}\n".encode())
        if as_json:
            say_json(msgspec.to_builtins(tuning) | {"gain": tuning.gain, "flags": tuning.flags})
        else:
            say("\n".join((tuning.summary(), *_how_to_set(tuning, written))))
        if report is not None and folder is not None:
            # The report comes last, because it takes the most time and may fail.
            from stowplan.report.xla import save_tuning_report

            save_tuning_report(report, tuning, folder)
    raise typer.Exit(INTERRUPTED if tuning.stop_reason == "cancelled" else 0)


def _read_options(texts: Sequence[str]) -> dict[str, Option]:
    """The options of XLA on the command line, by name. Numbers and booleans stay text, because XLA parses them. Raises
    UsageError for a text of another form, and for a name that occurs twice."""
    options: dict[str, Option] = {}
    for text in texts:
        match = re.fullmatch(r"(?:--)?(\w+)=(.*)", text, re.DOTALL)
        if match is None:
            raise UsageError(
                f"found option {text!r}, expected NAME=VALUE, for example xla_tpu_enable_latency_hiding_scheduler=true"
            )
        if match[1] in options:
            raise UsageError(f"found option {match[1]} twice, expected it once")
        options[match[1]] = match[2]
    return options


def _how_to_set(tuning: Tuning, written: Sequence[Path]) -> list[str]:
    """Lines that say how to use the best options: as a dictionary for jax, and as flags in an environment variable."""
    if not tuning.compiler_options:
        return ["  options    none: XLA's default was the best"]
    lines = []
    as_dictionary, flags = repr(tuning.compiler_options), tuning.flags
    in_json = next((files.printable(path) for path in written if path.suffix == ".json"), None)
    in_text = next((files.printable(path) for path in written if path.suffix != ".json"), None)
    if in_json is not None:
        lines.append(f"  options    lowered.compile(compiler_options=json.load(open({in_json!r}))['compiler_options'])")
    elif len(as_dictionary) <= _MAX_SHOWN:
        lines.append(f"  options    lowered.compile(compiler_options={as_dictionary})")
    else:
        lines.append(f"  options    {len(as_dictionary):,} characters: -o FILE.json writes them for compiler_options")
    if len(_VARIABLE) + len(flags.encode()) + 2 > _MAX_VARIABLE_BYTES:
        lines.append(f"  flags      {len(flags):,} characters: too long for {_VARIABLE}, only compiler_options takes them")
    elif in_text is not None:
        lines.append(f'  flags      {_VARIABLE}="$(cat {shlex.quote(in_text)})"')
    elif len(flags) <= _MAX_SHOWN:
        lines.append(f"  flags      {_VARIABLE}={shlex.quote(flags)}")
    else:
        lines.append(f"  flags      {len(flags):,} characters: -o FILE.flags writes them for {_VARIABLE}")
    return lines
