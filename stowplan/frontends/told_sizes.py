"""Sizes that a model leaves open, as users tell them: ``--dim batch=1`` and ``--shape NAME=1x3x224x224``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stowplan.arguments import show
from stowplan.errors import UsageError

#: Sizes are at most so large.
MOST = 1 << 40

#: What open sizes are in examples of what to type: by parts of their names, then by their place among so many dimensions.
_BY_NAME = (
    (("batch", "num_images"), 1),
    (("channel",), 3),
    (("height", "width", "image"), 224),
    (("past",), 127),
    (("sample", "audio", "wave"), 16_000),
    (("seq", "len", "time", "token", "frames"), 128),
)
_BY_LETTER = {"n": 1, "b": 1, "c": 3, "h": 224, "w": 224, "t": 128, "s": 128, "l": 128}


class ToldSizes(NamedTuple):
    """What is told."""

    dims: Mapping[str, int]
    """Dimensions by name."""
    shapes: Mapping[str, tuple[int, ...]]
    """Of values by name."""


NONE = ToldSizes({}, {})


def as_texts(name: str, given: Any) -> tuple[str, ...]:
    """Values of an option as texts ``NAME=SIZES``, given as such texts, or by name; UsageError for what is none of these."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        given = [f"{key}={as_typed(size if isinstance(size, Sequence) else (size,))}" for key, size in given.items()]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"found {name} {show(given)}, expected a list of NAME=SIZES")
    texts = tuple(given)
    told: dict[str, tuple[int, ...]] = {}
    for text in texts:
        key, sizes = _parsed(name, text)
        if told.setdefault(key, sizes) != sizes:
            raise UsageError(f"--{name}: found {as_typed(told[key])} and {as_typed(sizes)} for {key!r}, expected one")
    return texts


def as_typed(shape: Iterable[Any] | None) -> str:
    """A shape as it is typed: ``1x3x224x224``."""
    return "x".join(map(str, shape or ()))


def told_sizes(dims: Iterable[str], shapes: Iterable[str]) -> ToldSizes:
    """What texts tell that :func:`as_texts` has looked at."""
    return ToldSizes(
        {name: sizes[0] for name, sizes in (_parsed("dim", text) for text in dims)},
        dict(_parsed("shape", text) for text in shapes),
    )


def _parsed(option: str, text: Any) -> tuple[str, tuple[int, ...]]:
    """Name and sizes. The name may have signs of equality, too; a scalar has no sizes."""
    name, _, sizes = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    parts = sizes.split("x") if sizes or option == "dim" else []
    is_right = name and all(part.isascii() and part.isdigit() and 0 < int(part[:20]) <= MOST for part in parts)
    if not is_right or (option == "dim" and len(parts) != 1):
        expected = "NAME=SIZE, as batch=1" if option == "dim" else "NAME=SIZES, as x=1x3x224x224"
        raise UsageError(f"--{option}: found {show(text)}, expected {expected}, sizes 1 to 2^40")
    return name, tuple(map(int, parts))


def likely(name: str, place: int, channels: int | None = None) -> int:
    """A size that a dimension may well have, for examples: by its name, else by its place in a shape.

    ``channels`` is the dimension of an image's channels; None where the shape is none of an image.
    """
    text = name.lower()
    for words, size in _BY_NAME:
        if any(word in text for word in words):
            return size
    by_place = 1 if place == 0 else 128 if channels is None else 3 if place == channels else 224
    return _BY_LETTER.get(text, by_place)
