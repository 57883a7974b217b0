"""Word problems: how many items a person has, over a graph of facts that depend on each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from reason.tasks.synthetic.exercise import ExactWriter, Exercise, NumberWriter, common_prefix

NAMES = (
    "Mia",
    "Leo",
    "Ava",
    "Tom",
    "Zoe",
    "Sam",
    "Eva",
    "Max",
    "Ivy",
    "Ben",
    "Amy",
    "Dan",
    "Kim",
    "Jay",
    "Liz",
    "Ned",
    "Ron",
    "Sue",
    "Tim",
    "Una",
    "Vic",
    "Wes",
    "Yan",
    "Gus",
)
ITEMS = (
    "apples",
    "coins",
    "books",
    "cards",
    "shells",
    "stamps",
    "pens",
    "marbles",
    "beads",
    "stickers",
    "kites",
    "buttons",
)
LARGEST = 300


@dataclass(frozen=True)
class Fact:
    """A fact about the number of items of one person: its `kind`, the persons it depends on, and a number."""

    kind: str  # base, more, fewer, times, sum, beyond
    depends_on: tuple[str, ...]
    number: int

    def evaluate_fact(self, have: dict[str, int]) -> int:
        """Computes the number of items of the person from those of the others."""
        first = have[self.depends_on[0]] if self.depends_on else 0
        return {
            "base": lambda: self.number,
            "more": lambda: first + self.number,
            "fewer": lambda: first - self.number,
            "times": lambda: first * self.number,
            "sum": lambda: first + have[self.depends_on[1]],
            "beyond": lambda: first - have[self.depends_on[1]],
        }[self.kind]()

    def format_sentence(self, name: str, items: str) -> str:
        """Formats the fact as a sentence of the question."""
        a, b = (*self.depends_on, "", "")[:2]
        return {
            "base": f"{name} has {self.number} {items}.",
            "more": f"{name} has {self.number} more {items} than {a}.",
            "fewer": f"{name} has {self.number} fewer {items} than {a}.",
            "times": f"{name} has {self.number} times as many {items} as {a}.",
            "sum": f"{name} has as many {items} as {a} and {b} together.",
            "beyond": f"{name} has as many {items} as {a} has beyond {b}.",
        }[self.kind]


@dataclass(frozen=True, kw_only=True)
class WordProblem(Exercise):
    """How many shells does Dan have? `difficulty` is the number of sums on the way; some sentences distract."""

    family = "words"
    difficulties = range(1, 5)

    facts: dict[str, Fact] = field(hash=False)
    target_name: str

    @classmethod
    def generate(cls, rng: random.Random, difficulty: int) -> WordProblem:
        while True:
            names = rng.sample(NAMES, len(NAMES))
            facts: dict[str, Fact] = {}
            have: dict[str, int] = {}
            for count in range(rng.choice((1, 2)) + difficulty + rng.randint(0, 1)):
                name = names.pop()
                fact = _fact(rng, have, base=count == 0 or (count < 3 and rng.random() < 0.2))
                if 1 <= (value := fact.evaluate_fact(have)) <= LARGEST:
                    facts[name], have[name] = fact, value
            deep = [name for name in facts if _sums(facts, name) == difficulty]
            if deep:
                break
        queried_fact, items = rng.choice(deep), rng.choice(ITEMS)
        sentences = [fact.format_sentence(name, items) for name, fact in facts.items()]
        rng.shuffle(sentences)
        ask = f"How many {items} does {queried_fact} have?"
        return cls(difficulty=difficulty, question=" ".join([*sentences, ask]), facts=facts, target_name=queried_fact)

    def solution_steps(self, write_number: NumberWriter, rng: random.Random) -> Iterator[str]:
        have: dict[str, int] = {}
        for name in self._order(rng):
            body, have[name] = self._step_body(name, have, write_number)
            yield body

    def step_checker(self) -> WordProblemChecker:
        """Returns a checker that accepts any order in which each fact follows those it depends on."""
        return WordProblemChecker(self)

    def _order(self, rng: random.Random) -> list[str]:
        order: list[str] = []

        def visit(name: str) -> None:
            others = list(self.facts[name].depends_on)
            rng.shuffle(others)
            for other in others:
                visit(other)
            if name not in order:
                order.append(name)

        visit(self.target_name)
        return order

    def _step_body(self, name: str, have: dict[str, int], write_number: NumberWriter) -> tuple[str, int]:
        fact = self.facts[name]
        shown = {other: write_number(have[other]) for other in fact.depends_on}
        number = write_number(fact.number) if fact.kind != "sum" and fact.kind != "beyond" else 0
        a, b = (*fact.depends_on, "", "")[:2]
        if fact.kind == "base":
            return f"{name} has {number}.", number
        x = shown[a]
        y = shown[b] if b else number
        phrase, sign, result = {
            "more": (f"{number} more than {a}", "+", x + y),
            "fewer": (f"{number} fewer than {a}", "-", x - y),
            "times": (f"{number} times {a}", "*", x * y),
            "sum": (f"{a} and {b} together", "+", x + y),
            "beyond": (f"{a} beyond {b}", "-", x - y),
        }[fact.kind]
        value = write_number(max(result, 0))
        return f"{name} has {phrase}: {x}{sign}{y}={value}.", value


class WordProblemChecker:
    """Checks the steps of a word problem."""

    def __init__(self, exercise: WordProblem) -> None:
        self._exercise = exercise
        have: dict[str, int] = {}
        self._bodies: dict[str, str] = {}
        for name in exercise.facts:  # facts are stored after those they depend on
            self._bodies[name], have[name] = exercise._step_body(name, have, ExactWriter())
        self._stated: set[str] = set()

    def check_step(self, body: str) -> int | None:
        name = body.split(" ", 1)[0]
        expected = self._bodies.get(name)
        grounded = expected is not None and self._stated.issuperset(self._exercise.facts[name].depends_on)
        if expected is None or not grounded or name in self._stated:
            return 0
        self._stated.add(name)
        return None if body == expected else common_prefix(body, expected)

    def is_done(self) -> bool:
        return self._exercise.target_name in self._stated


def _fact(rng: random.Random, have: dict[str, int], *, base: bool) -> Fact:
    if base or not have:
        return Fact("base", (), rng.randint(2, 30))
    recent = list(have)[-3:]
    kinds = (
        ("more", "fewer", "times", "more", "fewer", "sum", "beyond") if len(have) > 1 else ("more", "fewer", "times")
    )
    kind = rng.choice(kinds)
    a = rng.choice(recent)
    if kind in ("sum", "beyond"):
        b = rng.choice([name for name in have if name != a])
        if kind == "beyond" and have[b] > have[a]:
            a, b = b, a
        return Fact(kind, (a, b), 0)
    return Fact(kind, (a,), rng.randint(2, 5) if kind == "times" else rng.randint(2, 40))


def _sums(facts: dict[str, Fact], name: str) -> int:
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        if (current := waiting.pop()) not in needed:
            needed.add(current)
            waiting += facts[current].depends_on
    return sum(facts[person].kind != "base" for person in needed)
