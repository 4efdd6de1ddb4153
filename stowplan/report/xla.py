"""The HTML page about a tuning of XLA: its default next to the best result, and the instructions and tensors that differ.

It follows figure 8 of Wang et al. 2023. A *trial* is a full compilation with some options set, and a *way* is the method that
chose these options. A *knob* is an option that changes how tensors are placed in fast memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

from stowplan import files
from stowplan.backends.xla.child import Option
from stowplan.backends.xla.knobs import CAPACITY_OPTION, SCOPED_OPTION
from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import brief
from stowplan.report.boxes import assign_colours
from stowplan.report.colours import PALETTE
from stowplan.report.curves import BASELINE, INCUMBENT
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.memory_mapping import layouts_section
from stowplan.report.page import Details, Section, cards_list, code_box, facts_list, table, warnings_box, whole_page
from stowplan.report.scene import Axis, Dot, Line, Mark, Panel, Plot, Style, Text, level, patches, steps
from stowplan.report.text import format_bytes, format_tick, nice_ticks
from stowplan.report.xla_comparison import (
    Changes,
    Comparison,
    InstructionChange,
    MemoryChange,
    TensorChange,
    compare_trials,
    in_words,
    read_comparison,
)
from stowplan.units import counted, format_ps

#: Number of rows of the tables of instructions and of tensors.
TOP = 25
#: Maximum number of tensors that are named in one row.
_NAMED = 3
#: Options of up to this many characters are shown unfolded.
_SHORT = 400
#: Maximum number of bytes of the value of an environment variable on Linux, without its name.
_LONGEST_VARIABLE = (128 << 10) - 32
_NOTHING_BETTER = "XLA's default is the best of all that was compiled"

#: A trial that is worse than the default by more than this multiple of the best gain is drawn at the upper edge. Otherwise one
#: very slow trial, for example XLA without fast memory, would stretch the scale so far that all other trials look the same.
_WORST = 1.5

#: A rim, because lighter colours would be hard to see on white; and the mark of a trial without a result.
_RIM, _REFUSED = Style(fill="ink", name="rim"), Style(stroke="stall", width=5, dash=(4, 3), name="refused")


def save_tuning_report(path: str | Path, tuning: Tuning, folder: str | Path) -> None:
    """Writes the page about a tuning. Equal tunings give equal bytes.

    Parameters
    ----------
    path
        The HTML file.
    tuning
        The tuning.
    folder
        Folder of results of the tuning, which has the results of XLA's default and of the best trial.

    Raises
    ------
    InputError
        A result is missing, cannot be read or does not belong to the tuning, or the page cannot be written.
    """
    text = render_tuning_report(tuning, folder)
    files.write_atomic(path, text.encode("utf-8", errors="replace"))


def render_tuning_report(tuning: Tuning, folder: str | Path) -> str:
    """The text of the page that :func:`save_tuning_report` writes. Raises InputError if a result is missing, cannot be read or
    does not belong to the tuning."""
    comparison = read_comparison(tuning, folder)
    colours = assign_colours(layout.boxes for _, layout in comparison.layouts)
    details = Details()
    changes = compare_trials(comparison) if comparison.same_program else Changes(())
    parts = [
        _options(tuning),
        _trials(tuning),
        layouts_section(comparison.layouts, colours, details),
        *_instructions(changes, comparison),
        *_tensors(changes, comparison, colours),
        _notes(comparison),
    ]
    return whole_page(
        f"{tuning.name or 'program'}: XLA tuned for {tuning.target}",
        [_summary(tuning, comparison), warnings_box(tuning.notes), *(part.html() for part in parts)],
        details,
    )


def _summary(tuning: Tuning, comparison: Comparison) -> str:
    """The large figures, and facts about the compiled program."""
    best, target, program = tuning.trials[tuning.best], comparison.target, comparison.program
    time = {trial.total: format_ps(target.cycles_ps(trial.total)) for trial in (tuning.default, best)}
    gained = tuning.best != 0
    cards = [
        ("Gain", f"{tuning.gain:.2%}", "of cycles and stalls" if gained else "no setting was better than XLA's default"),
        ("XLA's default", f"{tuning.default.total:,}", f"cycles and stalls, {time[tuning.default.total]}"),
        ("Best", f"{best.total:,}", f"by {escape(in_words(best.way))}, {time[best.total]}"),
        ("Stalls", f"{best.stall_cycles:,}", f"cycles; {tuning.default.stall_cycles:,} by default"),
        ("Compiles", f"{len(tuning.trials):,}", _effort(tuning)),
    ]
    runs = sum(step.weight for step in program.steps)
    with_runs = f" ({runs:,} with all runs)" if runs != len(program.steps) else ""
    facts = [
        ("Target", tuning.target),
        ("Fast memory", format_bytes(int(target.fast_memory.capacity))),
        ("Program", f"{len(program.steps):,} steps{with_runs}, {len(program.tensors):,} tensors"),
        ("Stopped", f"{tuning.stopped}, after {tuning.seconds:.1f} s"),
    ]
    about = (
        "Cycles are the compiler's own estimates over all iterations of loops. Stalls are the time that the program waits for "
        "copies; they are simulated, since the compiler does not estimate them."
    )
    if tuning.best:
        about += (
            f" The duration of a copy is its bytes divided by the bandwidth. The gain is {tuning.gain_as_estimated:.2%} with "
            f"XLA's own estimates of copies, and {tuning.gain_without_copies:.2%} if copies do not count."
        )
    if not comparison.same_program:
        about += " The options changed the program: its instructions have other names, so they are not compared one by one."
    return f'{cards_list(cards)}{facts_list(facts)}\n<p class="soft">{about}</p>'


def _effort(tuning: Tuning) -> str:
    """Text about the CPU time and the reused compilations."""
    reused = len(tuning.trials) - tuning.compiles_run
    return f"{tuning.processor_seconds:,.0f} processor seconds" + (f", {reused:,} found in the folder" if reused > 0 else "")


def _trials(tuning: Tuning) -> Section:
    """The curve of the trials, and all trials as a table."""
    plot = trials_plot(tuning)
    rows = [_trial_row(number, trial, tuning.default.total) for number, trial in enumerate(tuning.trials, 1)]
    head = (
        "Compile:r",
        "Way",
        "Knobs",
        "Cycles:r",
        "Stalls:r",
        "Change:r",
        "Expected:r",
        "Processor s:r",
        "Note:o",
    )
    as_table = table(
        "Knobs: values moved to the front and to the back of XLA's order, and other options", head, rows, [tuning.best]
    )
    failed = any(trial.error for trial in tuning.trials)
    return Section(
        "Trials",
        "<p>A dot is a compile, the line the best so far. A stroke at the upper edge is a trial above the scale"
        f"{', a dashed one a trial without a result' if failed else ''}; point at it to see its cycles.</p>\n"
        f"{legend_html(plot.legend)}{plot_html(plot, 'Trials')}\n"
        f"<details><summary>As a table</summary>{as_table}</details>",
    )


def _trial_row(number: int, trial: TrialRecord, base: int) -> tuple[str, ...]:
    """The row of one trial."""
    if trial.error:
        figures = ("–", "–", "–")
    else:
        figures = (f"{trial.cycles:,}", f"{trial.stall_cycles:,}", signed_share(trial.total / base - 1) if number > 1 else "")
    expected = signed_share(-trial.expected_gain) if trial.expected_gain else ""
    spent = f"{trial.processor_seconds:.1f}"
    return f"{number:,}", in_words(trial.way), trial.steer, *figures, expected, spent, trial.error


def _options(tuning: Tuning) -> Section:
    """The options to set; long texts are folded."""
    chosen = tuning.compiler_options
    if not chosen:
        return Section("Options to set", f"<p>None: {_NOTHING_BETTER}.</p>\n")
    intro = "" if tuning.best else f"<p>Your own and no others: {_NOTHING_BETTER}.</p>\n"
    python = "compiler_options = {\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in chosen.items()) + "}"
    rows = [(name, _brief(value) + " KiB" * (name in (CAPACITY_OPTION, SCOPED_OPTION))) for name, value in chosen.items()]
    too_long = " Linux takes no variable as long as these." if len(tuning.flags.encode()) > _LONGEST_VARIABLE else ""
    return Section(
        "Options to set",
        f"{intro}{table('Options of the compiler', ('Option:n', 'Value:n'), rows)}\n"
        "<p>In Python, <code>jax.jit(f).lower(*shapes).compile(compiler_options=compiler_options)</code>. The flags are for "
        "the environment variable <code>LIBTPU_INIT_ARGS</code>, and hold for all that the process compiles."
        f"{too_long}</p>\n"
        f"{_folded('Python', python)}{_folded('Flags', tuning.flags)}",
    )


def _brief(value: Option) -> str:
    text = repr(value) if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{len(text):,} characters, below"


def _folded(name: str, text: str) -> str:
    is_open = " open" if len(text) <= _SHORT else ""
    return f"<details{is_open}><summary>{name} ({len(text):,} characters)</summary>{code_box(text)}</details>\n"


def _instructions(changes: Changes, comparison: Comparison) -> list[Section]:
    """The instructions that gained and lost most; empty if no cycles differ."""
    gained, lost = changes.gained, changes.lost
    if not changes.instructions:
        return []
    name = _namer(comparison)
    before, after = comparison.before.record, comparison.after.record
    stalls, total = after.stall_cycles - before.stall_cycles, after.total - before.total
    text = (
        f"{counted(len(gained), 'instruction')} gained {-sum(change.cycles for change in gained):,} cycles over all runs, "
        f"{len(lost):,} lost "
        f"{sum(change.cycles for change in lost):,}; stalls changed by {_signed(stalls)}, all together {_signed(total)}. "
        "Before and after are cycles of one run. Memory: the tensors that the best program reads or writes in another memory "
        "than the default program."
    )
    sections: list[Section] = []
    for heading, word, rows in (
        ("Instructions that gained", "gained", gained),
        ("Instructions that lost", "lost", lost),
    ):
        if rows:
            caption = f"{min(TOP, len(rows)):,} of {len(rows):,} that {word}, the largest first"
            head = ("Instruction:n", "Operation", "Runs:r", "Before:r", "After:r", "All runs:r", "Memory:o")
            listed = table(caption, head, [_instruction_row(row, name) for row in rows[:TOP]])
            sections.append(Section(heading, ("" if sections else f"<p>{text}</p>\n") + listed))
    return sections


def _instruction_row(row: InstructionChange, name: Callable[[int], str]) -> tuple[str, ...]:
    """The row of one instruction."""
    before, after = ("absent" if cycles is None else f"{cycles:,}" for cycles in (row.before, row.after))
    named = [_memory(change, name) for change in row.memories[:_NAMED]]
    if len(row.memories) > _NAMED:
        named.append(f"{len(row.memories) - _NAMED:,} more")
    return row.name, row.opcode, f"{row.runs:,}", before, after, _signed(row.cycles), "; ".join(named)


def _memory(change: MemoryChange, name: Callable[[int], str]) -> str:
    verb, way = ("writes", "to") if change.is_output else ("reads", "from")
    return f"{verb} {name(change.tensor)} {way} {'fast' if change.to_fast else 'slow'}"


def _tensors(changes: Changes, comparison: Comparison, colours: Mapping[int, int]) -> list[Section]:
    """The tensors that moved between the memories."""
    rows = changes.tensors
    if not rows:
        return []
    sizes, name = [tensor.size for tensor in comparison.program.tensors], _namer(comparison)
    shown = rows[:TOP]
    to_fast, to_slow = ([row for row in rows if (row.fast_after - row.fast_before) * sign > 0] for sign in (1, -1))
    caption = (
        f"{len(to_fast):,} tensors of {format_bytes(sum(sizes[row.tensor] for row in to_fast))} have more uses in fast "
        f"memory, {len(to_slow):,} of {format_bytes(sum(sizes[row.tensor] for row in to_slow))} fewer. Traffic: change of the "
        "bytes that fast memory serves, over all runs. Cycles: change of the cycles of the instructions for which the tensor "
        "is in another memory, over all runs; an instruction with several such tensors counts for each. "
        f"{len(shown):,} of {len(rows):,} tensors, the largest change of traffic first."
    )
    head = ("Tensor:n", "Size:r", "Default", "Best", "Fast uses:r", "Traffic:r", "Cycles:r")
    cells = [
        (
            name(row.tensor),
            format_bytes(sizes[row.tensor]),
            _place(row, row.fast_before),
            _place(row, row.fast_after),
            f"{row.fast_before:,} → {row.fast_after:,} of {row.uses:,}",
            ("−" if row.traffic < 0 else "+" if row.traffic else "") + format_bytes(abs(row.traffic)),
            _signed(row.cycles),
        )
        for row in shown
    ]
    marks = [(row.tensor, PALETTE[colours[row.tensor]] if row.tensor in colours else "transparent") for row in shown]
    return [Section("Tensors that moved", table(caption, head, cells, marks=marks))]


def _place(row: TensorChange, fast: int) -> str:
    return "slow" if not fast else "fast" if fast == row.uses else "both"


def _notes(comparison: Comparison) -> Section:
    """Differences between the drawn layouts and XLA's placements, and the versions that made the results."""
    remarks = [(f"{trial.label}, as it is drawn", trial.notes or ("as XLA does it",)) for trial in comparison.trials]
    remarks += [("Program", comparison.program.notes)] if comparison.program.notes else []
    lists = "".join(
        f"<h3>{escape(heading)}</h3>\n<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>\n"
        for heading, lines in remarks
    )
    default_record = comparison.default_record
    facts = [
        ("Topology", default_record.topology),
        *((f"Version of {name}", version) for name, version in default_record.versions.items()),
    ]
    return Section("Notes", lists + facts_list([*facts, ("Digest of the function", default_record.workload[:16])]))


