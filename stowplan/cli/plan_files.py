"""Plan files on the command line of ``verify`` and ``show``: which of two files is the plan, and plans that belong to a single
command (``stowplan tflm``, ``stowplan llm``) and not to a kind of problem."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stowplan import files, kinds
from stowplan.cli.output import say, say_json
from stowplan.errors import InputError, UsageError, VerificationError
from stowplan.file_uses import LLM_PLAN, OTHER_PLANS, TFLM_PLAN
from stowplan.units import counted, format_ps


class PlanOf(NamedTuple):
    """An input and a plan for it, in this order."""

    input: Path
    """The problem, or the file from which it is read."""
    plan: Path
    """The plan."""


def in_order(first: Path, second: Path) -> PlanOf:
    """Two files of a command line as input and plan. The first one is the input, unless it is a plan and the second one is not.

    A plan of any kind is recognized by the ``format`` in its JSON. A file with offsets in CSV is less certain to be a plan,
    because a list of buffers may have a column ``offset``, too. It is taken for the plan only if the other file has neither the
    ``format`` of a plan nor a column of offsets. Raises InputError if one of the files is damaged.
    """
    return PlanOf(second, first) if _likeness(first) > _likeness(second) else PlanOf(first, second)


def _likeness(path: Path) -> int:
    """How certain it is that a file is a plan: 2 if it says so, 1 if it has a column of offsets, otherwise 0."""
    # A pipe can be read only once, so it is not looked at. In contrast to Path.is_file, this never raises an error.
    if not os.path.isfile(path):
        return 0
    if files.is_json(path):
        declared = files.peek_format(files.read_bytes(path))
        return 2 if declared in OTHER_PLANS or kinds.of_format(declared, "plan") is not None else 0
    from stowplan.models.packing.csv_files import has_offsets

    return int(has_offsets(path))


def format_of_command(plan: Path) -> str | None:
    """The format of a plan file that belongs to a single command, :data:`~stowplan.file_uses.TFLM_PLAN` or
    :data:`~stowplan.file_uses.LLM_PLAN`; None for all other files. Raises InputError if the file is damaged."""
    declared = files.peek_format(files.read_bytes(plan)) if os.path.isfile(plan) and files.is_json(plan) else None
    return declared if declared in OTHER_PLANS else None


def verify_tflm(model: Path, plan: Path, as_json: bool) -> None:
    """Checks a plan that ``stowplan tflm`` has written against its model, and prints the result. Raises VerificationError if
    the plan is wrong, and InputError if a file cannot be read or is not valid."""
    from stowplan.backends.tflm.recheck import read_summary, recheck

    summary = read_summary(plan)
    _tell(plan, recheck(model, summary), summary.head, f"valid: the head takes {summary.head:,} bytes", as_json)


def verify_llm(model: Path, plan: Path, as_json: bool) -> None:
    """Checks a placement that ``stowplan llm`` has written against its model, and prints the result. Raises VerificationError
    if the placement is wrong, and InputError if a file cannot be read or is not valid."""
    summary, wrong = _checked_llm(model, plan)
    layers = sum(use.layers for use in summary.devices)
    if summary.recommended == "fit":
        found = f"valid: {layers} layers; the options leave their placement to --fit of llama.cpp"
    else:
        found = f"valid: the options place {layers} layers as the file says, and every device has room for them"
    if summary.request_ps is not None:
        time = f"the predicted time of {format_ps(summary.request_ps)} is not checked"
        found += f" ({time}, because the file does not contain the speeds of the machine)"
    _tell(plan, wrong, summary.request_ps, found, as_json)


def show_llm(model: Path, plan: Path) -> None:
    """Prints a placement that ``stowplan llm`` has written, as that command printed it. Raises errors as :func:`verify_llm`
    does."""
    from stowplan.backends.llama.planning import lines_of

    summary, wrong = _checked_llm(model, plan)
    if wrong:
        raise VerificationError(f"{plan}: not a valid plan: {wrong[0]}")
    say("\n".join(lines_of(summary)))


def _checked_llm(model: Path, plan: Path) -> tuple[Any, list[str]]:
    """A placement that ``stowplan llm`` has written, and a line for each fault in it. Raises InputError if a file cannot be
    read or is not valid."""
    from stowplan.backends.llama.planning import Summary
    from stowplan.backends.llama.recheck import recheck
    from stowplan.frontends.gguf import is_gguf

    if os.path.isfile(model) and not is_gguf(files.head(model)):
        raise InputError(f"found no GGUF file, expected the model for which 'stowplan llm' wrote {plan}", source=model)
    summary = Summary.load(plan)
    return summary, recheck(model, summary)


def _tell(plan: Path, wrong: list[str], objective: int | None, valid: str, as_json: bool) -> None:
    """Prints the result of a check, and raises VerificationError if there are faults."""
    if as_json:
        say_json({"ok": not wrong, "objective": objective, "violations": wrong})
    else:
        say("\n".join(wrong) if wrong else valid)
    if wrong:
        raise rejection(plan, wrong)


def rejection(plan: Path, violations: Sequence[str], hint: str = "") -> VerificationError:
    """The error of ``verify`` for a plan that is not valid. It only counts the violations, because the command has printed all
    of them on standard output. ``hint`` is the end of the message."""
    return VerificationError(f"{plan}: not a valid plan: found {counted(len(violations), 'violation')}, expected none{hint}")


def refuse_options(plan: Path, declared: str, given: dict[str, bool]) -> None:
    """Raises UsageError for the first option that was given and that plans of a single command do not take.

    ``declared`` is the format of the file ``plan`` (:func:`format_of_command`), and ``given`` says for each of these options
    whether it was given.
    """
    command = {TFLM_PLAN: "tflm", LLM_PLAN: "llm"}[declared]
    for name, is_given in given.items():
        if is_given:
            raise UsageError(f"{plan}: {name} does not apply to plans that 'stowplan {command}' wrote")
