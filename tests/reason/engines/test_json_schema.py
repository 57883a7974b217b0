"""A JSON schema of a problem reaches the requests of the engines that write under one, and no other request."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from decoding.core import GenerationRequest, SamplingParams
from reason.engines.openai_api.request_format import RequestFormat
from reason.engines.openai_api.response import RequestedText, parse_completion
from reason.engines.sglang_client.wire import build_generate_body
from reason.problem import Problem
from reason.solver import Solver
from search.strategies.self_consistency import SelfConsistency
from tests.support.toy_search import ToyEngine
from tests.support.toy_server import RawBytePrompt, ToyPrm

SCHEMA = '{"type":"object"}'


def test_schema_of_a_problem_is_in_all_its_requests() -> None:
    engine = ToyEngine()
    with Solver(strategy=SelfConsistency(n=3), engine=engine, scorer=ToyPrm(), prompt=RawBytePrompt()) as solver:  # type: ignore[arg-type]
        solver.solve(replace(Problem.from_question("3?"), json_schema=SCHEMA))
        assert [request.json_schema for request in engine.requests] == [SCHEMA] * 3
        solver.solve("3?")
        assert [request.json_schema for request in engine.requests[3:]] == [None] * 3


def test_answers_are_read_as_the_problem_says() -> None:
    with Solver(strategy=SelfConsistency(n=3), engine=ToyEngine(), scorer=ToyPrm(), prompt=RawBytePrompt()) as solver:  # type: ignore[arg-type]
        solution = solver.solve(replace(Problem.from_question("3?"), read_answer=lambda text: f"{len(text) > 0}"))
    assert solution.answer == "True"
    assert solution.votes == {"True": 3.0}


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_sglang_gets_the_schema_as_text(schema: str | None) -> None:
    request = GenerationRequest(prefix=(1,), params=SamplingParams(), seed=1, json_schema=schema)
    params = build_generate_body(request, "r", 9)["sampling_params"]
    assert isinstance(params, dict)
    assert params.get("json_schema") == schema


@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_openai_gets_the_schema_as_response_format(schema: str | None) -> None:
    body = RequestFormat(model="m", chat=False).build_body("3?", SamplingParams(), 1, json_schema=schema)
    expected = {"type": "json_schema", "json_schema": {"name": "reply", "schema": json.loads(SCHEMA)}}
    assert body.get("response_format") == (None if schema is None else expected)


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_tool_calls_of_a_server_are_read_as_text(arguments: object) -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
    reply = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    requested = RequestedText((), 100, 10)
    assert parse_completion(reply, requested).text == '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
