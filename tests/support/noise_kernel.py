"""A Triton kernel that writes the noise of token ids as the sampler's kernels compute it."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from decoding.gpu_sampler_kernels import gumbel_noise


@triton.jit  # type: ignore[untyped-decorator]
def store_noise(ids: Any, noise: Any, first: Any, second: Any, COUNT: tl.constexpr) -> None:
    """Writes the noise of `COUNT` ids under a key of two int32."""
    place = tl.arange(0, COUNT)
    tl.store(noise + place, gumbel_noise(tl.load(ids + place), first.to(tl.uint32), second))