def _namer(comparison: Comparison) -> Callable[[int], str]:
    tensors = comparison.program.tensors
    return lambda tensor: tensors[tensor].name


def _signed(cycles: int) -> str:
    return f"{'−' if cycles < 0 else '+' if cycles else ''}{abs(cycles):,}"


def trials_plot(tuning: Tuning) -> Plot:
    """Cycles and stalls of every trial, in the order of compilations. Trials above the scale, and trials that XLA refused, are
    at the upper edge."""
    base, best = tuning.default.total, tuning.trials[tuning.best].total
    low, high = _range(tuning)
    count = len(tuning.trials)
    ways = dict.fromkeys(trial.way for trial in tuning.trials)
    colours = {way: PALETTE[number % len(PALETTE)] for number, way in enumerate(ways)}
    numbers = range(1, count + 1) if count <= 16 else [round(tick) for tick in nice_ticks(1, count, 12)]
    across = Axis(0.5, count + 0.5, [(tick, f"{tick:,}") for tick in numbers], "compile")
    best_so_far = [base]
    for trial in tuning.trials[1:]:
        best_so_far.append(best_so_far[-1] if trial.error else min(best_so_far[-1], trial.total))
    marks: list[Mark] = [
        level(across, 1, BASELINE),
        Line(steps([*range(1, count + 1), count + 0.5], [total / base for total in best_so_far]), INCUMBENT),
    ]
    for number, trial in enumerate(tuning.trials, 1):
        tip = f"{number}. {in_words(trial.way)}\n{_outcome(trial, base)}"
        colour, edge = colours[trial.way], [(number, high), (number, high - (high - low) / 12)]
        if trial.error:
            marks.append(Line(edge, _REFUSED, tip))
        elif trial.total / base > high:
            marks.append(Line(edge, Style(stroke=colour, width=5, name="off-scale"), tip))
        else:
            size, name = (13, "chosen") if number - 1 == tuning.best else (8, "")
            marks.append(Dot(number, trial.total / base, _RIM, size + 2))
            marks.append(Dot(number, trial.total / base, Style(fill=colour, name=name), size, tip=tip))
    marks.append(Text(count + 0.5, 1, "XLA's default", align="end", halo="paper"))
    ticks = [(tick / 100, f"{format_tick(tick)}%") for tick in nice_ticks(100 * low, 100 * high)]
    spoken = f"Cycles of {count} compiles; the best is {best / base:.2%} of the default. The table below has the numbers"
    panel = Panel(Axis(low, high, ticks, "of the default's cycles"), marks, 260, spoken)
    return Plot(across, [panel], legend=patches((colour, in_words(way)) for way, colour in colours.items()))


def _outcome(trial: TrialRecord, base: int) -> str:
    if trial.error:
        return f"no result: {brief(trial.error, 200)}"
    return f"{trial.total:,} cycles, {trial.stall_cycles:,} of them stalls\n{signed_share(trial.total / base - 1)}"


def signed_share(share: float) -> str:
    """A change as a percentage: ``-0.034`` as ``−3.40%``. Only 0 is written as 0."""
    if share == 0:
        return "0%"
    digits = next((digits for digits in range(2, 9) if round(100 * share, digits)), 8)
    return f"{'−' if share < 0 else '+'}{abs(100 * share):.{digits}f}%"


def _range(tuning: Tuning) -> tuple[float, float]:
    """Lower and upper end of the scale, as parts of the default's total."""
    base = tuning.default.total
    parts = [trial.total / base for trial in tuning.trials if not trial.error]
    span = max(1 - min(parts), 0.005)
    top = max(part for part in parts if part <= 1 + _WORST * span)
    margin = 0.08 * (top - min(parts)) or 0.001
    return min(parts) - margin, top + margin
