"""Trials of engines against hostile servers: many at once, each in its own thread, with a list of what went wrong."""

from __future__ import annotations

import logging
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from reason.engines.http.engine import HttpEngine
from tests.support.hostile_behaviours import BEHAVIOURS
from tests.support.hostile_behaviours_status import ELSEWHERE
from tests.support.hostile_clients import (
    PATIENT,
    STEADY,
    connect,
    generate_each,
    outcomes_of,
    requests_for,
    require_explained,
    require_sane,
    settings_for,
)
from tests.support.hostile_exchange import Behaviour
from tests.support.hostile_replies import Dialect
from tests.support.hostile_server import HostileServer

CLOSE_LIMIT_S = 2.0  # twice what is promised
HANG_S = 60.0  # no promise, for a machine that is busy with many trials
MAX_CONNECTIONS = 100  # that a sick server may receive for two requests; a busy loop makes thousands

Trial = Callable[[Dialect, Behaviour], None]


def behaviours_of(dialect: Dialect) -> list[Behaviour]:
    return [behaviour for behaviour in BEHAVIOURS.values() if dialect in behaviour.dialects]


def close_within(engine: HttpEngine, limit_s: float) -> None:
    began = time.monotonic()
    engine.close()
    took = time.monotonic() - began
    assert took < limit_s, f"close() took {took:.1f} s"


def wait_for(is_true: Callable[[], bool], problem: str) -> None:
    end = time.monotonic() + HANG_S
    while not is_true():
        assert time.monotonic() < end, problem
        time.sleep(0.01)


def connect_healthy(dialect: Dialect, url: str, **limits: float) -> HttpEngine:
    """Connects to a server that is healthy still, again where only this busy machine made it late."""
    end = time.monotonic() + HANG_S
    while True:
        try:
            return connect(dialect, url, **limits)
        except ConnectionError:
            if time.monotonic() > end:
                raise


def try_alone(dialect: Dialect, behaviour: Behaviour) -> None:
    """Sends requests to a server that turns hostile after a healthy start; where they are answered, again and again."""
    with HostileServer(dialect) as server:
        engine = connect_healthy(dialect, server.url, **_limits_for(behaviour))
        try:
            server.behaviour = behaviour.name
            outcomes = outcomes_of(engine, behaviour)
            assert server.num_connections <= MAX_CONNECTIONS, f"a busy loop: {server.num_connections} connections"
            if outcomes == {"answered"}:
                outcomes = {*outcomes_of(engine, behaviour), *outcomes_of(engine, behaviour)}
            assert outcomes <= behaviour.alone, f"{sorted(outcomes)} and not only {sorted(behaviour.alone)}"
            engine.assert_invariants()
        finally:
            close_within(engine, HANG_S)
        wait_for(lambda: server.num_open == 0, "the client left a connection open")
        assert not [path for path in server.paths if path.startswith(ELSEWHERE)], "a redirect was followed"


def _limits_for(behaviour: Behaviour) -> Mapping[str, float]:
    return {} if "fault" in behaviour.alone else PATIENT


def try_beside_a_healthy_server(dialect: Dialect, behaviour: Behaviour) -> None:
    """Sends requests of several problems; half of them meet the hostile server first, and all are answered."""
    with HostileServer(dialect) as sick, HostileServer(dialect) as healthy:
        engine = connect(dialect, sick.url, healthy.url, **STEADY)
        try:
            sick.behaviour = behaviour.name
            requests = [request for i in range(3) for request in requests_for(f"problem {i}")]
            for generation in generate_each(engine, requests):
                if isinstance(generation, BaseException):
                    raise generation
                require_sane(generation, alters_text=behaviour.alters_text)
            assert sick.num_connections, "the hostile server received nothing"
            engine.assert_invariants()
        finally:
            close_within(engine, HANG_S)


def try_close_under_way(dialect: Dialect, behaviour: Behaviour) -> None:
    """Closes the engine while requests are under way that would go on for minutes."""
    patient = {"request_timeout_s": 300.0, "idle_timeout_s": 300.0, "max_reply_mb": 64}
    with HostileServer(dialect) as server:
        engine = connect(dialect, server.url, **patient)
        server.behaviour = behaviour.name
        thread = threading.Thread(target=lambda: generate_each(engine, requests_for()), daemon=True)
        thread.start()
        wait_for(lambda: server.num_connections > 1, "the hostile server received nothing")
        time.sleep(0.3)
        close_within(engine, CLOSE_LIMIT_S)
        thread.join(HANG_S)
        assert not thread.is_alive(), "the request goes on after close()"
        wait_for(lambda: server.num_open == 0, "the client left a connection open")


def try_start(dialect: Dialect, behaviour: Behaviour) -> None:
    """Pings a server that is hostile from the first moment, and opens an engine on it, which may fail."""
    with HostileServer(dialect, behaviour.name) as server:
        try:
            engine = connect(dialect, server.url, **_limits_for(behaviour))
        except (ConnectionError, ValueError) as error:
            require_explained(error, server.url)
        else:
            try:
                outcomes = outcomes_of(engine, behaviour)
                assert outcomes <= behaviour.alone, f"{sorted(outcomes)} and not only {sorted(behaviour.alone)}"
            finally:
                close_within(engine, HANG_S)
        try:
            settings_for(dialect, [server.url]).ping()
        except (ConnectionError, ValueError) as error:
            require_explained(error, server.url)


@contextmanager
def collected_logs(*names: str) -> Iterator[list[str]]:
    """Yields the list of messages that the loggers write from INFO on, instead of showing them."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield lines
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def measure_peak_mb(dialect: Dialect, behaviour: Behaviour) -> float:
    """Returns the most memory that Python's objects take at a time, in MB, while a request meets the behaviour."""
    # Started and stopped while no thread of server or engine runs: `stop` beside a running thread crashes Python 3.11.
    tracemalloc.start()
    try:
        with HostileServer(dialect) as server:
            engine = connect_healthy(dialect, server.url)
            try:
                server.behaviour = behaviour.name
                tracemalloc.reset_peak()
                outcomes_of(engine, behaviour)
                return tracemalloc.get_traced_memory()[1] / 1e6
            finally:
                close_within(engine, HANG_S)
    finally:
        tracemalloc.stop()


def run_trials(
    trial: Trial,
    dialect: Dialect,
    behaviours: Iterable[Behaviour],
    *,
    at_once: int,
    limit_s: float = 400.0,
) -> list[str]:
    """Returns what went wrong, a line per behaviour. A trial that hangs is left to itself after `limit_s`."""
    failures: dict[str, str] = {}
    places = threading.Semaphore(at_once)
    began: dict[str, float] = {}

    def attempt(behaviour: Behaviour) -> None:
        with places:
            began[behaviour.name] = time.monotonic()
            try:
                trial(dialect, behaviour)
            except BaseException as error:  # whatever it is, the list names it
                failures[behaviour.name] = f"{type(error).__name__}: {str(error)[:400]}"

    threads = {
        behaviour.name: threading.Thread(target=attempt, args=(behaviour,), daemon=True) for behaviour in behaviours
    }
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + limit_s
    for name, thread in threads.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            failures.setdefault(name, f"hangs: no end within {limit_s:g} s")
    return [f"{dialect} {name}: {failure}" for name, failure in sorted(failures.items())]
