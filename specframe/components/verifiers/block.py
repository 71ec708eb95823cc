"""Block verification: a chain judged as a whole, all positions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.record import Record, TreeSlots
from specframe.components.verifiers.traversal import Traversal, path_to, ratios, settle
from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import TokenTree, Verdict


class Block:
    """Accepts the longest beginning of a chain that passes its own test, instead of stopping at the first failure.

    With P_i and q_i the target's and the drafter's law of token x_i, and r_i = min(1, r_(i-1) P_i(x_i) /
    q_i(x_i)), r_0 = 1: the first i tokens pass with probability S_i / (S_i + 1 - r_i), where
    S_i = sum [r_i P_(i+1) - q_(i+1)]+; all of them pass with r_g. The bonus is drawn from
    [r_i P_(i+1) - q_(i+1)]+, after the whole chain from the target's law. It emits more than Recursive as
    soon as a chain has two tokens, and never less.

    A test passes with r_i at most, and that takes one entry of each law. So the longest beginning that passes with r_i
    is drawn first, and only its S_i is summed up: it is kept with the probability that S_i leaves of r_i; otherwise the
    next one is drawn. Each of these steps costs as much as one of Recursive, and a few are enough.

    A tree with siblings is verified by Traversal, the same rule for trees, and so is one without q: it is all `top`,
    and there the rule is Match's. Needs exact laws and fresh noise.

    Source: block verification accelerates speculative decoding (Sun et al., 2024, arXiv 2403.10444,
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
        """r_0 .. r_g of chains, 0 where there is no node: [B, N]."""
        ratio = ratios(tree, p, record)[:, 1:]
        # A walk that is pushed back to 0 whenever it would rise above.
        walk = ratio.where(tree.valid[:, 1:], 0).log().cumsum(1)
        reach = (walk - walk.clamp(min=0).cummax(1).values).exp().to(p.dtype)
        return torch.nn.functional.pad(reach, (1, 0), value=1)
