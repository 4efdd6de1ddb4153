"""The packages of ``stowplan`` import only downwards, and importing the package is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import stowplan
from tests.paths import EXAMPLES
from tests.patience import HANG

ROOT = Path(stowplan.__file__).parent

#: Floor of each package; what is not listed is a base module, on the ground floor.
FLOORS = {
    name: floor
    for floor, names in enumerate(
        [
            ["models"],
            ["hardware", "certificates"],
            ["transforms"],
            ["frontends"],
            ["learned_guidance"],
            ["kernel"],
            ["portfolio"],
            ["backends", "library"],
            ["cli", "report"],
            ["__main__"],
        ],
        1,
    )
    for name in names
}

#: Who names a place on a floor above: what is drawn, and where kinds are declared. It is imported when somebody asks for it.
DOORS = {
    ("kinds", "portfolio"),
    ("document", "report"),
    ("result", "report"),
}

#: Tables of places, each with modules in it that import the table: commands, formats, environments, what builds kernels.
TABLES = {"cli.app", "frontends.formats", "learned_guidance.environments", "compiled.library"}


def package_of(parts: tuple[str, ...]) -> str:
    """Package, or base module, of a module below ``stowplan``; "" for the package's own ``__init__``."""
    return parts[0] if parts else ""


def floor(name: str) -> int:
    # The package itself only hands out what its packages make, on demand: it stands on top of them all.
    return 1 + max(FLOORS.values()) if not name else FLOORS.get(name, 0)


def is_module(*parts: str) -> bool:
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").exists()


