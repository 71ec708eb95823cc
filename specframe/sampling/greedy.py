"""Verdicts at temperature 0, where every lossless rule follows the target's argmax tokens and no law is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.types import HostVerdict, TokenTree, Verdict
from specframe.sampling.laws import RowSampling, Sampling


def follow_argmax(tree: TokenTree, argmax: Tensor, gaps: Tensor | None = None) -> Verdict:
    """The verdict of any lossless rule for laws that are one-hot at argmax [B, N]: the path of these tokens.

    Among siblings with the same token the first counts. `gaps` [B, N] bool marks nodes after which no token has mass;
    the verdict's host copy has the first one on each row's path. All values are copied to the host once and the path is
    followed there: after a large forward pass every further kernel would find its code and data out of cache.
    """
    verdict = HostVerdict([], [], None if gaps is None else [])
    found = (argmax,) if gaps is None else (argmax, gaps)
    if argmax.is_cpu:  # single reads cost less than a kernel
        rows = [*zip(*tree.columns, *map(Tensor.tolist, found), strict=True)]
    else:
        rows = torch.stack((tree.valid, tree.parent, tree.tokens, *found), 1).tolist()
    for valid, parents, tokens, wanted, *missing in rows:
        slots = [*zip(valid, parents, tokens, strict=True)]
        node, path = 0, []
        while (child := (1, node, wanted[node])) in slots:
            path.append(node := slots.index(child))  # the first child with that token
        verdict.paths.append(path)
        verdict.tokens.append([wanted[node] for node in (0, *path)])
        if verdict.gaps is not None:
            verdict.gaps.append(next((index for index, node in enumerate((0, *path)) if missing[0][node]), None))
    return Verdict.of(verdict, tree)


def reached_argmax(sampling: Sampling | RowSampling, logits: Tensor, tree: TokenTree) -> tuple[Tensor, Tensor]:
    """The argmax token after each node that greedy decoding reaches, and a mask of those after which no token has mass.

    For logits [B, N, V]: [B, N] int64, -1 after other nodes, and [B, N] bool. Processors, which are slow for a grammar,
    run only for the nodes of the accepted path.
    """
    found = torch.full_like(tree.tokens, -1)
    gaps = torch.zeros_like(found, dtype=torch.bool)
    node = found.new_zeros(len(found), 1)  # [B, 1]
    for _ in range(tree.levels + 1):
        node_logits = logits.gather(1, node[..., None].expand(-1, -1, logits.shape[-1]))  # [B, 1, V]
        best, missing = sampling.argmax_and_gaps(node_logits, tree, node)
        found.scatter_(1, node, best)
        if missing is not None:
            gaps.scatter_(1, node, missing)
        child = tree.valid & (tree.parent == node) & (tree.tokens == best)
        if not child.any():
            break
        node = child.byte().argmax(1, keepdim=True).where(child.any(1, keepdim=True), node)
    return found, gaps


def chosen(best: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tokens of the largest logits, and a mask of the nodes after which no token has mass: [B, N] each.

    The given tokens [B, N] are -1 after such a node, as in `GreedyScores`. The mask is None if there are none.
    """
    if best.is_cpu and all(min(row) >= 0 for row in best.tolist()):  # faster than a kernel
        return best, None
    gaps = best < 0
    return (best.masked_fill(gaps, 0), gaps) if gaps.any() else (best, None)
