"""Block verification: a chain judged as a whole, all positions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record
from specframe.components.verifiers.traversal import Traversal, draw_bonus, last_accepted, path_to, remaining
from specframe.kernel.interfaces import RandomSource
from specframe.kernel.types import ALL_DRAWS, TokenTree, Verdict


class Block:
    """Accepts the longest beginning of a chain that passes its own test, instead of stopping at the first failure.

    With P_i and q_i the target's and the drafter's law of token x_i, and r_i = min(1, r_(i-1) P_i(x_i) /
    q_i(x_i)), r_0 = 1: the first i tokens pass with probability S_i / (S_i + 1 - r_i), where
    S_i = sum [r_i P_(i+1) - q_(i+1)]+; all of them pass with r_g. The bonus is drawn from
    [r_i P_(i+1) - q_(i+1)]+, after the whole chain from the target's law. It emits more than Recursive as
    soon as a chain has two tokens, and never less.

    There is no loop at all, and one sweep over the laws. A tree with siblings is verified by Traversal, the
    same rule for trees; one without q is all `top`, and there the rule is Match's. Needs exact laws and
    fresh noise.

    Source: block verification accelerates speculative decoding (Sun et al., 2024, arXiv 2403.10444,
    algorithm 2).
    """

    lossless = True
    accepts = ALL_DRAWS
    needs_exact = True

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        if tree.q is None or tree.q_row is None:
            return Match().verify(tree, p, random)
        batch, count, vocab = p.shape
        index = torch.arange(count, device=p.device)
        if count == 1 or bool((tree.valid & (tree.parent != index - 1)).any()):
            return Traversal().verify(tree, p, random)
        slots = torch.arange(batch * count, device=p.device).view(batch, count)[:, 1:].flatten()
        drawn = Record(tree, tree.q.to(p.dtype), tree.q_row).laws(slots)  # of B * g slots
        above = p[:, :-1]  # [B, g, V]
        chance = drawn.chance.view(batch, count - 1)
        ratio = above.gather(2, drawn.token.view(batch, count - 1, 1))[..., 0].double() / chance
        walk = ratio.where(tree.valid[:, 1:], 0).log().cumsum(1)
        # r_i as a walk that is pushed back to 0 whenever it would rise above.
        reach = (walk - walk.clamp(min=0).cummax(1).values).exp().to(p.dtype)
        reach = torch.nn.functional.pad(reach, (1, 0), value=1)  # [B, N], r_0 .. r_g
        left = above * reach[:, :-1, None]
        mass = drawn.subtract_from(left.view(-1, vocab)).view(batch, count - 1)
        followed = torch.nn.functional.pad(tree.valid[:, 1:], (0, 1))  # [B, N], whether a slot comes after
        passed = torch.nn.functional.pad(remaining(reach[:, :-1], mass)[0], (0, 1))
        node = last_accepted(passed.where(followed, reach), -index.expand_as(reach), random)
        here = node[:, None, None].expand(batch, 1, vocab)
        law = p.gather(1, here)[:, 0]
        rest = left.gather(1, here.clamp(max=count - 2))[:, 0].where(followed.gather(1, node[:, None]), law)
        return Verdict(*path_to(tree, node), draw_bonus(rest, law, random))
