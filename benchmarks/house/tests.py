"""Which tests hold a module: those that import it, and those that reach it through the fewest other modules.

    python -m benchmarks.house.tests stowplan/kernel/call.py [MODULE ...]
    python -m benchmarks.house.tests --untested

A module is named by its path or with dots. Imports are read from the source, also those within functions, so that nothing is
run; what is imported by a name in a string (kinds, candidates) is not seen. ``--untested`` lists the modules that no test
imports by itself, with the module on the way to them.
"""

from __future__ import annotations

import argparse
import ast
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.lib.places import ROOT

#: Folders whose modules are read.
FOLDERS = ("stowplan", "tests")


def module_of(path: Path) -> str:
    """The name of a file as a module: ``stowplan.kernel.call``."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(name: str, is_package: bool, text: str, known: Iterable[str]) -> set[str]:
    """Modules among those known that a source imports."""
    known, found = {*known}, set[str]()
    package = name.split(".") if is_package else name.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join((*above, *(node.module.split(".") if node.module else ())))
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found & known - {name}


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Of each module those that it imports."""
    paths = [path.relative_to(root) for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    known = {module_of(path) for path in paths}
    return {
        module_of(path): imports_of(
            module_of(path), path.name == "__init__.py", (root / path).read_text(encoding="utf-8"), known
        )
        for path in paths
    }


def is_test(module: str) -> bool:
    """Whether a module is a file of tests."""
    return module.startswith("tests.") and module.rpartition(".")[2].startswith("test_")


def ways(module: str, imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The shortest ways from tests to a module, each ``[test, ..., module]``; all of the least length."""
    importers: dict[str, list[str]] = {}
    for name in sorted(imports):
        for other in imports[name]:
            importers.setdefault(other, []).append(name)
    queue, seen, found = deque([[module]]), {module}, list[list[str]]()
    while queue:
        way = queue.popleft()
        if found and len(way) >= len(found[0]):
            break
        for name in importers.get(way[0], []):
            if is_test(name):
                found.append([name, *way])
            elif name not in seen:
                seen.add(name)
                queue.append([name, *way])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="a path, or a name with dots")
    parser.add_argument("--untested", action="store_true", help="list the modules that no test imports by itself")
    options = parser.parse_args()
    imports = graph()
    names = [module_of(Path(name)) if name.endswith(".py") else name.replace("/", ".") for name in options.modules]
    for name in names:
        if name not in imports:
            parser.error(f"found {name}, expected a module of {' or '.join(FOLDERS)}")
        for way in ways(name, imports) or [["no test imports it, or what imports it", name]]:
            print(" -> ".join(way))
    if options.untested:
        for name in sorted(name for name in imports if name.startswith("stowplan.")):
            found = ways(name, imports)
            if not found or len(found[0]) > 2:
                print(name, "through", found[0][1] if found else "names in strings only")


if __name__ == "__main__":
    main()
