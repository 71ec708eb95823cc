"""A self-test of tree scoring: one small tree against each of its paths alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe.kernel.types import Prompts, TokenTree, Verdict

if TYPE_CHECKING:
    from specframe.components.targets.hf import HFTarget

PROMPTS = ((3, 1, 4, 1, 5), (9, 2, 6))
PARENTS = (-1, 0, 0, 1, 2, 2)  # two branches, the second one forked


def deviation(target: HFTarget) -> float:
    """The largest difference between tree and path logits, as a share of the largest logit.

    The batch is ragged and one commit precedes the tree, so masks, positions and slots all take part.
    """
    device, vocabulary = target.device, target.vocab_size
    rows = [[token % vocabulary for token in row] for row in PROMPTS]
    count = torch.tensor([len(row) for row in rows], device=device)
    padded = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows], device=device)
    parent = torch.tensor(PARENTS, device=device).expand(len(rows), -1)
    nodes = parent.shape[1]
    tokens = (torch.arange(len(rows) * nodes, device=device).reshape(len(rows), nodes) * 7 + 11) % vocabulary
    target.open(len(rows), padded.shape[1] + 2 + nodes)
    root, _ = target.admit(Prompts(padded, count))
    nothing = torch.zeros(len(rows), device=device, dtype=torch.long)
    target.commit(root, Verdict(root.tokens[:, :0], nothing, bonus=tokens[:, 0]))
    valid, draw = torch.ones_like(parent, dtype=torch.bool), torch.zeros_like(parent)
    tree = TokenTree(tokens, parent, valid, draw, levels=2)
    logits = target.score(tree).logits
    worst, size = 0.0, 0.0
    for row, prompt in enumerate(rows):
        for node in range(nodes):
            path = tree.ancestors[row, node].nonzero()[:, 0]
            alone = torch.tensor([prompt + tokens[row, path].tolist()], device=device)
            wanted = target.teach(alone, torch.ones_like(alone, dtype=torch.bool)).logits[0, -1]
            worst = max(worst, float((logits[row, node] - wanted).abs().max()))
            size = max(size, float(wanted.abs().max()))
    return worst / max(size, 1e-9)
