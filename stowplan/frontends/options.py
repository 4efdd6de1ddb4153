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
from stowplan.options import ALL_INPUTS, GRAPHS, LOOP_BODIES, NETWORKS, PROGRAMS, SNAPSHOTS, Option, declared, fields_of

#: Functions that make the description of an option (:class:`stowplan.options.Option`) for one sort of inputs.
_program, _network, _loop_body = partial(Option, PROGRAMS), partial(Option, NETWORKS), partial(Option, LOOP_BODIES)
_graph = partial(Option, GRAPHS, has_flag=True, is_shared=False)


class SharedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading that a batch can apply to all of its inputs. Their values are plain data, which can be written to
    JSON.

    A batch is one call of ``stowplan batch``, which solves many inputs; see
    :class:`stowplan.portfolio.batch.records.Settings`. Each field is described by the text in its annotation, which is also the
    help text of the option.
    """

    target: str | Path | tuple[str, ...] | None = None
    capacity: Annotated[
        int | None,
        Option(
            ALL_INPUTS,
            "SIZE",
            "Memory limit in bytes, or with a unit: KB, MB and GB are powers of 1000, and KiB, MiB and GiB are powers of "
            "1024. For a chip, the limit replaces the size of its fastest memory. For packing (offsets in a single "
            "memory), all buffers must fit into the limit. For rematerialization (running operators again to save memory), "
            "no more bytes than the limit may be live at the same time. By default, packing and rematerialization have no "
            "limit, unless a problem file states one.",
            has_flag=True,
        ),
    ] = None
    cost_model: Annotated[
        str | None,
        _program(
            "NAME",
            "How the time of an instruction is modelled. roofline computes it from the speeds of the target. table takes "
            "it from two compilations of the same program by XLA. signatures takes it from any number of compilations of "
            "any programs. The last two need --set cycles=FILE (docs/reference/costs.md). The default is the model that "
            "suits the files of 'cycles'; without such files, it is the model that the target names, usually roofline.",
        ),
    ] = None
    stalls: Annotated[
        Literal["allowed", "forbidden"] | None,
        _program(
            "MODE",
            "Whether the program may wait (stall) until a copy between the memories has finished: allowed or forbidden. "
            "The default depends on the target and is usually allowed.",
        ),
    ] = None
    donation: Annotated[
        Literal["free", "tied"] | None,
        _program(
            "MODE",
            "How to model a donated parameter, that is, one into whose storage XLA writes an output. free, the default, "
            "treats parameter and output as two tensors, which may be in different places. tied treats them as one tensor.",
        ),
    ] = None
    evictions: Annotated[
        Literal["whole_steps", "between_steps"] | None,
        _program(
            "MODE",
            "A tensor may be copied from fast to slow memory between two consecutive instructions. Its bytes in fast memory "
            "then become free after the second instruction (whole_steps, the default), or before it, so that the second "
            "instruction may overwrite them (between_steps, as in XLA's own plans).",
        ),
    ] = None
    prefetches: Annotated[
        Literal["whole", "sliced"] | None,
        _program(
            "MODE",
            "How tensors are copied to fast memory: always as a whole (whole, the default), or also in several slices "
            "(sliced, as in XLA's own plans).",
        ),
    ] = None
    precision: Annotated[
        str | None,
        _network(
            "NAME",
            "Data type of floating-point tensors. For tier placement, which chooses a level of the memory hierarchy for "
            "each tensor, it is int8 (the default) or fp16. For bank mapping, which chooses the dimension along which each "
            "tensor is spread over memory banks, it is int8, fp16 or bf16; by default, each tensor keeps the type that it "
            "has in the model.",
        ),
    ] = None
    granularity: Annotated[
        str | None,
        _network(
            "NAME",
            "What becomes a layer when an ONNX model is read. layer: an operator together with the element-wise operators "
            "that follow it. fine: each operator by itself. auto, the default: layer if the model has a convolution, "
            "otherwise fine.",
        ),
    ] = None
    address_spaces: Annotated[
        bool,
        _network(
            "",
            "Also assign each tensor an offset in its tier (level of the memory hierarchy). By default, a plan says only "
            "which tier a tensor is in.",
        ),
    ] = False
    replace_offline_plan: Annotated[
        bool,
        Option(
            "TensorFlow Lite models",
            "",
            "Also plan the tensors that have offsets in the model file already, except those that custom operators use. By "
            "default, all such tensors keep their offsets.",
        ),
    ] = False
    rules: Annotated[tuple[str, ...], _loop_body("RULE=VALUE", "Rules of the machine, each under its own name.")] = ()


class ReadOptions(SharedOptions, frozen=True, kw_only=True):
    """All options of all front ends. Only some of them apply to each file format
    (:attr:`~stowplan.frontends.formats.InputFormat.accepts`).

    Each field is described by the text in its annotation. ``dim`` and ``shape`` may also be mappings from names to sizes, and
    ``cycles`` may be a single path; the fields then have the strings ``NAME=SIZES``, and a tuple of paths.

    Raises
    ------
    UsageError
        An option has a value of the wrong type, or one that is not among its allowed words; a value of ``dim`` or ``shape`` is
        not of the form ``NAME=SIZES``; or one name has two different sizes.
    """

    target: Annotated[
        str | Path | None,
        Option(
            ALL_INPUTS,
            "NAME",
            "What to plan for: a chip, or a question such as the best order of operators. NAME is one of the names that "
            "'stowplan targets' lists, or the path of a target file (TOML). The default is the only target that fits "
            "INPUT; if several fit, the command lists them and ends. Some inputs, such as problem files, need no target.",
            True,
            is_shared=False,
        ),
    ] = None
    device: Annotated[
        int | None,
        Option(
            SNAPSHOTS,
            "N",
            "Number of the GPU whose allocations are planned. The default is the GPU with the most allocation events in "
            "the snapshot.",
            is_shared=False,
        ),
    ] = None
    dim: Annotated[
        tuple[str, ...],
        _graph(
            "NAME=SIZE",
            "Size of a symbolic dimension of an ONNX model or a .pt2 program, for example batch=1. An input of the model "
            "that is a single integer gets its value in the same way, for example rate=16000. May be given several times.",
        ),
    ] = ()
    shape: Annotated[
        tuple[str, ...],
        _graph(
            "NAME=SIZES",
            "Shape of an input, or of another value, of an ONNX model, for example x=1x3x224x224. May be given several times.",
        ),
    ] = ()
    keep: Annotated[
        tuple[str, ...],
        _graph(
            "NAME",
            "Model input whose bytes must not be overwritten before the program ends. NAME is the name of the input, or a "
            "colon and its number, counted from 0 (:2 is the third input). By default, other tensors may use the bytes of "
            "an input after its last use. May be given several times.",
        ),
    ] = ()
    in_place: Annotated[
        Literal["elementwise", "none"] | None,
        Option(
            GRAPHS,
            "WHAT",
            "Which operators of an ONNX model, a .pt2 program or HLO (not of a TensorFlow Lite model) may write their result "
            "over an operand: element-wise operators, if your runtime does this (elementwise), or no operators (none). "
            "The default is elementwise for the targets order and rematerialization, and none for all other targets.",
            is_shared=False,
        ),
    ] = None
    cycles: Annotated[
        tuple[str | Path, ...] | None,
        _program(
            "FILE",
            "File with the clock cycles of instructions: a module that XLA has compiled, or a latency table. --set "
            "cost_model=table needs two modules; --set cost_model=signatures takes any number of modules and tables. May "
            "be given several times (docs/reference/costs.md).",
            is_shared=False,
        ),
    ] = None
    fixed: Annotated[
        str | Path | None,
        _loop_body(
            "FILE",
            "JSON file with a list of instructions that must have a given tile, time or slot; the slot is the time modulo "
            'the initiation interval. For example: [{"instruction": "a", "tile": 3, "time": 0}].',
            is_shared=False,
        ),
    ] = None
    op_table: Annotated[
        str | Path | None,
        _loop_body(
            "FILE",
            "TOML file that describes operations: what they compute, their latency, and the tiles that can execute them. "
            "Latency and tiles may also be stated for a whole class of operations, such as loads and stores "
            "(docs/reference/loop-bodies.md).",
        ),
    ] = None

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
        """A copy in which all options that are not among ``names`` have their defaults; other names in ``names`` are
        ignored."""
        return ReadOptions(**{name: value for name, value in self.given().items() if name in names})

    @property
    def user_sizes(self) -> UserSizes:
        """The sizes of dimensions and shapes that the user gives with ``dim`` and ``shape``."""
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
    """A list of strings as a tuple; None counts as an empty list. Raises UsageError for anything else."""
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
        Name and number of each input, in the model's order. The numbers are those that are returned; they need not be
        positions. Several inputs may have the same name.
    what
        The option that names the inputs, for messages.

    Raises
    ------
    InputError
        One of ``names`` is not the name of an input, or is the name of several inputs.
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


#: All options by their names, in the order of help texts and messages.
OPTIONS = declared(fields_of(ReadOptions))


def spelt(name: str, value: str = "") -> str:
    """An option with its value, as it is written on the command line; raises KeyError if there is no option of this name."""
    return OPTIONS[name].spelt(value)


def spelt_all(names: Collection[str]) -> str:
    """Options as they are written on the command line: first those with a flag of their own, then those of ``--set``.

    Names of no option are ignored. The text is ``no options`` if nothing is left.
    """
    chosen = [option for name, option in OPTIONS.items() if name in names]
    settings = ", ".join(option.label for option in chosen if not option.flag)
    flags = [option.flag for option in chosen if option.flag]
    return ", ".join([*flags, *([f"--set {settings}"] if settings else [])]) or "no options"


#: The largest size of a dimension that a user may give. It is far beyond any tensor, and fits into the 64 bits that ONNX has.
_MOST_SIZE = 1 << 40


class UserSizes(NamedTuple):
    """Sizes that the user gives for symbolic dimensions and for shapes that a model does not fix."""

    dims: Mapping[str, int]
    """Sizes of named dimensions."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of values, by name; the empty tuple is the shape of a scalar."""


