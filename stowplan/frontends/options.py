"""What may be said of an input beside its path, each option declared once.

:func:`stowplan.read`, the command line, suites and messages take names, types, values and texts from here. Which files take an
option is said by their format (:attr:`~stowplan.frontends.format.InputFormat.accepts`), which finished problems by their kind
(:attr:`~stowplan.kinds.BaseKind.amends`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from stowplan.arguments import show, whole
from stowplan.errors import UsageError

#: Inputs that options are for, as the headings of help have them.
ALL_INPUTS = "All inputs"
PROGRAMS = "Compiled programs (memory mapping)"
NETWORKS = "Networks (tier placement, bank mapping)"
LOOP_BODIES = "Data-flow graphs (modulo scheduling)"


@dataclass(frozen=True)
class InputOption:
    """An option as people meet it; its name and type are those of its field."""

    inputs: str
    """What it is for: one of the headings."""
    metavar: str
    """What stands for its value in help; ``FILE`` for paths of files that are read; empty for a switch."""
    help: str
    flag: str = ""
    """On the command line, where that is not the name."""
    words: tuple[str, ...] = ()
    """The values that there are, where it is one of a few words for all inputs."""
    is_shared: bool = True
    """Whether all inputs of a suite may share it; others need a target, or files, of their own."""


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that are plain values: what the inputs of a suite share (:class:`stowplan.portfolio.batch.records.Settings`)."""

    target: Annotated[
        str | Path | tuple[str, ...] | None,
        InputOption(
            ALL_INPUTS,
            "NAME",
            "Target by name, or the path of a target file; 'stowplan targets' lists them.",
            is_shared=False,
        ),
    ] = None
    capacity: Annotated[
        int | None,
        InputOption(
            ALL_INPUTS,
            "SIZE",
            "Fast memory (the fastest tier), in place of the target's; for packing, the bytes to fit into: 1200KB, 1.5MiB.",
        ),
    ] = None
    cost_model: Annotated[
        str | None,
        InputOption(PROGRAMS, "NAME", "Cost model, in place of the target's: roofline, table or signatures."),
    ] = None
    stalls: Annotated[
        str | None,
        InputOption(PROGRAMS, "MODE", "May the program wait for copies: allowed or forbidden.", words=("allowed", "forbidden")),
    ] = None
    donation: Annotated[
        str | None,
        InputOption(
            PROGRAMS,
            "MODE",
            "A donated parameter and the output in its storage are two tensors (free, the default) or one (tied), as XLA has "
            "them.",
            words=("free", "tied"),
        ),
    ] = None
    evictions: Annotated[
        str | None,
        InputOption(
            PROGRAMS,
            "MODE",
            "A copy out keeps its place for whole_steps (the default) or leaves it between_steps, as XLA's do.",
            words=("whole_steps", "between_steps"),
        ),
    ] = None
    prefetches: Annotated[
        str | None,
        InputOption(
            PROGRAMS,
            "MODE",
            "Copies in are whole (the default), or may be sliced, as XLA's are.",
            words=("whole", "sliced"),
        ),
    ] = None
    precision: Annotated[
        str | None,
        InputOption(
            NETWORKS,
            "NAME",
            "Type: int8 (the default) or fp16; on memory with banks bf16, fp16 or int8, in place of the file's own.",
        ),
    ] = None
    granularity: Annotated[
        str | None,
        InputOption(
            NETWORKS,
            "NAME",
            "For ONNX models: layer (an operation takes up what follows it), fine (each stands alone), or auto (the default).",
        ),
    ] = None
    address_spaces: Annotated[bool, InputOption(NETWORKS, "", "Every tensor gets an offset in its tier, too.")] = False
    replace_offline_plan: Annotated[
        bool,
        InputOption(ALL_INPUTS, "", "For TensorFlow Lite models: plan anew what has offsets, but tensors of custom operators."),
    ] = False
    rules: Annotated[
        tuple[str, ...],
        InputOption(
            LOOP_BODIES,
            "NAME=VALUE",
            "Again and again: max_delay=1 or none, pass_through=yes, starts=flow or source, siblings=consumers, "
            "consumers_and_producers or none, inputs=variables, copies or instructions, fuse=yes, fan_out=4, strict=yes, "
            "memory=instructions or asynchronous, balance=yes (docs/reference/loop-bodies.md).",
            flag="--rule",
        ),
    ] = ()


class ReadOptions(SharedOptions, frozen=True, kw_only=True):
    """All options of all front ends; each takes some of them (:attr:`~stowplan.frontends.format.InputFormat.accepts`)."""

    target: str | Path | None = None
    cycles: Annotated[
        tuple[str | Path, ...] | None,
        InputOption(
            PROGRAMS,
            "FILE",
            "Again and again. For the table cost model: the module compiled without, then with a fast-memory plan, cycles in "
            "both. For signatures: latency tables, or any number of such modules.",
            is_shared=False,
        ),
    ] = None
    fixed: Annotated[
        str | Path | None,
        InputOption(LOOP_BODIES, "FILE", "JSON list of instructions with their tile, time or slot.", is_shared=False),
    ] = None
    op_table: Annotated[
        str | Path | None,
        InputOption(LOOP_BODIES, "FILE", "TOML file with meaning, latency, class and tiles of ops."),
    ] = None

    def __post_init__(self) -> None:
        if self.capacity is not None:
            # NumPy's numbers are whole numbers, too; files hold Python's.
            msgspec.structs.force_setattr(self, "capacity", whole("a capacity of {} bytes", self.capacity))
        cycles: Any = self.cycles
        cycles = (cycles,) if isinstance(cycles, str | Path) else tuple(cycles or ()) or None
        msgspec.structs.force_setattr(self, "cycles", cycles)
        msgspec.structs.force_setattr(self, "rules", tuple(self.rules or ()))
        for name, option in OPTIONS.items():
            found = getattr(self, name)
            if option.words and found is not None and found not in option.words:
                raise UsageError(f"found {name} {show(found)}, expected {' or '.join(option.words)}")

    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        defaults = ReadOptions()
        return {name: value for name in OPTIONS if (value := getattr(self, name)) != getattr(defaults, name)}

    def only(self, names: Collection[str]) -> ReadOptions:
        """These options, those of other names at their defaults."""
        return ReadOptions(**{name: value for name, value in self.given().items() if name in names})

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that they name, which no output may be written over; a target may be one."""
        found: list[str | Path] = [] if self.target is None else [self.target]
        for name, option in OPTIONS.items():
            if option.metavar == "FILE" and (value := getattr(self, name)) is not None:
                found += value if isinstance(value, tuple) else (value,)
        return tuple(map(Path, found))


def _declared(options: type[msgspec.Struct]) -> dict[str, InputOption]:
    hints = get_type_hints(options, include_extras=True)
    found = {name: getattr(hint, "__metadata__", ())[:1] for name, hint in hints.items()}
    return {name: option for name, metadata in found.items() for option in metadata if isinstance(option, InputOption)}


#: All options by their names, in the order that help and messages have them in.
OPTIONS = _declared(SharedOptions) | {
    name: option for name, option in _declared(ReadOptions).items() if name not in SharedOptions.__struct_fields__
}


def spelt(name: str) -> str:
    """An option as the command line has it."""
    return OPTIONS[name].flag or "--" + name.replace("_", "-")


def spelt_all(names: Collection[str]) -> str:
    """Options as the command line has them, in one order."""
    return ", ".join(spelt(name) for name in OPTIONS if name in names) or "no options"
