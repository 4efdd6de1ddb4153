"""The two registrations."""

from __future__ import annotations

import pytest

from stowplan import kinds
from stowplan.frontends import formats


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the kind and the format, for one test."""
    monkeypatch.setattr(kinds, "_PLACES", dict(kinds._PLACES))
    monkeypatch.setattr(formats, "_PLACES", list(formats._PLACES))
    kinds.register("sums", "tests.toys.sums.kind:KIND")
    formats.register("tests.toys.number_list")
