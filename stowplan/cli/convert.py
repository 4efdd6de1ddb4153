"""The commands ``convert``, which writes a problem to a file; ``export``, which writes a MILP for other solvers; and
``schema``, which prints the JSON Schema of problem files and plan files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from stowplan import kinds
from stowplan.cli.options import FAST_MEMORY, Input, Quiet, chip_target, option, setting, with_options
from stowplan.cli.output import note, note_unless_quiet, open_with_notes, say_json
from stowplan.cli.outputs import check_csv, check_outputs
from stowplan.errors import UsageError
from stowplan.frontends.options import OPTIONS, ReadOptions
from stowplan.kernel.context import Options
from stowplan.options import PROGRAMS

#: Names of the options that apply to compiled programs.
OF_PROGRAMS = tuple(name for name, option in OPTIONS.items() if option.heading == PROGRAMS or name in ("target", "capacity"))

#: Maximum number of windows for ``--set windows=all``. A window is the part of the program between two points; each has a
#: constraint on the total time of the copies in it. Files with more windows are too large for any solver.
MAX_WINDOWS = 200_000


@with_options(
    texts={
        "target": "What to plan for: a chip, or a question such as the best order of operators. NAME is one of the names that "
        "'stowplan targets' lists, or the path of a target file (TOML). The option is required, except for inputs that "
        "need no target, such as problem files."
    }
)
def convert_command(
    source: Input,
    output: Annotated[
        Path,
        option(
            "-o --output",
            "FILE",
            "Write the problem to this file, as JSON. A packing problem, which is a list of buffers, is written as CSV, "
            "in the format of the allocator minimalloc, if the name ends in .csv.",
        ),
    ],
    *,
    options: ReadOptions,
) -> None:
    """Convert an input to a problem file, without solving it.

    A problem is what 'stowplan solve' works on, for example a list of buffers with their sizes and live ranges. Other commands
    accept the problem file instead of the input, and then need none of the options that say how the input is read.
    """
    from stowplan.kernel.kind import kind_of

    check_outputs((output,), inputs=(source, *options.files))
    problem = open_with_notes(source, options)
    kind = kind_of(problem)
    check_csv(output, kind, source)
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
            help="Compiled program (XLA's HLO as text), or problem file of memory mapping. Either may be compressed with gzip.",
        ),
    ],
    output: Annotated[
        Path,
        option(
            "-o --output",
            "FILE",
            "Write the MILP to this file. The ending of its name chooses the format: .mps or .lp, or .mps.gz or .lp.gz for "
            "a compressed file.",
        ),
    ],
    relaxed: Annotated[
        bool, setting("", "Write the linear relaxation of the MILP, in which no variable has to be an integer.")
    ] = False,
    windows: Annotated[
        Literal["linear", "all", "none"],
        setting(
            "WHICH",
            "Which constraints on copies the MILP has. Each constraint is for two points of the program, and limits the "
            "total time of the copies between them. linear, the default, writes the constraints that an optimum of the "
            "linear relaxation would violate otherwise. all writes the constraints for all pairs of points, which is "
            "possible only for small programs. none writes no such constraints, so that copies take no time.",
        ),
    ] = "linear",
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            "SECONDS",
            "Time limit of the search for constraints on the total time of copies between fast and slow memory. The search "
            "repeatedly solves the linear relaxation of the MILP, and adds constraints of this kind that the solution "
            "violates. It takes place only with --set windows=linear, which is the default; 'stowplan settings' describes "
            "the other values of windows.",
        ),
    ] = Options().time_limit,
    quiet: Quiet = False,
    *,
    options: ReadOptions,
) -> None:
    """Model the use of fast memory as a MILP for other solvers.

    Memory mapping decides which tensors of a compiled program are in fast memory, when, and at which offsets. The mixed-integer
    linear program (MILP) leaves out some of the rules for plans, for example those on offsets. Its optimum is therefore a lower
    bound on the latency of every valid plan.
    """
    from stowplan.models.mip.export import format_of, save

    format_of(output)
    if not time_limit > 0:
        raise UsageError(f"--time-limit: found {time_limit} s, expected more than 0")
    check_outputs((output,), inputs=(source, *options.files))
    from stowplan.models.memory_mapping.problem import Problem

    problem = open_with_notes(source, options, "memory mapping")
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
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Kind of problem: memory_mapping, packing, banked_packing, operator_order, rematerialization, tier_placement, "
            "bank_mapping, modulo_scheduling or llm_placement. docs/reference/index.md says what each of them is about.",
        ),
    ],
    what: Annotated[
        Literal["problem", "plan"],
        typer.Argument(
            metavar="[problem|plan]",
            help="Which files the schema is for: problem for those that 'stowplan convert' writes, plan for those that "
            "'stowplan solve' writes.",
        ),
    ] = "problem",
) -> None:
    """Print the JSON Schema of problem files or of plan files.

    For example, 'stowplan schema packing plan' describes the files that 'stowplan solve' writes for a list of buffers.
    """
    from stowplan.library.schema import json_schema

    found = kinds.by_words(kind)
    say_json(json_schema(found.problem if what == "problem" else found.plan))
