"""The options with which an input is read.

The format of a file says which options apply to it (:attr:`~stowplan.frontends.formats.InputFormat.accepts`). For files that
contain a finished problem instead of a program or a model, the kind of the problem says which options can still change it
(:attr:`~stowplan.kinds.BaseKind.amends`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from stowplan.arguments import flag, show, whole
from stowplan.errors import InputError, UsageError
from stowplan.options import ALL_INPUTS, GRAPHS, LOOP_BODIES, NETWORKS, PROGRAMS, Option, declared, fields_of

_program, _network, _loop_body = partial(Option, PROGRAMS), partial(Option, NETWORKS), partial(Option, LOOP_BODIES)
_graph = partial(Option, GRAPHS, has_flag=True, is_shared=False)


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading that a batch can apply to all of its inputs; their values are plain data, which JSON can hold.

    See :class:`stowplan.portfolio.batch.records.Settings`.
    """

    target: str | Path | tuple[str, ...] | None = None
    capacity: Annotated[
        int | None,
        Option(
            ALL_INPUTS,
            "SIZE",
            "Size of the fast memory in place of the target's, or the bytes that buffers must fit into: 1200KB, 1.5MiB.",
            has_flag=True,
        ),
    ] = None
    cost_model: Annotated[
        str | None, _program("NAME", "Cost model, in place of the target's: roofline, table or signatures.")
    ] = None
    stalls: Annotated[
        Literal["allowed", "forbidden"] | None,
        _program("MODE", "Whether the program may wait for copies: allowed or forbidden."),
    ] = None
    donation: Annotated[
        Literal["free", "tied"] | None,
        _program(
            "MODE", "A donated parameter and the output in its storage are two tensors (free, the default) or one (tied)."
        ),
    ] = None
    evictions: Annotated[
        Literal["whole_steps", "between_steps"] | None,
        _program("MODE", "A copy out keeps its place for whole_steps (the default) or leaves it between_steps, as XLA's do."),
    ] = None
    prefetches: Annotated[
        Literal["whole", "sliced"] | None,
        _program("MODE", "Copies in are whole (the default), or may be sliced, as XLA's are."),
    ] = None
    precision: Annotated[
        str | None,
        _network(
            "NAME",
            "Data type: int8 (the default) or fp16; for memory with banks bf16, fp16 or int8 in place of the model's own type.",
        ),
    ] = None
    granularity: Annotated[
        str | None,
        _network(
            "NAME",
            "For ONNX models: layer (an operator is merged with the element-wise ones after it), fine "
            "(every operator by itself), auto (the default).",
        ),
    ] = None
    address_spaces: Annotated[bool, _network("", "Also assign every tensor an offset in its tier.")] = False
    replace_offline_plan: Annotated[
        bool,
        Option("TensorFlow Lite models", "", "Plan tensors again that already have offsets, except those of custom operators."),
    ] = False
    rules: Annotated[tuple[str, ...], _loop_body("RULE=VALUE", "Rules, each under its own name.")] = ()


