"""What may be said of an input beside its path: the same names in :func:`stowplan.read` and on the command line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from stowplan.arguments import show, whole
from stowplan.errors import UsageError

#: Options that are one of a few words.
_WORDS = {
    "stalls": ("allowed", "forbidden"),
    "donation": ("free", "tied"),
    "evictions": ("whole_steps", "between_steps"),
    "prefetches": ("whole", "sliced"),
}


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of all front ends; each takes some of them (:attr:`~stowplan.frontends.format.InputFormat.accepts`)."""

    target: str | Path | None = None
    """Name of a target, or path of a target file."""
    capacity: int | None = None
    """Bytes of fast memory (of the fastest tier), in place of the target's; for packing, the bytes to fit into."""
    cost_model: str | None = None
    """``roofline``, ``table`` or ``signatures``, in place of the target's."""
    stalls: str | None = None
    """``allowed`` or ``forbidden``, in place of the target's."""
    donation: str | None = None
    """``free`` (the default) or ``tied``: whether a donated parameter and the output in its storage are one tensor."""
    evictions: str | None = None
    """``whole_steps`` (default) or ``between_steps``: when a copy out leaves its place (docs/reference/memory-mapping.md)."""
    prefetches: str | None = None
    """``whole`` (the default) or ``sliced``: whether copies in may come in slices (docs/reference/memory-mapping.md)."""
    cycles: tuple[str | Path, ...] | None = None
    """For the table cost model two files: the module compiled without and with a fast-memory plan, cycles in both. For the
    signatures cost model latency tables, or any number of such modules."""
    precision: str | None = None
    """Type of weights and activations."""
    granularity: str | None = None
    """``auto``, ``layer`` or ``fine``: whether an operation of a model takes up what follows it."""
    address_spaces: bool = False
    """Whether a plan gives every tensor an offset in its tier."""
    rules: tuple[str, ...] = ()
    """``NAME=VALUE``: the machine's rules for a loop body."""
    fixed: str | Path | None = None
    """Path of a file with instructions that are fixed."""
    op_table: str | Path | None = None
    """Path of a file that says what the ops of a loop body mean and cost."""

    def __post_init__(self) -> None:
        if self.capacity is not None:
            # NumPy's numbers are whole numbers, too; files hold Python's.
            msgspec.structs.force_setattr(self, "capacity", whole("a capacity of {} bytes", self.capacity))
        for name, words in _WORDS.items():
            found = getattr(self, name)
            if found is not None and found not in words:
                raise UsageError(f"found {name} {show(found)}, expected {' or '.join(words)}")

    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        defaults = ReadOptions()
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value != getattr(defaults, name)}

    def only(self, names: frozenset[str]) -> ReadOptions:
        """These options, those of other names at their defaults."""
        return ReadOptions(**{name: value for name, value in self.given().items() if name in names})


def spelt(name: str) -> str:
    """An option as the command line has it."""
    return "--rule" if name == "rules" else "--" + name.replace("_", "-")


def spelt_all(names: Collection[str]) -> str:
    """Options as the command line has them, in one order."""
    return ", ".join(spelt(name) for name in ReadOptions.__struct_fields__ if name in names) or "no options"