def imported(path: Path, parts: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
    """(line, module below ``stowplan``) of every import of our own in a file, also of those inside functions."""
    package = parts if path.name == "__init__.py" else parts[:-1]
    found: list[tuple[int, tuple[str, ...]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, tuple(alias.name.split("."))) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ("stowplan", *package[: len(package) - node.level + 1]) if node.level else ()
            module = (*start, *(node.module.split(".") if node.module else ()))
            # "from stowplan import files" names a module only in its list; any other name comes from the package itself.
            names = [alias.name for alias in node.names if module[0] == "stowplan" and is_module(*module[1:], alias.name)]
            found += [(node.lineno, (*module, name)) for name in names] or [(node.lineno, module)]
    return [(line, module[1:]) for line, module in found if module[0] == "stowplan"]


def modules() -> list[tuple[Path, tuple[str, ...]]]:
    result = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        result.append((path, parts[:-1] if parts[-1] == "__init__" else parts))
    return result


def test_imports_point_downwards() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(('stowplan', *target))}"
        for path, parts in modules()
        for line, target in imported(path, parts)
        if floor(package_of(target)) > floor(package_of(parts)) and target
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_the_package_itself() -> None:
    """``import stowplan`` in a module would be a way around the floors."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path, parts in modules() for line, target in imported(path, parts) if not target
    ]
    # The command line is a user of the package like any other.
    assert not [place for place in wrong if not place.startswith(("cli", "report"))], wrong


def dependencies(
    path: Path, parts: tuple[str, ...], known: frozenset[tuple[str, ...]], *, typing: bool = False
) -> set[tuple[str, ...]]:
    """Modules below ``stowplan`` that a file imports, also within functions; for type checking alone only with ``typing``."""
    package = parts if path.name == "__init__.py" else parts[:-1]
    found: set[tuple[str, ...]] = set()
    rest: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while rest:
        node = rest.pop()
        if not typing and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            rest += node.orelse
            continue
        rest += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = ("stowplan", *package[: len(package) - node.level + 1]) if node.level else ()
            module = (*start, *(node.module.split(".") if node.module else ()))
            # What is named in the list may be a module itself.
            found |= {(*module, name) if (*module[1:], name) in known else module for name in (a.name for a in node.names)}
    return {target[1:] for target in found if target[0] == "stowplan" and target[1:] in known} - {parts}


class Place(NamedTuple):
    """A module, perhaps with a name in it, that a file names in a string."""

    line: int
    module: tuple[str, ...]
    name: str = ""


def named_places(path: Path, parts: tuple[str, ...], known: frozenset[tuple[str, ...]]) -> list[Place]:
    """Places that are imported by what a string says: ``module:name``, a module's own name, and those of ``lazy_names``.

    A string with constants of its module filled in counts as the whole; what is known at run time alone stands for any word.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            constants |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    places: list[Place] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_names":
            given = node.args[1]
            table = ast.literal_eval(constants[given.id] if isinstance(given, ast.Name) else given)
            places += [Place(node.lineno, (*parts, *at.split(".")), name) for at, names in table.items() for name in names]
        text = text_of(node, constants)
        found = re.fullmatch(r"stowplan\.([\w.]+|[\w.*]+(?=:))(?::([\w*]+))?", text or "")
        if found is None:
            continue
        words = tuple(found[1].split("."))
        fitting = [one for one in known if len(one) == len(words) and all(map(fits, words, one))]
        # Words with dots may be a format; with a name behind them, they are a place, whether or not there is such a module.
        places += [Place(node.lineno, one, found[2] or "") for one in fitting or ([words] if found[2] else [])]
    return places


def fits(word: str, name: str) -> bool:
    return word in ("*", name)


def text_of(node: ast.AST, constants: dict[str, ast.expr]) -> str | None:
    """What a string says; None of anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    words = []
    for part in node.values:
        value: ast.AST = part.value if isinstance(part, ast.FormattedValue) else part
        filled = constants.get(value.id) if isinstance(value, ast.Name) else value
        words.append((text_of(filled, constants) if filled is not None else None) or "*")
    return "".join(words)


def defined(path: Path) -> set[str]:
    """Names that a module has once it is imported."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


@cache
def named_everywhere() -> list[tuple[tuple[str, ...], Place]]:
    """All places that modules of the package name, each with the module that does."""
    known = frozenset(parts for _, parts in modules())
    named = ((parts, place) for path, parts in modules() for place in named_places(path, parts, known))
    return [(parts, place) for parts, place in named if place.module != parts]


def door(parts: tuple[str, ...], place: Place) -> tuple[str, str]:
    """A module that names a place, and the package of that; a folder of a kind is any."""
    words = (*parts[:1], "*", *parts[2:]) if parts[:1] == ("portfolio",) and len(parts) == 3 else parts
    return ".".join(words), package_of(place.module)


def test_every_place_that_a_string_names_is_there() -> None:
    paths = {parts: path for path, parts in modules()}
    named = named_everywhere()
    wrong = [
        f"{'.'.join(parts)}:{place.line} names {'.'.join(place.module)}:{place.name}"
        for parts, place in named
        if place.module not in paths or (place.name.isidentifier() and place.name not in defined(paths[place.module]))
    ]
    assert not wrong, "\n".join(wrong)
    assert len(named) > 50


def test_the_check_sees_places_in_strings(tmp_path: Path) -> None:
    path = tmp_path / "__init__.py"
    path.write_text(
        '_HERE = "stowplan.models"\n_TABLE = {"plan": ["Plan"]}\n__getattr__ = lazy_names(__name__, _TABLE)\n'
        'def f(kind):\n    """See stowplan.models:Doc."""\n'
        '    return f"{_HERE}.{kind}:KIND", f"stowplan.{kind}", "stowplan.models.one"\n'
        'x = "stowplan.models.three:x"\ny = "stowplan.plan.format"\n'
    )
    known = frozenset({("models",), ("models", "one"), ("models", "two"), ("files",)})
    assert sorted(named_places(path, ("models",), known)) == [
        (1, ("models",), ""),
        (3, ("models", "plan"), "Plan"),
        (6, ("models", "one"), ""),
        (6, ("models", "one"), "KIND"),
        (6, ("models", "two"), "KIND"),
        (7, ("models", "three"), "x"),
    ]
    assert defined(path) == {"_HERE", "_TABLE", "__getattr__", "f", "x", "y"}


def test_places_that_strings_name_are_below_but_for_a_few() -> None:
    upwards = {
        door(parts, place) for parts, place in named_everywhere() if floor(package_of(place.module)) > floor(package_of(parts))
    }
    assert upwards == DOORS


def find_circle(graph: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[str]:
    """A circle of modules that import each other, if there is any: the first one found."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [".".join(("stowplan", *each)) for each in error.args[1]]
    return []


def test_no_module_leads_back_to_itself() -> None:
    known = frozenset(parts for _, parts in modules())
    graph = {parts: dependencies(path, parts, known) for path, parts in modules()}
    assert sum(map(len, graph.values())) > len(graph)
    assert not find_circle(graph)
    # With what strings name, but for places above: tables name what knows them, and nothing else does.
    named = [(parts, place.module) for parts, place in named_everywhere() if door(parts, place) not in DOORS]
    for parts, module in named:
        graph[parts].add(module)
    assert {".".join(parts) for parts, module in named if parts in reached(module, graph)} == TABLES


def across_folders(graph: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[str]:
    """Pairs of modules in different folders that lead to each other."""
    led = {parts: reached(parts, graph) for parts in graph}
    pairs = [(one, other) for one, others in led.items() for other in others if one < other and one in led[other]]
    return [f"{'.'.join(one)} and {'.'.join(other)}" for one, other in pairs if one[:-1] != other[:-1]]


def test_no_circle_leads_across_folders_even_where_types_alone_are_imported() -> None:
    """A problem may name its plan for the type checker, and the plan its problem; what is in two folders is taken apart."""
    known = frozenset(parts for _, parts in modules())
    graph = {parts: dependencies(path, parts, known, typing=True) for path, parts in modules()}
    assert ("models", "packing", "plan") in graph["models", "packing", "problem"], "imports for type checking count"
    assert not across_folders(graph)


def reached(module: tuple[str, ...], graph: dict[tuple[str, ...], set[tuple[str, ...]]]) -> set[tuple[str, ...]]:
    """All modules that one leads to."""
    found, waiting = {module}, [module]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_the_check_sees_circles(tmp_path: Path) -> None:
    texts = {
        "one": "def f():\n    from stowplan.hardware import two\n",
        "two": "from . import three\n",
        "three": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stowplan.hardware.four\nelse:\n"
        "    import stowplan.hardware.one\n",
        "four": "import stowplan.hardware.three\n",
    }
    known = frozenset(("hardware", name) for name in texts)
    graph = {}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
        graph["hardware", name] = dependencies(tmp_path / f"{name}.py", ("hardware", name), known)
    assert graph["hardware", "three"] == {("hardware", "one")}
    assert set(find_circle(graph)) == {f"stowplan.hardware.{name}" for name in ("one", "two", "three")}
    graph["hardware", "three"] = set()
    assert not find_circle(graph)
    with_types = dependencies(tmp_path / "three.py", ("hardware", "three"), known, typing=True)
    assert with_types == {("hardware", "one"), ("hardware", "four")}
    assert not across_folders({("hardware", "a"): {("hardware", "b")}, ("hardware", "b"): {("hardware", "a")}})
    assert across_folders({("hardware", "a"): {("models", "b")}, ("models", "b"): {("hardware", "a")}}) == [
        "hardware.a and models.b"
    ]


def test_the_check_sees_all_kinds_of_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import stowplan.cli\nfrom stowplan import files\nfrom stowplan.kernel import x\n"
        "def f():\n    from ..models import y\n    from . import z\nimport numpy\n"
    )
    assert imported(path, ("hardware", "module")) == [
        (1, ("cli",)),
        (2, ("files",)),
        (3, ("kernel",)),
        (5, ("models",)),
        (6, ("hardware",)),
    ]


def test_verifier_stands_alone() -> None:
    """The verifier shares no code with what it judges; what it returns has the shape that all verifiers' findings have."""
    allowed = {"problem", "plan", "_audit", "_replay"}
    for name in ("verify", "_audit", "_replay"):
        path = ROOT / "models" / "memory_mapping" / f"{name}.py"
        for line, target in imported(path, ("models", "memory_mapping", name)):
            is_own = target[:2] == ("models", "memory_mapping") and target[2] in allowed
            is_shape = target == ("verification",)
            assert is_own or is_shape or target == ("errors",), f"{path}:{line} imports {target}"


def test_the_checker_of_certificates_stands_alone() -> None:
    """It shares no code with what makes certificates, and needs nothing but the standard library."""
    for path in sorted((ROOT / "certificates" / "checker").glob("*.py")):
        name = () if path.stem == "__init__" else (path.stem,)
        for line, target in imported(path, ("certificates", "checker", *name)):
            assert target[:2] == ("certificates", "checker"), f"{path}:{line} imports {target}"
        modules = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
        }
        assert modules <= {*sys.stdlib_module_names, "stowplan"}, f"{path} imports {modules}"


def test_no_bound_comes_from_the_checker() -> None:
    """A fault in it would reach the bound of a run and its certificate alike."""
    for path, parts in modules():
        if parts[:1] in (("models",), ("portfolio",), ("kernel",), ("learned_guidance",)):
            for line, target in imported(path, parts):
                assert target[:2] != ("certificates", "checker"), f"{path}:{line}"


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["stowplan", "stowplan.models.memory_mapping.verify"])
def test_heavy_packages_wait(module: str) -> None:
    heavy = {"torch", "ortools", "numpy", "scipy", "numba", "highspy", "pulp", "joblib", "matplotlib"}
    loaded = run_python(f"import sys, {module}; print(*sys.modules)").split()
    assert not heavy & set(loaded)


