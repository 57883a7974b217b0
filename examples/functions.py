"""Plain functions as scorer, engine and judge: one checks arithmetic, one writes answers, one says yes or no."""

import re

from reason import load

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."
EQUATION = re.compile(r"(\d+)([*+-])(\d+)=(\d+)")


def check_steps(question: str, steps: list[str]) -> list[float]:
    """Scores a step by its arithmetic modulo 19: 1 where all is right."""
    return [float(is_right(step)) for step in steps]


def is_right(step: str) -> bool:
    """Returns whether the equations of a step hold, and multiples of 19 are taken off; a step without any is right."""
    for first, sign, second, result in EQUATION.findall(step):
        a, b = int(first), int(second)
        if int(result) != {"*": a * b, "+": a + b, "-": a - b}[sign] or (sign == "-" and (b % 19 or a - b > 18)):
            return False
    return True


def write(messages: list[dict[str, str]], *, seed: int, **options: object) -> str:
    """Writes an answer, here without a model: two of three are right."""
    return rf"It is \boxed{{{14 if seed % 3 == 0 else 15}}}."


def agree(messages: list[dict[str, str]], **options: object) -> str:
    """Judges a solution in a word, here without a model."""
    return "yes" if "{15}" in messages[-1]["content"] else "no"


def main() -> None:
    with load("search=beam_search", "search.n=16", scorer=check_steps) as solver:
        print("a scorer of ours chooses", solver.solve(QUESTION).answer)
    with load("search=self_consistency", "search.n=9", engine=write) as solver:
        print("votes of a writer of ours", solver.solve(QUESTION).votes)
    with load("search=best_of_n", "search.n=9", engine=write, judge=agree) as solver:
        print("a judge of ours chooses", solver.solve(QUESTION).answer)


if __name__ == "__main__":
    main()
