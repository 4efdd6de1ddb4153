"""Options of inputs for a benchmark's command line, as ``stowplan`` has them."""

from __future__ import annotations

import argparse
from typing import Any

from stowplan.cli.options import read_settings, unknown_setting
from stowplan.frontends.options import OPTIONS, ReadOptions

_SETTINGS = {name: option for name, option in OPTIONS.items() if not option.flag}


def add_input_options(parser: Any) -> list[argparse.Action]:
    """Add the options of inputs to a parser, or to a group of one; what is rare is given as ``--set NAME=VALUE``."""
    found: list[argparse.Action] = [
        parser.add_argument(
            option.flag, dest=name, type=int if int in option.types else str, metavar=option.metavar, help=option.help
        )
        for name, option in OPTIONS.items()
        if option.flag
    ]
    rare = parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="see 'stowplan settings'")
    return [*found, rare]


def read_options(arguments: argparse.Namespace) -> ReadOptions:
    """The options of inputs that were given; raises UsageError for a value that an option does not take."""
    given, others = read_settings(arguments.set, _SETTINGS)
    if others:
        raise unknown_setting(others[0], _SETTINGS)
    return ReadOptions(**{name: getattr(arguments, name) for name, option in OPTIONS.items() if option.flag}, **given)
