"""Options of inputs for a benchmark's command line, as ``stowplan`` has them."""

from __future__ import annotations

import argparse
from typing import Any, get_args, get_origin, get_type_hints

from stowplan.frontends.options import OPTIONS, ReadOptions, spelt


def add_input_options(parser: Any) -> list[argparse.Action]:
    """Add every option of inputs to a parser, or to a group of one; what has several values is given again and again."""
    hints = get_type_hints(ReadOptions)
    found: list[argparse.Action] = []
    for name, declared in OPTIONS.items():
        if not declared.metavar:
            found.append(parser.add_argument(spelt(name), dest=name, action="store_true", help=declared.help))
            continue
        parts = (hints[name], *get_args(hints[name]))
        action = "append" if any(get_origin(each) is tuple for each in parts) else "store"
        one = int if int in parts else str
        found.append(
            parser.add_argument(spelt(name), dest=name, action=action, type=one, metavar=declared.metavar, help=declared.help)
        )
    return found


def read_options(arguments: argparse.Namespace) -> ReadOptions:
    """The options of inputs that were given; raises UsageError for a value that an option does not take."""
    return ReadOptions(**{name: getattr(arguments, name) for name in OPTIONS})
