"""``python -m stowplan.compiled.build``: compile functions ahead of time into shared objects, a folder of the package each.

A *package* is here the modules directly in one folder, given by the folder's dotted name. All of its compiled functions
(:mod:`.functions`) become one shared object, which Python loads as a C library. A shared object is built for one *level*, a set
of processor instructions such as ``x86-64-v3``.

Numba infers the types in each function from its declared signature and optimises it. Each function gets an entry point in C's
calling convention. The entry point reads numbers and array addresses from *slots* (64-bit words in a row, :mod:`.signature`)
and writes the results into the slots after them. The shared object contains nothing of numba or Python; a test checks that it
refers only to the C and mathematics libraries. A shared object that has been built from the same sources is not built again.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stowplan.child_process import child_environment
from stowplan.compiled.functions import BUILDING, TO_BUILD
from stowplan.compiled.library import SHIPPED, compiling_packages, file_name, level, locked_build, symbol
from stowplan.compiled.signature import Array, Kind, Number, Record, Signature, signature_of

#: By processor architecture, the levels for which the distributed stowplan has machine code.
LEVELS = {"x86_64": ("x86-64-v3", "x86-64-v2"), "amd64": ("x86-64-v3", "x86-64-v2")}

#: The outcome that is printed for a package if another process has built it while this one waited.
BY_ANOTHER = "compiled by another process"


def main() -> int:
    """Builds the shared objects that are missing. Returns the exit code: 0, or 1 if one of them could not be built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="*", help="folders of the package (default: all with compiled functions)")
    parser.add_argument("--to", type=Path, default=SHIPPED, help="folder of the shared objects (default: the package's own)")
    parser.add_argument("--level", action="append", help="level of processors, such as x86-64-v3 (default: all levels)")
    parser.add_argument("--locked", action="store_true", help="the caller has the locks of these folders already")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side (default: one a core)")
    options = parser.parse_args()
    levels = tuple(options.level or LEVELS.get(platform.machine().lower(), (level(),)))
    packages = options.packages or compiling_packages(Path(__file__).parents[1])
    missing = [package for package in packages if not all((options.to / file_name(package, name)).exists() for name in levels)]
    if os.environ.get(BUILDING) == "1":
        build(packages[0], options.to, levels)
        return 0
    return _build_all(missing, options.to, levels, options.jobs, is_locked=options.locked)


def _build_all(packages: list[str], folder: Path, levels: tuple[str, ...], jobs: int, is_locked: bool) -> int:
    """Builds each package in a process of its own, because the decorators in this process are not numba's.

    At most ``jobs`` processes run at the same time. ``is_locked`` says that the caller has locked the packages already
    (:func:`~stowplan.compiled.library.locked_build`). Returns the exit code: 0, or 1 if a package could not be built.
    """
    if packages and (find_spec("numba") is None or _c_compiler() is None):
        missing = "numba is not installed" if find_spec("numba") is None else "there is no C compiler: name one in CC"
        print(f"heuristics were not compiled: {missing}", file=sys.stderr)
        return 1
    flags = [argument for name in levels for argument in ("--level", name)]

    def start(package: str) -> tuple[str, str]:
        """Builds a package, unless another process has built it in the meantime; returns its name and the outcome."""
        command = [sys.executable, "-m", "stowplan.compiled.build", "--to", str(folder), *flags, package]
        environment = {**child_environment(), BUILDING: "1"}
        with contextlib.nullcontext() if is_locked else locked_build(folder, package):
            if all((folder / file_name(package, name)).exists() for name in levels):
                return package, BY_ANOTHER
            completed = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return package, f"failed: {completed.stderr.strip()[-2000:]}" if completed.returncode else "compiled"

    failed = False
    # The largest packages are built first, so that no long build is left at the end.
    order = sorted(packages, key=lambda package: -_size(package))
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        for number, (package, outcome) in enumerate(pool.map(start, order), 1):
            failed |= outcome.startswith("failed")
            print(f"[{number}/{len(packages)}] {package}: {outcome}", file=sys.stderr, flush=True)
    return int(failed)


