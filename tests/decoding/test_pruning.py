"""Drafts without forbidden nodes: what goes, what stays, and where it then stands."""

from dataclasses import replace

import torch

from specframe.decoding.requests import Entry, Request, pruned
from specframe.kernel.types import Draw, TokenTree
from specframe.sampling.laws import Sampling


class Shunning:
    """Forbids some tokens, whatever comes before them."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def __call__(self, tokens, logits):
        return logits.index_fill(1, torch.tensor(self.tokens), -torch.inf)

    def allows(self, text, tokens, parents):
        assert tokens[0] == text[-1] and parents[0] == -1
        return [node == 0 or token not in self.tokens for node, token in enumerate(tokens)]


def tree_of(*rows, draw=Draw.TOP):
    """Trees of (token, parent) pairs, the root first; None is padding."""
    nodes = [[(0, 0) if node is None else node for node in row] for row in rows]
    tokens, parent = torch.tensor(nodes).unbind(-1)
    valid = torch.tensor([[node is not None for node in row] for row in rows])
    levels = 3
    return TokenTree(tokens, parent, valid, torch.full_like(tokens, draw), levels)


def entry(guide, *text):
    return Entry(Request(tokens=text, sampling=Sampling(processors=(guide,) if guide else ()), max_new_tokens=9), 9)


FIRST = [(5, -1), (7, 0), (8, 0), (9, 1), (7, 2), (6, 2), (9, 5)]
SECOND = [(3, -1), (8, 0), (7, 1), (8, 2), None, None, None]


def test_forbidden_nodes_go_with_all_below_them():
    draft = tree_of(FIRST, SECOND)
    found = pruned(draft, [entry(Shunning(7), 1, 5), entry(Shunning(7, 6), 3)])
    assert found.tokens.tolist() == [[5, 8, 6, 9], [3, 8, 0, 0]]
    assert found.parent.tolist() == [[-1, 0, 1, 2], [-1, 0, 0, 0]]
    assert found.valid.tolist() == [[True] * 4, [True, True, False, False]]
    assert found.levels == 3 and found.depth[0].tolist() == [0, 1, 2, 3]
    none = pruned(draft, [entry(Shunning(7, 8), 5), entry(Shunning(8), 3)])
    assert none.tokens.tolist() == [[5], [3]] and none.levels == 0


def test_a_draft_without_forbidden_nodes_or_guides_is_the_same_object():
    draft = tree_of(FIRST, SECOND)
    for guides in ((Shunning(4), Shunning(2)), (None, None)):
        assert pruned(draft, [entry(guides[0], 5), entry(guides[1], 3)]) is draft
    mixed = pruned(draft, [entry(Shunning(7), 5), entry(None, 3)])
    assert mixed.tokens.tolist() == [[5, 8, 6, 9], [3, 8, 7, 8]]


def test_nodes_that_were_drawn_stay_with_their_laws():
    laws = torch.rand(1, 2, 10)
    drawn = replace(tree_of(FIRST, draw=Draw.IID), q=laws, q_row=torch.tensor([[0, 0, 0, 1, 1, 1, 1]]))
    assert pruned(drawn, [entry(Shunning(7), 5)]) is drawn
    copied = drawn.draw.clone()
    copied[0, 1] = copied[0, 6] = Draw.TOP
    found = pruned(replace(drawn, draw=copied), [entry(Shunning(7), 5)])
    assert found.tokens.tolist() == [[5, 8, 7, 6, 9]] and found.parent.tolist() == [[-1, 0, 1, 1, 3]]
    assert found.draw.tolist() == [[Draw.IID] * 4 + [Draw.TOP]] and found.q_row.tolist() == [[0, 0, 1, 1, 1]]
    assert found.q is laws
