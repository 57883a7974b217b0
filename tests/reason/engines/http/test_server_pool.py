"""A server that fails is tried again by one request at a time, and hands its problems to those that work."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from reason.engines.http.bounded_http import BoundedHttp
from reason.engines.http.client import JsonHttpClient
from reason.engines.http.errors import ServerUnreachable
from reason.engines.http.reply import ReplyLimits
from reason.engines.http.server_pool import ServerPool

HTTP = BoundedHttp(ReplyLimits(total_s=1, idle_s=1, max_bytes=1))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make_pool(count: int) -> tuple[ServerPool[JsonHttpClient], Clock]:
    clock = Clock()
    clients = [JsonHttpClient(f"http://{i}", HTTP) for i in range(count)]
    return ServerPool(clients, max_in_flight=2, cooldown_s=5.0, clock=clock), clock


def test_pause_doubles_with_each_failure_and_ends_with_a_good_reply() -> None:
    pool, clock = make_pool(2)
    sick = pool.servers[0]
    for pause_s in (5, 10, 20, 40, 80, 80, 80):
        pool.record_failure(sick, clock())
        clock.now += pause_s - 0.1
        assert pool.choose_server("") is pool.servers[1]
        clock.now += 0.2
        assert pool.choose_server("") is sick
    pool.record_reply(sick)
    pool.record_failure(sick, clock())
    clock.now += 5
    assert pool.choose_server("") is sick


def test_one_request_at_a_time_tries_a_failed_server() -> None:
    pool, clock = make_pool(2)
    sick, healthy = pool.servers
    pool.record_failure(sick, clock())
    clock.now += 5
    with pool.track_assigned(pool.choose_server("p")) as is_trial:
        assert is_trial
        assert [pool.choose_server(problem) for problem in "pqr"] == [healthy] * 3
    assert pool.choose_server("p") is sick


def test_one_fault_of_many_requests_is_one_failure() -> None:
    pool, clock = make_pool(2)
    sent_at = clock()
    clock.now += 1
    for _ in range(64):
        pool.record_failure(pool.servers[0], sent_at)
    assert pool.servers[0].circuit.num_failures == 1


def test_without_another_server_the_short_pause_is_enough() -> None:
    pool, clock = make_pool(1)
    for _ in range(9):
        pool.record_failure(pool.servers[0], clock())
    with pytest.raises(ServerUnreachable, match="no server answers: http://0"):
        pool.choose_server("p")
    clock.now += 5
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(pool.track_assigned(pool.choose_server("p")))


def test_request_avoids_the_servers_that_lost_it_while_another_works() -> None:
    pool, clock = make_pool(3)
    first, second, third = pool.servers
    assert pool.choose_server("p", {first, second}) is third
    pool.record_failure(third, clock())
    assert pool.choose_server("p", {first, second}) in (first, second)


def test_server_that_stays_full_hands_its_problems_over() -> None:
    pool, clock = make_pool(2)
    assigned = pool.choose_server("p")
    pool.record_refusal(assigned, 0.5)
    assert pool.choose_server("p") is assigned, "a short pause is waited for where the prefixes are"
    pool.record_refusal(assigned, 0.0)
    other = pool.choose_server("p")
    assert other is not assigned
    assert pool.is_worse_than_another(assigned, ())
    pool.record_refusal(other, 60.0)
    clock.now += 6
    assert pool.choose_server("p") is assigned, "the other one wants a minute"


def test_recovered_server_is_tried_without_moving_the_problem() -> None:
    pool, clock = make_pool(2)
    sick, healthy = pool.servers
    pool.record_failure(sick, clock())
    assert pool.choose_server("p") is healthy
    clock.now += 5
    with pool.track_assigned(pool.choose_server("p")):
        pool.record_reply(sick)
    assert pool.choose_server("p") is healthy