def _size(package: str) -> int:
    """Size in bytes of all source files with compiled functions that a package uses: an estimate of the time to build it."""
    from stowplan.compiled.library import sources

    return sum(path.stat().st_size for path in sources(package) if path.read_bytes().count(b"@njit"))


def build(package: str, folder: Path, levels: tuple[str, ...]) -> None:
    """Compiles a package's functions in this process, in which the decorators must be numba's.

    It writes one shared object for each of the levels into ``folder``, and removes those of older sources.

    Raises
    ------
    ImportError
        Numba is not installed.
    TypeError
        A signature cannot be passed to C, or differs from what the function returns.
    RuntimeError
        The C compiler failed; the message contains its output.
    OSError
        There is no C compiler, or the folder cannot be written to.
    """
    import llvmlite.binding as llvm

    root = importlib.import_module(package)
    for path in sorted(Path(str(root.__path__[0])).glob("*.py")):
        if b"@njit\n" in path.read_bytes():
            importlib.import_module(f"{package}.{path.stem}")
    functions = [function for function in TO_BUILD if function.py_func.__module__.rpartition(".")[0] == package]
    module = _llvm_module(package, functions)
    folder.mkdir(parents=True, exist_ok=True)
    for name in levels:
        # LLVM accepts the levels of x86-64 as names of processors.
        cpu = name if name.startswith("x86-64") else ""
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu, features="", opt=3, reloc="pic", codemodel="small"
        )
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            object_file, library = Path(scratch) / "code.o", Path(scratch) / "code.so"
            object_file.write_bytes(machine.emit_object(module))
            _link(object_file, library)
            library.replace(folder / file_name(package, name))
    _remove_stale(package, folder, {file_name(package, name) for name in levels})


def _remove_stale(package: str, folder: Path, current: set[str]) -> None:
    """Removes shared objects of the package that were built for the same levels from other sources."""
    for path in folder.glob(f"{package}-*.so"):
        # After the package come a hyphen, the 16 digits of the digest, and a hyphen: 18 characters. Then comes the level.
        if path.name not in current and any(path.name[len(package) + 18 :] == name[len(package) + 18 :] for name in current):
            path.unlink(missing_ok=True)


def _c_compiler() -> str | None:
    """Path of the C compiler, which only links; numba compiles."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _link(object_file: Path, library: Path) -> None:
    """Links an object file into a shared object."""
    compiler = _c_compiler() or "cc"
    command = [compiler, "-shared", "-s", "-o", str(library), str(object_file), "-lm"]
    linked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if linked.returncode:
        raise RuntimeError(f"{compiler} failed: {linked.stderr.strip()[-1000:]}")


def _llvm_module(package: str, functions: list[Any]) -> Any:
    """Compiles all functions, and returns them and their entry points as one LLVM module, in which only the entry points have
    public names."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    entries = ir.Module("entries")
    libraries = []
    module: Any = None
    for function in functions:
        signature = signature_of(function.py_func)
        types = tuple(map(_numba_type, signature.parameters))
        function.compile(types)
        compiled = function.overloads[types]
        if module is None:
            module = llvm.parse_assembly(str(function.targetctx.codegen()._create_empty_module(package)))
            entries.triple, entries.data_layout = module.triple, str(module.data_layout)
        _write_entry(entries, function, signature, compiled, types)
        libraries.append(compiled.library)
    module.link_in(llvm.parse_assembly(str(entries)))
    for library in libraries:
        module.link_in(library._get_module_for_linking().clone())
    public = {symbol(function.py_func) for function in functions}
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in public:
            value.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    machine = llvm.Target.from_default_triple().create_target_machine()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def _numba_type(kind: Kind) -> Any:
    """Numba's type of a parameter or result."""
    from numba import from_dtype, types

    if isinstance(kind, Number):
        return {int: types.int64, float: types.float64, bool: types.boolean}[kind.kind]
    if isinstance(kind, Array):
        return types.Array(from_dtype(kind.dtype), kind.dimensions, "C")
    of_types: Any = types.BaseTuple.from_types
    return of_types(tuple(map(_numba_type, kind.members)), kind.named)


