"""A request that is repeated with the same id gets the reply of the first one, and only that."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from reason.serve.replays import ReplayStore
from tests.support.served_upstream import CHAT
from tests.support.toy_server import chat_body, toy_server, wait_until


def post(client: httpx.Client, name: str = "job-1", header: str = "idempotency-key", **fields: Any) -> httpx.Response:
    return client.post(CHAT, json=chat_body(**fields), headers={header: name})


@pytest.mark.parametrize("header", ["idempotency-key", "x-request-id"])
def test_a_repeated_request_gets_the_same_reply(header: str) -> None:
    with toy_server() as (client, service):
        first = post(client, header=header)
        searches = len(service.writer.requests)
        again = post(client, header=header)
        assert again.content == first.content
        assert again.headers["x-reason-tree"] == first.headers["x-reason-tree"]
        assert len(service.writer.requests) == searches


def test_another_name_another_body_and_no_name_are_searched() -> None:
    with toy_server() as (client, _):
        ids = {post(client).json()["id"], post(client, "job-2").json()["id"], post(client, seed=1).json()["id"]}
        ids |= {client.post(CHAT, json=chat_body()).json()["id"] for _ in range(2)}
        assert len(ids) == 5


def test_a_repeated_request_waits_for_the_search_under_way() -> None:
    with toy_server(concurrency=1, queue=0) as (client, service), ThreadPoolExecutor() as pool:
        service.writer.held = True
        replies = [pool.submit(post, client) for _ in range(3)]
        wait_until(lambda: service.writer.under_way > 0)
        service.writer.held = False
        assert len({reply.result().content for reply in replies}) == 1
        assert {reply.result().status_code for reply in replies} == {200}


def test_the_search_goes_on_for_those_that_still_wait_and_ends_with_the_last() -> None:
    with toy_server(concurrency=1) as (client, service), ThreadPoolExecutor() as pool:
        service.writer.held = True
        waiting = pool.submit(post, client)
        wait_until(lambda: service.writer.under_way > 0)
        with pytest.raises(httpx.ReadTimeout):
            client.post(CHAT, json=chat_body(), headers={"idempotency-key": "job-1"}, timeout=0.3)
        service.writer.held = False
        assert waiting.result().status_code == 200
        service.writer.held = True
        with pytest.raises(httpx.ReadTimeout):
            client.post(CHAT, json=chat_body(), headers={"idempotency-key": "job-2"}, timeout=0.3)
        wait_until(lambda: service.writer.under_way == 0)
        wait_until(lambda: service.admission.running == 0)
        service.writer.held = False
        assert post(client, "job-2").status_code == 200


def test_a_repeated_request_does_not_join_a_search_that_is_being_cancelled() -> None:
    async def scenario() -> str:
        store, cancelled, may_end = ReplayStore[str](keep=4), asyncio.Event(), asyncio.Event()

        async def first_search() -> str:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
                await may_end.wait()
            return "first"

        async def second_search() -> str:
            may_end.set()
            return "second"

        first = asyncio.create_task(store.reply_once("job", first_search))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        await cancelled.wait()
        return await store.reply_once("job", second_search)

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == "second"


def test_errors_are_not_kept() -> None:
    with toy_server() as (client, service):
        service.writer.broken = True
        assert post(client).status_code == 500
        service.writer.broken = False
        assert post(client).status_code == 200


@pytest.mark.parametrize(("replays", "same"), [(1, False), (2, True), (0, False)])
def test_only_so_many_replies_are_kept(replays: int, same: bool) -> None:
    with toy_server(replays=replays) as (client, _):
        first = post(client).json()["id"]
        post(client, "job-2")
        assert (post(client).json()["id"] == first) is same
