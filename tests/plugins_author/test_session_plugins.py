"""Plugins that need the session: what is observed at every node, and how many rows are live. Public API alone."""

import torch

import specframe
from specframe import Request, Sampling, Session
from specframe.components.drafters.model import ModelDrafter
from specframe.components.verifiers.recursive import Recursive
from specframe.plugin import Cycle, Draw, Frontier, Growth, Promise, TokenTree
from specframe.testing import check_drafter, compare_cycle, tiny_target

# --- a drafter that recycles the target's choices at every scored node (Token Recycling) --------------------


class Recycling:
    """Drafts the target's latest top choices: `width` below the root, then the best child of each, `depth` levels."""

    taps = frozenset()

    def __init__(self, *, width: int = 3, depth: int = 3):
        self.width, self.depth = width, depth
        self.promise = Promise(frozenset({Draw.TOP}), 1 + width * depth, depth)

    def bind(self, target):
        self.vocab = target.vocab_size

    def open(self, slots, room):
        self.best = torch.zeros(0, self.vocab, min(8, self.vocab), dtype=torch.int64) - 1  # [B, V, 8]

    def commit(self, committed):
        if committed.prompt is not None:
            new = self.best.new_full((len(committed.count), *self.best.shape[1:]), -1)
            self.best = torch.cat([self.best, new])

    def keep(self, rows):
        self.best = self.best[rows]

    def observe(self, cycle: Cycle):
        tree, logits = cycle.draft, cycle.scores.logits
        best = logits.topk(self.best.shape[-1]).indices  # [B, N, 8]
        rows = torch.arange(len(best)) + len(self.best) - len(best)  # an admission's rows are the last
        for node in range(best.shape[1]):  # in order, so that the deepest of equal tokens counts
            seen = tree.valid[:, node]
            self.best[rows[seen], tree.tokens[seen, node]] = best[seen, node]

    def propose(self, root, tree, context):
        rows = torch.arange(len(root))
        level = self.best[rows, root, : self.width]  # [B, W]
        tokens, parent = [root[:, None]], [torch.full_like(root[:, None], -1)]
        valid = [torch.ones_like(root[:, None], dtype=torch.bool)]
        above, real = torch.zeros_like(level), level >= 0
        for depth in range(self.depth):
            tokens.append(level.clamp(min=0))
            parent.append(above)
            valid.append(real)
            above = torch.arange(self.width).expand_as(level) + 1 + depth * self.width
            level = self.best[rows[:, None], level.clamp(min=0), 0]
            real = real & (level >= 0)
        ids = torch.cat(tokens, 1)
        return TokenTree(ids, torch.cat(parent, 1), torch.cat(valid, 1), torch.zeros_like(ids), self.depth)


def test_a_drafter_learns_from_every_scored_node():
    check_drafter(Recycling)
    model = tiny_target(vocab=10, dtype=torch.float64).model
    pipeline = specframe.compose(target=model, drafter=Recycling(), sampling={"max_new_tokens": 60})
    result = pipeline.generate([[1, 2, 3], [4, 5]])
    assert result.tokens == pipeline.plain().generate([[1, 2, 3], [4, 5]]).tokens
    assert result.acceptance.tau > 1.3


# --- a tree policy that drafts less when more rows are live --------------------------------------------------


class Shared:
    """A sampled chain; all rows together draft `total` tokens."""

    def __init__(self, *, total: int = 6):
        self.total = total
        self.promise = Promise(frozenset({Draw.IID}), total + 1, total, fixed_sibling_count=True)

    def grow(self, expand, root, context):
        growth, node = Growth(root), torch.zeros_like(root)[:, None]
        depth = max(1, self.total // len(root))
        while growth.levels < depth:
            logits = expand(Frontier(growth.tree, node)).whole.logits  # [B, 1, K, V]
            for level in logits[:, :, : depth - growth.levels].unbind(2):
                law = context.sampling.law(level, growth.tree, node)  # [B, 1, V]
                rows = torch.full_like(node, growth.record(law))
                growth.add(context.random.categorical(law), node, Draw.IID, q_rows=rows)
                node = torch.full_like(node, growth.levels)
        return growth.tree


def test_a_policy_sees_how_many_rows_are_live():
    model = tiny_target(vocab=10, dtype=torch.float64).model
    small = ModelDrafter.from_model(tiny_target(vocab=10, size=8, dtype=torch.float64).model)
    parts = specframe.compose(target=model, drafter=small, tree=Shared(), verifier="recursive").parts
    requests = [
        Request(tokens=[1, 2, row], sampling=Sampling(temperature=1.0), seed=row, max_new_tokens=6 + 20 * row)
        for row in range(3)
    ]
    seen = set()
    Session(parts, 3, 100).run(requests, lambda cycle: seen.add(tuple(cycle.draft.tokens.shape)))
    assert seen == {(3, 3), (2, 4), (1, 7)}


def test_its_drafts_keep_the_targets_law():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]], dtype=torch.float64)
    for rows in (1, 64):  # branches in a batch change its drafts: then they are enumerated one at a time
        found = compare_cycle(Shared(total=2), Recursive(), p, p.flip(0), rows=rows)
        assert found.enumeration.exhausted and found.tv < 1e-12
