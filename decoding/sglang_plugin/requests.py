"""Converts requests of SGLang to branches, without importing SGLang.

A busy server does this for every request in every round, so what does not change is read once per request.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from decoding.core import MAX_TEMPERATURE, MIN_TEMPERATURE, SamplingParams
from decoding.speculation.interfaces import Branch
from decoding.token_view import TokenView
from decoding.validation import MAX_VALUE

PROBLEM_KEY = "problem_id"
_NO_TOP_K = 1 << 30  # SGLang's top_k for the whole vocabulary
_MOST_ENDED = 64  # requests that are no longer in the batch and still remembered


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


class _Constants(NamedTuple):
    """What does not change while a request runs."""

    request: SGLangRequest
    request_id: int
    group: str
    seed: int
    params: SamplingParams
    max_new_tokens: int


class RequestReader:
    """Converts the requests of a server, round by round."""

    def __init__(self) -> None:
        self._constants: dict[str, _Constants] = {}

    def to_branches(
        self, requests: Sequence[SGLangRequest], late_tokens: Sequence[Sequence[int]] | None = None
    ) -> list[Branch]:
        """Returns the branches of the running requests. *Mutates*.

        Requests without a problem id share one table; a request without a seed gets the checksum of its id.

        late_tokens   tokens of each that are accepted and not yet in the request, with overlapped scheduling
        """
        if len(self._constants) > len(requests) + _MOST_ENDED:
            self._constants = {}
        if late_tokens is None:
            late_tokens = [()] * len(requests)
        return [self._to_branch(request, late) for request, late in zip(requests, late_tokens, strict=True)]

    def _to_branch(self, request: SGLangRequest, late_tokens: Sequence[int]) -> Branch:
        constants = self._constants.get(request.rid)
        if constants is None or constants.request is not request:  # a client may use an id again
            self._constants[request.rid] = constants = _read_constants(request)
        _, request_id, group, seed, params, max_new_tokens = constants
        tokens = TokenView(request.origin_input_ids, request.output_ids, late_tokens)
        remaining = max_new_tokens - len(request.output_ids) - len(late_tokens)
        return Branch(request_id, group, tokens, seed, params, max(0, remaining))


def _read_constants(request: SGLangRequest) -> _Constants:
    sampling, id_checksum = request.sampling_params, zlib.crc32(str(request.rid).encode())
    # what a client wrote: a wrong value must not end the process that all requests share
    custom = sampling.custom_params if isinstance(sampling.custom_params, Mapping) else {}
    seed = sampling.sampling_seed if isinstance(sampling.sampling_seed, int) else id_checksum
    return _Constants(
        request,
        id_checksum,
        str(custom.get(PROBLEM_KEY, "")),
        seed,
        _make_params(sampling.max_new_tokens, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
        sampling.max_new_tokens,
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
