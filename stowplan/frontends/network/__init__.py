"""Front ends for layered networks: layer files, ONNX and live PyTorch models, each to a :mod:`stowplan.hardware.network`.

Frameworks' operators are traced one by one (:mod:`.trace`), then gathered into operational layers (:mod:`.coarsen`).
"""

from stowplan.frontends.network.coarsen import Granularity, Operation, Trace, Window, coarsen
from stowplan.frontends.network.layer_json import decode_layers, encode_layers, is_layer_file, read_layers, save_layers
from stowplan.frontends.network.onnx_model import is_onnx, read_onnx
from stowplan.frontends.network.torch_model import read_exported, read_torch

__all__ = [
    "Granularity",
    "Operation",
    "Trace",
    "Window",
    "coarsen",
    "decode_layers",
    "encode_layers",
    "is_layer_file",
    "is_onnx",
    "read_exported",
    "read_layers",
    "read_onnx",
    "read_torch",
    "save_layers",
]
