"""A tiny checkpoint for all tests, written once; logging as it was before each test; no time limits of examples."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton reads this when it is imported, and then for every kernel: so it is set before any test imports it, and for the
# whole session. Nothing but Triton reads it. With TRITON_INTERPRET=0 the kernels of a machine's GPU are tested.
os.environ.setdefault("TRITON_INTERPRET", "1")


# How long an example takes says nothing on a busy machine.
settings.register_profile("without times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without times")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps what tests time of this machine out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REASON_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def enabled_logging() -> Iterator[None]:
    """Undoes what a program that a test runs in this process switches off: all logging, or the loggers there are."""
    yield
    logging.disable(logging.NOTSET)
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(scope="session")
def tiny_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_writer import save_writer

    return save_writer(tmp_path_factory.mktemp("writer"))
