"""Checks that a change renames things and does nothing else: every function's bytecode is compared, with names abstracted.

    python -m benchmarks.house.renames BEFORE [FOLDER ...]

compares the Python files of the working tree with those of the commit BEFORE. Docstrings, comments and the wrapping of lines
may differ. Names may differ, if within each function every old name has one new name, and no two old names become one. Git
finds a file that was moved. The command prints the pairs of names; the names that are renamed in one function and not in
another, or from two names to one, which is right only where they belong to different classes or scopes; and each difference
that is no renaming. It exits with 1 if there is any of the last."""

import argparse
import ast
import dis
import subprocess
import sys
from pathlib import Path
from types import CodeType
from typing import NamedTuple


class Pairs:
    """Old names with their new ones, and the other way round: a bijection, or a fault."""

    def __init__(self) -> None:
        self.new: dict[str, str] = {}
        self.old: dict[str, str] = {}

    def agree(self, old: str, new: str) -> bool:
        return self.new.setdefault(old, new) == new and self.old.setdefault(new, old) == old

    def renamed(self) -> dict[str, str]:
        return {old: new for old, new in self.new.items() if old != new}


class Scope:
    """The names of one function, with those of the function around it."""

    def __init__(self, code: CodeType, outer: Pairs | None) -> None:
        self.pairs = Pairs()
        self.outer = outer
        self.free = set(code.co_freevars)
        self.local = set(code.co_varnames) | set(code.co_cellvars) | self.free

    def agree(self, old: str, new: str) -> bool:
        if old in self.free and self.outer is not None and not self.outer.agree(old, new):
            return False
        return self.pairs.agree(old, new)


class Difference(NamedTuple):
    """A place where two versions of a file differ by more than names."""

    file: str
    function: str
    what: str


class Comparison:
    """Compares files one by one, and collects the pairs of names."""

    def __init__(self) -> None:
        self.names: set[tuple[str, str]] = set()
        self.locals: dict[tuple[str, str], dict[str, str]] = {}
        self.differences: list[Difference] = []

    def files(self, path: str, before: str, after: str) -> None:
        """Compares two texts of one file."""
        self.codes(path, _compiled(before, path), _compiled(after, path))

    def codes(self, path: str, before: CodeType, after: CodeType, outer: Pairs | None = None) -> None:
        """Compares two code objects and those within them. Variables of an enclosing function are named as they are there."""
        where = before.co_qualname
        counts = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags")
        if any(getattr(before, count) != getattr(after, count) for count in counts):
            self._differ(path, where, "the arguments differ in number or kind")
            return
        first, second = _instructions(before), _instructions(after)
        if len(first) != len(second):
            self._differ(path, where, f"{len(first)} instructions became {len(second)}")
            return
        scope = Scope(before, outer)
        for old, new in zip(before.co_varnames, after.co_varnames, strict=False):
            self._names(path, where, old, new, scope)
        for (name, old_argument), (other, new_argument) in zip(first, second, strict=True):
            if name != other:
                self._differ(path, where, f"{name} became {other}")
                return
            self._arguments(path, where, old_argument, new_argument, scope)
        self.names |= {(old, new) for old, new in scope.pairs.new.items() if old not in scope.local}
        changed = {old: new for old, new in scope.pairs.renamed().items() if old in scope.local}
        if changed:
            self.locals[path, where] = changed

    def _arguments(self, path: str, where: str, old: object, new: object, scope: Scope) -> None:
        if isinstance(old, CodeType) and isinstance(new, CodeType):
            self.codes(path, old, new, scope.pairs)
        elif isinstance(old, tuple | frozenset) and isinstance(new, tuple | frozenset):
            ordered = isinstance(old, tuple)
            first, second = (list(old), list(new)) if ordered else (sorted(old, key=repr), sorted(new, key=repr))
            if len(first) != len(second):
                self._differ(path, where, f"{old!r} became {new!r}")
                return
            for one, other in zip(first, second, strict=True):
                self._arguments(path, where, one, other, scope)
        elif isinstance(old, str) and isinstance(new, str):
            if old != new or _is_name(old):
                self._names(path, where, old, new, scope)
        elif type(old) is not type(new) or old != new:
            self._differ(path, where, f"{old!r} became {new!r}")

    def _names(self, path: str, where: str, old: str, new: str, scope: Scope) -> None:
        if not (old == new or (_is_name(old) and _is_name(new))) or not scope.agree(old, new):
            self._differ(path, where, f"{old!r} became {new!r}, and one of them is also another name in this function")

    def ambiguous(self) -> list[str]:
        """Names outside functions that have two new names or two old ones, a line each."""
        renamed = [(old, new) for old, new in self.names if old != new]
        found = []
        for old in {old for old, _ in renamed}:
            news = sorted({new for other, new in self.names if other == old})
            if len(news) > 1:
                found.append(f"{old} became {' and '.join(news)}")
        for new in {new for _, new in renamed}:
            olds = sorted({old for old, other in self.names if other == new})
            if len(olds) > 1:
                found.append(f"{' and '.join(olds)} became {new}")
        return sorted(found)

    def _differ(self, path: str, where: str, what: str) -> None:
        self.differences.append(Difference(path, where, what))


