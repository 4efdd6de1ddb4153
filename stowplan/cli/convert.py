"""The commands ``convert``, which writes a problem to a file, ``export``, which writes its MILP for other solvers, and
``schema``, which prints the JSON Schema of such files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from stowplan import kinds
from stowplan.cli.options import FAST_MEMORY, Input, Quiet, chip_target, option, setting, with_options
from stowplan.cli.output import note, note_unless_quiet, open_with_notes, say_json
from stowplan.cli.outputs import check_outputs
from stowplan.errors import UsageError
from stowplan.frontends.options import OPTIONS, ReadOptions
from stowplan.kernel.context import Options
from stowplan.options import PROGRAMS

#: Options for compiled programs.
OF_PROGRAMS = tuple(name for name, option in OPTIONS.items() if option.heading == PROGRAMS or name in ("target", "capacity"))

#: Maximum number of windows for ``--set windows=all``; no solver can use a file with more.
MAX_WINDOWS = 200_000


@with_options(
    texts={
        "target": "What to plan for, a chip or a question such as the order of operators: a name that 'stowplan targets' "
        "lists, or the path of a target file. Required, except for inputs that need no target, such as problem files."
    }
)
def convert_command(
    source: Input,
    output: Annotated[
        Path,
        option("-o --output", "FILE", "Write the problem to this file: JSON, or for packing also minimalloc's CSV (.csv)."),
    ],
    *,
    options: ReadOptions,
) -> None:
    """Convert an input to a problem file, without solving it.

    A problem is what 'solve' works on, for example buffers with sizes and life spans. Other commands take the problem file in
    place of the input, and then need none of the options with which the input was read.
    """
    from stowplan.kernel.kind import kind_of

    check_outputs((output,), inputs=(source, *options.files))
    problem = open_with_notes(source, options)
    kind = kind_of(problem)
    if output.suffix.lower() == ".csv" and kind.name != "packing":
        raise UsageError(f"{output}: CSV is for packing, and {source} is a problem of {kind.title}: write JSON")
    problem.save(output)
    facts = kind.facts(problem, None, None)
    counts = ", ".join(f"{facts[name]} {name}" for name in kind.counts)
    note(f"{output}: {counts}")


@with_options(OF_PROGRAMS, texts=FAST_MEMORY | chip_target("compiled programs"))
def export_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Compiled program (XLA's HLO as text) or problem file of memory mapping, plain or compressed with gzip.",
        ),
    ],
    output: Annotated[
        Path,
        option("-o --output", "FILE", "Write the MILP to this file. The name ends in .mps or .lp, or in one of these and .gz."),
    ],
    relaxed: Annotated[
        bool, setting("", "Write the linear relaxation of the MILP, in which no variable has to be an integer.")
    ] = False,
    windows: Annotated[
        Literal["linear", "all", "none"],
        setting(
            "WHICH",
            "For which pairs of points of the program a constraint limits the total time of the copies between them: those "
            "whose constraint the optimum of the linear relaxation would violate (linear, the default), all of them (all, "
            "for small programs only), or none, so that copies take no time (none).",
        ),
    ] = "linear",
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            "SECONDS",
            "Time limit for finding the constraints on copies that --set windows=linear, the default, adds.",
        ),
    ] = Options().time_limit,
    quiet: Quiet = False,
    *,
    options: ReadOptions,
) -> None:
    """Write a fast-memory problem as a MILP, for another solver.

    Memory mapping decides which tensors of a compiled program are in fast memory, where and when. The mixed-integer linear
    program (MILP) leaves out some of its rules, such as those on offsets. Its optimum is therefore a lower bound on the latency
    of every valid plan.
    """
    from stowplan.models.mip.export import format_of, save

    format_of(output)
    if not time_limit > 0:
        raise UsageError(f"--time-limit: found {time_limit} s, expected more than 0")
    check_outputs((output,), inputs=(source, *options.files))
    from stowplan.models.memory_mapping.problem import Problem

    problem = open_with_notes(source, options)
    if not isinstance(problem, Problem):
        raise UsageError(f"{source}: found another kind of problem, expected memory mapping of a compiled program")
    from stowplan.models.memory_mapping.milp.matrix import all_windows, formulate, linear_windows
    from stowplan.models.memory_mapping.milp.model import RelaxationModel

    began = time.monotonic()
    model = RelaxationModel(problem)
    tell = note_unless_quiet(quiet)
    tell(f"{problem.name}: {len(model.cost)} columns, {len(model.rows.lower)} rows without copy channels")
    chosen = []
    if windows == "linear":
        chosen = linear_windows(model, time_limit=time_limit)
    elif windows == "all":
        pairs = len({job.release for job in model.jobs}) * len({job.deadline for job in model.jobs})
        if pairs > MAX_WINDOWS:
            raise UsageError(f"--set windows=all: found {pairs} pairs of boundaries, expected at most {MAX_WINDOWS}")
        chosen = all_windows(model)
    formulation = formulate(model, chosen)
    matrix = formulation.matrix.relaxed() if relaxed else formulation.matrix
    remarks = [
        f"memory mapping of {problem.name} on {problem.target}, stalls {problem.stalls}: no valid plan beats the optimum",
        f"objective and time in units of {formulation.unit_ps} ps; problem digest {problem.digest}",
    ]
    save(matrix, output, remarks)
    integers = int(matrix.is_integer.sum())
    tell(
        f"{output}: {matrix.columns} columns ({integers} integer), {matrix.rows} rows ({len(chosen)} copy windows), "
        f"{matrix.matrix.nnz} entries; objective in units of {formulation.unit_ps} ps; {time.monotonic() - began:.1f} s"
    )


def schema_command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of problem, for example packing or operator_order.")],
    what: Annotated[
        Literal["problem", "plan"], typer.Argument(metavar="[problem|plan]", help="Which of its files: problem or plan.")
    ] = "problem",
) -> None:
    """Print the JSON Schema of a kind's problems or plans."""
    from stowplan.library.schema import json_schema

    found = kinds.by_words(kind)
    say_json(json_schema(found.problem if what == "problem" else found.plan))
