"""Word problems over a graph of who depends on whom."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from reason.tasks.synthetic.error_injection import Pen
from reason.tasks.synthetic.exercise import Exercise, common_prefix

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
    """What a sentence says of one person: `kind` of `others` and `number`."""

    kind: str  # base, more, fewer, times, sum, beyond
    others: tuple[str, ...]
    number: int

    def value(self, have: dict[str, int]) -> int:
        """How many the person has, given what the others have."""
        first = have[self.others[0]] if self.others else 0
        return {
            "base": lambda: self.number,
            "more": lambda: first + self.number,
            "fewer": lambda: first - self.number,
            "times": lambda: first * self.number,
            "sum": lambda: first + have[self.others[1]],
            "beyond": lambda: first - have[self.others[1]],
        }[self.kind]()

    def sentence(self, name: str, items: str) -> str:
        """The sentence of the question."""
        a, b = (*self.others, "", "")[:2]
        return {
            "base": f"{name} has {self.number} {items}.",
            "more": f"{name} has {self.number} more {items} than {a}.",
            "fewer": f"{name} has {self.number} fewer {items} than {a}.",
            "times": f"{name} has {self.number} times as many {items} as {a}.",
            "sum": f"{name} has as many {items} as {a} and {b} together.",
            "beyond": f"{name} has as many {items} as {a} has beyond {b}.",
        }[self.kind]


@dataclass(frozen=True, kw_only=True)
class Words(Exercise):
    """How many shells does Dan have? `difficulty` is the number of sums on the way; some sentences distract."""

    family = "words"
    difficulties = range(1, 5)

    facts: dict[str, Fact] = field(hash=False)
    asked: str

    @classmethod
    def pose(cls, rng: random.Random, difficulty: int) -> Words:
        while True:
            names = rng.sample(NAMES, len(NAMES))
            facts: dict[str, Fact] = {}
            have: dict[str, int] = {}
            for count in range(rng.choice((1, 2)) + difficulty + rng.randint(0, 1)):
                name = names.pop()
                fact = _fact(rng, have, base=count == 0 or (count < 3 and rng.random() < 0.2))
                if 1 <= (value := fact.value(have)) <= LARGEST:
                    facts[name], have[name] = fact, value
            deep = [name for name in facts if _sums(facts, name) == difficulty]
            if deep:
                break
        asked, items = rng.choice(deep), rng.choice(ITEMS)
        sentences = [fact.sentence(name, items) for name, fact in facts.items()]
        rng.shuffle(sentences)
        ask = f"How many {items} does {asked} have?"
        return cls(difficulty=difficulty, question=" ".join([*sentences, ask]), facts=facts, asked=asked)

    def bodies(self, pen: Pen, rng: random.Random) -> Iterator[str]:
        have: dict[str, int] = {}
        for name in self._order(rng):
            body, have[name] = self._body(name, have, pen)
            yield body

    def judge(self) -> FactByFact:
        """Any order of true facts is right, as long as each rests on facts already stated."""
        return FactByFact(self)

    def _order(self, rng: random.Random) -> list[str]:
        order: list[str] = []

        def visit(name: str) -> None:
            others = list(self.facts[name].others)
            rng.shuffle(others)
            for other in others:
                visit(other)
            if name not in order:
                order.append(name)

        visit(self.asked)
        return order

    def _body(self, name: str, have: dict[str, int], pen: Pen) -> tuple[str, int]:
        fact = self.facts[name]
        shown = {other: pen(have[other]) for other in fact.others}
        number = pen(fact.number) if fact.kind != "sum" and fact.kind != "beyond" else 0
        a, b = (*fact.others, "", "")[:2]
        if fact.kind == "base":
            return f"{name} has {number}.", number
        x = shown[a]
        y = shown[b] if b else number
        told, sign, result = {
            "more": (f"{number} more than {a}", "+", x + y),
            "fewer": (f"{number} fewer than {a}", "-", x - y),
            "times": (f"{number} times {a}", "*", x * y),
            "sum": (f"{a} and {b} together", "+", x + y),
            "beyond": (f"{a} beyond {b}", "-", x - y),
        }[fact.kind]
        value = pen(max(result, 0))
        return f"{name} has {told}: {x}{sign}{y}={value}.", value


class FactByFact:
    """Judges the steps of a word problem."""

    def __init__(self, exercise: Words) -> None:
        from reason.tasks.synthetic.error_injection import SteadyPen

        self._exercise = exercise
        have: dict[str, int] = {}
        self._bodies: dict[str, str] = {}
        for name in exercise.facts:  # facts are stored after those they rest on
            self._bodies[name], have[name] = exercise._body(name, have, SteadyPen())
        self._stated: set[str] = set()

    def step(self, body: str) -> int | None:
        name = body.split(" ", 1)[0]
        expected = self._bodies.get(name)
        grounded = expected is not None and self._stated.issuperset(self._exercise.facts[name].others)
        if expected is None or not grounded or name in self._stated:
            return 0
        self._stated.add(name)
        return None if body == expected else common_prefix(body, expected)

    def done(self) -> bool:
        return self._exercise.asked in self._stated


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
            waiting += facts[current].others
    return sum(facts[person].kind != "base" for person in needed)
