"""Two-step sums in short words, of which Qwen2.5-Coder-0.5B-Instruct solves most in about fifty tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

# fmt: off
NAMES = (
    "Anna", "Ben", "Carla", "David", "Elena", "Frank", "Grace", "Henry", "Kate", "Liam", "Mia", "Noah", "Olga",
    "Paul", "Rosa", "Sam", "Tara", "Tom", "Lucy", "Omar", "Nina", "Peter", "Maria", "James"
)
THINGS = (
    "apples", "pears", "pencils", "stickers", "marbles", "books", "cards", "stamps", "shells", "cookies", "roses",
    "eggs", "toys", "coins", "balloons", "muffins", "bottles", "tickets", "photos", "lemons", "buttons"
)
# fmt: on
TIMES = {2: "twice", 3: "three times"}
REQUEST = "Explain each step in one short sentence."
"""Ends every question: without it this target's answers are three times as long, and wrong more often."""


def _kept(rng: random.Random) -> tuple[str, int]:
    name, things, a, b = rng.choice(NAMES), rng.choice(THINGS), rng.randint(8, 20), rng.randint(3, 12)
    c = rng.randint(2, 7)
    return f"{name} has {a} {things}, buys {b} more and then gives {c} away. How many are left?", a + b - c


def _ages(rng: random.Random) -> tuple[str, int]:
    one, two, three = rng.sample(NAMES, 3)
    age, factor, older = rng.randint(4, 12), rng.choice((2, 3)), rng.randint(2, 9)
    return (
        f"{one} is {age} years old. {two} is {TIMES[factor]} as old as {one}. "
        f"{three} is {older} years older than {two}. How old is {three}?",
        factor * age + older,
    )


def _pages(rng: random.Random) -> tuple[str, int]:
    name, a, days, b = rng.choice(NAMES), rng.randint(4, 20), rng.randint(2, 6), rng.randint(5, 40)
    question = f"{name} reads {a} pages a day for {days} days, and then {b} pages on Saturday."
    return f"{question} How many pages has {name} read?", a * days + b


def _change(rng: random.Random) -> tuple[str, int]:
    name, things, count, price = rng.choice(NAMES), rng.choice(THINGS), rng.randint(2, 6), rng.randint(2, 8)
    paid = 20 if count * price < 20 else 50
    return (
        f"{name} buys {count} {things} at ${price} each and pays with ${paid}. How much change does {name} get?",
        paid - count * price,
    )


FORMS: tuple[Callable[[random.Random], tuple[str, int]], ...] = (_kept, _ages, _pages, _change)


def sums(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Yields `count` different questions with their answers, the same ones for the same seed."""
    rng, known = random.Random(seed), set[str]()
    while len(known) < count:
        question, answer = FORMS[len(known) % len(FORMS)](rng)
        if question not in known:
            known.add(question)
            yield {"question": f"{question} {REQUEST}", "answer": str(answer)}
