"""``benchmarks/house/count.py``: what counts as a line of code, and how packages are shown."""

from __future__ import annotations

from pathlib import PurePath

import benchmarks.house.count

TEXT = '''"""Of a module."""

# a comment
def f(x):
    """Of a function.

    Longer.
    """
    "a string alone"
    return (  # with a comment
        x +

        """not a docstring
        of two lines"""
    )


class C:
    """Of a class."""

    y = 1; z = 2
'''


def test_only_code_counts() -> None:
    # def, return, x +, two lines of a string, ), class, y
    assert benchmarks.house.count.code_lines(TEXT) == 8


def test_a_large_package_is_shown_with_its_folders() -> None:
    files = {PurePath("a/b/x.py"): 7, PurePath("a/c.py"): 2, PurePath("d/e/f.py"): 3, PurePath("g.py"): 1}
    assert benchmarks.house.count.packages(files, split=5) == [
        ("a", 9, 2),
        ("a/b", 7, 1),
        ("a/*.py", 2, 1),
        ("d", 3, 1),
        ("*.py", 1, 1),
    ]


def test_the_kernel_does_not_grow() -> None:
    lines = benchmarks.house.count.kernel(benchmarks.house.count.PACKAGE)
    assert {PurePath("kernel/workers/pool.py"), PurePath("kernel/run.py")} <= lines.keys()
    # Docstrings are not counted, so that nobody shortens them for this limit.
    assert sum(lines.values()) <= 2_900
