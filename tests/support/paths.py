"""Folders of the repository, for tests that start programs or read settings."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
SCRIPTS = ROOT / "scripts"
GOLDEN = ROOT / "tests" / "golden"
DATA = ROOT.parent / "shared" / "data"
"""Real data sets beside the checkout; tests that want them are skipped where they are not."""
