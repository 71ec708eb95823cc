"""Laws that are made where a verifier comes to: they are those of all nodes, and no others are made."""

import pytest
import torch

import specframe
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.kernel.types import TokenTree
from specframe.sampling.laws import History, RowSampling, Sampling
from specframe.sampling.lazy import AllLaws, Visits
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenDrafter

VOCAB = 9
PARENT = torch.tensor([[-1, 0, 0, 1, 1, 3], [-1, 0, 1, 2, 3, 4]])
VALID = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
TREE = TokenTree(torch.arange(12).view(2, 6) % VOCAB, PARENT, VALID, torch.zeros_like(PARENT), levels=5)
SPARSE = Sampling(temperature=0.7, top_k=4, top_p=0.9)


def ban(tokens, logits):
    """Bans what a text's last token is."""
    return logits.scatter(1, tokens[:, -1:], -torch.inf)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        SPARSE,
        RowSampling([Sampling(), SPARSE]),
        Sampling(temperature=1.0, processors=(ban,), history=History(TREE.tokens[:, :1], torch.tensor([1, 1]))),
    ],
)
def test_a_law_is_the_same_alone(sampling):
    logits = torch.randn(2, 6, VOCAB, generator=torch.Generator().manual_seed(0))
    laws, visits = sampling.law(logits, TREE), Visits(sampling, logits, TREE)
    for nodes in ([0, 0], [3, 2], [5, 0]):
        assert torch.equal(visits.after(torch.tensor(nodes)), laws[torch.arange(2), nodes])
    assert visits.gaps is None or not visits.gaps.any()


def test_a_node_without_mass_matters_where_it_is_visited():
    logits = torch.zeros(2, 6, VOCAB)
    logits[0, 1] = logits[1, 3] = torch.nan
    visits = Visits(Sampling(temperature=1.0), logits, TREE)
    visits.after(torch.tensor([0, 2]))
    assert visits.gaps is None
    visits.after(torch.tensor([1, 2]))
    visits.after(torch.tensor([0, 0]))
    assert visits.gaps is not None and visits.gaps.nonzero().tolist() == [[0, 1]]


def test_match_gives_the_verdict_of_all_laws():
    sampling = Sampling(temperature=1.0)
    lengths = set()
    for seed in range(60):
        logits = torch.randn(2, 6, VOCAB, generator=torch.Generator().manual_seed(seed))
        logits = logits.scatter_add(2, TREE.tokens.roll(-1, 1)[..., None], torch.full((2, 6, 1), 2.5))
        laws = sampling.law(logits, TREE)
        whole = Match().verify(TREE, AllLaws(laws), SeededRandom(seed, 2).position)
        alone = Match().verify(TREE, Visits(sampling, logits, TREE), SeededRandom(seed, 2).position)
        for name in ("path", "length", "bonus"):
            assert torch.equal(getattr(whole, name), getattr(alone, name))
        lengths.update(whole.length.tolist())
    assert {0, 1, 2, 3} <= lengths


def test_a_session_makes_the_laws_on_the_way_alone(monkeypatch):
    made = []
    after = Visits.after
    monkeypatch.setattr(Visits, "after", lambda self, nodes: made.append(nodes) or after(self, nodes))
    sampling = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True}
    tree = {"use": "fixed", "widths": [3, 2, 2]}
    target, drafter = TableTarget(vocab=5, seed=1), GivenDrafter(torch.full((5, 5), 0.2, dtype=torch.float64))
    result = specframe.compose(target=target, drafter=drafter, tree=tree, verifier="match", sampling=sampling).generate(
        [[0, 1]]
    )
    cycles, accepted = result.acceptance.cycles, result.acceptance.accepted
    assert accepted > 0 and cycles + 1 <= len(made) <= cycles + accepted + 1, "the prompt's, the roots', the path's"


class Refusing(Match):
    """Accepts no draft."""

    def verify(self, tree, laws, random):
        p = laws.all
        return super().verify(TokenTree.root_only(tree.tokens[:, 0]), AllLaws(p[:, :1]), random)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_lossless_rule_decides_unless_all_rows_are_greedy(temperature):
    target, drafter = TableTarget(vocab=5, seed=1), GivenDrafter(torch.full((5, 5), 0.2, dtype=torch.float64))
    sampling = {"temperature": temperature, "max_new_tokens": 20, "ignore_eos": True}
    for verifier in (Match(), Refusing()):
        parts = {"target": target, "drafter": drafter, "tree": {"use": "fixed", "widths": [3]}}
        found = specframe.compose(**parts, verifier=verifier, sampling=sampling).generate([[0, 1]])
        assert (found.acceptance.accepted > 0) == (temperature == 0 or type(verifier) is Match)
