"""Where Triton's kernels run in tests: interpreted on the CPU, or compiled on a GPU (see `tests/conftest.py`)."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton")

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
KERNEL_DEVICE = "cpu" if IS_INTERPRETED else "cuda"
