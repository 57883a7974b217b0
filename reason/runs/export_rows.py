"""Writes the results of runs as tables, one row per problem or per sample: CSV or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from reason.runs.gather import FoundRun
from reason.runs.json_files import write_atomically
from reason.runs.result import ProblemResult, SampleResult
from reason.runs.resume import flatten_settings

TABLE_FORMATS = ("csv", "parquet")
Cell = str | int | float | bool | None


def export_rows(runs: Sequence[FoundRun], folder: Path, table_format: str) -> list[Path]:
    """Writes `problems.FORMAT` and `samples.FORMAT` of all runs into `folder`; returns both.

    A row has its run's folder and the names of its options, as `search`, and settings that differ between the runs.

    Raises: ValueError for a run without results, or where Parquet needs a package that is not installed.
    """
    for run in runs:
        if run.broken is not None:
            raise ValueError(f"{run.folder}: {run.broken}")
    if table_format == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("--format parquet needs pyarrow: pip install pyarrow; --format csv needs nothing")
    problems = [_about(run) | _problem_row(result) for run in runs for result in run.results]
    samples = [
        _about(run) | {"id": result.id, "gold": result.gold} | _sample_row(sample)
        for run in runs
        for result in run.results
        for sample in result.samples
    ]
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{table_format}" for name in ("problems", "samples")]
    for file, rows in zip(files, (problems, samples), strict=True):
        write_atomically(file, _format_csv(rows) if table_format == "csv" else _format_parquet(rows))
    return files


def _about(run: FoundRun) -> dict[str, Cell]:
    names = {name: _to_cell(value) for name, value in run.metadata.items() if isinstance(value, str | int | float)}
    return {"run": str(run.folder), **names, **{key: _to_cell(value) for key, value in run.differences.items()}}


def _problem_row(result: ProblemResult) -> dict[str, Cell]:
    """Returns the scalars of a row; those of parts have dotted names, as `usage.tokens`."""
    row = {key: value for key, value in result.to_json().items() if key not in result.metadata}
    row |= {"num_samples": len(result.samples), "is_correct": result.is_correct if result.has_gold else None}
    return dict(_scalars({key: value for key, value in row.items() if key not in ("samples", "votes")}))


def _sample_row(sample: SampleResult) -> dict[str, Cell]:
    return dict(_scalars({key: value for key, value in sample.to_json().items() if key != "step_scores"}))


def _scalars(row: Mapping[str, object]) -> Iterator[tuple[str, Cell]]:
    for key, value in flatten_settings(row).items():
        if not isinstance(value, list | tuple):
            yield key, _to_cell(value)


def _to_cell(value: object) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _list_columns(rows: Sequence[Mapping[str, Cell]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _format_csv(rows: Sequence[Mapping[str, Cell]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _list_columns(rows))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")


def _format_parquet(rows: Sequence[Mapping[str, Cell]]) -> bytes:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    columns = {name: [row.get(name) for row in rows] for name in _list_columns(rows)}
    for name, cells in columns.items():
        if any(isinstance(cell, str) for cell in cells):  # a column has one type: `auto` in one run, 4 in another
            columns[name] = [cell if cell is None else str(cell) for cell in cells]
    table = arrow.table(columns)
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()
