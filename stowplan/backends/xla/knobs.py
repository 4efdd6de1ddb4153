"""Options of the compiler: knobs (what its memory-space assignment looks at first and last, and when it fetches), and flags.

XLA assigns values to fast memory one by one, in an order of its own. ``xla_tpu_msa_sort_order_overrides`` moves values to the
front or the back of that order. It forbids and forces nothing: a value moved to the back still gets what place is left.
``xla_tpu_preferred_prefetch_overrides`` says how early values of some size are fetched.

Flags change the program before its memory-space assignment: fusions, or what kernels keep of fast memory. Each gives a program
of its own, with other names and another default, for which settings are found anew. Which of them act on a chip is a property
of its target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from stowplan.backends.xla.child import Option
from stowplan.hardware.program import Program
from stowplan.hardware.targets import FlagName, XlaChip

#: Option of the compiler that takes the order, a text proto ``MsaSortOrderOverrides``.
ORDER_OPTION = "xla_tpu_msa_sort_order_overrides"

#: Option of the compiler that takes the prefetches, a text proto ``PreferredPrefetchOverrides``.
PREFETCH_OPTION = "xla_tpu_preferred_prefetch_overrides"

#: Option that turns the assignment off: everything stays in slow memory.
ASSIGNMENT_OPTION = "xla_msa_enable"

#: KiB of CMEM that the assignment may use; for fast memories that are one with the kernels' there is none that acts.
CAPACITY_OPTION = "xla_tpu_max_cmem_used_by_memory_space_assignment"

#: KiB of fast memory that kernels keep for themselves; the assignment has what is left.
SCOPED_OPTION = "xla_tpu_scoped_vmem_limit_kib"

#: For how many times its own time a copy had best run beside the program. The larger, the earlier it begins.
OVERLAP_OPTION = "xla_msa_preferred_overlap_to_async_copy_ratio"

#: In how many slices a value may be fetched; 0 for whole ones.
SLICES_OPTION = "xla_tpu_sliced_prefetch_max_slices"

#: Options that are knobs, which nobody else may.
KNOB_OPTIONS = (
    ORDER_OPTION,
    PREFETCH_OPTION,
    ASSIGNMENT_OPTION,
    CAPACITY_OPTION,
    OVERLAP_OPTION,
    SLICES_OPTION,
)

_VALUE = re.compile(r"(?P<name>[^{}]+)(?:\{(?P<index>[0-9,]+)\})?")
_SPECIAL = re.compile(r"[.+*?()|\[\]{}$]|(?P<not_alone>[\\^])")


#: Flags and their values, sorted.
Flags = tuple[tuple[str, Option], ...]


class Knobs(msgspec.Struct, frozen=True):
    """Values in XLA's names, ``"fusion.5"`` or ``"fusion.5{1}"``, and the compiler's other options."""

    first: frozenset[str] = frozenset()
    """Assigned before all others."""
    last: frozenset[str] = frozenset()
    """Assigned after all others; a value that is in both is moved to the front."""
    options: tuple[tuple[str, Option], ...] = ()
    """Options besides the order and the prefetches, sorted."""
    flags: Flags = ()
    """Options that change the program before its memory-space assignment, sorted: names of values hold among equal flags."""
    eager: tuple[int, float] = (0, 0.0)
    """Values of at least so many bytes are fetched how early within what is possible, from 0 (late) to 1; 0 bytes for XLA's
    choice."""
    preload: str = ""
    """Input of the program to be in fast memory before it starts (cross-program prefetch); XLA's choice where empty."""

    def compiler_options(self) -> dict[str, Option]:
        """What ``jax``'s ``lowered.compile(compiler_options=...)`` takes; equal settings give equal options."""
        texts = {
            ORDER_OPTION: order_overrides(self.first, self.last - self.first, self.preload),
            PREFETCH_OPTION: eagerness_override(*self.eager),
        }
        return dict(self.flags) | dict(self.options) | {name: text for name, text in texts.items() if text}

    def moved(self, *, first: Iterable[str] = (), last: Iterable[str] = ()) -> Knobs:
        """This setting with some values moved to the front or the back, away from where they were."""
        to_first = frozenset(first)
        to_last = frozenset(last) - to_first
        return msgspec.structs.replace(self, first=(self.first - to_last) | to_first, last=(self.last - to_first) | to_last)

    def without_names(self) -> Knobs:
        """This setting without what it says of single values, for a program that has others."""
        return msgspec.structs.replace(self, first=frozenset(), last=frozenset(), preload="")

    def with_flags(self, flags: Mapping[str, Option]) -> Knobs:
        """This setting with some flags set, for another program: without what it says of single values."""
        merged = tuple(sorted({**dict(self.flags), **flags}.items()))
        return msgspec.structs.replace(self.without_names(), flags=merged)

    def with_option(self, name: str, value: Option) -> Knobs:
        """This setting with one of the other options set."""
        return msgspec.structs.replace(self, options=tuple(sorted({**dict(self.options), name: value}.items())))

    def within(self, capacity: int) -> Knobs:
        """This setting with no more than so many bytes of fast memory, in whole KiB."""
        return self.with_option(CAPACITY_OPTION, str(capacity >> 10))

    @property
    def capacity(self) -> int | None:
        """Bytes of fast memory that it allows; None for the compiler's own limit."""
        kib = dict(self.options).get(CAPACITY_OPTION)
        return None if kib is None else int(kib) << 10

    @property
    def overlap(self) -> float | None:
        """The overlap ratio that copies should have; None for the compiler's own."""
        ratio = dict(self.options).get(OVERLAP_OPTION)
        return None if ratio is None else float(ratio)

    def describe(self) -> str:
        """A few words for people; empty for XLA's own plan."""
        options = dict(self.options)
        last = self.last - self.first
        flags = [f"{name.removeprefix('xla_')}={str(value).lower()}" for name, value in self.flags]
        parts = (
            *flags,
            "no fast memory" if options.get(ASSIGNMENT_OPTION) is False else "",
            f"{len(self.first)} first" if self.first else "",
            f"{len(last)} last" if last else "",
            f"{self.capacity / (1 << 20):g} MiB" if self.capacity is not None else "",
            f"overlap {self.overlap:g}" if self.overlap is not None else "",
            f"{self.preload} preloaded" if self.preload else "",
            f"eagerness {self.eager[1]:g} from {self.eager[0] >> 10} KiB" if self.eager[0] else "",
            "no slices" if SLICES_OPTION in options else "",
        )
        return ", ".join(part for part in parts if part)


