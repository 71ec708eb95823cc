"""The argmax along the accepted path, without looking at other nodes."""

import torch

from specframe.kernel.types import Draw, TokenTree
from specframe.sampling.greedy import reached_argmax
from specframe.sampling.laws import Sampling

VOCAB = 5


def test_only_nodes_that_greedy_decoding_reaches_have_a_token():
    parent = torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 1, 2, 2]])
    tokens = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    top = torch.full_like(tokens, Draw.TOP)
    tree = TokenTree(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), top, levels=3)
    argmax = torch.tensor([[2, 3, 4, 1, 0], [1, 2, 0, 3, 4]])  # after each node
    logits = torch.nn.functional.one_hot(argmax, VOCAB).double()
    found, gaps = reached_argmax(Sampling(temperature=0.0), logits, tree)
    assert found.tolist() == [[2, -1, 4, -1, 0], [1, 2, 0, -1, -1]]
    assert not gaps.any()
