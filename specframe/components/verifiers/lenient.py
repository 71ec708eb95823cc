"""Rejection sampling with lenience: lossy, with a known bound on each token's probability."""

from __future__ import annotations

from dataclasses import replace

import torch

from specframe.components.verifiers.record import Record
from specframe.components.verifiers.recursive import SiblingSlots, walk
from specframe.kernel.capabilities import Needs
from specframe.kernel.errors import InputError
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import TokenTree, Verdict


class Lenient:
    """`recursive` with lenience: a token is accepted with probability min(1, p / (l q)). Lossy.

    A smaller l accepts more tokens and moves the output further from the target's law. At each single position no
    token has more than 1 / l times its probability under the target. A token of probability 0 is never accepted, so
    nothing changes at temperature 0. After a rejection the token is drawn from norm([p - q]+), as without lenience,
    which stays closer to the target's law than norm([p - l q]+). Siblings and `top` draws, whose q is one-hot, are
    judged as by `recursive`.

    Sources: Leviathan et al. (2023), Appendix A.5, where l is the lenience; DistillSpec (Zhou et al. 2023), where it
    is epsilon.

    Args:
        lenience: l, above 0 and at most 1; 1 is `recursive`, and lossless.
    """

    lossless = False
    needs = Needs(exact=True)

    def __init__(self, *, lenience: float = 0.5) -> None:
        if not 0 < lenience <= 1:
            raise InputError(f"lenient: lenience must be above 0 and at most 1, not {lenience:g}")
        self.lenience = lenience

    def strict(self) -> Lenient:
        """Returns the lossless rule, with lenience 1."""
        return Lenient(lenience=1.0)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        if tree.q is None:  # all `top`
            tree = replace(tree, q=p.new_zeros(len(p), 1, p.shape[2]), q_row=torch.zeros_like(tree.parent))
        return walk(tree, p, SiblingSlots(tree, Record(tree, p.shape[-1], p.dtype)), random, self.lenience)
