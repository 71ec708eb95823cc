"""The certificate's half on real models: a tiny one stands in."""

from dataclasses import replace

import pytest
import torch

from specframe.certify.compositions.controls import Unprocessed, WrongBonus
from specframe.certify.guarantees import TOKENS, measure_departure
from specframe.certify.real import certify_real, check_greedy, check_sampled, permutation_test
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.session import Parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.kernel.types import Draw, Verdict

ROWS = [[1, 2, 3], [4, 5, 6, 7], [8]]


def model(seed):
    return random_model(vocab=12, size=16, seed=seed).float()


@pytest.fixture
def pipeline():
    target, drafter = HFTarget.from_model(model(0)), ModelDrafter.from_model(model(1))
    drafter.bind(target)
    parts = Parts(target, drafter, Dynamic(depth=2, width=2, nodes=5), Match())
    return Pipeline(parts, SamplingSettings(), RunSettings(), None, frozenset(), True)


class Stubborn:
    """Accepts the first node below the root, whatever the target's token."""

    lossless = False
    needs = Match.needs
    needs_exact = False

    def verify(self, tree, laws, random):
        p = laws.all
        if not tree.levels:
            return Match().verify(tree, laws, random)
        path = torch.full((len(p), tree.levels), -1)
        path[:, 0] = 1
        return Verdict(path=path, length=torch.ones(len(p), dtype=torch.int64), bonus=random.categorical(p[:, 1]))


def test_a_sound_pipeline_passes(pipeline):
    steps = []
    report = certify_real(pipeline, ROWS, max_new_tokens=20, samples=64, listener=steps.append)
    assert [step.split(",")[0] for step in steps] == ["greedy", "sampled", "sampled", "sampled"]
    assert report.passed and report.greedy.identical and report.sampled.consistent
    assert report.greedy.prompts == 3 and report.greedy.tokens == 60
    assert 0 < report.greedy.smallest_margin < report.greedy.median_margin
    assert 0 < report.greedy.noise < 1e-3
    assert report.as_dict()["greedy"]["identical"] is True


def test_a_greedy_divergence_shows_its_gap(pipeline):
    report = check_greedy(pipeline.with_parts(verifier=Stubborn()), ROWS, 20)
    assert not report.identical
    worst = max(report.divergences, key=lambda divergence: divergence.gap)
    assert worst.gap > 100 * report.noise and not worst.tie and worst.ours != worst.plain


def test_a_tie_is_no_failure(pipeline):
    report = check_greedy(pipeline.with_parts(verifier=Stubborn()), ROWS, 20)
    ties = tuple(replace(divergence, tie=True) for divergence in report.divergences)
    assert replace(report, divergences=ties).identical


def test_sampled_output_is_compared(pipeline):
    parts = {"tree": Chain(depth=2, draw=Draw.IID), "verifier": Recursive()}
    sound = check_sampled(pipeline.with_parts(**parts), ROWS[0], 256)
    assert sound.consistent and sound.temperature == 1.0
    broken = check_sampled(pipeline.with_parts(**parts | {"verifier": Stubborn()}), ROWS[0], 256)
    assert not broken.consistent
    unprocessed = WrongBonus(Recursive(), Unprocessed())
    assert check_sampled(pipeline.with_parts(**parts | {"verifier": unprocessed}), ROWS[0], 256).p_value < 1


def test_the_permutation_test_sees_rare_tokens_together():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 3 * 256, True, generator=generator).view(3, 256, 1)
    noise = torch.randint(50_000, (256, 1), generator=generator)  # each seen once at most
    rare = torch.rand(256, 1, generator=generator) < 0.1
    assert permutation_test(tokens[0], tokens[1]) > 0.001
    assert permutation_test(tokens[2].where(~rare, noise), tokens[1]) <= 0.001


def test_the_permutation_test_keeps_its_error_rate():
    generator = torch.Generator().manual_seed(4)
    values = [permutation_test(*torch.randint(4, (2, 60, 2), generator=generator), shuffles=199) for _ in range(200)]
    alarms = sum(value <= 0.05 for value in values)
    assert 2 <= alarms <= 22  # 10 expected
    same = torch.randint(4, (200, 2), generator=generator)
    assert permutation_test(same, same) == 1.0
    assert permutation_test(same, (same + 1) % 5) <= 0.001


def test_departure_is_what_other_tokens_lose_under_the_target(pipeline):
    """Every token of the texts is counted again from the logits of plain text."""
    stubborn = pipeline.with_parts(verifier=Stubborn())
    cycles, texts = [], replace(stubborn, sampling=replace(stubborn.sampling, max_new_tokens=TOKENS))
    found = measure_departure(stubborn, ROWS)
    requests = texts.requests([texts.encode(row) for row in ROWS])
    with texts.open(requests) as session:
        session.run(requests, lambda cycle: cycles.append((cycle, list(session.numbers))))
    tokens = others = 0
    nats = 0.0
    for cycle, numbers in cycles:
        for row in range(len(numbers)):
            law = torch.log_softmax(cycle.scores.logits[row, 0], -1)
            lost = float(law.max() - law[cycle.draft.tokens[row, 1]])
            tokens, others, nats = tokens + 2, others + (lost > 0), nats + lost
    assert 0 < others < tokens / 2 and found["tokens"] == tokens
    assert found["others"] == pytest.approx(others / tokens) and found["nats"] == pytest.approx(nats / tokens, rel=1e-4)
    assert measure_departure(pipeline, ROWS)["others"] == 0
