"""Block verification: verifies all tokens of a chain jointly instead of one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.record import Record, TreeSlots
from specframe.components.verifiers.traversal import Traversal, path_to, ratios, settle
from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import TokenTree, Verdict


class Block:
    """Accepts the longest prefix of a chain that passes its own test, instead of stopping at the first failure.

    Let P_i and q_i be the target's and the drafter's law of token x_i, and r_i = min(1, r_(i-1) P_i(x_i) /
    q_i(x_i)), r_0 = 1. The first i of g tokens pass with probability S_i / (S_i + 1 - r_i), where
    S_i = sum [r_i P_(i+1) - q_(i+1)]+; all g tokens pass with probability r_g. The bonus is drawn from
    [r_i P_(i+1) - q_(i+1)]+, or from the target's law after the whole chain. The expected number of tokens is
    never below that of Recursive, and above it for chains of two tokens or more.

    A prefix passes with probability at most r_i, which needs one entry of each law. The longest prefix that passes
    with r_i is therefore drawn first, and only its S_i is computed: the prefix is kept with probability
    S_i / (S_i + 1 - r_i) / r_i; otherwise the next shorter one is drawn. A step costs as much as one of Recursive.

    Trees with siblings are verified by Traversal, which extends this rule to trees, and so are trees without q: all
    their nodes are `top`, where the rule equals Match. Needs exact laws and fresh noise.

    Source: Block verification accelerates speculative decoding (Sun et al., 2024, arXiv 2403.10444,
    algorithm 2).
    """

    lossless = True
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        batch, count, vocab = p.shape
        index = torch.arange(count, device=p.device)
        if tree.q is None or tree.q_row is None or count == 1 or bool((tree.valid & (tree.parent != index - 1)).any()):
            return Traversal().verify(tree, laws, random)
        first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin
        recorded = Record(tree, vocab, p.dtype)
        reach = self.reach(tree, p, recorded)  # [B, N]
        after = p.reshape(batch * count, vocab)

        def scaled_law(node: Tensor) -> Tensor:
            return after.index_select(0, first + node) * reach.gather(1, node[:, None])

        record, position = TreeSlots(tree, recorded), (count - 1 - index).expand_as(reach)
        node, bonus = settle(tree, after, record, reach, position, scaled_law, random)
        return Verdict(*path_to(tree, node), bonus)

    def reach(self, tree: TokenTree, p: Tensor, record: Record) -> Tensor:
        """Returns r_0 .. r_g of each chain, 0 for padding: [B, N]."""
        ratio = ratios(tree, p, record)[:, 1:]
        # A cumulative sum of logarithms, clipped at 0 after every step.
        walk = ratio.where(tree.valid[:, 1:], 0).log().cumsum(1)
        reach = (walk - walk.clamp(min=0).cummax(1).values).exp().to(p.dtype)
        return torch.nn.functional.pad(reach, (1, 0), value=1)
