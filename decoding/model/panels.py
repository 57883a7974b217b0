"""Names the types of matrices that are laid out in panels of 32 columns, for products of few rows.

The type of the numbers says how a panel is laid out:

float32  `[depth, 32]`
uint16   `[depth, 16, 2]`: bfloat16, column i beside column i + 16. 32 bits, which two operations turn into two float32
int16    bfloat16, number 2 i of the depth beside number 2 i + 1. On a CPU with tiles (see `tile_kernels`)
         `[depth / 32, 2, 16, 16, 2]`: 32 numbers of depth and 16 columns each; on one with vectors of pairs
         `[depth / 2, 32, 2]`

Most checkpoints are of bfloat16: nothing is lost. With few rows a product waits for its weights: half as many bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from decoding.vector_kernels import PANEL

Floats = npt.NDArray[np.float32]
Panels = npt.NDArray[np.float32] | npt.NDArray[np.uint16] | npt.NDArray[np.int16]
PanelType = type[np.float32] | type[np.uint16] | type[np.int16]


def round_up(size: int) -> int:
    """Returns the next multiple of a panel's columns."""
    return -(-size // PANEL) * PANEL