class ReadOptions(SharedOptions, frozen=True, kw_only=True):
    """All options of all front ends. Each file format uses some of them
    (:attr:`~stowplan.frontends.formats.InputFormat.accepts`).

    Raises
    ------
    UsageError
        An option has a value of a wrong type, or none of its allowed words.
    """

    target: Annotated[
        str | Path | None,
        Option(
            ALL_INPUTS, "NAME", "Name of a target ('stowplan targets' lists them), or a target file.", True, is_shared=False
        ),
    ] = None
    device: Annotated[
        int | None,
        Option(ALL_INPUTS, "N", "Device of a memory snapshot; by default the one with the most events.", is_shared=False),
    ] = None
    dim: Annotated[
        tuple[str, ...],
        _graph(
            "NAME=SIZE",
            "Value of a size that an ONNX model or .pt2 leaves open: batch=1; or of an input that is one number: rate=16000.",
        ),
    ] = ()
    shape: Annotated[
        tuple[str, ...],
        _graph("NAME=SIZES", "Shape of an input, or of another value, of an ONNX model: x=1x3x224x224."),
    ] = ()
    keep: Annotated[
        tuple[str, ...],
        _graph("NAME", "Preserve an input to the end of the run: its name, or :2 for the third input."),
    ] = ()
    in_place: Annotated[
        Literal["elementwise", "none"] | None,
        Option(
            GRAPHS,
            "WHAT",
            "Results that take an operand's bytes, where the runtime does so: elementwise (the default for the target order) "
            "or none (for arena). HLO modules take it, too.",
            is_shared=False,
        ),
    ] = None
    cycles: Annotated[
        tuple[str | Path, ...] | None,
        _program(
            "FILE",
            "File with measured cycles for a cost model (docs/reference/costs.md); may be given several times.",
            is_shared=False,
        ),
    ] = None
    fixed: Annotated[
        str | Path | None,
        _loop_body("FILE", "JSON list of instructions with their tile, time or slot.", is_shared=False),
    ] = None
    op_table: Annotated[str | Path | None, _loop_body("FILE", "TOML file with meaning, latency, class and tiles of ops.")] = (
        None
    )

    def __post_init__(self) -> None:
        # Integers of NumPy are converted to Python's, because only those can be written to files.
        if self.capacity is not None:
            msgspec.structs.force_setattr(self, "capacity", whole("a capacity of {} bytes", self.capacity))
        if self.device is not None:
            msgspec.structs.force_setattr(self, "device", whole("device {}", self.device))
        cycles: Any = self.cycles
        cycles = (cycles,) if isinstance(cycles, str | Path) else tuple(cycles or ()) or None
        msgspec.structs.force_setattr(self, "cycles", cycles)
        msgspec.structs.force_setattr(self, "rules", _texts("rules", self.rules, "NAME=VALUE"))
        for name in ("dim", "shape"):
            msgspec.structs.force_setattr(self, name, as_texts(name, getattr(self, name)))
        msgspec.structs.force_setattr(self, "keep", _texts("keep", self.keep, "names"))
        for name, option in OPTIONS.items():
            value = getattr(self, name)
            if option.type is bool:
                flag(f"{name} {{}}", value)
            elif value is not None and option.words and value not in option.words:
                raise UsageError(f"found {name} {show(value)}, expected {' or '.join(option.words)}")
            elif value is not None and str in option.types and not isinstance(value, str | Path):
                raise UsageError(f"found {name} {show(value)}, expected a name")

    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        defaults = ReadOptions()
        return {name: value for name in OPTIONS if (value := getattr(self, name)) != getattr(defaults, name)}

    def only(self, names: Collection[str]) -> ReadOptions:
        """A copy in which all options that are not among ``names`` have their defaults."""
        return ReadOptions(**{name: value for name, value in self.given().items() if name in names})

    @property
    def user_sizes(self) -> UserSizes:
        """The sizes that the user gives for open dimensions and shapes."""
        return parse_user_sizes(self.dim, self.shape)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the options name, including a target file; no output may overwrite them."""
        paths: list[str | Path] = [] if self.target is None else [self.target]
        for name, option in OPTIONS.items():
            if option.metavar == "FILE" and (value := getattr(self, name)) is not None:
                paths += value if isinstance(value, tuple) else (value,)
        return tuple(map(Path, paths))


def _texts(name: str, given: Any, expected: str) -> tuple[str, ...]:
    """A list of strings as a tuple; raises UsageError for anything else. None counts as an empty list."""
    if isinstance(given, str) or not all(isinstance(text, str) for text in given or ()):
        raise UsageError(f"found {name} {show(given)}, expected a list of {expected}")
    return tuple(given or ())


def named_inputs(names: Iterable[str], inputs: Iterable[tuple[str, int]], what: str = "--keep") -> list[int]:
    """Returns the numbers of the inputs that a user names.

    Parameters
    ----------
    names
        Names of inputs. ``:2`` stands for the third input of the model, unless an input has this name.
    inputs
        Name and number of each input, in the model's order. Several inputs may have the same name.
    what
        The option that names the inputs, for messages.

    Raises
    ------
    InputError
        One of ``names`` is no input's name, or is the name of several inputs.
    """
    pairs = [*enumerate(inputs)]
    found: list[int] = []
    for name in names:
        places = {number: f"{what} :{at}" for at, (own_name, number) in pairs if own_name == name}
        places = places or {number: "" for at, (_, number) in pairs if name == f":{at}"}
        if len(places) > 1:
            ways = " or ".join(places.values())
            raise InputError(f"found {what} {name}, a name of {len(places)} inputs, expected {ways}, counted from 0")
        if not places:
            expected = ", ".join([*dict.fromkeys(own_name for _, (own_name, _) in pairs)][:20])
            raise InputError(
                f"found {what} {name}, expected {f'an input: {expected}' if expected else 'none: there are no inputs'}"
            )
        found += places
    return found


#: All options by their names, in the order of help texts and messages: those that suites share come first.
OPTIONS = declared(fields_of(ReadOptions))


def spelt(name: str, value: str = "") -> str:
    """An option with its value, as it is written on the command line."""
    return OPTIONS[name].spelt(value)


def spelt_all(names: Collection[str]) -> str:
    """Options as they are written on the command line: first those with a flag of their own, then those set with ``--set``."""
    chosen = [option for name, option in OPTIONS.items() if name in names]
    settings = ", ".join(option.label for option in chosen if not option.flag)
    flags = [option.flag for option in chosen if option.flag]
    return ", ".join([*flags, *([f"--set {settings}"] if settings else [])]) or "no options"


#: The largest size of a dimension.
_MOST_SIZE = 1 << 40


class UserSizes(NamedTuple):
    """Sizes that the user gives for what a model leaves open."""

    dims: Mapping[str, int]
    """Sizes of named dimensions."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of values, by name."""


