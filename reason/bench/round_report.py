"""Formats traces of rounds as tables: one row per round, and one per round with its phases."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from reason.bench.cards import Card
from reason.bench.meta_trace import CopyRecord
from reason.bench.round_cases import TracedCase
from reason.bench.round_trace import PHASES
from reason.runs.tables import ResultTable

ASSUMPTIONS = (
    "Traced on the meta device: no kernel ran. Time: the longer of two sums: over all kernels of max(bytes / speed, "
    "operations / peak), and launches x {launch_us:g} us. Speed {bandwidth:.2f} TB/s, peak {peak:.0f} TFLOPS "
    "({card}). Not in it: the host's own work, caches, kernels that stay below the card's limits, the idle time after "
    "each wait. Limit = weights and each KV slot once, or the products without padding. Every operator is one launch, "
    "but for composed ones, products that copy a full-size addend first, topk, sort, and the project's own."
)


_CASE_HEADER = ("workload", "branches", "nodes")


def describe_assumptions(card: Card, launch_us: float) -> str:
    """Returns what the estimates assume."""
    return ASSUMPTIONS.format(
        launch_us=launch_us, bandwidth=card.bandwidth / 1e12, peak=card.peak / 1e12, card=card.name
    )


def make_tables(cases: Sequence[TracedCase], card: Card, launch_us: float, *, phases: bool) -> list[ResultTable]:
    """Returns a table for each model and way of sampling, and with `phases` a second one."""
    tables = []
    for title in dict.fromkeys(case.title for case in cases):
        members = [case for case in cases if case.title == title]
        tables.append(_make_round_table(title, members, card, launch_us))
        if phases:
            tables.append(_make_phase_table(title, members, card))
    return tables


def _make_round_table(title: str, cases: Sequence[TracedCase], card: Card, launch_us: float) -> ResultTable:
    rows = []
    for case in cases:
        trace = case.trace
        estimate, roofline = trace.estimate_seconds(card, launch_us), trace.roofline_seconds(card)
        rows.append(
            [
                *case.cells,
                str(trace.rows),
                f"{trace.launches:,}",
                f"{trace.layer_launches:.1f}",
                f"{trace.bytes_moved / 1e9:.1f}",
                *_copy_cells(trace.copies_in, blocking=True),
                str(len(trace.copies_out)),
                str(trace.waits),
                f"{1e3 * trace.device_seconds(card):.1f}",
                f"{1e3 * estimate:.1f}",
                f"{1e3 * roofline:.1f}",
                f"{roofline / estimate:.0%}",
            ]
        )
    header = [
        *_CASE_HEADER, "rows", "launches", "a layer", "GB", "H2D (block)", "KB", "D2H", "waits",
        "kernels", "time", "limit", "of it",
    ]  # fmt: skip
    return ResultTable(f"{title}: one round, times in ms on {card.name}", header, rows)


def _make_phase_table(title: str, cases: Sequence[TracedCase], card: Card) -> ResultTable:
    rows = []
    for case in cases:
        for phase in PHASES:
            cost = case.trace.sum_phase(phase, card)
            copies = [copy for copy in case.trace.copies if copy.phase == phase]
            if not (cost.launches or copies):
                continue
            rows.append(
                [
                    *case.cells,
                    phase,
                    f"{cost.launches:,}",
                    f"{cost.bytes_moved / 1e9:.2f}",
                    f"{cost.flops / 1e12:.2f}",
                    f"{1e3 * cost.device_s:.2f}",
                    *_copy_cells([copy for copy in copies if not copy.to_host], blocking=True),
                    *_copy_cells([copy for copy in copies if copy.to_host], blocking=False),
                    str(sum(copy.waits for copy in copies)),
                ]
            )
    header = [
        *_CASE_HEADER, "phase", "launches", "GB", "TFLOP", "kernels", "H2D (block)", "KB", "D2H", "KB", "waits",
    ]  # fmt: skip
    return ResultTable(f"{title}: the phases of a round, times in ms on {card.name}", header, rows)


def _copy_cells(copies: Sequence[CopyRecord], *, blocking: bool) -> list[str]:
    """Returns the number of copies, with those that block if asked for, and their size."""
    number = f"{len(copies)} ({sum(copy.waits for copy in copies)})" if blocking else str(len(copies))
    return [number, f"{sum(copy.size_bytes for copy in copies) / 1e3:,.0f}"]


def print_tables(tables: Sequence[ResultTable], console: Console) -> None:
    """Prints tables without borders: they have many columns."""
    for result in tables:
        console.print(f"\n{result.title}", highlight=False)
        table = Table(*result.header, box=None)
        for row in result.rows:
            table.add_row(*row)
        console.print(table)


def to_json(case: TracedCase, card: Card, launch_us: float) -> dict[str, object]:
    """Returns the figures of a row as plain data."""
    trace = case.trace
    return {
        "model": case.model,
        "workload": case.workload,
        "branches": trace.branches,
        "nodes": case.nodes,
        "sampling": case.sampling,
        "rows": trace.rows,
        "launches": trace.launches,
        "layer_launches": round(trace.layer_launches, 2),
        "bytes_moved": trace.bytes_moved,
        "copies_in": len(trace.copies_in),
        "bytes_in": sum(copy.size_bytes for copy in trace.copies_in),
        "copies_out": len(trace.copies_out),
        "bytes_out": sum(copy.size_bytes for copy in trace.copies_out),
        "waits": trace.waits,
        "kernels_ms": round(1e3 * trace.device_seconds(card), 3),
        "estimate_ms": round(1e3 * trace.estimate_seconds(card, launch_us), 3),
        "roofline_ms": round(1e3 * trace.roofline_seconds(card), 3),
    }
