"""The two registrations."""

from __future__ import annotations

import pytest

from stowplan import kinds
from stowplan.frontends import formats
from stowplan.kinds import KindModules


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the kind and the format, for one test."""
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    monkeypatch.setattr(formats, "_PLACES", list(formats._PLACES))
    here = "tests.toys.sums"
    kinds.register(KindModules(name="sums", models=here, portfolio=here))
    formats.register("tests.toys.number_list")
