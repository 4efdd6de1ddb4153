"""Readers of foreign formats, and what makes problems of their files.

Each file knows only those before it:

- ``options``: what may be said of an input beside its path
- ``formats``: the formats of input files that can be read, and the targets that are made for each
- ``gguf``: headers of GGUF files, the models of llama.cpp
- ``hlo``: HLO text, and the program that it is
- ``onnx_sizes``: open sizes of an ONNX model's inputs, and the values that the user gives for them
- ``onnx_shapes``: shapes of an ONNX graph that onnx's own inference leaves open
- ``problem_file``: files that are problems already, and CSV files of buffers
- ``read``: one function that reads every input
- ``shape_inference``: shapes of an ONNX model, inferred in a process of its own
- ``onnx_file``: ONNX files, as every front end for them begins
- ``snapshot``: memory snapshots of PyTorch
- ``tflite``: TensorFlow Lite models
- ``torch_program``: programs of ``torch.export``, as every front end for them begins
- ``network``: networks of layers, for tier placement
- ``affine``: programs of loop nests, for bank mapping
- ``dfg``: loop bodies as data-flow graphs
- ``graph``: graphs of operators, and the targets that they are planned for
- ``xla_plan``: XLA's own plan as a plan of memory mapping
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any


@functools.cache
def known(table: str) -> dict[str, Any]:
    """What is known of a format, by the path of its table here: ``onnx`` for ``onnx.toml``."""
    return tomllib.loads((Path(__file__).parent / f"{table}.toml").read_text(encoding="utf-8"))
