"""My rule: a verifier of one method, and a certificate of it and of a rule that breaks its promise."""

from pathlib import Path

import torch
from torch import Tensor

import specframe
from specframe.plugin import Laws, Needs, RandomSource, TokenTree, Verdict


class MyRule:
    """Draws the next token from the target's distribution, and accepts the child that is this token, if there is one.

    Whatever was drafted, each token that comes out was drawn from the target's own distribution.
    """

    lossless = True  # a promise, which the certificate puts to the test
    needs = Needs()  # any draft will do

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path of each row, and the token after it. B rows, N nodes."""
        node = torch.zeros_like(tree.tokens[:, 0])  # [B], the root
        going = torch.ones_like(node, dtype=torch.bool)  # rows that have accepted every level so far
        bonus, path = node, []
        for level in range(tree.levels + 1):
            drawn = self.choose(laws.after(node), going, random)
            bonus = torch.where(going, drawn, bonus)
            if level == tree.levels:
                break
            match = tree.valid & (tree.parent == node[:, None]) & (tree.tokens == bonus[:, None])  # [B, N]
            going = going & match.any(1)
            node = torch.where(going, match.byte().argmax(1), node)
            path.append(torch.where(going, node, -1))
        nodes = torch.stack(path, 1) if path else tree.tokens[:, :0]  # [B, levels]
        return Verdict(path=nodes, length=(nodes >= 0).sum(1), bonus=bonus)

    def choose(self, law: Tensor, going: Tensor, random: RandomSource) -> Tensor:
        """Draws a token for each row that goes on: laws [B, V] -> [B]. The others get token 0, without a draw."""
        certain = torch.zeros_like(law).index_fill(1, law.new_zeros(1, dtype=torch.int64), 1)
        return random.categorical(torch.where(going[:, None], law, certain))


class Sharper(MyRule):
    """Draws from sharpened distributions: more is accepted, but the text no longer has the target's distribution."""

    def choose(self, law: Tensor, going: Tensor, random: RandomSource) -> Tensor:
        """Draws from the squares of the probabilities."""
        return super().choose(law**2 / (law**2).sum(-1, keepdim=True), going, random)


def main() -> None:
    """Certifies both rules with the drafter and the tree of a recipe."""
    small = ["sampling.temperature=1.0", "tree.depth=2", "tree.width=2", "tree.nodes=5"]
    for rule in (MyRule, Sharper):
        overrides = [f"verifier.use={Path(__file__).resolve()}:{rule.__name__}", *small]
        certificate = specframe.certify("small/falcon", overrides=overrides, exact_only=True)
        distance = certificate.worst.comparison.tv
        verdict = "lossless" if certificate.lossless else f"not lossless, total variation {distance:.3f}"
        print(f"{rule.__name__}: {verdict}")


if __name__ == "__main__":
    main()
