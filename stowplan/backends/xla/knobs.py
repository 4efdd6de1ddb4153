"""The compiler options that the tuner sets: knobs of the memory-space assignment, and flags that change the program before it.

A *knob* is an option of the memory-space assignment, a *flag* is an option that changes the program before it, and a *setting*
is a value for each of them (:class:`Knobs`). To *fetch* a value means to copy it from slow to fast memory (a *prefetch*).

XLA's memory-space assignment puts values into fast memory one by one, in an order that it computes. The option
``xla_tpu_msa_sort_order_overrides`` moves values to the front or the back of that order. It neither forbids nor forces
anything: a value at the back is still placed if there is room left. The option ``xla_tpu_preferred_prefetch_overrides`` says
how early values of some size are fetched.

Flags change the program before its memory-space assignment, for example its fusions, or the amount of fast memory that is
reserved for kernels. Each flag makes another program, with other names of values and another default, for which settings are
searched again. The target of a chip says which flags have an effect on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from stowplan.backends.xla.child import Option
from stowplan.hardware.program import Program
from stowplan.hardware.targets import FlagName, XlaChip

#: Option for the order, a text proto ``MsaSortOrderOverrides``.
ORDER_OPTION = "xla_tpu_msa_sort_order_overrides"

#: Option for prefetches, a text proto ``PreferredPrefetchOverrides``.
PREFETCH_OPTION = "xla_tpu_preferred_prefetch_overrides"

#: Option that turns the assignment off: everything stays in slow memory.
ASSIGNMENT_OPTION = "xla_msa_enable"

#: Option for the KiB of CMEM that the assignment may use. There is no such option for chips whose kernels share the fast
#: memory.
CAPACITY_OPTION = "xla_tpu_max_cmem_used_by_memory_space_assignment"

#: Option for the *scoped limit*: the KiB of fast memory that are reserved for kernels. The assignment may use the rest.
SCOPED_OPTION = "xla_tpu_scoped_vmem_limit_kib"

#: Option for the preferred ratio of the time in which a copy may run to the time that it takes. The larger, the earlier it
#: begins.
OVERLAP_OPTION = "xla_msa_preferred_overlap_to_async_copy_ratio"

#: Option for the number of slices in which a value may be fetched; 0 fetches values in one piece.
SLICES_OPTION = "xla_tpu_sliced_prefetch_max_slices"

#: Options that the tuner sets; users must not set them.
KNOB_OPTIONS = (
    ORDER_OPTION,
    PREFETCH_OPTION,
    ASSIGNMENT_OPTION,
    CAPACITY_OPTION,
    OVERLAP_OPTION,
    SLICES_OPTION,
)

#: XLA's name of a value: an instruction and, if its result is a tuple, an index in it.
_VALUE = re.compile(r"(?P<name>[^{}]+)(?:\{(?P<index>[0-9,]+)\})?")
#: Characters with a meaning in RE2 expressions; two of them cannot be alone in a character class.
_SPECIAL = re.compile(r"[.+*?()|\[\]{}$]|(?P<not_alone>[\\^])")


#: Flags with their values, sorted by name.
Flags = tuple[tuple[str, Option], ...]


class Knobs(msgspec.Struct, frozen=True):
    """One setting of the tuner. Values have XLA's names, such as ``"fusion.5"`` or, inside of a tuple, ``"fusion.5{1}"``."""

    first: frozenset[str] = frozenset()
    """Values that are assigned before all others."""
    last: frozenset[str] = frozenset()
    """Values that are assigned after all others; a value in both sets is moved to the front."""
    options: tuple[tuple[str, Option], ...] = ()
    """Names and values of the options for the assignment other than the order and the prefetches, sorted by name."""
    flags: Flags = ()
    """Options that change the program before its memory-space assignment.

    Names of values are valid only with the same flags.
    """
    eager: tuple[int, float] = (0, 0.0)
    """A size in bytes, and how early values of at least this size are fetched, from 0 (late) to 1 (as early as possible). A
    size of 0 leaves it to XLA."""
    preload: str = ""
    """The input of the program that is in fast memory before it starts (cross-program prefetch); if empty, XLA chooses."""

    def compiler_options(self) -> dict[str, Option]:
        """Returns the options for ``lowered.compile(compiler_options=...)`` of jax; equal settings give equal options."""
        texts = {
            ORDER_OPTION: order_overrides(self.first, self.last - self.first, self.preload),
            PREFETCH_OPTION: eagerness_override(*self.eager),
        }
        return dict(self.flags) | dict(self.options) | {name: text for name, text in texts.items() if text}

    def moved(self, *, first: Iterable[str] = (), last: Iterable[str] = ()) -> Knobs:
        """Returns this setting with some values moved to the front or the back."""
        to_first = frozenset(first)
        to_last = frozenset(last) - to_first
        return msgspec.structs.replace(self, first=(self.first - to_last) | to_first, last=(self.last - to_first) | to_last)

    def without_names(self) -> Knobs:
        """Returns this setting without its names of values, for a program that has other names."""
        return msgspec.structs.replace(self, first=frozenset(), last=frozenset(), preload="")

    def with_flags(self, flags: Mapping[str, Option]) -> Knobs:
        """Returns this setting with some more flags. They make another program, so names of values are left out."""
        merged = tuple(sorted({**dict(self.flags), **flags}.items()))
        return msgspec.structs.replace(self.without_names(), flags=merged)

    def with_option(self, name: str, value: Option) -> Knobs:
        """Returns this setting with one of the other options set."""
        return msgspec.structs.replace(self, options=tuple(sorted({**dict(self.options), name: value}.items())))

    def within(self, capacity: int) -> Knobs:
        """Returns this setting with a limit on fast memory in bytes, rounded down to whole KiB."""
        return self.with_option(CAPACITY_OPTION, str(capacity >> 10))

    @property
    def capacity(self) -> int | None:
        """The limit on fast memory in bytes; None for the compiler's own limit."""
        kib = dict(self.options).get(CAPACITY_OPTION)
        return None if kib is None else int(kib) << 10

    @property
    def overlap(self) -> float | None:
        """The preferred overlap ratio of copies; None for the compiler's own."""
        ratio = dict(self.options).get(OVERLAP_OPTION)
        return None if ratio is None else float(ratio)

    def describe(self) -> str:
        """Returns a short description for users; empty for XLA's default."""
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


