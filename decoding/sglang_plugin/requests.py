"""Converts requests of SGLang to branches, without importing SGLang."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from decoding.core import MAX_TEMPERATURE, MIN_TEMPERATURE, SamplingParams
from decoding.speculation.interfaces import Branch
from decoding.token_view import TokenView
from decoding.validation import MAX_VALUE

PROBLEM_KEY = "problem_id"
_NO_TOP_K = 1 << 30  # SGLang's top_k for the whole vocabulary


class SGLangSampling(Protocol):
    """The fields of SGLang's sampling parameters that are read here."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    sampling_seed: int | None
    custom_params: Mapping[str, object] | None


class SGLangRequest(Protocol):
    """The fields of SGLang's `Req` that are read here."""

    rid: str
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling_params: SGLangSampling


def to_branch(request: SGLangRequest, late_tokens: Sequence[int] = ()) -> Branch:
    """Returns the branch of a request.

    Requests without a problem id share one table; a request without a seed gets the checksum of its id.

    late_tokens   tokens that are accepted and not yet in the request, with overlapped scheduling
    """
    sampling, id_checksum = request.sampling_params, zlib.crc32(str(request.rid).encode())
    tokens = TokenView(request.origin_input_ids, request.output_ids, late_tokens)
    num_generated = len(request.output_ids) + len(late_tokens)
    return Branch(
        request_id=id_checksum,
        group=str((sampling.custom_params or {}).get(PROBLEM_KEY, "")),
        tokens=tokens,
        seed=id_checksum if sampling.sampling_seed is None else sampling.sampling_seed,
        params=_make_params(
            sampling.max_new_tokens, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
        ),
        remaining=max(0, sampling.max_new_tokens - num_generated),
    )


@lru_cache(maxsize=4096)
def _make_params(max_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float) -> SamplingParams:
    # SGLang stores greedy decoding as temperature 1 and top_k 1.
    greedy = top_k == 1
    return SamplingParams(
        max_tokens=min(max(1, max_tokens), MAX_VALUE),
        # SGLang takes any: one request beyond the limits of `SamplingParams` would end the server
        temperature=0.0 if greedy else min(max(float(temperature), MIN_TEMPERATURE), MAX_TEMPERATURE),
        top_k=0 if greedy or top_k >= _NO_TOP_K else top_k,
        top_p=float(top_p),
        min_p=float(min_p),
    )
