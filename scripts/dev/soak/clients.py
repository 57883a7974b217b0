"""Storm scripts/serve.py with clients of all kinds (client_storm.py).

Proper ones are answered; afterwards the server is idle, holds nothing, and answers. Started by soak.py.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx
from child import Child
from client_storm import KEY, ClientStorm, StrangeAnswer
from gauges import GrowthWatch, read_gauges
from part_program import ROOT, PartSettings, RoundReport, run_part

NUM_CLIENTS = 200
STORM_S = 10.0
START_LIMIT_S = 180.0
SERVER_SETTINGS = (
    "serve.port=0",
    "serve.presets=[best-of-4,beam-16]",
    "serve.api_key=${oc.env:SOAK_KEY}",
    "serve.queue=128",
    "serve.receive_timeout_s=3",
    "serve.send_timeout_s=5",
    "engine.kv_mib=64",
)
IDLE_METRICS = (
    "reason_searches_running",
    "reason_requests_waiting",
    "reason_engine_branches_running",
    "reason_engine_branches_waiting",
)
LASTING_DESCRIPTORS = 4
"""Files that a server may have opened during a round and keeps, such as those of a random source."""


class ServeProgram:
    """scripts/serve.py in a process of its own, with an API key."""

    def __init__(self, settings: PartSettings, number: int) -> None:
        log = settings.folder / f"serve-{number}.log"
        self.child = Child([ROOT / "scripts" / "serve.py", *SERVER_SETTINGS], log, more={"SOAK_KEY": KEY})
        self.url = self._read_address(log.read_text)

    def _read_address(self, read_log: Callable[[], str]) -> str:
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end and not self.child.has_ended:
            if match := re.search(r"base url (\S+)/v1", read_log()):
                return match[1]
            time.sleep(0.1)
        self.child.dump_and_kill()
        raise RuntimeError(f"the server did not start: {self.child.read_last_lines()}")

    def close(self, limit_s: float) -> None:
        """Stops the server with a signal. Raises: RuntimeError if it does not end well, or leaves something."""
        self.child.send_signal(signal.SIGTERM)
        code = self.child.finish(limit_s)
        if code != 0:
            raise RuntimeError(f"the server ended with {code}: {self.child.read_last_lines()}")
        if remains := self.child.find_remains(files=True):
            raise RuntimeError(f"the server left {', '.join(remains)}")


class ClientAttack:
    """Storms one server in all rounds; starts another where it died."""

    def __init__(self, settings: PartSettings) -> None:
        self._settings = settings
        self._num_started = 0
        self._start()

    def run_round(self, seed: int, rng: random.Random) -> RoundReport:
        """Draws the clients, their kinds and the moments at which they come."""
        report = RoundReport()
        if self._server.child.has_ended:
            self._start()
        before = read_gauges(self._server.child.pid)
        asyncio.run(self._storm(rng, report))
        if self._server.child.has_ended:
            report.lost.append(f"the server ended: {self._server.child.read_last_lines()}")
            return report
        report.leaked += self._find_open_connections(before.descriptors)
        report.leaked += self._watch.find_growth(read_gauges(self._server.child.pid))
        return report

    def close(self) -> None:
        """Stops the server. Raises: RuntimeError if it does not end well."""
        if not self._server.child.has_ended:
            self._server.close(self._settings.limit_s)

    def _start(self) -> None:
        self._num_started += 1
        self._server, self._watch = ServeProgram(self._settings, self._num_started), GrowthWatch()

    async def _storm(self, rng: random.Random, report: RoundReport) -> None:
        limits = httpx.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        limit_s = self._settings.limit_s
        async with httpx.AsyncClient(
            base_url=self._server.url, timeout=limit_s, limits=limits, headers=headers
        ) as http:
            storm = ClientStorm(self._server.url, http, rng)
            kinds = rng.choices(
                list(storm.kinds), list(storm.kinds.values()), k=self._settings.scale_count(NUM_CLIENTS)
            )
            await asyncio.gather(
                *(self._run_client(kind, rng.uniform(0.0, STORM_S * self._settings.scale), report) for kind in kinds)
            )
            report.leaked += await self._find_unrest(http)
            for _ in range(3):
                await self._run_client(storm.complete_at_rest, 0.0, report)

    async def _run_client(self, kind: Callable[[], Awaitable[None]], delay_s: float, report: RoundReport) -> None:
        await asyncio.sleep(delay_s)
        name = kind.__name__
        try:
            async with asyncio.timeout(self._settings.limit_s):
                await kind()
        except (TimeoutError, httpx.TimeoutException):
            report.hung.append(f"client {name}: no end within {self._settings.limit_s:g} s")
        except (StrangeAnswer, httpx.HTTPError, OSError, ValueError, KeyError) as error:
            report.lost.append(f"client {name}: {type(error).__name__}: {error}"[:300])
        report.counts["clients"] += 1

    async def _find_unrest(self, http: httpx.AsyncClient) -> list[str]:
        """Returns what still runs long after the last client, or the error of `/check`; empty if there is none."""
        end = time.monotonic() + self._settings.limit_s
        while True:
            text = (await http.get("/metrics")).text
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            busy = [f"{name} is {values[name]}" for name in IDLE_METRICS if float(values[name])]
            if not busy:
                check = await http.get("/check")
                return [] if check.status_code == 200 else [f"/check: {check.text[:200]}"]
            if time.monotonic() > end:
                return busy
            await asyncio.sleep(0.1)

    def _find_open_connections(self, before: int) -> list[str]:
        """Returns a sentence if the server has more files open than before the round, long after its last client."""
        end = time.monotonic() + self._settings.limit_s
        while (now := read_gauges(self._server.child.pid).descriptors) > before + LASTING_DESCRIPTORS:
            if time.monotonic() > end:
                return [f"the server had {before} files and connections open before the round, {now} after it"]
            time.sleep(0.1)
        return []


@contextmanager
def open_attack(settings: PartSettings) -> Iterator[ClientAttack]:
    """Yields the attack; stops the server."""
    attack = ClientAttack(settings)
    try:
        yield attack
    finally:
        attack.close()


if __name__ == "__main__":
    run_part(open_attack)
