"""A model in parts on several ranks: all of them draft the same, and what is written is what one rank writes."""

from __future__ import annotations

import pytest

from decoding.core import SamplingParams, Usage
from tests.sglang.conftest import Fleet
from tests.support import sglang_solvers as solving
from tests.support.sglang_servers import DRAFT

SETTINGS = ("scorer=none", "search=self_consistency", f"model.path={DRAFT}")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_two_ranks_write_what_this_process_writes(fleet: Fleet, temperature: float) -> None:
    """Ranks that drafted different tokens would end the server."""
    params = SamplingParams(max_tokens=120, temperature=temperature)
    with solving.here(*SETTINGS) as here, solving.there([fleet.ranks], *SETTINGS) as there:
        ours, theirs = (solving.write(made, params, each=6) for made in (here, there))
    assert [generation.tokens for generation in ours] == [generation.tokens for generation in theirs]
    assert sum((generation.usage for generation in theirs), Usage()).accepted > 0, "nothing was guessed"
