"""Options as people meet them: each is declared once, by a field of a struct or a parameter of a command.

Command lines, suites, help and messages take names, types, values and texts from here. What is rare has no flag of its own: it
is given as ``--set NAME=VALUE``, and is called a setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from stowplan.arguments import show, size
from stowplan.errors import UsageError

#: What searches are told, as the headings of help have it.
SEARCH = "The search"

#: Inputs that options are for.
ALL_INPUTS = "All inputs"
PROGRAMS = "Compiled programs (memory mapping)"
NETWORKS = "Networks (tier placement, bank mapping)"
GRAPHS = "Graphs (ONNX, .pt2, TensorFlow Lite)"
LOOP_BODIES = "Data-flow graphs (modulo scheduling)"


@dataclass(frozen=True)
class Option:
    """An option; its name, type and default are those of what declares it."""

    heading: str
    """What it is for: one of the headings; empty for what a single command takes."""
    metavar: str
    """What stands for its value in help; ``FILE`` for paths of files that are read; empty for a switch."""
    help: str
    has_flag: bool = False
    """Whether it is a flag of its own; else it is a setting."""
    is_shared: bool = True
    """Whether all inputs of a suite may share it; others need a target, or files, of their own."""
    has_commas: bool = False
    """Whether several values are one text with commas; else each is given anew."""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def flag(self) -> str:
        """As the command line has it; empty for a setting."""
        return f"--{self.name.replace('_', '-')}" if self.has_flag else ""

    @property
    def words(self) -> tuple[str, ...]:
        """All values there are, where they are few: those of a literal type."""
        return tuple(word for part in self.types if get_origin(part) is Literal for word in get_args(part))

    @property
    def types(self) -> tuple[Any, ...]:
        """Its type, or what it is a union of."""
        return get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)

    @property
    def is_several(self) -> bool:
        """Whether it may be given several times."""
        return not self.has_commas and any(get_origin(part) is tuple for part in self.types)

    @property
    def label(self) -> str:
        """What stands for its name after ``--set``; of settings that have names of their own, ``RULE=VALUE``."""
        return self.metavar if "=" in self.metavar else self.name

    @property
    def usage(self) -> str:
        """Its name, and what stands for its value, after ``--set``."""
        return self.label if "=" in self.label else f"{self.name}={self.metavar or 'yes'}"

    def spelt(self, value: str = "") -> str:
        """As a command line has it, with a value."""
        if self.flag:
            return f"{self.flag} {value}".rstrip()
        return f"--set {self.label}{'=' if value else ''}{value}"

    def value(self, texts: Sequence[str]) -> Any:
        """Its value by the texts after the ``=`` of ``--set``.

        Raises
        ------
        UsageError
            A text that says no such value, or two for what has one.
        """
        if len(texts) > 1 and not self.is_several:
            raise UsageError(f"--set {self.name}: found {' and '.join(map(show, texts))}, expected one value")
        values = tuple(self._value(text) for text in texts)
        return values if self.is_several else values[0]

    def _value(self, text: str) -> Any:
        place = f"--set {self.name}: "
        if not self.metavar:
            if text not in ("yes", "no"):
                raise UsageError(f"{place}found {show(text)}, expected yes or no")
            return text == "yes"
        if self.metavar == "SIZE":
            try:
                return size("{}", text)
            except UsageError as error:
                raise UsageError(f"{place}{error}") from None
        for kind, expected in ((int, "a whole number"), (float, "a number")):
            if kind in self.types:
                try:
                    return kind(text)
                except ValueError:
                    raise UsageError(f"{place}found {show(text)}, expected {expected}") from None
        if self.words and text not in self.words:
            raise UsageError(f"{place}found {show(text)}, expected {' or '.join(self.words)}")
        return Path(text) if Path in self.types else text


def declared(fields: Iterable[tuple[str, Any, Any]]) -> dict[str, Option]:
    """Options by name: of fields (name, type, default) those whose type is annotated with one."""
    options = {}
    for name, annotation, default in fields:
        for option in getattr(annotation, "__metadata__", ()):
            if isinstance(option, Option):
                options[name] = dataclasses.replace(option, name=name, type=get_args(annotation)[0], default=default)
    return options


def fields_of(struct: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
    """Name, type and default of each field of a struct."""
    return [(field.name, field.type, field.default) for field in msgspec.structs.fields(struct)]