def test_a_kind_is_loaded_when_it_is_asked_for() -> None:
    """Listing kinds, formats and targets loads no solver; a problem of one kind loads no other kind's heuristics."""
    listed = (
        "import sys; from stowplan import kinds; from stowplan.frontends.formats import formats; kinds.registered(); formats();"
    )
    loaded = run_python(f"{listed} print(*sys.modules)").split()
    assert not {"torch", "ortools", "numba", "highspy", "scipy", "joblib"} & set(loaded)
    example = EXAMPLES / "buffers.csv"
    solved = f"import sys, stowplan; from stowplan.kernel.kind import kind_of; kind_of(stowplan.read({str(example)!r}));"
    others = run_python(f"{solved} print(*sys.modules)").split()
    assert "stowplan.portfolio.packing.kind" in others
    kinds = {
        f"stowplan.portfolio.{kind}.kind"
        for kind in ("memory_mapping", "tier_placement", "bank_mapping", "modulo_scheduling", "operator_order")
    }
    assert not kinds & set(others)


@pytest.mark.parametrize(
    "imports",
    [
        "import highspy; from ortools.sat.python import cp_model",
        "from ortools.sat.python import cp_model; import highspy",
        "import pulp; from ortools.sat.python import cp_model; import highspy",
    ],
)
def test_solvers_share_a_process(imports: str) -> None:
    """highspy 1.13 and later cannot share a process with ortools 9.15, in either order; both must also solve."""
    solve = (
        "\nmodel = cp_model.CpModel(); x = model.new_int_var(0, 9, 'x'); model.maximize(x)"
        "\nsolver = cp_model.CpSolver(); solver.parameters.num_workers = 1; solver.solve(model)"
        "\nhighs = highspy.Highs(); highs.silent(); y = highs.addVariable(lb=0, ub=9); highs.maximize(y)"
        "\nprint(int(solver.objective_value), round(highs.getObjectiveValue()))"
    )
    assert run_python(imports + solve).split() == ["9", "9"]
