"""The families of synthetic problems."""

from reason.tasks.synthetic.exercise import Exercise
from reason.tasks.synthetic.families.countdown import Countdown
from reason.tasks.synthetic.families.digit_sums import DigitSums
from reason.tasks.synthetic.families.recurrence import Recurrence
from reason.tasks.synthetic.families.residues import Residues
from reason.tasks.synthetic.families.two_term_recurrence import TwoTermRecurrence
from reason.tasks.synthetic.families.words import WordProblem

FAMILIES: dict[str, type[Exercise]] = {
    cls.family: cls for cls in (WordProblem, Recurrence, DigitSums, TwoTermRecurrence, Residues, Countdown)
}
