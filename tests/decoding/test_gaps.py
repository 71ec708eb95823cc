"""A position where no token has any probability ends its row with one clear error; the other rows go on."""

import pytest
import torch

from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.kernel.errors import InputError
from specframe.kernel.types import Scores
from specframe.plugin import Draw
from specframe.sampling.laws import Sampling
from specframe.testing import GivenDrafter

VOCAB, PROMPT = 5, [1, 2]
Q = torch.full((VOCAB, VOCAB), 1 / VOCAB, dtype=torch.float64)


class BanAll:
    """Bans every token once a text has so many, as a grammar that is at its end may."""

    def __init__(self, length):
        self.length = length

    def __call__(self, tokens, logits):
        return torch.full_like(logits, -torch.inf) if tokens.shape[1] >= self.length else logits


class Spoilt(TableTarget):
    """Its logits after a given token are not numbers."""

    def __init__(self, token):
        super().__init__(vocab=VOCAB, seed=3)
        self.token = token

    def score(self, tree):
        scores = super().score(tree)
        return Scores(scores.logits.masked_fill((tree.tokens == self.token)[..., None], torch.nan), scores.features)


def session(verifier, target=None):
    target = target or TableTarget(vocab=VOCAB, seed=3)
    return Session(Parts(target, GivenDrafter(Q), Chain(depth=3, draw=Draw.IID), verifier()), 3, 64)


def requests(processors, temperature):
    samplings = [Sampling(temperature=temperature, processors=each) for each in processors]
    return [
        Request(tokens=PROMPT, sampling=sampling, seed=number, number=number, max_new_tokens=12)
        for number, sampling in enumerate(samplings)
    ]


@pytest.mark.parametrize("verifier", [Match, Recursive, Traversal])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [2, 3, 6])
def test_a_processor_that_bans_everything_ends_its_row_alone(verifier, temperature, length):
    whole = session(verifier).run(requests([(), (), ()], temperature))
    entries = session(verifier).run(requests([(), (BanAll(length),), ()], temperature))
    assert entries[1].ended == "failed" and entries[1].error.startswith(f"prompt 2, position {length}: no token")
    assert entries[1].tokens == whole[1].tokens[: length - 2]
    for row in (0, 2):
        assert (entries[row].tokens, entries[row].ended) == (whole[row].tokens, "length")


def spoilt_at(temperature):
    """A target whose logits are no numbers after a token that is emitted."""
    plain = session(Match).run(requests([()] * 3, temperature))
    return Spoilt(plain[1].tokens[3])


@pytest.mark.parametrize("verifier", [Match, Recursive, Traversal])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_no_token(verifier, temperature):
    target = spoilt_at(temperature)
    entries = session(verifier, target).run(requests([()] * 3, temperature))
    assert any(target.token in entry.tokens[:-1] or entry.ended == "failed" for entry in entries)
    for entry in entries:
        assert all(0 <= token < VOCAB for token in entry.tokens) and target.token not in entry.tokens[:-1]
        if entry.tokens[-1] == target.token and len(entry.tokens) < 12:
            assert entry.ended == "failed" and f"position {len(entry.text)}" in entry.error


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_names_the_row_and_the_position(temperature):
    parts = Parts(spoilt_at(temperature), GivenDrafter(Q), Chain(depth=2, draw=Draw.IID), Recursive())
    settings = SamplingSettings(temperature=temperature, max_new_tokens=40)
    pipeline = Pipeline.around(parts, settings, RunSettings(batch=2))
    with pytest.raises(InputError, match=r"^prompt \d, position \d+: no token has any probability; either"):
        pipeline.generate([[1, 2], [2, 3], [1, 2]])


@pytest.mark.parametrize("logits", [[-torch.inf] * 3, [torch.nan] * 3, [0.0, torch.nan, 1.0], [torch.inf, 0.0, 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
@pytest.mark.parametrize("unlikely", [0, 2000])
def test_a_law_is_a_law_whatever_the_logits(logits, temperature, options, unlikely):
    from specframe.kernel.types import TokenTree

    tree = TokenTree.root_only(torch.zeros(2, dtype=torch.int64))
    rest = [logits[0] if logits[0] == logits[1] else -30.0] * unlikely  # so many that top_p looks at a part of them
    given = torch.tensor([[[*logits, *rest]], [[0.0, 1.0, 2.0, *[-30.0] * unlikely]]])
    law, gaps = Sampling(temperature=temperature, **options).law_and_gaps(given, tree)
    certain = logits[0] == torch.inf and temperature == 0
    assert (gaps is None) if certain else (gaps.tolist() == [[True], [False]])
    assert law[0, 0].tolist() == [1.0] + [0.0] * (2 + unlikely) and float(law[1].sum()) == pytest.approx(1.0)
