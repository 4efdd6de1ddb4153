"""``stowplan settings``: all that ``--set NAME=VALUE`` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stowplan.cli.output import say
from stowplan.frontends.dfg.format import RULES, values_of
from stowplan.report.text import aligned


class Setting(NamedTuple):
    """A row of the list."""

    heading: str
    """What it is for: inputs, searches, or one command."""
    usage: str
    text: str


def settings() -> Iterator[Setting]:
    """All settings of all commands, each once."""
    from stowplan.cli.app import commands

    seen = set()
    for command, function in commands().items():
        for name, option in getattr(function, "settings", {}).items():
            heading = option.heading or f"stowplan {command}"
            if (heading, name) in seen:
                continue
            seen.add((heading, name))
            if name == "rules":
                yield from (Setting(heading, f"{rule}=VALUE", f"A rule: {values_of(rule)}.") for rule in RULES)
            else:
                yield Setting(heading, option.usage, option.help)


def settings_command() -> None:
    """List what --set NAME=VALUE takes, by what it is for."""
    rows = list(settings())
    for number, heading in enumerate(dict.fromkeys(row.heading for row in rows)):
        lines = aligned([(f"  {row.usage}", row.text) for row in rows if row.heading == heading], ("", ""))
        say(("\n" if number else "") + "\n".join([f"{heading}:", *lines]))
