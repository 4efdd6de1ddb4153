"""The report on a tuning of XLA: one page and one picture, XLA's default beside the best."""

from __future__ import annotations

from pathlib import Path

from stowplan import files
from stowplan.backends.xla.evidence import Evidence
from stowplan.backends.xla.tuning import Tuning
from stowplan.errors import InputError
from stowplan.report.boxes import assign_colours
from stowplan.report.memory_mapping.picture import save_scenes
from stowplan.report.memory_mapping.scene import TimeAxis
from stowplan.report.memory_mapping.sections import layouts
from stowplan.report.page import Details, warnings_box, whole_page
from stowplan.report.xla import sections
from stowplan.report.xla.changes import compare_trials
from stowplan.report.xla.played import PlayedTrial, play_trial
from stowplan.report.xla.plots import in_words


def save_tuning_report(path: str | Path, tuning: Tuning, evidence: Evidence, *, time: TimeAxis = "steps") -> None:
    """Write the page about a tuning; the same tuning gives the same bytes.

    Parameters
    ----------
    path
        The HTML file.
    tuning, evidence
        Of one run: the first trial of the evidence is XLA's default, its incumbent the best. The files of these two
        results must still be there.
    time
        Axis of the layouts: logical steps, or simulated time.

    Raises
    ------
    InputError
        If the two are of different runs, a result cannot be read, or the page cannot be written.
    """
    text = render_tuning_report(tuning, evidence, time=time)
    files.write_atomic(path, text.encode("utf-8", errors="replace"))


def render_tuning_report(tuning: Tuning, evidence: Evidence, *, time: TimeAxis = "steps") -> str:
    """Text of the page that :func:`save_tuning_report` writes."""
    played = _played(tuning, evidence, time)
    (_, before), (_, after) = played[0], played[-1]
    scenes = [(title, each.scene) for title, each in played]
    colours = assign_colours([scene.boxes for _, scene in scenes])
    details = Details()
    changes = compare_trials(evidence, before, after)
    parts = [
        sections.options(tuning),
        sections.trials(tuning),
        layouts(scenes, colours, details),
        *sections.instructions(changes, evidence, before.trial, after.trial),
        *sections.tensors(changes, evidence, colours),
        sections.notes([(title.partition(":")[0], each.notes) for title, each in played], evidence),
    ]
    return whole_page(
        f"{tuning.name or 'program'}: XLA tuned for {tuning.target}",
        [sections.summary(tuning, evidence), warnings_box(tuning.notes), *(part.html() for part in parts)],
        details,
    )


def save_tuning_picture(path: str | Path, tuning: Tuning, evidence: Evidence, *, time: TimeAxis = "steps") -> None:
    """Write a picture of both layouts side by side, XLA's default at the left; after figure 8 of Wang et al. (2023).

    Parameters
    ----------
    path
        Its suffix says the format: ``.png``, ``.svg`` or ``.pdf``.
    tuning, evidence, time
        As of :func:`save_tuning_report`. Where XLA's default is the best, it is drawn alone.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another suffix.
    InputError
        As of :func:`save_tuning_report`.
    """
    scenes = [(title, each.scene) for title, each in _played(tuning, evidence, time)]
    save_scenes(scenes, path, name=tuning.name)


def _played(tuning: Tuning, evidence: Evidence, time: TimeAxis) -> list[tuple[str, PlayedTrial]]:
    """Default and best with their titles; one alone where the default is the best."""
    if not evidence.trials:
        raise InputError(f"{tuning.name}: found evidence without trials, expected that of the tuning")
    before, after = evidence.trials[0], evidence.incumbent
    found = (before.score.total, after.score.total)
    expected = (tuning.default.total, tuning.trials[tuning.best].total)
    if found != expected:
        raise InputError(
            f"{tuning.name}: found evidence of another run (default and best take {found[0]:,} and {found[1]:,} cycles), "
            f"expected that of the tuning ({expected[0]:,} and {expected[1]:,})"
        )
    played = [(f"XLA's default: {before.score.total:,} cycles", play_trial(evidence, before, time))]
    if after is not before:
        way = in_words(tuning.trials[tuning.best].way)
        title = f"Best ({way}): {after.score.total:,} cycles, {tuning.gain:.2%} fewer"
        played.append((title, play_trial(evidence, after, time)))
    return played
