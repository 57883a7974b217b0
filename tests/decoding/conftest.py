"""A pretended GPU for tests that launch on one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pretended_gpu import PretendedGpu, pretended_gpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    with pretended_gpu(monkeypatch) as pretended:
        yield pretended
