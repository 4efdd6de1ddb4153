"""Declarations of options. Each option is declared once, by a field of a struct or a parameter of a command.

Command lines, suites (TOML files that list inputs for ``stowplan batch``), help texts and messages take the names, types,
values and descriptions of options from these declarations. Advanced options have no flag: they are set with ``--set
NAME=VALUE``, and are called settings.
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

#: Heading of the options for the search for plans, as it appears in help texts.
SEARCH = "The search"

#: Headings of options that apply to one sort of input.
ALL_INPUTS = "All inputs"
PROGRAMS = "Compiled programs (memory mapping)"
NETWORKS = "Networks (tier placement, bank mapping)"
GRAPHS = "Graphs (ONNX, .pt2, TensorFlow Lite)"
LOOP_BODIES = "Data-flow graphs (modulo scheduling)"
SNAPSHOTS = "Memory snapshots of PyTorch"


@dataclass(frozen=True)
class Option:
    """An option of the command line. Its name, type and default are those of the field or parameter that declares it."""

    heading: str
    """Heading in help texts, which says what the option applies to; empty for an option of a single command."""
    metavar: str
    """Placeholder of the value in help texts; ``FILE`` for paths of files that are read; empty for a switch."""
    help: str
    """The description in help texts."""
    has_flag: bool = False
    """Whether the option has a flag of its own; if not, it is a setting."""
    is_shared: bool = True
    """Whether the inputs of a suite may share one value; if not, it depends on the target or the files of an input."""
    has_commas: bool = False
    """Whether several values are written as one text with commas; if not, the option is repeated."""
    name: str = ""
    """Name of the field or parameter; :func:`declared` fills in this field and the next two."""
    type: Any = None
    """Its type, without the annotation."""
    default: Any = None
    """Its default value."""

    @property
    def flag(self) -> str:
        """The flag on the command line, such as ``--time-limit``; empty for a setting."""
        return f"--{self.name.replace('_', '-')}" if self.has_flag else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed values of an option whose type is a Literal; empty for all other types."""
        return tuple(word for part in self.types if get_origin(part) is Literal for word in get_args(part))

    @property
    def types(self) -> tuple[Any, ...]:
        """The members of the option's type if that is a union; otherwise the type alone."""
        return get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)

    @property
    def is_several(self) -> bool:
        """Whether the option may be given several times."""
        return not self.has_commas and any(get_origin(part) is tuple for part in self.types)

    @property
    def label(self) -> str:
        """The name after ``--set`` in help texts, or ``RULE=VALUE`` for a setting whose values have names of their own."""
        return self.metavar if "=" in self.metavar else self.name

    @property
    def usage(self) -> str:
        """The text after ``--set`` in help texts: the label with a placeholder for the value."""
        return self.label if "=" in self.label else f"{self.name}={self.metavar or 'yes'}"

    def spelt(self, value: str = "") -> str:
        """The option as it is written on a command line, with a value."""
        if self.flag:
            return f"{self.flag} {value}".rstrip()
        return f"--set {self.label}{'=' if value else ''}{value}"

    def value(self, texts: Sequence[str]) -> Any:
        """Converts the texts that follow the ``=`` of each ``--set`` of this option, at least one, into the option's value.

        The value is a tuple if the option may be given several times.

        Raises
        ------
        UsageError
            A text is no valid value, or an option of one value is given twice.
        """
        if len(texts) > 1 and not self.is_several:
            raise UsageError(f"--set {self.name}: found {' and '.join(map(show, texts))}, expected one value")
        values = tuple(self._value(text) for text in texts)
        return values if self.is_several else values[0]

    def _value(self, text: str) -> Any:
        """Converts the text of one value."""
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
    """The options that fields declare, by name. A field, given as name, type and default, declares an option if its type is
    annotated with an :class:`Option`."""
    options = {}
    for name, annotation, default in fields:
        for option in getattr(annotation, "__metadata__", ()):
            if isinstance(option, Option):
                options[name] = dataclasses.replace(option, name=name, type=get_args(annotation)[0], default=default)
    return options


def fields_of(struct: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
    """Name, type and default of each field of a struct."""
    return [(field.name, field.type, field.default) for field in msgspec.structs.fields(struct)]
