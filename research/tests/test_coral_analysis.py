"""The analyses of CORAL's paper: their figures by hand, and the page that shows what was measured."""

import json

import pytest
import torch

from specframe.plugin import Student, Teacher

pytestmark = pytest.mark.slow


@pytest.fixture
def coral(analysis):
    return analysis("coral")


@pytest.fixture
def page(analysis):
    return analysis("coral_page")


def test_alpha_is_of_those_that_came_so_far(coral):
    lengths = [[0, 2, 5], [1]]
    assert coral.find_tau(lengths) == 3
    assert [coral.find_alpha(lengths, n) for n in range(1, 7)] == [3 / 4, 2 / 3, 1 / 2, 1, 1, 0]
    value, low, high = coral.interval(lengths, coral.find_tau)
    assert (value, low, high) == (3, 2, 1 + 7 / 3)
    assert coral.interval([[1], [1]], coral.find_tau) == [2, 2, 2]


def test_the_target_stands_before_the_first_step(coral):
    position = torch.tensor([[1, 2, 1, 2]])
    student = Student(
        logits=torch.zeros(1, 4, 3),
        position=position,
        mask=torch.tensor([[True, True, False, True]]),
        level=torch.tensor([1, 1, 2, 2]),
        features=torch.arange(8.0).view(1, 4, 2),
    )
    tokens = torch.zeros(1, 3, dtype=torch.int64)
    teacher = Teacher(tokens, tokens > 0, {"last": -torch.arange(6.0).view(1, 3, 2)}, torch.zeros(1, 3, 3))
    both = coral.with_truth(student, teacher)
    assert both.level.tolist() == [1, 1, 2, 2, 3, 3]
    assert both.position.tolist() == [[1, 2, 1, 2, 1, 2]]
    assert both.mask.tolist() == [[True, True, True, True, False, True]]
    assert both.features[0, :2].tolist() == [[-2, -3], [-4, -5]]
    assert torch.equal(both.features[:, 2:], student.features)


def test_the_page_shows_the_numbers_that_were_measured(coral, page):
    numbers = json.loads(coral.NUMBERS.read_text(encoding="utf-8"))
    text = page.PAGE.read_text(encoding="utf-8")
    tables = dict(page.write_tables(numbers))
    assert tables.keys() == {"acceptance", "distances", "router", "latency"}
    for name, shown in tables.items():
        assert page.fill(text, name, shown) == text, f"the table {name}: run python research/analysis/coral.py"
    assert page.fill(text, "router", "other") != text
    with pytest.raises(SystemExit, match="no table nothing"):
        page.fill(text, "nothing", "")


def test_an_unknown_analysis_is_refused(coral, capsys):
    with pytest.raises(SystemExit):
        coral.main(["latencies"])
    assert "there is no analysis latencies" in capsys.readouterr().err
