"""Uses the package as a library: one question, many concurrently, the explored tree, and a wrong setting."""

import asyncio

from reason import ConfigError, Problem, Solver, load

QUESTION = "x0 = 3. Each next term is 5 times the one before plus 8, modulo 19. Find x3."


async def together(solver: Solver, questions: list[str]) -> list[str | None]:
    """Returns the answers; concurrent questions are decoded as one batch."""
    return [solution.answer for solution in await asyncio.gather(*map(solver.asolve, questions))]


def main() -> None:
    with load("search=rebase", "search.n=4", "budget.tokens=2000", "speculation=off") as solver:
        solution = solver.solve(QUESTION)
        print("answer", solution.answer, "score", solution.score, "votes", solution.votes)
        print("used", solution.usage.tokens, "tokens; the tree has", len(solution.tree), "steps")
        print(solution.text)

        again = solver.solve(QUESTION)
        print("the same question, the same text:", again.text == solution.text)
        other = solver.with_options(seed=1)  # the same models; also: strategy=, budget=
        print("another seed:", other.solve(QUESTION).answer)

        questions = [QUESTION.replace("x0 = 3", f"x0 = {first}") for first in (4, 5, 6)]
        print("together:", asyncio.run(together(solver, questions)))
        problems = [Problem(id=f"mine/{i}", question=question) for i, question in enumerate(questions)]
        for problem, outcome in solver.solve_many(problems):  # in order of completion
            print(problem.id, outcome if isinstance(outcome, Exception) else outcome.answer)
    try:
        load("search.widht=4")
    except ConfigError as error:
        print(error)


if __name__ == "__main__":
    main()
