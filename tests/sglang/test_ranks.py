"""A model on two tensor-parallel ranks: both draft the same tokens, and the output is that of one rank."""

from __future__ import annotations

import pytest

from decoding.core import SamplingParams, Usage
from tests.support.sglang_servers import DRAFT, SharedServers
from tests.support.sglang_solvers import generate_all, load_local, load_remote

SETTINGS = ("scorer=none", "search=self_consistency", f"model.path={DRAFT}")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_two_ranks_generate_the_tokens_of_the_local_engine(shared_servers: SharedServers, temperature: float) -> None:
    """Ranks that drafted different tokens would end the server."""
    params = SamplingParams(max_tokens=120, temperature=temperature)
    with load_local(*SETTINGS) as local_solver, load_remote([shared_servers.two_ranks], *SETTINGS) as remote_solver:
        ours, theirs = (generate_all(solver, params, each=6) for solver in (local_solver, remote_solver))
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert sum((generation.usage for generation in theirs), Usage()).accepted > 0, "no draft was accepted"
