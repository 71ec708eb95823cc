"""The drafter of several depths: which sub-model answers, what that costs, and that the output stays the target's."""

from __future__ import annotations

import copy

import pytest
import torch
from nested_fakes import VOCAB, drafter, model

import specframe
from specframe import CompositionError, InputError, Sampling
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain
from specframe.plugin import Context, SeededRandom
from specframe.testing import GivenSession, check_drafter, check_plugin, check_proposals, tiny_target
from specframe_models.nested.drafter import Nested

EXITS = [1, 3]


def nested(confidence=0.5, exits=EXITS, **options) -> Nested:
    made = Nested(drafter=drafter(), exits=exits, confidence=confidence, **options)
    made.bind(tiny_target(vocab=VOCAB))
    return made


def truncated(whole, depth):
    """The model of the first layers."""
    fewer = copy.deepcopy(whole)
    fewer.model.layers = fewer.model.layers[:depth]
    fewer.config.num_hidden_layers = depth
    return fewer


@torch.no_grad()
def literal(models, confidence, text):
    """Which sub-model answers a text, and its logits [V]: each one reads it from scratch, as a model of its own."""
    for depth, least in zip(models, [*confidence, 0.0], strict=True):
        logits = models[depth](text[None]).logits[0, -1]
        if logits.softmax(-1).max() >= least:
            break
    return depth, logits


@pytest.mark.parametrize("confidence", [0.25, [0.6, 0.3], [0.25, 0.6]])
def test_the_smallest_sub_model_that_is_sure_answers(confidence):
    """Through the life of a session, in trees whose nodes differ in depth."""
    made, answered = nested(confidence), set()
    models = {depth: truncated(made.drafter.module, depth) for depth in made.depths}
    thresholds = confidence if isinstance(confidence, list) else [confidence] * 2

    def wanted(session, row, path):
        text = torch.cat([torch.zeros(1, dtype=torch.int64), session.tokens[row], path])
        depth, logits = literal(models, thresholds, text)
        answered.add(depth)
        return logits[None]

    check_proposals(made, lambda rows: GivenSession.random(rows, VOCAB, 8), wanted, expansions=3, close=1e-4)
    assert answered == {1, 3, 4}, "the test must see every sub-model"


def count_runs(made):
    """Number of forward passes of each layer from now on, in a list that fills."""
    runs = [0] * made.depth
    for index, layer in enumerate(made.drafter.module.model.layers):

        def count(module, inputs, output, index=index):
            runs[index] += 1

        layer.register_forward_hook(count)
    return runs


RUNS = [(0.0, [4, 0, 0, 0]), (2.0, [4, 4, 4, 4]), ([2.0, 0.0], [4, 4, 4, 0])]


@pytest.mark.parametrize(("confidence", "wanted"), RUNS)
def test_layers_run_where_they_are_asked(confidence, wanted):
    made = nested(confidence)
    runs = count_runs(made)
    session = GivenSession.random(1, VOCAB, 8)
    context = Context(Sampling(), SeededRandom(0, 1).draft)
    made.open(1, 32)
    made.commit(session.admit([5]))
    made.propose(session.root, Chain(depth=4), context)
    assert runs == wanted


@pytest.mark.parametrize(("confidence", "target"), [(0.45, None), (0.6, 2)])
def test_it_keeps_the_contract_of_drafters(confidence, target):
    """Certified at temperature 1 under `match` and `recursive`, greedy in batches, rows that join and leave."""

    def make() -> Nested:
        inner = ModelDrafter.from_model(random_model(vocab=3, layers=3, seed=7))
        return Nested(drafter=inner, exits=[1, 2], confidence=confidence)

    other = None if target is None else lambda: HFTarget.from_model(random_model(vocab=3, layers=3, seed=target))
    check_drafter(make, target=other)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_drafter_serves_two_targets(temperature, tmp_path):
    """Targets of one vocabulary share the drafter's folder; under `match` each gives what it gives without."""
    random_model(vocab=3, layers=3, seed=7).save_pretrained(tmp_path / "drafter")
    for seed, layers in ((1, 2), (2, 3)):
        folder = tmp_path / f"target{seed}"
        random_model(vocab=3, layers=layers, seed=seed).save_pretrained(folder)
        pipeline = specframe.compose(
            target={"use": "hf", "model": str(folder), "dtype": "float64"},
            drafter={
                "use": "nested",
                "drafter": {"use": "model", "model": str(tmp_path / "drafter"), "dtype": "float64"},
                "exits": [1, 2],
                "confidence": 0.5,
            },
            tree={"use": "chain", "depth": 2, "draw": "iid"},
            verifier="match",
            sampling={"temperature": temperature, "max_new_tokens": 12},
            run={"batch": 2},
        )
        prompts = [[1, 2, 0], [2], [0, 1]]
        found = pipeline.generate(prompts)
        assert found.tokens == pipeline.plain().generate(prompts).tokens
        assert found.acceptance.drafted > 0


def test_the_whole_model_may_be_left_out():
    assert nested(whole=False).depths == [1, 3]
    assert nested().depths == [1, 3, 4]
    assert nested(exits=[2, 4]).depths == [2, 4]
    with pytest.raises(InputError, match="from 1 to 4"):
        nested(exits=[5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exits": []}, "ascending numbers of layers"),
        ({"exits": [2, 2]}, "ascending numbers of layers"),
        ({"exits": [1], "confidence": [0.1, 0.2]}, "one for each sub-model but the last"),
        ({"exits": [1], "confidence": -0.1}, "must not be negative"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Nested(drafter=drafter(), **options)


def test_a_drafter_of_one_depth_is_refused():
    with pytest.raises(CompositionError, match="Lookup is none"):
        Nested(drafter=Lookup(), exits=[1])


def test_the_plugin():
    check_plugin("specframe-models")


def test_its_form_for_a_certificate_has_two_depths():
    small = Nested(drafter=ModelDrafter(model="none/such"), exits=[4, 9], confidence=[0.3, 0.7]).untrained(3)
    small.bind(HFTarget.from_model(random_model(vocab=3)))
    assert small.depths == [1, 2] and small.confidence == [0.3]
    assert model().config.num_hidden_layers == 4