NO_USER_SIZES = UserSizes({}, {})


def as_texts(name: str, given: Any) -> tuple[str, ...]:
    """The values of the option ``dim`` or ``shape`` as strings ``NAME=SIZES``.

    Parameters
    ----------
    name
        Name of the option.
    given
        A list of such strings, or a mapping from names to sizes; None for no values.

    Raises
    ------
    UsageError
        ``given`` is something else, a string is not ``NAME=SIZES``, or one name has two different values.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        given = [f"{key}={as_typed(size if isinstance(size, Sequence) else (size,))}" for key, size in given.items()]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"found {name} {show(given)}, expected a list of NAME=SIZES")
    texts = tuple(given)
    parsed: dict[str, tuple[int, ...]] = {}
    for text in texts:
        key, sizes = _parsed(name, text)
        if parsed.setdefault(key, sizes) != sizes:
            raise UsageError(f"--{name}: found {as_typed(parsed[key])} and {as_typed(sizes)} for {key!r}, expected one")
    return texts


def as_typed(shape: Iterable[Any] | None) -> str:
    """A shape as it is written on the command line: ``1x3x224x224``."""
    return "x".join(map(str, shape or ()))


def parse_user_sizes(dims: Iterable[str], shapes: Iterable[str]) -> UserSizes:
    """The sizes in strings that :func:`as_texts` has checked."""
    return UserSizes(
        {name: sizes[0] for name, sizes in (_parsed("dim", text) for text in dims)},
        dict(_parsed("shape", text) for text in shapes),
    )


def _parsed(option: str, text: Any) -> tuple[str, tuple[int, ...]]:
    """Splits ``NAME=SIZES`` into the name and the sizes; raises UsageError for anything else.

    The name may contain equals signs. The shape of a scalar has no sizes, as in ``x=``.
    """
    name, _, sizes = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    parts = sizes.split("x") if sizes or option == "dim" else []
    is_right = name and all(part.isascii() and part.isdigit() and 0 < int(part[:20]) <= _MOST_SIZE for part in parts)
    if not is_right or (option == "dim" and len(parts) != 1):
        expected = "NAME=SIZE, as batch=1" if option == "dim" else "NAME=SIZES, as x=1x3x224x224"
        raise UsageError(f"--{option}: found {show(text)}, expected {expected}, sizes 1 to 2^40")
    return name, tuple(map(int, parts))
