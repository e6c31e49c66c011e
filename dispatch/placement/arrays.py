"""Short names of the array types that the packages of the dispatcher share."""

import numpy as np
from numpy.typing import NDArray

Bool = NDArray[np.bool_]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
