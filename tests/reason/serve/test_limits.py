"""Limits of the server: concurrent searches, the queue, time, budgets, the API key, disconnected clients."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from random import Random

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reason.serve.admission import AdmissionQueue
from reason.serve.errors import ApiError
from tests.support.toy_server import ToySearchService, chat_body, error_of, toy_server, wait_until

CHAT = "/v1/chat/completions"


def test_requests_beyond_the_queue_are_429_and_no_other_is_lost(
    own_toy: tuple[httpx.Client, ToySearchService],
) -> None:
    client, service = own_toy
    service.writer.held = True
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(client.post, CHAT, json=chat_body(seed=seed)) for seed in range(4)]
        wait_until(lambda: (service.admission.running, service.admission.waiting) == (2, 2))
        for stream in (False, True):
            refusal = client.post(CHAT, json=chat_body(stream=stream))
            assert refusal.status_code == 429
            assert error_of(refusal)["code"] == "rate_limit_exceeded"
            assert int(refusal.headers["retry-after"]) >= 1
        service.writer.held = False
        assert [answer.result().status_code for answer in answers] == [200] * 4
    assert (service.admission.running, service.admission.waiting) == (0, 0)


def test_admission_queue_runs_in_order_and_a_cancelled_request_frees_its_slot() -> None:
    async def scenario() -> list[int]:
        admission, served = AdmissionQueue(256, 1, 10), []

        async def one(number: int) -> None:
            async with admission.hold_slot(1, None):
                served.append(number)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(one(number)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.running, admission.waiting) == (0, 0)
        return served

    assert asyncio.run(scenario()) == [0, 1, 3, 4, 5]


async def _hold(admission: AdmissionQueue) -> None:
    async with admission.hold_slot(8, None):
        pass


@pytest.mark.parametrize(("branches", "concurrency"), [(16, None), (256, 2)])
def test_retry_after_grows_with_search_duration_and_queue_length(
    branches: int, concurrency: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("reason.serve.admission.time.monotonic", lambda: now)

    async def scenario() -> tuple[int, int, int]:
        nonlocal now
        admission = AdmissionQueue(branches, concurrency, 10)
        before = admission.retry_after_s
        async with admission.hold_slot(8, None):
            now += 30.0
        alone = admission.retry_after_s
        async with AsyncExitStack() as running:
            for _ in range(2):
                await running.enter_async_context(admission.hold_slot(8, None))
            waiting = [asyncio.create_task(_hold(admission)) for _ in range(5)]
            await asyncio.sleep(0)
            later = admission.retry_after_s
            for task in waiting:
                task.cancel()
        return before, alone, later

    assert asyncio.run(scenario()) == (1, 30, 90)


@settings(deadline=None)
@given(
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
    concurrency=st.none() | st.integers(1, 4),
)
def test_widths_of_running_searches_fit_and_none_is_overtaken(
    widths: list[int], seed: int, concurrency: int | None
) -> None:
    """Whichever end first, and whichever are cancelled while they wait; in the end nothing is held."""
    ends = Random(seed)

    async def scenario() -> None:
        admission, running, started = AdmissionQueue(8, concurrency, 100), set[int](), list[int]()

        async def search(number: int) -> None:
            async with admission.hold_slot(widths[number], None):
                running.add(number)
                started.append(number)
                assert len(running) <= admission.running <= (concurrency or len(widths))
                assert sum(widths[other] for other in running) <= 8 or running == {number}
                try:
                    for _ in range(ends.randrange(4)):
                        await asyncio.sleep(0)
                finally:  # it may have begun by the time that it is cancelled
                    running.remove(number)

        tasks = [asyncio.create_task(search(number)) for number in range(len(widths))]
        await asyncio.sleep(0)
        given_up = [number for number in range(len(widths)) if number not in started and ends.random() < 0.3]
        for number in given_up:
            tasks[number].cancel()
            for _ in range(ends.randrange(3)):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert started == sorted(started)
        assert set(started) | set(given_up) == set(range(len(widths)))
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(scenario())


def test_narrow_searches_run_where_a_wide_one_has_to_wait() -> None:
    with toy_server(branches=8, concurrency=None) as (client, service), ThreadPoolExecutor(4) as pool:
        service.writer.held = True
        bodies = [chat_body(search={"n": width}) for width in (3, 3, 2, 4)]
        answers = [pool.submit(client.post, CHAT, json=body) for body in bodies[:3]]
        wait_until(lambda: service.admission.running == 3)
        answers.append(pool.submit(client.post, CHAT, json=bodies[3]))
        wait_until(lambda: service.admission.waiting == 1)
        service.writer.held = False
        assert [answer.result().status_code for answer in answers] == [200] * 4


def test_failed_search_does_not_count_in_the_search_duration() -> None:
    async def scenario() -> int:
        admission = AdmissionQueue(256, 1, 1)
        with pytest.raises(ApiError):
            async with admission.hold_slot(1, None):
                raise ApiError(500, "it broke")
        assert admission.running == 0
        return admission.retry_after_s

    assert asyncio.run(scenario()) == 1


def test_time_limit_that_passes_in_the_queue_is_504_without_retry(
    own_toy: tuple[httpx.Client, ToySearchService],
) -> None:
    client, service = own_toy
    service.writer.held = True
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(client.post, CHAT, json=chat_body()) for _ in range(2)]
        wait_until(lambda: service.admission.running == 2)
        late = client.post(CHAT, json=chat_body(timeout=0.05))
        assert late.status_code == 504
        assert late.headers["x-should-retry"] == "false"
        assert error_of(late) == {
            "message": "the request's time limit passed while it waited in the queue",
            "type": "timeout_error",
            "param": "timeout",
            "code": "timeout",
        }
        service.writer.held = False
        assert [answer.result().status_code for answer in running] == [200, 200]


def test_token_budget_ends_the_search_with_its_candidates(toy: httpx.Client) -> None:
    answer = toy.post(CHAT, json=chat_body(budget={"tokens": 9})).json()
    assert answer["usage"]["completion_tokens"] <= 9
    assert answer["search"]["stopped"] == "budget"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("name", ["calls", "forwards"])
def test_calls_and_forwards_are_budgets_too(toy: httpx.Client, name: str) -> None:
    assert toy.post(CHAT, json=chat_body(budget={name: 1})).json()["search"]["stopped"] == "budget"


def test_server_with_an_api_key_answers_only_requests_with_it() -> None:
    with toy_server(api_key="open sesame") as (client, _):
        assert client.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer sesame"}, {"authorization": "open sesame"}):
            for path in ("/v1/models", "/metrics", "/trees/x", "/nope"):
                response = client.get(path, headers=headers)
                assert response.status_code == 401, path
                assert error_of(response)["code"] == "invalid_api_key"
            assert client.post(CHAT, json=chat_body(), headers=headers).status_code == 401
        allowed = {"authorization": "Bearer open sesame"}
        assert client.post(CHAT, json=chat_body(), headers=allowed).status_code == 200
        assert client.get("/metrics", headers=allowed).status_code == 200


def test_server_without_an_api_key_accepts_any_authorization_header(toy: httpx.Client) -> None:
    assert toy.get("/v1/models", headers={"authorization": "Bearer unused"}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_search_of_a_disconnected_client_is_cancelled(
    own_toy: tuple[httpx.Client, ToySearchService], stream: bool
) -> None:
    client, service = own_toy
    service.writer.held = True
    bodies = [chat_body(stream=stream, seed=seed) for seed in range(4)]  # two search, two wait
    hang_up = threading.Event()

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=None) as others:
            tasks = [asyncio.create_task(others.post(CHAT, json=body)) for body in bodies]
            await asyncio.to_thread(hang_up.wait)
            for task in tasks:
                task.cancel()

    asking = threading.Thread(target=lambda: asyncio.run(ask()))
    asking.start()
    wait_until(lambda: (service.admission.running, service.admission.waiting) == (2, 2))
    wait_until(lambda: service.writer.under_way == 8)
    hang_up.set()
    asking.join()
    wait_until(lambda: (service.admission.running, service.admission.waiting, service.writer.under_way) == (0, 0, 0))
    assert client.get("/check").json() == {"status": "sound"}
    wait_until(lambda: 'status="499"} 4.0' in client.get("/metrics").text)
    service.writer.held = False
    assert client.post(CHAT, json=chat_body()).status_code == 200


def test_engine_with_a_request_left_fails_the_check(own_toy: tuple[httpx.Client, ToySearchService]) -> None:
    client, service = own_toy
    service.writer.under_way = 1
    assert client.get("/check").status_code == 500
    service.writer.under_way = 0
