"""Says what the CPU can do, for code that is emitted for it."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from numba.core import config as numba_config
from numba.core.codegen import get_host_cpu_features

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18  # of Linux on x86-64


@cache
def has_cpu_feature(name: str) -> bool:
    """Returns whether Numba compiles for a CPU with this feature, in LLVM's words: `avx512f`.

    Where NUMBA_CPU_FEATURES or NUMBA_ENABLE_AVX have it compile for another CPU, that one counts.
    """
    config: Any = numba_config
    features: str = config.CPU_FEATURES
    if features is None:
        features = get_host_cpu_features()
    return f"+{name}" in features.split(",")


@cache
def has_tiles() -> bool:
    """Returns whether this process may multiply tiles of bfloat16 (AMX). Asks the system for their registers."""
    if platform.system() != "Linux" or not (has_cpu_feature("amx-tile") and has_cpu_feature("amx-bf16")):
        return False
    # their state is 8 KB for each thread, so Linux gives it to processes that ask
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


@cache
def has_pair_products() -> bool:
    """Returns whether the CPU multiplies vectors of pairs of bfloat16 (AVX512_BF16) and no tiles."""
    # not by what the system allows: machine code in the cache belongs to a CPU
    return has_cpu_feature("avx512bf16") and not has_cpu_feature("amx-bf16")


def multiplies_bfloat16() -> bool:
    """Returns whether products of bfloat16 are faster than those of float32 here, in tiles or in vectors of pairs."""
    return has_tiles() or has_pair_products()
