"""A generator of arithmetic word problems with worked steps, in the manner of grade school exercises."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

# fmt: off
_NAMES = (
    "Anna", "Ben", "Carla", "David", "Elena", "Frank", "Grace", "Henry", "Irene", "Jack", "Kate",
    "Liam", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Umar", "Vera", "Will", "Xenia",
    "Yusuf", "Zoe", "Tom", "Lucy", "Omar", "Nina", "Peter", "Maria", "James"
)
_THINGS = (
    "apples", "pears", "pencils", "stickers", "marbles", "books", "cards", "stamps", "shells",
    "cookies", "candles", "roses", "eggs", "toys", "coins", "balloons", "muffins", "bottles", "tickets",
    "photos", "bracelets", "lemons", "peaches", "buttons", "notebooks"
)
# fmt: on
_BOXES = ["boxes", "bags", "baskets", "crates", "packs", "jars", "shelves", "rows"]
_SHOPS = ("store", "market", "fair", "bakery", "bookshop", "garden centre")
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

Problem = tuple[str, str, int]


def _gather(rng: random.Random) -> Problem:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    first, second = rng.sample(_DAYS, 2)
    a, b, c = rng.randint(3, 90), rng.randint(3, 90), rng.randint(2, 40)
    total = a + b
    c = min(c, total - 1)
    question = (
        f"{name} collected {a} {thing} on {first} and {b} {thing} on {second}. Then {name} gave away {c} of "
        f"them. "
        f"How many {thing} does {name} have left?"
    )
    steps = (
        f"{name} collected {a} + {b} = {total} {thing} in total.\n"
        f"After giving away {c}, {name} has {total} - {c} = {total - c} {thing} left."
    )
    return question, steps, total - c


def _packs(rng: random.Random) -> Problem:
    name, thing, box = rng.choice(_NAMES), rng.choice(_THINGS), rng.choice(_BOXES)
    n, each, extra = rng.randint(2, 15), rng.randint(2, 24), rng.randint(1, 30)
    question = (
        f"{name} has {n} {box} with {each} {thing} in each. {name} also has {extra} loose {thing}. "
        f"How many {thing} are there altogether?"
    )
    steps = (
        f"The {box} hold {n} * {each} = {n * each} {thing}.\n"
        f"With the loose ones there are {n * each} + {extra} = {n * each + extra} {thing}."
    )
    return question, steps, n * each + extra


def _share(rng: random.Random) -> Problem:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    people, each, kept = rng.randint(2, 12), rng.randint(2, 20), rng.randint(1, 15)
    total = people * each + kept
    question = (
        f"{name} has {total} {thing} and keeps {kept} of them. The rest are shared equally among {people} "
        f"friends. "
        f"How many {thing} does each friend get?"
    )
    steps = (
        f"{name} shares {total} - {kept} = {people * each} {thing}.\n"
        f"Each friend gets {people * each} / {people} = {each} {thing}."
    )
    return question, steps, each


def _shopping(rng: random.Random) -> Problem:
    name, place = rng.choice(_NAMES), rng.choice(_SHOPS)
    one, two = rng.sample(_THINGS, 2)
    n, p, m, q = (rng.randint(2, 12) for _ in range(4))
    spent = n * p + m * q
    paid = (spent // 10 + rng.randint(1, 4)) * 10
    question = (
        f"At the {place}, {name} buys {n} {one} at ${p} each and {m} {two} at ${q} each. "
        f"{name} pays with ${paid}. How much change does {name} get back?"
    )
    steps = (
        f"The {one} cost {n} * ${p} = ${n * p}.\nThe {two} cost {m} * ${q} = ${m * q}.\n"
        f"Together they cost ${n * p} + ${m * q} = ${spent}.\nThe change is ${paid} - ${spent} = "
        f"${paid - spent}."
    )
    return question, steps, paid - spent


def _earnings(rng: random.Random) -> Problem:
    name = rng.choice(_NAMES)
    hours, rate, days, bonus = rng.randint(2, 9), rng.randint(8, 30), rng.randint(2, 6), rng.randint(5, 60)
    daily = hours * rate
    question = (
        f"{name} works {hours} hours a day and earns ${rate} an hour. {name} works {days} days this week and "
        f"gets a "
        f"bonus of ${bonus}. How much does {name} earn this week?"
    )
    steps = (
        f"{name} earns {hours} * ${rate} = ${daily} a day.\nIn {days} days that is {days} * ${daily} = "
        f"${days * daily}.\n"
        f"With the bonus it is ${days * daily} + ${bonus} = ${days * daily + bonus}."
    )
    return question, steps, days * daily + bonus


def _ages(rng: random.Random) -> Problem:
    one, two, three = rng.sample(_NAMES, 3)
    age, factor, older = rng.randint(4, 15), rng.randint(2, 4), rng.randint(2, 12)
    second = factor * age
    word = {2: "twice", 3: "three times", 4: "four times"}[factor]
    question = (
        f"{one} is {age} years old. {two} is {word} as old as {one}. {three} is {older} years older than "
        f"{two}. "
        f"How old is {three}?"
    )
    steps = (
        f"{two} is {factor} * {age} = {second} years old.\n{three} is {second} + {older} = {second + older} years old."
    )
    return question, steps, second + older


def _half(rng: random.Random) -> Problem:
    name, other = rng.sample(_NAMES, 2)
    thing = rng.choice(_THINGS)
    a = 2 * rng.randint(3, 60)
    question = (
        f"{name} sold {a} {thing} in the morning and half as many in the afternoon. {other} sold as many as "
        f"{name} did "
        f"all day. How many {thing} did they sell together?"
    )
    total = a + a // 2
    steps = (
        f"In the afternoon {name} sold {a} / 2 = {a // 2} {thing}.\n"
        f"In the whole day {name} sold {a} + {a // 2} = {total} {thing}.\n"
        f"{other} sold {total} too, so together they sold {total} + {total} = {2 * total} {thing}."
    )
    return question, steps, 2 * total


def _percent(rng: random.Random) -> Problem:
    place, thing = rng.choice(_SHOPS), rng.choice(_THINGS)
    percent = rng.choice((10, 20, 25, 30, 40, 50, 60, 75))
    total = 20 * rng.randint(2, 25)
    part = total * percent // 100
    question = f"A {place} had {total} {thing}. It sold {percent}% of them. How many {thing} are left?"
    steps = (
        f"The {place} sold {percent}% of {total} = {part} {thing}.\n"
        f"There are {total} - {part} = {total - part} {thing} left."
    )
    return question, steps, total - part


def _sum(rng: random.Random) -> Problem:
    a, b, c = rng.randint(10, 999), rng.randint(10, 999), rng.randint(2, 12)
    question = f"What is ({a} + {b}) * {c}?"
    return question, f"{a} + {b} = {a + b}.\n{a + b} * {c} = {(a + b) * c}.", (a + b) * c


_FORMS: tuple[Callable[[random.Random], Problem], ...] = (
    _gather, _packs, _share, _shopping, _earnings, _ages, _half, _percent, _sum
)  # fmt: skip


def problems(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield ``count`` pairs of a question and its worked answer, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        question, steps, answer = rng.choice(_FORMS)(rng)
        yield question, f"{steps}\nThe answer is {answer}."
