"""Builds the wheel (PEP 517): everything of the project is inside the package `reason`.

In the repository `search`, `decoding` and `conf` lie beside `reason`. Other projects use these names too, so a wheel
that installed them would overwrite, or be overwritten. Before setuptools builds, the packages are copied to a folder in
which these three are inside `reason`, and their imports are rewritten (`one_package.py`). An editable install and a
source archive are setuptools' own: in both the folders are those of the repository.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from one_package import stage_package
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, str | list[str] | None] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Returns that nothing more is needed; setuptools would write its notes into the repository to find that out."""
    return []


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Builds the wheel of the project in the present folder; returns its file name."""
    wheel_directory = os.path.abspath(wheel_directory)
    with _staged():
        name: str = build_meta.build_wheel(wheel_directory, config_settings)
        return name


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Writes the metadata of the wheel; returns the name of their folder."""
    metadata_directory = os.path.abspath(metadata_directory)
    with _staged():
        name: str = build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
        return name


@contextmanager
def _staged() -> Iterator[None]:
    """The present folder is one that holds the package as it is installed."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="reason-wheel-") as folder:
        stage_package(home, Path(folder))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)
