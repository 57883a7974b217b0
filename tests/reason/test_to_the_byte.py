"""Saved searches are equal to the byte, with and without concurrency and speculation."""

from __future__ import annotations

import asyncio
import json

import pytest

import reason
from reason.config.compose import list_options

QUESTIONS = (
    "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3.",
    "x0 = 4. Each next term is 3 times the one before plus 2, modulo 17. Find x3.",
)


FLOAT64 = ("engine.dtype=float64", "scorer.dtype=float64")


def saved(*overrides: str, at_once: bool) -> list[str]:
    """The trees of the questions as they are written to disk, searched together or one after the other."""

    async def search(solver: reason.Solver) -> list[str]:
        if at_once:
            results = await asyncio.gather(*(solver.asolve(question) for question in QUESTIONS))
        else:
            results = [await solver.asolve(question) for question in QUESTIONS]
        return [json.dumps(result.tree.to_dict()) for result in results]

    with reason.load("search.n=4", *overrides) as solver:
        return asyncio.run(search(solver))


@pytest.mark.parametrize(
    "chosen",
    [
        *([f"search={name}"] for name in list_options("search")),
        *(["search=beam_search", f"scorer={name}"] for name in ("expectation", "likelihood")),
        ["search=rebase", *FLOAT64],
        ["search=rebase", *FLOAT64, "router=arbitrage", "router.dtype=float64", "small.dtype=float64"],
    ],
)
def test_saved_run_does_not_depend_on_speculation_and_concurrency(chosen: list[str]) -> None:
    """In float32 as the bundled models run, compiled; in float64 in the eager decoder."""
    assert saved(*chosen, "speculation=stand", at_once=True) == saved(*chosen, "speculation=off", at_once=False)