#: The user gives no sizes.
NO_USER_SIZES = UserSizes({}, {})


def as_texts(name: str, given: Any) -> tuple[str, ...]:
    """The values of the option ``dim`` or ``shape`` as strings ``NAME=SIZES``.

    Parameters
    ----------
    name
        Name of the option.
    given
        A list of such strings, or a mapping from names to sizes; None for no values. The sizes of a name are a number, a
        sequence or a NumPy array of numbers, or text as on the command line, such as ``"1x3"``.

    Raises
    ------
    UsageError
        ``given`` is neither, a string is not of the form ``NAME=SIZES``, or one name has two different values.
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        given = [f"{key}={_sizes_text(sizes)}" for key, sizes in given.items()]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"found {name} {show(given)}, expected a list of NAME=SIZES")
    texts = tuple(given)
    parsed: dict[str, tuple[int, ...]] = {}
    for text in texts:
        key, sizes = _parsed(name, text)
        if parsed.setdefault(key, sizes) != sizes:
            raise UsageError(f"--{name}: found {as_typed(parsed[key])} and {as_typed(sizes)} for {key!r}, expected one")
    return texts


def _sizes_text(sizes: Any) -> str:
    """The sizes that a mapping has for a name, as they are written on the command line. Text stays as it is."""
    if hasattr(sizes, "tolist"):
        # An array, or a number, of NumPy.
        sizes = sizes.tolist()
    return as_typed(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes) else str(sizes)


def as_typed(shape: Iterable[Any] | None) -> str:
    """A shape as it is written on the command line: ``1x3x224x224``. The text is empty for None and for the shape of a
    scalar."""
    return "x".join(map(str, shape or ()))


def parse_user_sizes(dims: Iterable[str], shapes: Iterable[str]) -> UserSizes:
    """The sizes in strings that :func:`as_texts` has checked."""
    return UserSizes(
        {name: sizes[0] for name, sizes in (_parsed("dim", text) for text in dims)},
        dict(_parsed("shape", text) for text in shapes),
    )


def _parsed(option: str, text: Any) -> tuple[str, tuple[int, ...]]:
    """Splits ``NAME=SIZES`` into the name and the sizes; raises UsageError for anything else.

    ``option`` is ``dim``, which takes a single size, or ``shape``. The name may contain equals signs. The shape of a scalar has
    no sizes, as in ``x=``.
    """
    name, _, sizes = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    parts = sizes.split("x") if sizes or option == "dim" else []
    is_right = name and all(part.isascii() and part.isdigit() and 0 < int(part[:20]) <= _MOST_SIZE for part in parts)
    if not is_right or (option == "dim" and len(parts) != 1):
        expected = "NAME=SIZE, as batch=1" if option == "dim" else "NAME=SIZES, as x=1x3x224x224"
        raise UsageError(f"--{option}: found {show(text)}, expected {expected}, sizes 1 to 2^40")
    return name, tuple(map(int, parts))
