import torch

from specframe.plugin import CommittedText, Promise, Proposal


class Example:
    """The more often a token followed the last one in this text, the likelier it is drafted."""

    taps, promise = frozenset(), Promise()  # no features of the target; the recipe's tree decides the rest

    def __init__(self, *, smoothing: float = 0.1):
        self.smoothing = smoothing

    def bind(self, target):
        self.vocab = target.vocab_size

    def open(self, slots, room):
        self.text = CommittedText()

    def commit(self, committed):
        self.text.commit(committed)

    def keep(self, rows):
        self.text.keep(rows)

    def expand(self, frontier):
        tokens, count = self.text.tokens, self.text.count  # [B, C], [B]
        known = torch.arange(1, tokens.shape[1], device=tokens.device) < count[:, None]  # [B, C - 1]
        before, after = tokens[:, :-1].masked_fill(~known, -1)[:, None], tokens[:, None, 1:]  # [B, 1, C - 1]
        hits = (frontier.tree.tokens.gather(1, frontier.nodes)[:, :, None] == before).double()  # [B, F, C - 1]
        counts = hits.new_zeros(*hits.shape[:2], self.vocab).scatter_add(2, after.expand(hits.shape), hits)
        return Proposal((counts + self.smoothing).log()[:, :, None])  # logits [B, F, 1, V]

    def propose(self, root, tree, context):
        return tree.grow(self.expand, root, context)
