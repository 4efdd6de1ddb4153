"""Compiled functions: Python functions that are compiled to machine code when the package is built, and can also run
interpreted.

The decorators in :mod:`.functions` mark such functions. :mod:`.signature` says how arguments are passed to C. :mod:`.library`
finds the machine code, and :mod:`.build`, the only module that needs numba, makes it.

An array that is annotated as ``NDArray`` has one dimension. Arrays of more dimensions have annotations that say so
(:data:`Ints2D` and so on), because machine code is compiled for a fixed number of dimensions. All arrays are contiguous in
row-major order.

Each file imports only those before it:

- ``library``: finds the shared objects of compiled functions
- ``tables``: tables whose rows compiled functions read by field name
- ``signature``: signatures of compiled functions, and how their values are passed to C
- ``functions``: decorators of compiled functions
- ``build``: ``python -m stowplan.compiled.build``, which compiles the functions
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled.functions import INTERPRET as INTERPRET
from stowplan.compiled.functions import njit as njit
from stowplan.compiled.functions import njit_inner as njit_inner
from stowplan.compiled.functions import njit_once as njit_once
from stowplan.compiled.functions import njit_small as njit_small
from stowplan.compiled.tables import Column as Column
from stowplan.compiled.tables import filled as filled
from stowplan.compiled.tables import plain as plain
from stowplan.compiled.tables import records as records
from stowplan.compiled.tables import values as values

# Annotations of arrays: the type of the elements, and the number of dimensions if it is more than one.

Ints = NDArray[np.int64]
Bits = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

Ints2D = Annotated[NDArray[np.int64], 2]
Ints3D = Annotated[NDArray[np.int64], 3]
Signs2D = Annotated[NDArray[np.int8], 2]
Bytes2D = Annotated[NDArray[np.uint8], 2]
Bytes3D = Annotated[NDArray[np.uint8], 3]
Bits2D = Annotated[NDArray[np.uint64], 2]
Bools2D = Annotated[NDArray[np.bool_], 2]
Floats2D = Annotated[NDArray[np.float64], 2]
Floats3D = Annotated[NDArray[np.float64], 3]
Singles2D = Annotated[NDArray[np.float32], 2]
Singles3D = Annotated[NDArray[np.float32], 3]
