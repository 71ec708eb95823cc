"""My drafter: a table of which tokens follow which, made from a text, in a tree policy of the framework."""

import torch
from torch import Tensor

import specframe
from specframe.plugin import Committed, Context, Frontier, Promise, Proposal, Target, TokenTree, TreePolicy
from specframe.testing import check_drafter

TEXT = (
    "I like to cook soup in the morning. I like to read books in the evening, and I like to go to the park with my "
    "friends. Do you like to cook, too? What do you like to do in the garden?"
)


class Follows:
    """Drafts what followed the last token in a text: the more often, the likelier."""

    taps: frozenset[str] = frozenset()  # it reads no features of the target
    promise = Promise()  # it grows the recipe's tree

    def __init__(self, *, tokens: list[int]) -> None:  # keyword-only, typed: a recipe's options
        self.tokens = tokens

    def bind(self, target: Target) -> None:
        """Counts in a table [V, V] how often each token follows each other one."""
        counts = torch.full((target.vocab_size, target.vocab_size), 0.01)
        for token, following in zip(self.tokens[:-1], self.tokens[1:], strict=True):
            counts[token % len(counts), following % len(counts)] += 1  # a certificate's vocabulary is smaller
        self.logits = counts.log()

    def expand(self, frontier: Frontier) -> Proposal:
        """Returns the logits after nodes [B, F] of the tree so far: [B, F, 1, V], one level at a time."""
        tokens = frontier.tree.tokens.gather(1, frontier.nodes)
        return Proposal(self.logits[tokens][:, :, None])

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Lets the tree policy choose which nodes are drafted."""
        assert tree is not None  # by the promise
        return tree.grow(self.expand, root, context)

    # It remembers nothing about rows, so that there is nothing to do as they start, grow and end.

    def open(self, slots: int, room: int) -> None:
        """Begins a session."""

    def commit(self, committed: Committed) -> None:
        """Takes the committed tokens of each row."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows; the others have ended."""


def main() -> None:
    """Checks the drafter's contract, then decodes with it."""
    check_drafter(lambda: Follows(tokens=[3, 1, 2, 3, 1, 0, 3, 2]))
    print("contract of drafters: kept")

    sampling, run = {"max_new_tokens": 48}, {"chat": True}
    plain = specframe.compose(target="zoo://talk-7m", sampling=sampling, run=run)
    drafted = specframe.compose(
        target=plain.parts.target,
        drafter=Follows(tokens=plain.tokenizer.encode(TEXT)),
        tree={"use": "dynamic", "depth": 3, "width": 3, "nodes": 12},
        sampling=sampling,
        run=run,
        tokenizer=plain.tokenizer,
    )
    wanted, found = (pipeline.generate("What do you like to do?") for pipeline in (plain, drafted))
    print(f"same text as plain decoding: {'yes' if found.tokens == wanted.tokens else 'no'}")
    print(f"tokens per forward pass: {found.acceptance.tau:.2f}")


if __name__ == "__main__":
    main()
