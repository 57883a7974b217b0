"""Computes the Gumbel noise of a position: a pure function of (request seed, absolute position, token id).

Nothing else enters, so a token cannot depend on its batch, on chunking, on preemption or on a drafter,
and a drafter that has the seed computes the same noise. The hash is integer arithmetic modulo 2^32,
bit-identical on every device; only the two logarithms after it may differ in the last place.

Shapes: T rows, V token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from decoding.compiled import compiled, compiled_in_place, explain_no_numba

if TYPE_CHECKING:
    from torch import Tensor

# Largest float32 below 1: keeps log1p(-u) finite, so that no token is ever impossible.
_BELOW_ONE = 1.0 - 2.0**-24
_GOLDEN_64 = 0x9E3779B97F4A7C15
GOLDEN_32 = 0x9E3779B1 - 2**32


def mix_uint64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns a bijection of 64-bit integers in which every input bit reaches every output bit (splitmix64's)."""
    x = x + np.uint64(_GOLDEN_64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def wrap_seeds(seeds: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Returns the seeds modulo 2^64."""
    # numpy raises for ints of more than 64 bits instead of wrapping them
    return np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)


def noise_keys(
    seeds: Sequence[int] | npt.NDArray[np.uint64], positions: Sequence[int] | npt.NDArray[np.integer]
) -> npt.NDArray[np.int32]:
    """Returns the key of each (seed, position), int32 `[T, 2]`. Seeds are taken modulo 2^64."""
    seed_T = seeds if isinstance(seeds, np.ndarray) else wrap_seeds(seeds)
    position_T = np.asarray(positions, dtype=np.uint64)
    if explain_no_numba() is None:
        keys_T2 = np.empty((len(position_T), 2), dtype=np.int32)
        _key_each(seed_T, position_T, keys_T2)
        return keys_T2
    return mix_uint64(mix_uint64(seed_T) ^ (position_T * np.uint64(_GOLDEN_64))).view(np.int32).reshape(-1, 2)


# of one number, for compiled loops
_mix_number: Callable[[np.uint64], np.uint64] = compiled(mix_uint64)  # type: ignore[assignment]


@compiled_in_place
def noise_key_of(seed: np.uint64, position: int) -> tuple[np.int32, np.int32]:
    """Returns the two halves of `noise_keys` of one seed and position, for compiled loops."""
    key = _mix_number(_mix_number(seed) ^ (np.uint64(position) * np.uint64(_GOLDEN_64)))
    return np.int32(np.uint32(key)), np.int32(np.uint32(key >> np.uint64(32)))


@compiled_in_place
def _key_each(
    seed_T: npt.NDArray[np.uint64], position_T: npt.NDArray[np.uint64], keys_T2: npt.NDArray[np.int32]
) -> None:
    for t in range(len(position_T)):
        keys_T2[t, 0], keys_T2[t, 1] = noise_key_of(seed_T[t], position_T[t])


def _mix_int32_(x: Tensor) -> Tensor:
    """Applies murmur3's 32-bit finalizer in place. `>>` is arithmetic in torch, hence the masks."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x85EBCA6B - 2**32
    x ^= (x >> 13) & 0x7FFFF
    x *= 0xC2B2AE35 - 2**32
    x ^= (x >> 16) & 0xFFFF
    return x


def gumbel_noise(keys_T2: Tensor, ids: Tensor) -> Tensor:
    """Returns standard Gumbel noise, float32 `[T, V]`, for int32 keys `[T, 2]` and ids `[V]` or `[T, V]`.

    Both halves of the key are mixed in one after the other, so two rows agree only if all 64 bits do.
    The tail ends at 22.9 (u = 2^-33), beyond the effect of any vocabulary.
    """
    import torch  # here: the settings of drafters are checked without it

    bits_TV = ids.to(torch.int32) * GOLDEN_32 + keys_T2[:, :1]
    bits_TV = _mix_int32_(_mix_int32_(bits_TV).add_(keys_T2[:, 1:]))
    # The bits as an unsigned h become u = (h + 0.5) / 2^32. A float32 holds 24 of the 32 bits, and small u (large
    # noise) needs the low ones: the halves are converted apart and added small first.
    high_TV = ((bits_TV >> 16) & 0xFFFF).to(torch.float32)
    low_TV = (bits_TV & 0xFFFF).to(torch.float32)
    u_TV = low_TV.add_(0.5).mul_(2.0**-32).add_(high_TV, alpha=2.0**-16).clamp_(max=_BELOW_ONE)
    return u_TV.neg_().log1p_().neg_().log_().neg_()


@compiled_in_place
def gumbel_of_token(key: np.int32, other: np.int32, token: int) -> float:
    """Returns `gumbel_noise` of one token id and one row's key, for compiled loops; the last place may differ."""
    return gumbel_of_hash(hash_token(np.uint32(token), np.uint32(key), np.uint32(other)))


@compiled_in_place
def exponential_of_token(key: np.int32, other: np.int32, token: int) -> float:
    """Returns the number, of an exponential distribution, of which the token's noise is minus the logarithm.

    The largest sum of a log-probability and its noise is the largest quotient of a probability and this number.
    """
    return _exponential_of_hash(hash_token(np.uint32(token), np.uint32(key), np.uint32(other)))


@compiled_in_place
def hash_token(token: np.uint32, first: np.uint32, second: np.uint32) -> np.uint32:
    """Returns the 32 random bits of a token id under the two halves of a row's key."""
    bits = np.uint32(token * np.uint32(GOLDEN_32 & 0xFFFFFFFF) + first)
    return _mix_uint32(np.uint32(_mix_uint32(bits) + second))


@compiled_in_place
def gumbel_of_hash(bits: np.uint32) -> float:
    """Returns the noise that belongs to `hash_token`'s bits."""
    return float(-np.log(_exponential_of_hash(bits)))


@compiled_in_place
def _exponential_of_hash(bits: np.uint32) -> float:
    return float(-np.log1p(-min((bits + 0.5) * 2.0**-32, _BELOW_ONE)))


@compiled_in_place
def _mix_uint32(x: np.uint32) -> np.uint32:
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return x ^ (x >> np.uint32(16))
