"""Block verification: a chain judged as a whole, all positions at once."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Slots
from specframe.components.verifiers.traversal import Traversal, draw_bonus, last_accepted, path_to, remaining
from specframe.kernel.interfaces import RandomSource
from specframe.kernel.types import ALL_DRAWS, Draw, TokenTree, Verdict


class Block:
    """Accepts the longest beginning of a chain that passes its own test, instead of stopping at the first failure.

    With P_i and q_i the target's and the drafter's law of token x_i, and r_i = min(1, r_(i-1) P_i(x_i) /
    q_i(x_i)), r_0 = 1: the first i tokens pass with probability S_i / (S_i + 1 - r_i), where
    S_i = sum [r_i P_(i+1) - q_(i+1)]+; all of them pass with r_g. The bonus is drawn from
    [r_i P_(i+1) - q_(i+1)]+, after the whole chain from the target's law. It emits more than Recursive as
    soon as a chain has two tokens, and never less.

    A test passes with r_i at most, and that takes one entry of each law. So the longest beginning that passes
    with r_i is drawn first, and only its S_i is summed up: it stays with what S_i leaves of r_i, or else the next
    one is drawn. Each of these steps costs as much as one of Recursive, and a few are enough.

    A tree with siblings is verified by Traversal, the same rule for trees; one without q is all `top`, and there
    the rule is Match's. Needs exact laws and fresh noise.

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
        first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin
        reach = self.reach(tree, p, tree.q, tree.q_row)  # [B, N]
        laws, slots = p.reshape(batch * count, vocab), Slots(tree, tree.q.to(p.dtype), tree.q_row)
        nobody = torch.zeros_like(tree.valid)
        order = -index.expand_as(reach)
        node = torch.full_like(first, count)  # [B], the shortest beginning that has not passed, by its last node
        undecided = torch.ones_like(first, dtype=torch.bool)
        bonus = torch.zeros_like(first)
        # In a certificate a draw is a fork: a row that needs none draws from a law of one option.
        sure = (torch.arange(vocab, device=p.device) == 0).to(p.dtype)
        while True:  # a row draws in its own steps, whatever its neighbours need
            chance = torch.where(undecided[:, None], reach.where(index < node[:, None], 0), (index == 0).to(p.dtype))
            node = last_accepted(chance, order, random).where(undecided, node)
            law = laws.index_select(0, first + node)
            slot = (node + 1).clamp(max=count - 1)
            followed = tree.valid.gather(1, slot[:, None])[:, 0] & (slot > node)
            _, q = slots.law(slot, nobody)
            here = reach.gather(1, node[:, None])  # [B, 1]
            left = (law * here - q).clamp(min=0)  # [B, V]
            mass, limit = left.sum(1), here[:, 0].clamp(min=torch.finfo(p.dtype).tiny)
            stays = remaining(limit, mass)[0] / limit  # 0 / 0 is 1: for the root, of which nothing is left by rounding
            stays = stays.where(followed & (node > 0), 1).clamp(max=1)
            passed = undecided & random.bernoulli(stays * undecided)
            rest = torch.where(passed[:, None], torch.where(followed[:, None], left, law), sure)
            bonus = draw_bonus(rest, law, random).where(passed, bonus)
            undecided = undecided & ~passed
            if not undecided.any():
                break
        return Verdict(*path_to(tree, node), bonus)

    def reach(self, tree: TokenTree, p: Tensor, q: Tensor, q_row: Tensor) -> Tensor:
        """r_0 .. r_g of chains, 0 where there is no node: [B, N]."""
        tokens = tree.tokens.where(tree.valid, 0)[:, 1:]  # [B, g]
        rows = torch.arange(len(tokens), device=p.device)[:, None]
        drawn = q[rows, q_row[:, 1:].clamp(0, q.shape[1] - 1), tokens]
        given = (tree.draw[:, 1:] == Draw.TOP) | (drawn <= 0)  # 0 cannot be: then one-hot is exact
        ratio = p[:, :-1].gather(2, tokens[..., None])[..., 0].double() / drawn.double().masked_fill(given, 1)
        # A walk that is pushed back to 0 whenever it would rise above.
        walk = ratio.where(tree.valid[:, 1:], 0).log().cumsum(1)
        reach = (walk - walk.clamp(min=0).cummax(1).values).exp().to(p.dtype)
        return torch.nn.functional.pad(reach, (1, 0), value=1)
