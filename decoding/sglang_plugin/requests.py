"""Converts requests of SGLang to branches, without importing SGLang."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from decoding.core import SamplingParams
from decoding.speculation.interfaces import Branch
from decoding.token_view import TokenView

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
        params=_to_params(sampling),
        remaining=max(0, sampling.max_new_tokens - num_generated),
    )


def _to_params(sampling: SGLangSampling) -> SamplingParams:
    # SGLang stores greedy decoding as temperature 1 and top_k 1.
    greedy = sampling.top_k == 1
    return SamplingParams(
        max_tokens=max(1, sampling.max_new_tokens),
        temperature=0.0 if greedy else float(sampling.temperature),
        top_k=0 if greedy or sampling.top_k >= _NO_TOP_K else sampling.top_k,
        top_p=float(sampling.top_p),
        min_p=float(sampling.min_p),
    )
