"""A drafter whose logits are not numbers is reported, once, with the level and the cycle."""

import logging
from math import inf, nan

import pytest
import torch

import specframe
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError
from tests.small_model import make_model

PROMPTS = [[15, 16, 17], [20, 21, 22, 23]]
CHAIN = {"use": "chain", "depth": 3}
TREE = {"use": "dynamic", "depth": 3, "width": 2, "nodes": 6}


def poisoned(value=nan):
    """A small model whose LM head has one row of this value."""
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight[7] = value
    return ModelDrafter.from_model(model)


def lines(caplog, drafter, tree, new=12, **options):
    pipeline = specframe.compose(target=make_model(), drafter=drafter, tree=tree, **options)
    with caplog.at_level(logging.WARNING, "specframe"):
        texts = [pipeline.generate(PROMPTS, max_new_tokens=new).tokens for _ in range(2)]
        assert pipeline.parts.target.model is not None
    plain = pipeline.plain().generate(PROMPTS, max_new_tokens=new).tokens
    return [record.getMessage() for record in caplog.records], texts, plain


@pytest.mark.parametrize("tree", [CHAIN, TREE, {"use": "fixed", "widths": [2, 2]}], ids=lambda tree: tree["use"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_with_weights_that_are_not_numbers(caplog, tree, batch):
    found, texts, plain = lines(caplog, poisoned(), tree, run={"batch": batch})
    (line,) = found
    assert "its logits are not numbers from level 1 of the draft on, in cycle 1" in line
    assert texts == [plain, plain]


def test_values_that_overflow_in_float16_are_found(caplog):
    model = make_model().half()
    drafter = ModelDrafter.from_model(model)
    pipeline = specframe.compose(target=make_model(), drafter=drafter, tree=CHAIN)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.sign() * 6e4)  # finite, and the logits are not
    with caplog.at_level(logging.WARNING, "specframe"):
        result = pipeline.generate(PROMPTS, max_new_tokens=12)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "its values overflow, as they do in float16" in line and "level 1" in line
    assert result.tokens == pipeline.plain().generate(PROMPTS, max_new_tokens=12).tokens


def test_a_model_without_numbers_is_refused_by_that_name():
    model = make_model().to(torch.bfloat16)
    model.config.hidden_act = "gelu"  # a kind that was not tried before
    with torch.no_grad():
        model.lm_head.weight[7] = nan
    with pytest.raises(CompositionError, match="its logits are not numbers"):
        specframe.compose(target=model)


@pytest.mark.parametrize(
    ("drafter", "tree"),
    [
        ({"use": "eagle"}, CHAIN),
        ({"use": "eagle"}, TREE),
        ({"use": "falcon", "block": 2}, TREE),
        ({"use": "medusa", "heads": 3}, {"use": "fixed", "widths": [2, 2, 1]}),
        ({"use": "dflash", "block_size": 4}, CHAIN),
        ({"use": "kangaroo", "exit": 1}, CHAIN),
    ],
    ids=lambda part: part["use"],
)
def test_drafters_with_a_network_of_their_own(caplog, drafter, tree):
    pipeline = specframe.compose(target=make_model(), drafter=drafter, tree=tree)
    for parameter in pipeline.parts.drafter.module.parameters():
        parameter.data.fill_(nan)
    with caplog.at_level(logging.WARNING, "specframe"):
        pipeline.generate(PROMPTS, max_new_tokens=12)
        pipeline.generate(PROMPTS, max_new_tokens=12)
    found = [line for record in caplog.records if "not numbers" in (line := record.getMessage())]
    assert len(found) == 1 and found[0].startswith(f"drafter {drafter['use']}: ") and "in cycle 1" in found[0]


class Failing:
    """A drafter that is the target itself up to some cycle, and whose logits are not numbers from a level on then."""

    name = "failing"

    def __init__(self, level, cycle):
        self.inner = ModelDrafter.from_model(make_model())
        self.promise, self.taps = self.inner.promise, self.inner.taps
        self.level, self.cycle, self.cycles = level, cycle, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def propose(self, root, tree, context):
        self.cycles += 1

        def expand(frontier):
            proposal = self.inner.expand(frontier)
            depth = int(frontier.tree.depth.gather(1, frontier.nodes).max()) + 1
            if self.cycles >= self.cycle and depth >= self.level:
                proposal.logits.fill_(nan)
            return proposal

        return tree.grow(expand, root, context)


@pytest.mark.parametrize(("level", "cycle"), [(1, 1), (2, 1), (3, 1), (1, 4)])
def test_the_level_and_the_cycle_are_named(caplog, level, cycle):
    found, texts, plain = lines(caplog, Failing(level, cycle), CHAIN, new=40)
    (line,) = found
    assert f"from level {level} of the draft on" in line and texts == [plain, plain]
    if cycle == 1:
        assert "in cycle 1:" in line


def test_logits_of_numbers_are_not_reported(caplog):
    """Nor are tokens that a drafter bans by -inf, nor a drafter of which nothing is ever accepted."""
    model = make_model()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 5)
    found, _, _ = lines(caplog, ModelDrafter.from_model(model), TREE, new=60)
    assert found == []
    drafter = ModelDrafter.from_model(make_model())
    whole = drafter.expand

    def banning(frontier):
        proposal = whole(frontier)
        proposal.logits[..., 5:] = -inf
        return proposal

    drafter.expand = banning
    assert lines(caplog, drafter, TREE)[0] == []


def test_the_looks_leave_drafts_as_they_are():
    """One of whose drafts nothing is accepted is looked at again and again; drafts and texts stay what they were."""
    target = HFTarget.from_model(make_model())
    pipeline = specframe.compose(target=target, drafter={"use": "eagle"}, tree=TREE)
    first = pipeline.generate(PROMPTS, max_new_tokens=60).acceptance
    again = pipeline.generate(PROMPTS, max_new_tokens=60).acceptance
    assert (first.cycles, first.accepted, first.drafted) == (again.cycles, again.accepted, again.drafted)


@pytest.mark.parametrize("draw", ["iid", "without_replacement"])
def test_sampled_drafts(caplog, draw):
    tree = {"use": "fixed", "widths": [2, 1], "draw": draw}
    with caplog.at_level(logging.WARNING, "specframe"):
        pipeline = specframe.compose(
            target=make_model(), drafter=poisoned(), tree=tree, verifier="recursive", sampling={"temperature": 1.0}
        )
        result = pipeline.generate(PROMPTS, max_new_tokens=8)
    assert "not numbers" in caplog.text and all(map(len, result.tokens))
