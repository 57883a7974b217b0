"""The families of puzzles."""

from reason.tasks.puzzles.families.congruences import Congruence
from reason.tasks.puzzles.families.remainders import Remainders
from reason.tasks.puzzles.puzzle import Puzzle

PUZZLES: dict[str, type[Puzzle]] = {cls.family: cls for cls in (Congruence, Remainders)}