#: XLA's own plan, and everything in slow memory.
DEFAULT = Knobs()
ALL_SLOW = Knobs(options=((ASSIGNMENT_OPTION, False),))


def order_overrides(first: Iterable[str], last: Iterable[str], preload: str = "") -> str:
    """The text proto that moves values to the front and the back; empty where there are none.

    ``preload`` comes before all others, in the order of what is fetched before the program starts, too.

    One entry for each place in a tuple, its names in one expression: XLA looks entries up one by one, and a thousand of them
    treble the time of a compile.
    """
    entries = []
    fetched = {preload} if preload else set()
    groups = [(fetched, "assign_first:true}apply_to_cross_program_prefetches:true")]
    groups += [({*first} - fetched, "assign_first:true}"), ({*last} - fetched, "assign_last:true}")]
    for values, words in groups:
        names: dict[str, list[str]] = {}
        for value in sorted(values):
            name, index = _split(value)
            names.setdefault(index, []).append(name)
        for index in sorted(names):
            place = "".join(f" index:{number}" for number in index.split(",") if number)
            tuple_index = f" tuple_index{{{place.strip()}}}" if place else ""
            regex = "|".join(_quoted(name) for name in names[index])
            entries.append(
                f'overrides{{hlo_position_matcher{{instruction_name_regex:"{regex}"{tuple_index}}}override_options{{{words}}}'
            )
    return "".join(entries)


def eagerness_override(size: int, eagerness: float) -> str:
    """The text proto that says how early values of at least ``size`` bytes are fetched; empty for 0."""
    if not size:
        return ""
    return f"overrides{{hlo_operand_filter{{size_gte:{size}}}override_options{{prefetch_eagerness:{eagerness:g}}}}}"


def _split(value: str) -> tuple[str, str]:
    match = _VALUE.fullmatch(value)
    if match is None:
        raise ValueError(f"found value {value!r}, expected NAME or NAME{{INDEX}}")
    return match["name"], match["index"] or ""


def _quoted(name: str) -> str:
    """A name as an RE2 expression inside a text proto: a character class needs no backslash, which the proto would take.

    What cannot stand alone in a class is escaped for both.
    """
    return _SPECIAL.sub(
        lambda match: f"\\\\{match[0] if match[0] == '^' else 2 * match[0]}" if match["not_alone"] else f"[{match[0]}]", name
    )


def values_of(program: Program) -> dict[int, tuple[str, ...]]:
    """XLA's names of the values in each tensor's storage; the path of loops and calls in a name is left out."""
    values: dict[int, dict[str, None]] = {number: {} for number in range(len(program.tensors))}
    for number, tensor in enumerate(program.tensors):
        for name in tensor.members or (tensor.name,):
            values[number][name.rpartition("/")[2]] = None
    return {number: tuple(names) for number, names in values.items()}


def as_flags(options: Mapping[str, Option]) -> str:
    """Options as flags: the value of ``LIBTPU_INIT_ARGS``, or arguments in a shell.

    A flag with blanks stands in single quotes, which libtpu understands as a shell does.
    """
    import shlex

    return " ".join(
        shlex.quote(f"--{name}={str(value).lower() if isinstance(value, bool) else value}")
        for name, value in sorted(options.items())
    )


#: A scoped limit halfway between XLA's own and one that lost little or won: it may be better than both.
BETWEEN = "scoped_between"

#: Flags whose preview shows only what they cost: a larger scoped limit leaves less memory to assign, and what kernels of larger
#: tiles save is not seen.
UNSEEN = frozenset({"scoped_double"})


def flags_of(chip: XlaChip) -> dict[str, Mapping[str, Option]]:
    """Options of each flag that is worth a try on a chip, in the order of its target."""
    scoped = (chip.scoped or 0) >> 10
    known: dict[FlagName, Mapping[str, Option]] = {
        "scoped_half": {SCOPED_OPTION: str(scoped // 2)},
        "scoped_double": {SCOPED_OPTION: str(2 * scoped)},
        "no_conv_input_fusion": {"xla_jf_conv_input_fusion": False},
        "scavenge": {"xla_tpu_scavenge_vmem_for_fusions": True},
        "bundle_aware": {"xla_tpu_use_bundle_aware_cost_model_for_fusions": True},
    }
    return {name: known[name] for name in chip.flags}


def between(chip: XlaChip, capacity: int, flag: Mapping[str, Option]) -> dict[str, Option] | None:
    """Options of the scoped limit halfway between XLA's own and a flag's; none for flags that set none, and for limits that
    leave more than half of the fast memory to the rest, of which XLA's own leaves ``capacity`` bytes."""
    if chip.scoped is None or SCOPED_OPTION not in flag:
        return None
    own, limit = chip.scoped >> 10, int(flag[SCOPED_OPTION])
    if own < limit < (capacity + chip.scoped >> 10) // 2:
        return None
    return {SCOPED_OPTION: str((own + limit) // 2)}
