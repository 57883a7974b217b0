"""Answers return the solutions of the search, and the usage counts all of its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from decoding.core import Usage
from reason.serve.choices import rank_candidates
from reason.serve.schemas import CompletionRequest
from search.strategy import Candidate, SearchResult
from search.tree import SearchTree, Step
from tests.support.toy_server import QUESTION, ToySearchService, chat_body, toy_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def answer(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post(CHAT, json=chat_body(**fields))
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def stream_events(client: httpx.Client, path: str = CHAT, **fields: Any) -> list[dict[str, Any]]:
    body = chat_body(stream=True, **fields) if path == CHAT else {"model": "best-of-4", "stream": True, **fields}
    lines = [line for line in client.post(path, json=body).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def tree_of(client: httpx.Client, reply: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = client.get(reply["search"]["tree"] + ".json").json()
    return tree


def test_answer_usage_is_the_sum_over_the_tree(toy: httpx.Client) -> None:
    reply = answer(toy, n=2, search={"n": 6})
    tree = tree_of(toy, reply)
    sizes = {node["id"]: len(node["tokens"]) for node in tree["nodes"]}
    parents = {node["id"]: node["parent"] for node in tree["nodes"]}
    returned: set[int] = set()
    for choice in reply["choices"]:
        node = next(
            c["node"] for c in tree["candidates"] if c["answer"] == choice["answer"] and c["score"] == choice["score"]
        )
        while node >= 0:
            returned.add(node)
            node = parents[node]
    usage = reply["usage"]
    assert usage["completion_tokens"] == sum(sizes.values()) == reply["search"]["usage"]["tokens"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert usage["completion_tokens"] - reasoning == sum(sizes[node] for node in returned)
    assert usage["prompt_tokens"] == len(tree["root"]) == len(f"Question: {QUESTION}\n")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_choices_are_the_chosen_answer_then_other_answers_by_votes(toy: httpx.Client) -> None:
    reply = answer(toy, model="majority-16", n=16)
    answers = [choice["answer"] for choice in reply["choices"]]
    different = list(dict.fromkeys(answers))
    assert len(answers) == 16
    assert answers[0] == reply["search"]["answer"]
    assert answers[: len(different)] == different
    votes = [reply["search"]["votes"][each] for each in different]
    assert votes == sorted(votes, reverse=True)


def test_candidates_are_sorted_with_distinct_answers_first() -> None:
    tree = SearchTree((1,))
    nodes = [tree.add_node(tree.ROOT, Step((i,), str(i)), finish="eos") for i in range(5)]
    answers = [("7", 0.2), ("8", 0.9), (None, 0.99), ("7", 0.6), ("9", None)]
    candidates = tuple(Candidate(node, a, s) for node, (a, s) in zip(nodes, answers, strict=True))
    result = SearchResult(tree, 3, Usage(), votes={"7": 0.8, "8": 0.9}, candidates=candidates)
    assert [candidate.node for candidate in rank_candidates(result)] == [3, 1, 4, 2, 0]
    copied = SearchResult(tree, 3, Usage(), votes=result.votes, candidates=(*candidates, *candidates[::-1]))
    assert rank_candidates(copied) == rank_candidates(result)


def test_same_request_has_the_same_answer_and_another_seed_another_tree(toy: httpx.Client) -> None:
    one, two, other = answer(toy), answer(toy), answer(toy, seed=5)
    assert one["choices"] == two["choices"]
    assert tree_of(toy, one)["nodes"] == tree_of(toy, two)["nodes"] != tree_of(toy, other)["nodes"]


def test_request_settings_reach_the_search(own_toy: tuple[httpx.Client, ToySearchService]) -> None:
    client, service = own_toy
    settings = {"search": {"n": 3, "sampling": {"top_k": 7}}, "temperature": 0.25, "top_p": 0.5, "stop": ["xyz"]}
    reply = answer(client, **settings, max_completion_tokens=77)
    params = {request.params for request in service.writer.requests}
    assert len(service.writer.requests) == reply["search"]["usage"]["calls"] == 3
    (only,) = params
    assert (only.temperature, only.top_p, only.top_k, only.max_tokens) == (0.25, 0.5, 7, 77)
    assert only.stop == ("xyz",)
    strategy = tree_of(client, reply)["strategy"]
    assert strategy["n"] == 3
    assert strategy["sampling"]["top_k"] == 7


def test_preset_is_unchanged_by_request_settings(toy: httpx.Client) -> None:
    before = answer(toy)
    answer(toy, search={"n": 2}, temperature=0.1)
    assert answer(toy)["search"]["usage"]["calls"] == before["search"]["usage"]["calls"] == 4


def test_answer_text_ends_before_a_stop(toy: httpx.Client) -> None:
    reply = answer(toy, stop="answer")
    assert "answer" not in reply["choices"][0]["message"]["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_truncated_solution_has_finish_reason_length(toy: httpx.Client) -> None:
    choice = answer(toy, max_tokens=4)["choices"][0]
    assert (choice["finish_reason"], len(choice["message"]["content"])) == ("length", 4)


@pytest.mark.parametrize(("path", "fields"), [(CHAT, {}), (TEXT, {"prompt": "Question: What is 3?\n"})])
def test_stream_is_progress_then_the_answer_then_the_usage(
    toy: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    chunks = stream_events(toy, path, stream_options={"include_usage": True}, n=2, **fields)
    whole = toy.post(path, json={**(chat_body() if path == CHAT else {"model": "best-of-4"}), "n": 2, **fields}).json()
    *answer_chunks, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [(c["choices"][0]["index"], c["choices"][0].get("delta", c["choices"][0])) for c in answer_chunks]
    thoughts = [i for i, (_, delta) in enumerate(deltas) if "reasoning_content" in delta]
    key = "content" if path == CHAT else "text"
    texts = [i for i, (_, delta) in enumerate(deltas) if delta.get(key)]
    assert len(thoughts) == 4
    assert len(texts) > 2  # parts of both texts
    assert max(thoughts) < min(texts)
    for index, choice in enumerate(whole["choices"]):
        content = choice["message"]["content"] if path == CHAT else choice["text"]
        assert "".join(delta.get(key) or "" for i, delta in deltas if i == index) == content
    if path == CHAT:
        roles = [(i, delta["role"]) for i, delta in deltas if "role" in delta]
        assert roles == [(0, "assistant"), (1, "assistant")]
        assert next(delta for i, delta in deltas if i == 1)["role"]
    ends = [c["choices"][0]["finish_reason"] for c in answer_chunks if c["choices"][0]["finish_reason"]]
    assert ends == [choice["finish_reason"] for choice in whole["choices"]]
    assert answer_chunks[-1]["search"]["votes"] == whole["search"]["votes"]


def test_stream_has_no_usage_unless_requested(toy: httpx.Client) -> None:
    assert all("usage" not in chunk and chunk["choices"] for chunk in stream_events(toy))


def test_completion_continues_the_prompt_as_it_is(own_toy: tuple[httpx.Client, ToySearchService]) -> None:
    client, service = own_toy
    reply = client.post(TEXT, json={"model": "best-of-4", "prompt": ["once upon"]}).json()
    assert (reply["object"], reply["usage"]["prompt_tokens"]) == ("text_completion", 9)
    assert {request.prefix for request in service.writer.requests} == {tuple(b"once upon")}


def test_tree_header_links_to_a_page_and_its_data(toy: httpx.Client) -> None:
    response = toy.post(CHAT, json=chat_body())
    address = response.headers["x-reason-tree"]
    assert response.json()["search"]["tree"] == address
    page = toy.get(address)
    assert page.headers["content-type"].startswith("text/html")
    assert "What is 3?" in page.text
    assert toy.get(f"{address}.json").json()["question"] == QUESTION


def test_recent_trees_are_in_memory_and_all_trees_on_disk(tmp_path: Path) -> None:
    with toy_server(keep=2) as (client, _):
        addresses = [answer(client, seed=seed)["search"]["tree"] for seed in range(4)]
        assert [client.get(address).status_code for address in addresses] == [404, 404, 200, 200]
    with toy_server(keep=1, folder=tmp_path) as (client, _):
        first, _ = (answer(client, seed=seed)["search"]["tree"] for seed in range(2))
        assert client.get(first).status_code == client.get(f"{first}.json").status_code == 200
        name = first.rpartition("/")[2]
    assert "What is 3?" in (tmp_path / "pages" / f"{name}.html").read_text()
    assert json.loads((tmp_path / "trees" / f"{name}.json").read_text())["question"] == QUESTION


def test_models_endpoint_lists_the_presets(toy: httpx.Client) -> None:
    listed = toy.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["best-of-4", "majority-16"]
    assert toy.get("/v1/models/best-of-4").json() == listed["data"][0]
    assert listed["data"][1]["search"] == "self_consistency"
    assert [model["width"] for model in listed["data"]] == [4, 16]
    assert all(model["max_model_len"] is None or model["max_model_len"] > 0 for model in listed["data"])


@pytest.mark.parametrize(("given", "top_k"), [({"top_k": 5, "min_p": 0.1}, 5), ({"top_k": -1, "min_p": 0.1}, 0)])
def test_filters_are_fields_of_the_request_too(given: dict[str, float], top_k: int) -> None:
    """As vLLM and SGLang have them: their clients send these."""
    settings = CompletionRequest.model_validate({"model": "best-of-4", **given}).sampling_settings
    assert settings == {"top_k": top_k, "min_p": 0.1}


def test_metrics_endpoint_counts_requests_and_tokens(own_toy: tuple[httpx.Client, ToySearchService]) -> None:
    client, _ = own_toy
    tokens = answer(client)["usage"]["completion_tokens"]
    client.post(CHAT, json=chat_body(n=0))
    text = client.get("/metrics").text
    assert f'reason_generated_tokens_total{{preset="best-of-4"}} {float(tokens)}' in text
    assert 'reason_requests_total{endpoint="/v1/chat/completions",preset="best-of-4",status="200"} 1.0' in text
    assert 'reason_requests_total{endpoint="/v1/chat/completions",preset="",status="400"} 1.0' in text
    assert "reason_searches_running 0.0" in text
    assert 'reason_request_seconds_count{endpoint="/v1/chat/completions"} 2.0' in text