#: The setting that leaves everything to XLA.
DEFAULT = Knobs()
#: The setting without memory-space assignment, with which all values are in slow memory.
ALL_SLOW = Knobs(options=((ASSIGNMENT_OPTION, False),))


def order_overrides(first: Iterable[str], last: Iterable[str], preload: str = "") -> str:
    """Returns the text proto that moves the values ``first`` to the front and ``last`` to the back; empty if there are none.

    The value ``preload`` comes before all others, also in the order of cross-program prefetches. A name that is not of the form
    ``NAME`` or ``NAME{INDEX}`` raises ValueError.

    All names with the same index in a tuple share one entry with a regular expression. The reason is that XLA searches entries
    one by one; a thousand entries make a compilation three times as long.
    """
    entries = []
    preloaded = {preload} if preload else set()
    groups = [(preloaded, "assign_first:true}apply_to_cross_program_prefetches:true")]
    groups += [({*first} - preloaded, "assign_first:true}"), ({*last} - preloaded, "assign_last:true}")]
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
    """Returns the text proto that says how early values of at least ``size`` bytes are fetched; empty if ``size`` is 0.

    ``eagerness`` is between 0 (late) and 1 (as early as possible).
    """
    if not size:
        return ""
    return f"overrides{{hlo_operand_filter{{size_gte:{size}}}override_options{{prefetch_eagerness:{eagerness:g}}}}}"


def _split(value: str) -> tuple[str, str]:
    """Returns the name of an instruction and the index in its tuple; raises ValueError for text of another form."""
    match = _VALUE.fullmatch(value)
    if match is None:
        raise ValueError(f"found value {value!r}, expected NAME or NAME{{INDEX}}")
    return match["name"], match["index"] or ""


def _quoted(name: str) -> str:
    """Returns a name as an RE2 expression inside of a text proto.

    Special characters are put into character classes, because backslashes would have to be escaped for the proto as well.
    Characters that cannot be alone in a class are escaped for both.
    """
    return _SPECIAL.sub(
        lambda match: f"\\\\{match[0] if match[0] == '^' else 2 * match[0]}" if match["not_alone"] else f"[{match[0]}]", name
    )


def values_of(program: Program) -> dict[int, tuple[str, ...]]:
    """Returns, for each tensor, XLA's names of the values in its storage, without the path of loops and calls."""
    values: dict[int, dict[str, None]] = {number: {} for number in range(len(program.tensors))}
    for number, tensor in enumerate(program.tensors):
        for name in tensor.members or (tensor.name,):
            values[number][name.rpartition("/")[2]] = None
    return {number: tuple(names) for number, names in values.items()}


def as_flags(options: Mapping[str, Option]) -> str:
    """Returns options as command-line flags, for ``LIBTPU_INIT_ARGS`` or for a shell.

    A flag with spaces is in single quotes, which libtpu interprets as a shell does.
    """
    import shlex

    return " ".join(
        shlex.quote(f"--{name}={str(value).lower() if isinstance(value, bool) else value}")
        for name, value in sorted(options.items())
    )


#: Name of the flag that sets the scoped limit halfway between XLA's own and another one.
BETWEEN = "scoped_between"

#: Flags whose previews show only their cost. A larger scoped limit leaves less memory to assign, which a preview shows; it
#: also makes kernels with larger tiles faster, which a preview does not show.
UNSEEN = frozenset({"scoped_double"})


def flags_of(chip: XlaChip) -> dict[str, Mapping[str, Option]]:
    """Returns the flags that have an effect on a chip, with the options that they set, in the order of its target."""
    scoped = (chip.scoped or 0) >> 10
    options_of: dict[FlagName, Mapping[str, Option]] = {
        "scoped_half": {SCOPED_OPTION: str(scoped // 2)},
        "scoped_double": {SCOPED_OPTION: str(2 * scoped)},
        "no_conv_input_fusion": {"xla_jf_conv_input_fusion": False},
        "scavenge": {"xla_tpu_scavenge_vmem_for_fusions": True},
        "bundle_aware": {"xla_tpu_use_bundle_aware_cost_model_for_fusions": True},
    }
    return {name: options_of[name] for name in chip.flags}


def between(chip: XlaChip, capacity: int, flag: Mapping[str, Option]) -> dict[str, Option] | None:
    """Returns options that set the scoped limit halfway between XLA's own limit and the limit that a flag sets.

    The scoped limit is the fast memory that is reserved for kernels. None is returned in these cases:

    - the flag sets no scoped limit
    - kernels of the chip do not use fast memory
    - the flag raises the limit, but leaves more than half of the memory to the assignment

    Parameters
    ----------
    chip
        The chip.
    capacity
        Bytes of fast memory that XLA's own scoped limit leaves to the assignment.
    flag
        The options that the flag sets.
    """
    if chip.scoped is None or SCOPED_OPTION not in flag:
        return None
    default_limit, limit = chip.scoped >> 10, int(flag[SCOPED_OPTION])
    if default_limit < limit < (capacity + chip.scoped >> 10) // 2:
        return None
    return {SCOPED_OPTION: str((default_limit + limit) // 2)}
