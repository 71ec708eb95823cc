"""Sums with their answers, and the figures of lossy rules: put together by question, and shown on their judge."""

import json
import re

import pytest

pytestmark = pytest.mark.slow

FORMS = {
    "buys .* more": lambda a, b, c: a + b - c,
    "years old": lambda age, older, factor: factor * age + older,
    "pages a day": lambda a, days, b: a * days + b,
    "pays with": lambda count, price, paid: paid - count * price,
}


def test_sums_have_the_answers_of_their_numbers_and_do_not_repeat_themselves(analysis):
    sums = analysis("sums").sums
    found = list(sums(80, 3))
    assert len({each["question"] for each in found}) == 80
    assert found == list(sums(80, 3)) != list(sums(80, 4))
    for each in found:
        (solve,) = (solve for words, solve in FORMS.items() if re.search(words, each["question"]))
        numbers = [int(number) for number in re.findall(r"\d+", each["question"])]
        factor = [2 + ("three times" in each["question"])] if len(numbers) == 2 else []
        assert int(each["answer"]) == solve(*numbers, *factor) > 0


def part(contestant, first, qualities, cycles=10, tokens=30, others=0):
    return {"contestant": contestant, "first": first, "qualities": qualities} | {
        "cycles": cycles,
        "tokens": tokens,
        "others": others,
        "nats": 0.5 * others,
    }


def test_figures_are_next_to_match_on_the_parts_that_both_have_decoded(analysis):
    judge = "{use: judge, threshold: 0.9}"
    lines = [
        part("{use: match}", 0, [1.0, 1.0]),
        part(judge, 0, [1.0, 0.0], cycles=10, tokens=60, others=6),
        part("{use: match}", 2, [0.0, 0.0], cycles=30),
    ]
    plain, other = analysis("judge").summarise(lines)
    assert plain["questions"] == 4 and plain["tau"] == 1.5
    assert (other["questions"], other["right"], other["plain"]) == (2, 1.0, 2.0)
    assert (other["ratio"], other["others"], other["nats"]) == (2.0, 0.1, 0.05)
    assert other["change"]["low"] < other["change"]["value"] == -0.5 < other["change"]["high"]


def test_the_page_shows_the_figures_that_were_measured(analysis):
    judge = analysis("judge")
    numbers = json.loads(judge.KEPT.read_text(encoding="utf-8"))
    text = judge.PAGE.read_text(encoding="utf-8")
    tables = dict(judge.write_tables(numbers))
    assert "sums" in tables
    for name, shown in tables.items():
        assert judge.fill(text, name, shown) == text, f"the table {name}: run python research/analysis/judge.py show"
    assert [axes.get_title() for axes in judge.draw(numbers).axes] == [judge.TITLES[name] for name in tables]
