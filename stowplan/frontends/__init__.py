"""Front ends: each one reads files of another tool's format and turns them into a problem.

A module imports only modules that come before it in this list:

- ``options``: the options with which an input is read
- ``formats``: the formats of input files, and the targets for which each can be planned
- ``dsa``: reads problems of dsa-solver, which are buffers with reuse penalties, and writes its solutions
- ``gguf``: headers of GGUF files, the models of llama.cpp
- ``hlo``: HLO, the text format of XLA's programs
- ``onnx_sizes``: symbolic sizes of an ONNX model's inputs, and the values that the user gives for them
- ``onnx_shapes``: infers shapes of an ONNX graph that onnx's own inference leaves unknown
- ``problem_file``: files that contain a problem already, and CSV files of buffers
- ``read``: the function that reads an input of any format
- ``shape_inference``: infers shapes of an ONNX model in a separate process
- ``onnx_file``: reads an ONNX file; all front ends for ONNX start from it
- ``snapshot``: snapshots of PyTorch's memory allocator
- ``tflite``: TensorFlow Lite models
- ``torch_program``: nodes and tensors of ``torch.fx`` graphs; all front ends for ``torch.export`` use it
- ``network``: networks of layers, for tier placement
- ``affine``: programs of loop nests, for bank mapping
- ``dfg``: loop bodies as data-flow graphs
- ``graph``: graphs of operators, and the targets for which they are planned
- ``xla_plan``: imports XLA's own plan as a plan of memory mapping
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any


@functools.cache
def load_facts(table: str) -> dict[str, Any]:
    """Loads a TOML file of this folder with facts about a format, by its path without the extension: ``onnx`` for
    ``onnx.toml``. Raises FileNotFoundError if there is no such file."""
    return tomllib.loads((Path(__file__).parent / f"{table}.toml").read_text(encoding="utf-8"))
