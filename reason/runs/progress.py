"""Shows the progress of a run: a live line on a terminal, one plain line per problem elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft
from rich.table import Column
from rich.text import Text

from decoding.core import Engine
from reason.models.loading import announce
from reason.runs.result import ProblemResult
from reason.runs.summary import chosen_accuracy


class ThroughputMeter:
    """Measures an engine from the meter's creation on, by the counters of `Engine.stats`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started = time.monotonic()
        self._before = engine.stats

    @property
    def elapsed_seconds(self) -> float:
        """Wall clock since the meter was created."""
        return time.monotonic() - self._started

    def read_totals(self) -> dict[str, float | int | None]:
        """Returns the totals since the meter was created.

        tokens, forwards          generated tokens; rounds of the engine, each one forward pass for the whole batch
        accepted_length           tokens per forward pass of a branch, the bonus token included
        cached                    share of the prompt tokens found in the prefix cache
        busy                      share of the wall clock in which the engine had work
        kv_tokens_per_problem     mean over rounds and over problems with running branches
        kv_sharing, peak_*        KV tokens without prefix sharing over KV tokens held, now and at the peak
        """
        now, before, seconds = self._engine.stats, self._before, self.elapsed_seconds
        tokens = now.tokens - before.tokens
        return {
            "tokens": tokens,
            "forwards": now.rounds - before.rounds,
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
            "accepted_length": _ratio(tokens, tokens - (now.accepted - before.accepted)),
            "cached": _ratio(now.cached_tokens - before.cached_tokens, now.prompt_tokens - before.prompt_tokens),
            "busy": _ratio(now.busy_seconds - before.busy_seconds, seconds),
            "kv_tokens_per_problem": _ratio(
                now.resident_rounds - before.resident_rounds, now.problem_rounds - before.problem_rounds
            ),
            "kv_sharing": _ratio(now.unshared_tokens, now.resident_tokens),
            "peak_kv_tokens": now.peak_resident_tokens,
            "peak_kv_tokens_unshared": now.peak_unshared_tokens,
            "peak_kv_sharing": _ratio(now.peak_unshared_tokens, now.peak_resident_tokens),
        }

    def __str__(self) -> str:
        totals = self.read_totals()
        rate = totals.get("tokens_per_second")
        parts = [f"{rate:,.0f} tokens/s"] if rate is not None else []
        if (length := totals.get("accepted_length")) is not None and length > 1:
            parts.append(f"{length:.1f} tokens/forward")
        sharing = totals.get("kv_sharing") or totals.get("peak_kv_sharing")
        if sharing:
            parts.append(f"KV shared {sharing:.1f}x")
        elif totals.get("cached"):  # servers do not report their KV
            parts.append(f"prompts cached {totals['cached']:.0%}")
        return ", ".join(parts)


def track(
    results: Iterable[ProblemResult],
    *,
    total: int,
    before: Sequence[ProblemResult],
    meter: ThroughputMeter,
    console: Console,
) -> Iterator[ProblemResult]:
    """Yields the results and shows each; `before` are those of an earlier run, which count as done."""
    show = _show_live if console.is_terminal else _show_lines
    yield from show(results, total, list(before), meter, console)


def _show_lines(
    results: Iterable[ProblemResult], total: int, done: list[ProblemResult], meter: ThroughputMeter, console: Console
) -> Iterator[ProblemResult]:
    resumed = len(done)
    with ExitStack() as until_first:
        if resumed < total:
            until_first.enter_context(
                announce(f"solving {total - resumed} problem{'s' if total - resumed > 1 else ''}")
            )
        for result in results:
            until_first.close()
            done.append(result)
            left = meter.elapsed_seconds / (len(done) - resumed) * (total - len(done))
            place = f"[{len(done)}/{total}] {result.id}: {_describe_result(result)}"
            parts = [place, _describe_accuracy(done), str(meter), f"{left:.0f} s left"]
            console.print(" | ".join(part for part in parts if part), markup=False, highlight=False, soft_wrap=True)
            yield result


def _show_live(
    results: Iterable[ProblemResult], total: int, done: list[ProblemResult], meter: ThroughputMeter, console: Console
) -> Iterator[ProblemResult]:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        _MeterColumn(meter),
    )
    with Progress(*columns, TimeLeft(compact=True), TextColumn("left"), console=console, transient=True) as progress:
        bar = progress.add_task(_describe_accuracy(done), total=total, completed=len(done))
        for result in results:
            done.append(result)
            if result.error is not None:
                line = f"{result.id}: {_describe_result(result)}"
                console.print(line, style="red", markup=False, highlight=False)
            progress.update(bar, completed=len(done), description=_describe_accuracy(done))
            yield result


class _MeterColumn(ProgressColumn):
    def __init__(self, meter: ThroughputMeter) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._meter = meter

    def render(self, task: Task) -> Text:
        del task
        return Text(str(self._meter), style="cyan")


def _describe_result(result: ProblemResult) -> str:
    if result.error is not None:
        return f"failed, {result.error}"
    return f"{result.answer} ({result.grade.value.replace('_', ' ')})"


def _describe_accuracy(done: Sequence[ProblemResult]) -> str:
    accuracy = chosen_accuracy(done)
    return "" if accuracy is None else f"accuracy {accuracy:.3f}"


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 2) if below else None
