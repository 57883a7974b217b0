"""Adds a task: a list of problems, here terms of number sequences generated from a seed.

python examples/add_a_task.py                                     from Python
reason solve --config-dir examples/settings 'plugins=[examples/add_a_task.py]' +task=terms task.size=8
"""

import random

from reason import Problem, load
from reason.tasks.base import Task


class Terms(Task):
    """Asks `size` questions for a term of a sequence; the base class finds and grades the answers."""

    def __init__(self, *, size: int = 8, seed: int = 0, limit: int | None = None) -> None:
        draw = random.Random(seed)
        problems = []
        for i in range(size):
            first, times, plus, modulo = (draw.randint(low, low + 4) for low in (1, 2, 3, 11))
            rule = f"Each next term is {times} times the one before plus {plus}, modulo {modulo}."
            answer = (times * (times * first + plus) + plus) % modulo
            problems.append(Problem(id=f"terms/{i}", question=f"x0 = {first}. {rule} Find x2.", answer=str(answer)))
        super().__init__("terms", problems, limit=limit)


def main() -> None:
    task = Terms(size=4)
    with load("search.n=8", "speculation=off") as solver:
        for problem in task:
            answer = solver.solve(problem).answer
            print(problem.id, answer, task.grade(problem, answer))


if __name__ == "__main__":
    main()
