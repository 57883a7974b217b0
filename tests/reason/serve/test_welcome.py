"""The pages for people: `/` with something to try, `/trees` with what was asked; addresses that work as they are."""

from __future__ import annotations

import json
import shlex

import httpx
import pytest

from reason.serve.settings import ServeSettings
from tests.support.served_upstream import CHAT
from tests.support.toy_server import chat_body, serve_settings, toy_server


def test_welcome_page_has_presets_and_a_request_that_works(toy: httpx.Client) -> None:
    page = toy.get("/").text
    assert all(name in page for name in ("best-of-4", "majority-16", "/metrics", "/trees"))
    assert "src=" not in page
    curl = page.partition("<pre>")[2].partition("</pre>")[0].replace("&#x27;", "'").replace("&quot;", '"')
    _, url, *_, body = shlex.split(curl)
    assert toy.post(url, json=json.loads(body)).status_code == 200


def test_trees_are_listed_with_question_and_answer_the_newest_first() -> None:
    with toy_server(keep=2) as (client, _):
        questions = ["<b>one</b>?", "two?", "three?"]
        replies = [
            client.post(CHAT, json=chat_body(messages=[{"role": "user", "content": each}])).json() for each in questions
        ]
        listed = client.get("/trees.json").json()
        assert [(tree["question"], tree["answer"]) for tree in listed] == [
            (question, reply["search"]["answer"]) for question, reply in zip(questions, replies, strict=True)
        ][:0:-1]
        page = client.get("/trees").text
        assert replies[2]["search"]["tree"] in page
        assert client.get(replies[2]["search"]["tree"]).status_code == 200
        assert "one" not in page


def test_questions_are_no_markup_in_the_list() -> None:
    with toy_server() as (client, _):
        assert "There are none yet" in client.get("/trees").text
        client.post(CHAT, json=chat_body(messages=[{"role": "user", "content": "<script>x</script>"}]))
        page = client.get("/trees").text
        assert "&lt;script&gt;" in page
        assert "<script>" not in page


def test_pages_need_the_key_where_there_is_one() -> None:
    with toy_server(api_key="secret") as (client, _):
        assert [client.get(path).status_code for path in ("/", "/trees", "/trees.json")] == [401] * 3


@pytest.mark.parametrize(
    ("host", "start"), [("a.example:81", "http://a.example:81/trees/"), ("a b", "/trees/"), ("x/y", "/trees/")]
)
def test_tree_address_is_that_of_the_host_that_the_client_names(toy: httpx.Client, host: str, start: str) -> None:
    response = toy.post(CHAT, json=chat_body(), headers={"host": host})
    assert response.headers["x-reason-tree"].startswith(start)
    assert response.json()["search"]["tree"] == response.headers["x-reason-tree"]


def test_public_url_is_the_address_whatever_the_client_names() -> None:
    with toy_server(public_url="https://a.example/reason/") as (client, _):
        address = client.post(CHAT, json=chat_body()).headers["x-reason-tree"]
    assert address.startswith("https://a.example/reason/trees/")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("public_url", "a.example"),
        ("public_url", "ftp://a.example"),
        ("public_url", 3),
        ("prices", {"input": 1}),
        ("prices", {"input": 1, "output": -1}),
        ("prices", {"input": 1, "output": "2"}),
        ("prices", {"input": 1, "output": 2, "total": 3}),
        ("prices", 3),
        ("attempts", 0),
        ("replays", -1),
    ],
)
def test_wrong_setting_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        serve_settings(**{name: value})


def test_prices_are_the_cost_in_replies_and_metrics() -> None:
    settings: ServeSettings = serve_settings()
    assert settings.prices is None
    with toy_server(prices={"input": 2.0, "output": 10.0}) as (client, _):
        usage = client.post(CHAT, json=chat_body()).json()["search"]["usage"]
        metrics = client.get("/metrics").text
    assert usage["cost"] == pytest.approx((2 * usage["prompt_tokens"] + 10 * usage["tokens"]) / 1e6)
    (line,) = [line for line in metrics.splitlines() if line.startswith("reason_cost_total{")]
    assert float(line.rpartition(" ")[2]) == pytest.approx(usage["cost"])


def test_without_prices_there_is_no_cost(toy: httpx.Client) -> None:
    assert "cost" not in toy.post(CHAT, json=chat_body()).json()["search"]["usage"]
