"""``benchmarks/house/tests.py``: which tests hold a module."""

from __future__ import annotations

from benchmarks.house.tests import graph, imports_of, ways

KNOWN = ("stowplan.a", "stowplan.a.b", "stowplan.c", "tests.test_c")


def test_imports_of_all_forms_are_seen() -> None:
    text = "import stowplan.c\nfrom stowplan.a import b, other\ndef f():\n    from . import a\n"
    assert imports_of("stowplan.d", False, text, KNOWN) == {"stowplan.a", "stowplan.a.b", "stowplan.c"}
    assert imports_of("stowplan.a.b", False, "from ..c import x\n", KNOWN) == {"stowplan.c"}


def test_the_shortest_ways_count() -> None:
    imports = {
        "tests.test_one": {"stowplan.top"},
        "tests.test_two": {"stowplan.middle"},
        "tests.cases": {"stowplan.low"},
        "stowplan.top": {"stowplan.middle"},
        "stowplan.middle": {"stowplan.low"},
        "stowplan.low": set(),
        "stowplan.alone": set(),
    }
    assert ways("stowplan.low", imports) == [["tests.test_two", "stowplan.middle", "stowplan.low"]]
    assert ways("stowplan.middle", imports) == [["tests.test_two", "stowplan.middle"]]
    assert ways("stowplan.alone", imports) == []


def test_the_kernel_is_held() -> None:
    imports = graph()
    assert ["tests.kernel.test_criteria", "stowplan.kernel.criteria"] in ways("stowplan.kernel.criteria", imports)
