"""Shows the progress of a run: a live line on a terminal, one plain line per problem elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from textwrap import shorten

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from decoding.core import Engine
from decoding.stats import EngineStats
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
        speculation_speedup       seconds that the rounds would have taken without drafts over those they took, as the
                                  controller estimates it from plain rounds; None where it does not compare them
        cached                    share of the prompt tokens found in the prefix cache
        busy                      share of the wall clock in which the engine had work
        kv_tokens_per_problem     mean over rounds and over problems with running branches
        peak_kv_sharing           KV tokens without prefix sharing over KV tokens held, at the peak
        """
        now, before, seconds = self._engine.stats, self._before, self.elapsed_seconds
        tokens = now.tokens - before.tokens
        return {
            "tokens": tokens,
            "forwards": now.rounds - before.rounds,
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
            "accepted_length": _ratio(tokens, tokens - (now.accepted - before.accepted)),
            "speculation_speedup": self._speculation_speedup(now),
            "cached": _ratio(now.cached_tokens - before.cached_tokens, now.prompt_tokens - before.prompt_tokens),
            "busy": _ratio(now.busy_seconds - before.busy_seconds, seconds),
            "kv_tokens_per_problem": _ratio(
                now.resident_rounds - before.resident_rounds, now.problem_rounds - before.problem_rounds
            ),
            "peak_kv_tokens": now.peak_resident_tokens,
            "peak_kv_tokens_unshared": now.peak_unshared_tokens,
            "peak_kv_sharing": _ratio(now.peak_unshared_tokens, now.peak_resident_tokens),
        }

    def _speculation_speedup(self, now: EngineStats) -> float | None:
        if now.seconds_saved is None:
            return None
        rounds = now.seconds_rounds - self._before.seconds_rounds
        return _ratio(rounds + now.seconds_saved - (self._before.seconds_saved or 0.0), rounds)

    def __str__(self) -> str:
        totals = self.read_totals()
        rate = totals.get("tokens_per_second")
        parts = [f"{rate:,.0f} tokens/s"] if rate is not None else []
        if (length := totals.get("accepted_length")) is not None and length > 1:
            parts.append(f"{length:.1f} tokens/forward")
        now = self._engine.stats
        sharing = _ratio(now.unshared_tokens, now.resident_tokens) or totals.get("peak_kv_sharing")
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
    measure_work: Callable[[ProblemResult], int] = lambda _: 1,
) -> Iterator[ProblemResult]:
    """Yields the results and shows each; `before` are those of an earlier run, which count as done.

    `total` is the work of the run as `measure_work` counts it, by default in problems. A later result of a problem
    replaces the one before.
    """
    show = _show_live if console.is_terminal else _show_lines
    yield from show(results, RunProgress(total, measure_work, before), meter, console)


class RunProgress:
    """The results so far, the last one of each problem, and how much of the work they are."""

    def __init__(
        self, total: int, measure_work: Callable[[ProblemResult], int], before: Sequence[ProblemResult]
    ) -> None:
        self.total = total
        self._measure = measure_work
        self._results = {result.id: result for result in before}
        self.at_start = self.done = sum(map(measure_work, before))

    def add(self, result: ProblemResult) -> None:
        """Adds a result, or replaces an earlier one. *Mutates*."""
        earlier = self._results.get(result.id)
        self.done += self._measure(result) - (0 if earlier is None else self._measure(earlier))
        self._results[result.id] = result

    @property
    def results(self) -> list[ProblemResult]:
        return list(self._results.values())

    def seconds_left(self, elapsed: float) -> float:
        """Returns the seconds that the rest takes at the speed so far."""
        return elapsed / max(1, self.done - self.at_start) * (self.total - self.done)

    def describe_left(self, elapsed: float) -> str:
        """Formats `seconds_left`, from the first result of this run on."""
        return format_left(self.seconds_left(elapsed)) if self.done > self.at_start else ""


def _show_lines(
    results: Iterable[ProblemResult], progress: RunProgress, meter: ThroughputMeter, console: Console
) -> Iterator[ProblemResult]:
    with ExitStack() as until_first:
        if progress.done < progress.total:
            until_first.enter_context(announce("solving"))
        for result in results:
            until_first.close()
            progress.add(result)
            place = f"[{progress.done}/{progress.total}] {result.id}: {_describe_result(result)}"
            left = progress.seconds_left(meter.elapsed_seconds)
            parts = [place, _describe_accuracy(progress.results), str(meter), format_left(left)]
            console.print(" | ".join(part for part in parts if part), markup=False, highlight=False, soft_wrap=True)
            yield result


def _show_live(
    results: Iterable[ProblemResult], progress: RunProgress, meter: ThroughputMeter, console: Console
) -> Iterator[ProblemResult]:
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        _MeterColumn(meter),
    )
    with Progress(*columns, _LeftColumn(progress, meter), console=console, transient=True) as shown:
        bar = shown.add_task(_describe_accuracy(progress.results), total=progress.total, completed=progress.done)
        for result in results:
            progress.add(result)
            if result.error is not None:
                line = f"{result.id}: {_describe_result(result)}"
                console.print(line, style="red", markup=False, highlight=False)
            shown.update(bar, completed=progress.done, description=_describe_accuracy(progress.results))
            yield result


class _MeterColumn(ProgressColumn):
    def __init__(self, meter: ThroughputMeter) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._meter = meter

    def render(self, task: Task) -> Text:
        del task
        return Text(str(self._meter), style="cyan")


class _LeftColumn(ProgressColumn):
    """The time left at the speed of the whole run: one result is enough, of which rich's own column needs several."""

    def __init__(self, progress: RunProgress, meter: ThroughputMeter) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._progress, self._meter = progress, meter

    def render(self, task: Task) -> Text:
        del task
        return Text(self._progress.describe_left(self._meter.elapsed_seconds))


def format_left(seconds: float) -> str:
    """Formats an estimate of the time left.

    >>> format_left(40.2), format_left(1000), format_left(20_000)
    ('40 s left', '17 min left', '5.6 h left')
    """
    if seconds < 120:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 7200 else f"{seconds / 3600:.1f} h left"


def _describe_result(result: ProblemResult) -> str:
    if result.error is not None:
        return f"failed, {result.error}"
    answer = shorten(str(result.answer), 60, placeholder=" ...")  # programs have many lines
    return f"{answer} ({result.grade.value.replace('_', ' ')})"


def _describe_accuracy(done: Sequence[ProblemResult]) -> str:
    accuracy = chosen_accuracy(done)
    return "" if accuracy is None else f"accuracy {accuracy:.3f}"


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 2) if below else None
