"""Configurations are checked field by field, and changed by ``name=value`` texts."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec
import pytest

from stowplan.errors import UsageError
from stowplan.learned_guidance.training.settings import Fraction, Range, check, with_settings


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 3


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    inner: Inner = msgspec.field(default_factory=Inner)
    count: int = 1
    limit: int | None = None
    rate: float = 0.5
    bounds: tuple[float, float] = (0.0, 1.0)
    mode: Literal["one", "other"] = "one"
    is_on: bool = True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 2.0}, "count is 2.0"),
        ({"limit": 2.0}, "limit is 2.0"),
        ({"count": "2"}, "count is '2': expected `int`, got `str`"),
        ({"count": True}, "count is True"),
        ({"rate": math.nan}, "rate is nan, expected a finite number"),
        ({"bounds": (0.0, math.inf)}, r"bounds is \(0.0, inf\), expected a finite number"),
        ({"bounds": (1.0,)}, "bounds is "),
        ({"mode": "third"}, "mode is 'third'"),
        ({"is_on": "no"}, "is_on is 'no'"),
    ],
)
def test_values_of_wrong_types_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^training: {message}"):
        check(Config(**changes))
    check(Config())


class Ranged(msgspec.Struct, frozen=True, kw_only=True):
    count: Annotated[int, Range(2)] = 2
    limit: Annotated[int | None, Range(1)] = None
    part: Fraction = 0.5


def test_ranges() -> None:
    check(Ranged())
    check(Ranged(limit=1, part=1.0))
    with pytest.raises(UsageError, match="count is 1, expected 2 or more"):
        check(Ranged(count=1))
    with pytest.raises(UsageError, match="limit is 0, expected 1 or more"):
        check(Ranged(limit=0))
    with pytest.raises(UsageError, match=r"part is 1.5, expected 0 to 1"):
        check(Ranged(part=1.5))
    with pytest.raises(UsageError, match="part is nan"):
        check(Ranged(part=math.nan))
    with pytest.raises(UsageError, match=r"count is 2\.0"):
        check(Ranged(count=2.0))  # type: ignore[arg-type]


def test_settings_change_fields_by_name() -> None:
    texts = ["count=4", "inner.size=5", "bounds=[0.5, 2]", "mode=other", "limit=7", "limit=null", " rate =1"]
    assert with_settings(Config(), texts) == Config(
        inner=Inner(5), count=4, bounds=(0.5, 2.0), mode="other", limit=None, rate=1.0
    )


@pytest.mark.parametrize(
    "text", ["count", "=1", "counts=3", "inner=3", "inner.x=3", "x.y=1", "count=many", "bounds=[1]", "count=1.5", "is_on=1"]
)
def test_bad_settings_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        with_settings(Config(), [text])
