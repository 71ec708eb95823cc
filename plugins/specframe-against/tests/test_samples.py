"""Functions that are sampled rather than enumerated, by the command."""

import json
from pathlib import Path

import pytest
import torch

from specframe.cli.main import main
from specframe_against.foreign import Foreign

RULE = """
import torch


def accept(candidates, p, q):
    path, p, q = candidates[0], p[0], q[0]
    for i, token in enumerate(path):
        if torch.rand((), generator=None) * q[i, token] >= p[i, token]:
            left = {left}
            return i, torch.multinomial(left / left.sum(), 1)
    return len(path), torch.multinomial(p[len(path)], 1)
"""


@pytest.fixture
def rule(tmp_path):
    """A file of a rule, by what its correction is drawn from."""

    def write(left):
        (tmp_path / "rule.py").write_text(RULE.format(left=left))
        return f"{tmp_path / 'rule.py'}:accept"

    return write


def test_a_right_rule_shows_no_difference(rule, capsys):
    """And what would have been noticed."""
    assert main(["certify", "--against", rule("(p[i] - q[i]).clamp(min=0)"), "--samples", "1500"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no difference found, which is no proof: a total variation of 0.12" in shown
    assert "would have been noticed with probability .99" in shown


def test_a_wrong_rule_is_refused_with_what_is_farthest_off(rule, capsys):
    where = rule("p[i]")
    assert main(["certify", "--against", where, "--samples", "1500"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "farthest off: [" in shown and "not lossless: it does not emit the target's distribution" in shown
    assert main(["certify", "--against", where, "--samples", "1500", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["different"] and len(summary["cases"]) == 3
    assert all(case["samples"] == 1500 and case["tokens"] == 3 for case in summary["cases"])


def test_runs_repeat_and_leave_the_global_generators_alone():
    """The function draws from them; they are seeded while it runs."""

    def accept(candidates, p, q):
        return 0, torch.multinomial(p[0, 0], 1)

    def law(context):
        return (0.5, 0.3, 0.2)

    foreign = Foreign(accept, law, law, vocab=3, length=2, tolerance=1e-6)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert foreign.sample(200) == foreign.sample(200) != foreign.sample(200, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_transformers_sampler_is_lossless_by_every_branch(capsys):
    """The function that ships with the package calls it."""
    folder = Path(__file__).parents[1] / "samplers"
    assert main(["certify", "--against", f"{folder / 'transformers_assisted.py'}:accept"]) == 0
    assert "lossless: it emits the target's distribution" in capsys.readouterr().out
