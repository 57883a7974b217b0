"""What a run looks like while it runs: a live line on a terminal, one plain line per problem elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft
from rich.table import Column
from rich.text import Text

from reason.runs.result_file import Row
from reason.runs.summary import accuracy


class Gauge:
    """Reads an engine's statistics, where it has any, since the gauge was made."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._started = time.monotonic()
        self._before = self._stats()

    @property
    def seconds(self) -> float:
        """Wall clock since the gauge was made."""
        return time.monotonic() - self._started

    def read(self) -> dict[str, float | int | None]:
        """Tokens, forward passes, what speculation brings, the share of the prompts that was in the prefix cache, the
        share of the time the engine had work, and KV: its mean per problem while the problem has running branches, and
        how much is shared. Empty if nobody counts.

        The speed-up is over plain decoding as the engine's cost curve has it, not measured side by side.
        """
        now, seconds = self._stats(), self.seconds
        if now is None:
            return {}
        tokens, forwards = now.tokens - self._before.tokens, now.rounds - self._before.rounds
        return {
            "tokens": tokens,
            "forwards": forwards,
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
            "accepted_length": _ratio(tokens, tokens - (now.accepted - self._before.accepted)),
            "speedup": _ratio(
                now.plain_seconds - self._before.plain_seconds, now.round_seconds - self._before.round_seconds
            )
            or None,
            "cached": _ratio(
                now.cached_tokens - self._before.cached_tokens, now.prompt_tokens - self._before.prompt_tokens
            ),
            "busy": _ratio(now.busy_seconds - self._before.busy_seconds, seconds),
            "kv_tokens_per_problem": _ratio(
                now.resident_rounds - self._before.resident_rounds, now.problem_rounds - self._before.problem_rounds
            ),
            "kv_sharing": _ratio(now.unshared_tokens, now.resident_tokens),
            "peak_kv_tokens": now.peak_resident_tokens,
            "peak_kv_tokens_unshared": now.peak_unshared_tokens,
            "peak_kv_sharing": _ratio(now.peak_unshared_tokens, now.peak_resident_tokens),
        }

    def __str__(self) -> str:
        read = self.read()
        parts = [f"{read['tokens_per_second']:,.0f} tokens/s"] if read.get("tokens_per_second") is not None else []
        if (length := read.get("accepted_length")) is not None and length > 1:
            faster = f", {read['speedup']:.1f}x" if read.get("speedup") else ""
            parts.append(f"{length:.1f} tokens/forward{faster}")
        sharing = read.get("kv_sharing") or read.get("peak_kv_sharing")
        if sharing:
            parts.append(f"KV shared {sharing:.1f}x")
        elif read.get("cached"):  # servers, whose KV nobody sees
            parts.append(f"prompts cached {read['cached']:.0%}")
        return ", ".join(parts)

    def _stats(self) -> Any:
        return getattr(self._engine, "stats", None)


def watched(rows: Iterable[Row], *, total: int, before: list[Row], gauge: Gauge, console: Console) -> Iterator[Row]:
    """The rows, shown as they pass. `before` are those of an earlier run, which count as done."""
    show = _live if console.is_terminal else _lines
    yield from show(rows, total, list(before), gauge, console)


def _lines(rows: Iterable[Row], total: int, done: list[Row], gauge: Gauge, console: Console) -> Iterator[Row]:
    already = len(done)
    for row in rows:
        done.append(row)
        left = gauge.seconds / (len(done) - already) * (total - len(done))
        parts = [f"[{len(done)}/{total}] {row['id']}: {_told(row)}", _running(done), str(gauge), f"{left:.0f} s left"]
        console.print(" | ".join(part for part in parts if part), markup=False, highlight=False, soft_wrap=True)
        yield row


def _live(rows: Iterable[Row], total: int, done: list[Row], gauge: Gauge, console: Console) -> Iterator[Row]:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        _GaugeColumn(gauge),
    )
    with Progress(*columns, TimeLeft(compact=True), TextColumn("left"), console=console, transient=True) as progress:
        bar = progress.add_task(_running(done), total=total, completed=len(done))
        for row in rows:
            done.append(row)
            if row["error"] is not None:
                console.print(f"{row['id']}: {_told(row)}", style="red", markup=False, highlight=False)
            progress.update(bar, completed=len(done), description=_running(done))
            yield row


class _GaugeColumn(ProgressColumn):
    def __init__(self, gauge: Gauge) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._gauge = gauge

    def render(self, task: Task) -> Text:
        del task
        return Text(str(self._gauge), style="cyan")


def _told(row: Row) -> str:
    if row["error"] is not None:
        return f"failed, {row['error']}"
    return f"{row['answer']} ({row['grade'].replace('_', ' ')})"


def _running(done: list[Row]) -> str:
    share = accuracy(done)
    return "" if share is None else f"accuracy {share:.3f}"


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 2) if below else None