def _write_entry(entries: Any, function: Any, signature: Signature, compiled: Any, types: tuple[Any, ...]) -> None:
    """Adds ``void entry(int64_t *slots)`` to the LLVM module ``entries``.

    It calls numba's function with the arguments in the slots and stores the results in the slots after them. Raises TypeError
    if the function does not return what its annotation says.
    """
    from llvmlite import ir

    expected = tuple(map(_numba_type, signature.results))
    returned = compiled.signature.return_type
    returns = tuple(returned) if signature.is_tuple else () if not expected else (returned,)
    if returns != expected or (not expected and str(returned) != "none"):
        raise TypeError(f"{function.py_func.__module__}.{function.__name__} returns {returned}, its annotation says {expected}")
    word, byte = ir.IntType(64), ir.IntType(8)
    context = function.targetctx
    kind = context.call_conv.get_function_type(returned, types)
    native = ir.Function(entries, kind, compiled.fndesc.llvm_func_name)
    entry = ir.Function(entries, ir.FunctionType(ir.VoidType(), [word.as_pointer()]), symbol(function.py_func))
    builder = ir.IRBuilder(entry.append_basic_block())
    slots = _Slots(builder, entry.args[0], word)
    result = builder.alloca(kind.args[0].pointee)
    failure = builder.alloca(kind.args[1].pointee)
    builder.store(ir.Constant(kind.args[1].pointee, None), failure)
    values: list[Any] = []
    for parameter in signature.parameters:
        values += slots.members(parameter, kind.args[2 + len(values) :])
    builder.call(native, [result, failure, *values])
    for place, number in enumerate(signature.results):
        value = builder.load(result)
        if signature.is_tuple:
            value = builder.extract_value(value, place)
        if number.kind is float:
            value = builder.bitcast(value, word)
        elif value.type == byte:
            value = builder.zext(value, word)
        builder.store(value, slots.next())
    builder.ret_void()


class _Slots:
    """Reads arguments from consecutive slots into the form of numba's calling convention."""

    def __init__(self, builder: Any, first: Any, word: Any):
        self._builder, self._first, self._word, self._place = builder, first, word, 0

    def next(self) -> Any:
        """Address of the next slot."""
        address = self._builder.gep(self._first, [self._word(self._place)])
        self._place += 1
        return address

    def members(self, kind: Kind, types: Any) -> list[Any]:
        """Reads one argument from the next slots and returns the values that numba passes for it.

        For a number, that is the number itself. For an array, they are its owner, parent, number of items, item size, address,
        sizes and strides. ``types`` has the LLVM types of these values, perhaps followed by those of later arguments.
        """
        if isinstance(kind, Record):
            members: list[Any] = []
            for member in kind.members:
                members += self.members(member, types[len(members) :])
            return members
        if isinstance(kind, Number):
            return [self._as(self._builder.load(self.next()), types[0])]
        builder, word = self._builder, self._word
        address = builder.load(self.next())
        sizes = [builder.load(self.next()) for _ in range(kind.dimensions)]
        strides: list[Any] = []
        step = word(kind.dtype.itemsize)
        for size in reversed(sizes):
            strides.insert(0, step)
            step = builder.mul(step, size)
        items = sizes[0]
        for size in sizes[1:]:
            items = builder.mul(items, size)
        parts = [word(0), word(0), items, word(kind.dtype.itemsize), address, *sizes, *strides]
        return [self._as(part, type_) for part, type_ in zip(parts, types, strict=False)]

    def _as(self, value: Any, type_: Any) -> Any:
        """Converts a 64-bit value to another LLVM type."""
        from llvmlite import ir

        if isinstance(type_, ir.PointerType):
            return self._builder.inttoptr(value, type_)
        if isinstance(type_, ir.DoubleType):
            return self._builder.bitcast(value, type_)
        return value if type_.width == 64 else self._builder.trunc(value, type_)


if __name__ == "__main__":
    sys.exit(main())
