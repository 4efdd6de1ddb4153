"""Lines of code and files of the package, package by package: no blank lines, no comments, no docstrings.

    python -m benchmarks.house.count [FOLDER] [--split 6000]
    python -m benchmarks.house.count --kernel

A line counts when a token of the program stands on it. Docstrings of modules, classes and functions do not count, nor do
strings that stand alone as statements. A package is a folder of ``stowplan``; one of more lines than ``--split`` is shown with
its own folders below it, and so on.

``--kernel`` counts those of the files that every call of ``stowplan.solve`` passes through.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from pathlib import Path, PurePath

from benchmarks.lib.places import ROOT
from benchmarks.lib.tables import table

PACKAGE = ROOT / "stowplan"

#: Kinds and candidates, options and context, what a call is given, the run, its workers, the result, what is around a run.
KERNEL = "kernel"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(text: str) -> int:
    """How many lines of a program hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count(folder: Path) -> dict[PurePath, int]:
    """Lines of code of each file below a folder, by its path in it."""
    return {path.relative_to(folder): code_lines(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}


def kernel(folder: Path) -> dict[PurePath, int]:
    """Lines of code of each file of the kernel, by its path in the package."""
    files = sorted((folder / KERNEL).rglob("*.py"))
    return {path.relative_to(folder): code_lines(path.read_text(encoding="utf-8")) for path in files}


def packages(files: dict[PurePath, int], split: int, depth: int = 0) -> list[tuple[str, int, int]]:
    """(name, lines, files) of each package, the folders of a large one right below it; files outside packages come last."""
    grouped: dict[str, dict[PurePath, int]] = {}
    for path, lines in files.items():
        grouped.setdefault(path.parts[depth] if len(path.parts) > depth + 1 else "", {})[path] = lines
    rows: list[tuple[str, int, int]] = []
    for name, inside in sorted(grouped.items(), key=lambda item: (not item[0], item[0])):
        above = next(iter(inside)).parts[: depth + 1]
        rows.append(("/".join(above) if name else "/".join((*above[:-1], "*.py")), sum(inside.values()), len(inside)))
        if name and rows[-1][1] > split and any(len(path.parts) > depth + 2 for path in inside):
            rows += packages(inside, split, depth + 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--split", type=int, default=6000, help="show the folders of packages with more lines than this")
    parser.add_argument("--kernel", action="store_true", help="lines of code of the files that every solve passes through")
    arguments = parser.parse_args()
    if arguments.kernel:
        lines = kernel(arguments.folder)
        print(table([*lines.items(), ("**total**", sum(lines.values()))], ("file", "lines")))
        return
    files = count(arguments.folder)
    rows = packages(files, arguments.split)
    print(table([*rows, ("**total**", sum(files.values()), len(files))], ("package", "lines", "files")))


if __name__ == "__main__":
    main()
