"""A Triton kernel that writes the noise of token ids as the sampler's kernels compute it."""

from __future__ import annotations

import triton
import triton.language as tl

from decoding.gpu_sampler_kernels import gumbel_noise


# Triton's compiler looks annotations up, and knows none but its own
@triton.jit  # type: ignore[untyped-decorator]
def store_noise(ids, noise, first, second, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Writes the noise of `COUNT` ids under a key of two int32."""
    place = tl.arange(0, COUNT)
    tl.store(noise + place, gumbel_noise(tl.load(ids + place), first.to(tl.uint32), second))
