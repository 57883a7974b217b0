"""Puzzles that take a long search: what the bundled thinker was trained on."""

from reason.tasks.puzzles.task import Puzzles

__all__ = ["Puzzles"]
