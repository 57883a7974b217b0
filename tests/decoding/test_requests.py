"""A request with other parameters is the one that would have been made with them."""

from __future__ import annotations

from dataclasses import replace

from decoding.core import GenerationRequest, SamplingParams


def test_request_with_other_parameters_is_equal_to_one_made_with_them() -> None:
    request = GenerationRequest(
        prefix=(1, 2, 3), params=SamplingParams(), seed=7, group="a", deadline=3.5, hidden=True, num_top=2,
        question_length=2,
    )  # fmt: skip
    other = SamplingParams(max_tokens=5, stop=("x",))
    changed = request.with_params(other)
    assert changed == replace(request, params=other)
    assert hash(changed) == hash(replace(request, params=other))
    assert request.params == SamplingParams()
