import torch

from specframe import Proposal


class Example:
    """The more often a token followed the last one in this text, the likelier it is drafted."""

    taps, draws, nodes = frozenset(), None, None  # no features of the target; the recipe's tree decides the rest

    def __init__(self, *, smoothing: float = 0.1):
        self.smoothing = smoothing

    def bind(self, target):
        self.vocab = target.vocab_size

    def commit(self, news):
        first = self.root if news.prompt is None else news.prompt.tokens[:, 0]
        before = torch.cat([first[:, None], news.tokens[:, :-1]], 1)  # [B, M]
        padding = torch.arange(before.shape[1], device=before.device) >= news.count[:, None]
        pairs = torch.stack([before.masked_fill(padding, -1), news.tokens])  # [2, B, M]
        self.pairs = pairs if news.prompt is not None else torch.cat([self.pairs, pairs], 2)
        self.root = news.root

    def expand(self, frontier):
        before, after = self.pairs[:, :, None]  # [B, 1, C]
        hits = (frontier.tree.tokens.gather(1, frontier.nodes)[:, :, None] == before).double()  # [B, F, C]
        counts = hits.new_zeros(*hits.shape[:2], self.vocab).scatter_add(2, after.expand(hits.shape), hits)
        return Proposal((counts + self.smoothing).log()[:, :, None])  # logits [B, F, 1, V]

    def propose(self, root, tree, sampling, random):
        return tree.grow(self.expand, root, sampling, random)

    def keep(self, rows):
        self.pairs, self.root = self.pairs[:, rows], self.root[rows]
