"""The commands of ``stowplan llm``: they place a language model on devices for llama.cpp, and measure the speeds of a
machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from stowplan.backends.llama.planning import Planned

#: Endings of the files that ``--emit`` writes with options of llama.cpp.
_EMITTED = (".ini", ".env", ".sh")

_NO_MACHINE = """\
expected --devices machine.toml: a file with the devices of the machine and their free memory, such as

    [host]
    free_mib = 60000

    [[device]]
    name = "CUDA0"      # as 'llama-bench --list-devices' prints it
    free_mib = 23000

'stowplan llm calibrate MODEL.gguf --devices machine.toml -o measured.toml' then measures their speeds."""


def _no_machine() -> UsageError:
    """The error that no machine file is named. Its advice contains an example of such a file."""
    error = UsageError("no machine is named")
    error.advice = tuple(_NO_MACHINE.splitlines())
    return error


Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="Language model, as a GGUF file. If the model is split into several files, name the first one."
    ),
]


@with_options(inputs=(), search=("deterministic", "seed", "workers"))
def llm_plan_command(
    model: Model,
    options: ReadOptions,
    devices: Annotated[
        Path | None,
        option(
            "--devices",
            "FILE",
            "Machine file (TOML), which lists the devices, their free memory and, if they are known, their measured "
            "speeds. The option is required; without it, the command prints an example of such a file.",
        ),
    ] = None,
    context: Annotated[
        int, option("--ctx", "N", "Size of the context in tokens, for all --slots together (option -c of llama.cpp).", min=1)
    ] = 4096,
    prompt: Annotated[int, option("--prompt", "N", "Number of tokens in the prompt of each slot.", min=0)] = 512,
    generate: Annotated[int, option("--generate", "N", "Number of tokens that each slot generates.", min=1)] = 256,
    slots: Annotated[
        int,
        option(
            "--slots",
            "N",
            "Number of slots (option -np of llama.cpp). Each slot generates one sequence, at the same time as the others.",
            min=1,
        ),
    ] = 1,
    key_type: Annotated[
        str,
        option(
            "-ctk --cache-type-k",
            "TYPE",
            "Data type of the keys in the key-value cache: a name that llama.cpp uses, such as q8_0.",
        ),
    ] = "f16",
    value_type: Annotated[
        str,
        option(
            "-ctv --cache-type-v",
            "TYPE",
            "Data type of the values in the key-value cache: a name that llama.cpp uses, such as q8_0.",
        ),
    ] = "f16",
    oracle: Annotated[
        Path | None,
        option(
            "--oracle",
            "PROGRAM",
            "Program that asks llama.cpp for the exact sizes of its buffers; docs/guide/llm.md says how to build it. By "
            "default, the sizes are estimated.",
        ),
    ] = None,
    time_limit: Annotated[float, option("--time-limit", "SECONDS", "Time limit of the search for a placement.")] = 10.0,
    output: Annotated[
        Path | None,
        option("-o --output", "FILE", "Write the placement, the options and the predicted times to this file, as JSON."),
    ] = None,
    emit: Annotated[
        list[Path] | None,
        option(
            "--emit",
            "FILE",
            "Write the options for llama.cpp to this file. The ending of its name chooses the form: a preset of "
            "llama-server (.ini), environment variables (.env) or a shell script (.sh). May be given several times.",
        ),
    ] = None,
    report: Report = None,
    png: Picture = None,
    as_json: Annotated[bool, option("--json", "", "Print as JSON what -o writes.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
) -> None:
    """Place a language model on devices, for llama.cpp.

    The command decides on which device (a GPU, or the host with its CPU) each layer of the model is, such that a request with
    --prompt tokens of input and --generate tokens of output takes the least time. It prints the options of llama.cpp for this
    placement, the bytes on each device, and the predicted time. For comparison, it also predicts the time with --fit, an option
    of llama.cpp with which llama.cpp chooses the placement itself. It recommends --fit if the speeds of the devices are not
    known ('stowplan llm calibrate' measures them), or if the gain over --fit is smaller than the error of the predictions.
    """
    if devices is None:
        raise _no_machine()
    for path in emit or ():
        if path.suffix not in _EMITTED:
            raise UsageError(f"--emit: found {path.name!r}, expected a name that ends in {', '.join(_EMITTED)}")
    check_outputs((output, *(emit or ()), report, png), inputs=(model, devices))
    from stowplan.backends.llama import plan
    from stowplan.backends.llama.emit import emitted
    from stowplan.backends.llama.planning import lines_of

    with event_on_interrupt() as cancel:
        planned = plan(
            model,
            devices,
            context=context,
            prompt=prompt,
            generate=generate,
            slots=slots,
            key_type=key_type,
            value_type=value_type,
            oracle=oracle,
            options=msgspec.structs.replace(search, time_limit=time_limit),
            cancel=cancel,
            on_progress=(lambda text: None) if quiet else note,
        )
    check_picture(planned.problem, png)
    if output is not None:
        planned.summary.save(output)
    for path in emit or ():
        files.write_atomic(path, emitted(planned.summary, path.suffix).encode())
    if as_json:
        say_json(msgspec.to_builtins(planned.summary))
    else:
        say("\n".join(lines_of(planned.summary)))
    _draw(planned, png, report)
    raise typer.Exit(INTERRUPTED if cancel.is_set() else 0)


def _draw(planned: Planned, png: Path | None, report: Path | None) -> None:
    """Draws the placement beside that of ``--fit``, as a picture and in a report; a path that is None stands for no such
    file."""
    own = planned.fit
    if png is not None:
        from stowplan.report.presenter import draw

        others = [] if own is None or own.memories == planned.plan.memories else [("--fit", own)]
        draw(planned.problem, [("plan", planned.plan), *others], png)
    if report is not None:
        from stowplan.kernel.solve import solve
        from stowplan.report.html import write_report

        result = planned.result or solve(
            planned.problem, time_limit=0.2, candidates="heuristic", plans={"placed": planned.plan}
        )
        write_report(planned.problem, result, report, compare=None if own is None else ("--fit", own))


def llm_calibrate_command(
    model: Model,
    devices: Annotated[
        Path | None,
        option(
            "--devices",
            "FILE",
            "Machine file (TOML), which lists the devices and their free memory. The option is required; without it, the "
            "command prints an example of such a file. If the file has speeds, the output has the measured ones instead.",
        ),
    ] = None,
    bench: Annotated[
        str, option("--bench", "PROGRAM", "Path of the program llama-bench, which is a part of llama.cpp.")
    ] = "llama-bench",
    read: Annotated[
        list[Path] | None,
        option(
            "--read",
            "FILE",
            "Read this output of 'llama-bench -o json' instead of running the program. May be given several times.",
        ),
    ] = None,
    context: Annotated[
        int,
        option(
            "--ctx",
            "N",
            "Longest context in tokens. The speed of generation is measured with an empty context, and with 90 % of this "
            "length.",
            min=256,
        ),
    ] = 4096,
    most: Annotated[int, option("--most", "N", "Maximum number of measurements.", min=1)] = 16,
    output: Annotated[
        Path | None,
        option(
            "-o --output",
            "FILE",
            "Write the machine file with the measured speeds to this file, as TOML. By default, it is only printed.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the measurements and the machine file as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speeds of a machine's devices with llama-bench.

    The command measures how many tokens per second are processed in prompts and in generation, with the model on the host and
    on each device, and fits the speeds of the devices to these rates. A device has several speeds, such as those of reading
    weights, reading the key-value cache, and computing a prompt. The command begins with measurements that are needed to tell
    these speeds apart. Then it always chooses the measurement whose result it can predict least accurately. It ends once it
    can predict all remaining measurements to within 5 %, or after --most measurements.
    """
    if devices is None:
        raise _no_machine()
    check_outputs((output,), inputs=(model, devices, *(read or ())))
    from stowplan.backends.llama import calibration
    from stowplan.backends.llama.machine import read_machine
    from stowplan.backends.llama.model import read_model

    language, machine = read_model(model), read_machine(devices)
    known = [row for path in read or () for row in calibration.read_bench(files.read_bytes(path), str(path))]
    with event_on_interrupt() as cancel:
        if known:
            found, done = calibration.calibrated(machine, calibration.fit(language, machine, known)), known
        else:

            def run(wanted: calibration.Measurement) -> calibration.Measurement:
                if cancel.is_set():
                    raise KeyboardInterrupt
                return calibration.measure(bench, language, wanted)

            found, done = calibration.calibrate(
                language, machine, run, context=context, most=most, on_progress=(lambda text: None) if quiet else note
            )
    text = calibration.machine_text(found)
    if output is not None:
        files.write_atomic(output, text.encode())
    if as_json:
        say_json({"measurements": [one.__dict__ for one in done], "machine": text, "error": found.error})
    else:
        say(text)
    raise typer.Exit(INTERRUPTED if cancel.is_set() else 0)
