"""Builds llama.cpp with virtual devices, from an unpacked source distribution of llama_cpp_python.

    pip download --no-binary :all: --no-deps llama_cpp_python==0.3.36 && tar xzf llama_cpp_python-0.3.36.tar.gz
    python -m benchmarks.llama.build llama_cpp_python-0.3.36 [--only-patch]

The patch lets the CPU's back end wait as long as a device of given speeds would take, and say that its memory is as large as
it is told (``virtual_devices.cpp`` beside this file). Needs cmake, ninja and a C++ compiler; takes about 20 minutes on two
cores. Prints the build folder and the program that ``--oracle`` takes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import stowplan.backends.llama

#: Programs that the rig starts.
PROGRAMS = ("llama-bench", "llama-fit-params", "ggml-rpc-server")

#: What is patched, in the folder of llama.cpp.
PATCHED = Path("ggml/src/ggml-cpu/ggml-cpu.cpp")

#: Text that is put before the function that computes a graph.
SNIPPET = Path(__file__).with_name("virtual_devices.cpp")

#: Optimized little, so that it builds in time: nothing is computed.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O2",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
    "-DGGML_RPC=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_CURL=OFF",
)

_COMPUTE = "static enum ggml_status ggml_backend_cpu_graph_compute(ggml_backend_t backend, struct ggml_cgraph * cgraph) {\n"
_MEMORY = (
    '    // "free" system memory is ill-defined, for practical purposes assume that all of it is free:\n    *free = *total;\n'
)
_WAIT = '    stow_wait(cgraph);\n    if (getenv("STOW_SKIP")) return GGML_STATUS_SUCCESS;\n'
_SIZE = '    if (getenv("STOW_VMEM")) *free = *total = (size_t) (atof(getenv("STOW_VMEM")) * 1048576);\n'


def patched(text: str) -> str:
    """The source of the CPU's back end with virtual devices.

    Raises
    ------
    ValueError
        It is patched already, or is not as llama.cpp had it in November 2026.
    """
    if "stow_wait" in text:
        raise ValueError(f"{PATCHED}: found the patch, expected a source without it")
    for place in (_COMPUTE, _MEMORY):
        if text.count(place) != 1:
            raise ValueError(f"{PATCHED}: found {text.count(place)} times {place.strip()!r}, expected it once")
    text = text.replace(_COMPUTE, "\n" + SNIPPET.read_text() + _COMPUTE + _WAIT)
    return text.replace(_MEMORY, _MEMORY + _SIZE)


def patch(folder: Path) -> None:
    """Patch llama.cpp in its folder, unless that was done; move what git would look for away."""
    source = folder / PATCHED
    text = source.read_text()
    if "stow_wait" not in text:
        source.write_text(patched(text))
    git = folder / ".git"
    if git.exists():
        # It names a folder of another machine; with it, the build is never up to date.
        git.rename(folder / "dot-git")


def build(folder: Path, jobs: int) -> tuple[Path, Path]:
    """Configure and build; the build folder and the oracle."""
    target = folder / "build"
    subprocess.run(["cmake", "-S", folder, "-B", target, "-G", "Ninja", *OPTIONS], check=True)
    subprocess.run(["ninja", "-C", target, "-j", str(jobs), *PROGRAMS], check=True)
    return target, oracle(folder)


def oracle(folder: Path) -> Path:
    """Build the program that says how many bytes a placement takes."""
    libraries, program = folder / "build" / "bin", folder / "build" / "bin" / "stowplan-oracle"
    source = Path(stowplan.backends.llama.__file__).with_name("oracle.cpp")
    includes = [f"-I{folder / name}" for name in ("include", "ggml/include", "src")]
    link = [f"-L{libraries}", f"-Wl,-rpath,{libraries.resolve()}", "-lllama", "-lggml", "-lggml-base"]
    subprocess.run(["c++", "-std=c++17", "-O1", *includes, source, "-o", program, *link], check=True)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="Folder of the unpacked source distribution.")
    parser.add_argument("--only-patch", action="store_true", help="Patch the source and build nothing.")
    parser.add_argument("--jobs", type=int, default=2, help="Compilers side by side.")
    arguments = parser.parse_args()
    folder = arguments.source / "vendor" / "llama.cpp"
    try:
        patch(folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if not arguments.only_patch:
        print(*build(folder, arguments.jobs), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