def _is_name(text: str) -> bool:
    """Whether a string may be a name: an identifier, or a dotted path of a module."""
    return all(part.isidentifier() for part in text.lstrip(".").split(".")) if text.lstrip(".") else bool(text)


def _compiled(text: str, path: str) -> CodeType:
    """The code of a file without its docstrings, which compile to constants."""
    tree = ast.parse(text, path)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.Try):
            continue
        node.body = [ast.Pass() if _is_text(entry) else entry for entry in body]  # type: ignore[attr-defined]
        body = node.body  # type: ignore[attr-defined]
        # A body that is a docstring alone becomes a statement that does nothing.
        rest = [entry for entry in body if not isinstance(entry, ast.Pass)]
        node.body = rest or ([ast.Pass()] if body else body)  # type: ignore[attr-defined]
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def _is_text(entry: object) -> bool:
    return isinstance(entry, ast.Expr) and isinstance(entry.value, ast.Constant) and isinstance(entry.value.value, str)


def _instructions(code: CodeType) -> list[tuple[str, object]]:
    """Operations with what they name, without targets of jumps, and without cells of closures, whose order is that of names."""
    skipped = {"MAKE_CELL", "COPY_FREE_VARS", "CACHE", "EXTENDED_ARG"}
    found: list[tuple[str, object]] = []
    for one in dis.get_instructions(code):
        if one.opname in skipped or (one.opname == "LOAD_CLOSURE"):
            continue
        jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
        found.append((one.opname, None if jumps else one.argval))
    return found


def _texts(before: str, folders: list[str]) -> list[tuple[str, str, str]]:
    """Path, old text and new text of each Python file that both versions have and that differs."""
    listed = subprocess.run(
        ["git", "diff", "--name-status", "-M", before, "--", *folders], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for line in listed.splitlines():
        status, *paths = line.split("\t")
        if status[0] in "AD":
            if paths[0].endswith(".py"):
                print(f"{paths[0]}: {'added' if status[0] == 'A' else 'deleted'}, not compared")
            continue
        if not paths[-1].endswith(".py"):
            continue
        old = subprocess.run(["git", "show", f"{before}:{paths[0]}"], capture_output=True, text=True, check=True).stdout
        found.append((paths[-1], old, Path(paths[-1]).read_text()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="The commit to compare the working tree with.")
    parser.add_argument("folders", nargs="*", default=["stowplan", "tests", "benchmarks"], help="Folders to compare.")
    arguments = parser.parse_args()
    comparison = Comparison()
    texts = _texts(arguments.before, arguments.folders)
    for path, old, new in texts:
        comparison.files(path, old, new)
    for old, new in sorted(comparison.names):
        if old != new:
            print(f"{old} -> {new}")
    for (path, function), pairs in sorted(comparison.locals.items()):
        print(f"{path}: {function}: " + ", ".join(f"{old} -> {new}" for old, new in sorted(pairs.items())))
    for line in comparison.ambiguous():
        print(f"LOOK {line}")
    for difference in comparison.differences:
        print(f"NO RENAMING {difference.file}: {difference.function}: {difference.what}")
    print(f"{len(texts)} files differ, {len(comparison.differences)} differences that are no renaming")
    return 1 if comparison.differences else 0


if __name__ == "__main__":
    sys.exit(main())
