"""Writes the generated part of reference/command-line.md, from the commands themselves: ``python docs/command_line.py``.

What stands above the mark is written by hand and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from stowplan.cli import EXIT_CODES
from stowplan.cli.app import app_for, sections
from stowplan.cli.inspect import settings

PAGE = Path(__file__).resolve().parent / "reference" / "command-line.md"
MARK = "<!-- What follows is written by docs/command_line.py. -->"

#: So many rows stand in one list, whatever their headings are.
FEW = 8


class Row(NamedTuple):
    """An argument or option."""

    heading: str
    flags: str
    text: str

    @property
    def name(self) -> str:
        """The longest of its flags, or the argument."""
        return self.flags.split(", ")[-1].split()[0]


class Command(NamedTuple):
    """What the page says of a command."""

    name: str
    usage: str
    paragraphs: list[str]
    rows: list[Row]

    def below(self, headings: dict[tuple[str, str], str]) -> Command:
        """The same with each row below the heading of its flags and text."""
        return self._replace(rows=[row._replace(heading=headings[row.flags, row.text]) for row in self.rows])


def commands() -> Iterator[tuple[str, list[Command]]]:
    """What each group is for, and its commands; a command that stands alone is a group of one."""
    whole: Any = typer.main.get_command(app_for([]))
    for name, command in whole.commands.items():
        inner = getattr(command, "commands", {})
        yield command.help, [_command(f"{name} {each}", found) for each, found in inner.items()] or [_command(name, command)]


def _command(name: str, command: Any) -> Command:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")
    rows = [
        Row(heading, flags, " ".join(text.split()))
        for heading, found in sections(command, context).items()
        for parameter, (flags, text) in found
        if parameter != "help"
    ]
    return Command(
        name, f"stowplan {name} {usage}".strip(), [" ".join(each.split()) for each in command.help.split("\n\n")], rows
    )


def generated() -> str:
    """All commands with their options, those that several share once below them, and the exit codes."""
    groups = list(commands())
    # What one command has below another heading than others is the same option.
    headings = {(row.flags, row.text): row.heading for _, group in reversed(groups) for each in group for row in each.rows}
    groups = [(purpose, [each.below(headings) for each in group]) for purpose, group in groups]
    seen = Counter(row for _, group in groups for row in {row for each in group for row in each.rows})
    # Of one name the text that most commands have; the others stand where they are.
    by_name: dict[str, Row] = {}
    for row, count in seen.most_common():
        if count > 1:
            by_name.setdefault(row.name, row)
    shared = {*by_name.values()}
    told: list[str] = []
    for purpose, group in groups:
        common = {row for row in group[0].rows if len(group) > 1 and all(row in each.rows for each in group)}
        said = {text for text in group[0].paragraphs if len(group) > 1 and all(text in each.paragraphs for each in group)}
        if common - shared:
            *firsts, last = (f"`{each.name.split()[1]}`" for each in group)
            told += [
                f"## {group[0].name.split()[0]}",
                f"{purpose} What follows is the same for {', '.join(firsts)} and {last}.",
                *said,
                *_lists(group[0].rows, common - shared),
            ]
        for each in group:
            told += [f"## {each.name}", f"`{each.usage}`", *(text for text in each.paragraphs if text not in said)]
            told += _lists(each.rows, {*each.rows} - common - shared)
            elsewhere = ", ".join(_names([row for row in each.rows if row in shared], shared))
            told += [f"[Shared options](#shared-options): {elsewhere}."] if elsewhere else []
    told += [
        "## Shared options",
        "Several commands have these arguments and options. If the list of a command names a heading in italics, the command "
        "has all options below this heading.",
        *_lists([row for _, group in groups for each in group for row in each.rows], shared),
    ]
    told += [
        "## Settings",
        "These are the advanced options for `--set NAME=VALUE`, below the inputs or the command that they are for. `stowplan "
        "settings` prints the same list.",
        *_settings(),
    ]
    told += ["## Exit codes", "\n".join(f"- {code}: {meaning}." for code, meaning in EXIT_CODES.items())]
    return "\n\n".join(told) + "\n"


def _settings() -> list[str]:
    """A list for each heading."""
    found: dict[str, list[str]] = {}
    for setting in settings():
        found.setdefault(setting.heading, []).append(f"- `{setting.usage}`: {setting.text}")
    return [line for heading, lines in found.items() for line in (f"{heading}:", "\n".join(lines))]


def _names(rows: list[Row], shared: set[Row]) -> list[str]:
    """What a command shares: the name of a heading below which it has all, else its options one by one."""
    whole = Counter(row.heading for row in shared)
    found = Counter(row.heading for row in rows)
    names = [
        f"*{row.heading.partition(' (')[0]}*" if 1 < found[row.heading] == whole[row.heading] else f"`{row.name}`"
        for row in rows
    ]
    return [*dict.fromkeys(names)]


def _lists(rows: Iterable[Row], chosen: set[Row]) -> list[str]:
    """Some of the rows: a list for each heading, or one where they are few."""
    found: dict[str, list[str]] = {}
    for row in dict.fromkeys(rows):
        if row in chosen:
            text = row.text.replace("<", "&lt;").replace("*", "&#42;")
            found.setdefault(row.heading, []).append(f"- `{row.flags}`: {text}")
    if len(chosen) <= FEW:
        return ["\n".join(line for lines in found.values() for line in lines)] if chosen else []
    return [line for heading, lines in found.items() for line in (f"{heading}:", "\n".join(lines))]


def page() -> str:
    """The page as it should be."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    return f"{head}{MARK}\n\n{generated()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
