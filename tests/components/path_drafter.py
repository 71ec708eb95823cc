"""Drafters out of thin air: logits that are a function of a node's path, and their slow restatements."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from specframe.kernel.interfaces import TreePolicy, Verifier
from specframe.kernel.types import Frontier, Proposal, TokenTree
from specframe.testing.cycles import compare_cycle
from specframe.testing.verifiers import law_pairs

Path = tuple[int, ...]


def path(tree: TokenTree, row: int, node: int) -> Path:
    """The tokens from the root to the node, both included."""
    tokens: list[int] = []
    while node >= 0:
        tokens.insert(0, int(tree.tokens[row, node]))
        node = int(tree.parent[row, node])
    return tuple(tokens)


class PathDrafter:
    """Expands any frontier, `block` levels at a time, and holds the policy to the frontier's contract."""

    def __init__(self, vocab: int, block: int = 1, salt: int = 0, step: float = 0.0) -> None:
        self.vocab = vocab
        self.block = block
        self.salt = salt
        self.step = step  # logits are rounded to multiples of it: ties
        self.calls = 0
        self._known: dict[tuple[Path, int], Tensor] = {}
        self._expanded: list[set[Path]] = []
        self._seen: TokenTree | None = None

    def raw(self, above: Path, level: int) -> Tensor:
        """The logits [V] of the given level (from 0) below a frontier node with this path."""
        if (above, level) not in self._known:
            seed = zlib.crc32(repr((self.salt, above, level)).encode())
            generator = torch.Generator().manual_seed(seed)
            logits = 3 * torch.randn(self.vocab, generator=generator, dtype=torch.float64)
            step = self.step
            self._known[above, level] = (logits / step).round() * step if step else logits
        return self._known[above, level]

    def at(self, tokens: Path) -> Tensor:
        """The logits [V] after a node with this path, root first."""
        depth = len(tokens) - 1
        start = depth - depth % self.block
        return self.raw(tokens[: start + 1], depth - start)

    def expand(self, frontier: Frontier) -> Proposal:
        """The proposal, after checking that the policy keeps its side of the contract."""
        tree, nodes = frontier.tree, frontier.nodes
        batch = len(nodes)
        paths = [[path(tree, b, n) for n in row] for b, row in enumerate(nodes.tolist())]
        if self.calls == 0:
            assert nodes.tolist() == [[0]] * batch
            self._expanded = [set() for _ in range(batch)]
        else:
            before = self._seen.tokens
            assert torch.equal(tree.tokens[:, : before.shape[1]], before), "indices moved"
            for b, row in enumerate(paths):
                assert all(p[: -self.block] in self._expanded[b] for p in row)
        for b, row in enumerate(paths):
            self._expanded[b] |= set(row)
        self._seen = tree
        self.calls += 1
        logits = [[torch.stack([self.raw(p, level) for level in range(self.block)]) for p in row] for row in paths]
        return Proposal(torch.stack([torch.stack(row) for row in logits]))


def path_drafters(vocab: int = 6, block: int = 3, steps: Sequence[float] = (0.0,)) -> st.SearchStrategy[PathDrafter]:
    """Any drafter with at most `vocab` tokens and at most `block` levels a forward pass."""
    return st.builds(
        PathDrafter, st.integers(2, vocab), st.integers(1, block), st.integers(0, 999), st.sampled_from(steps)
    )


def literal_dynamic(drafter: PathDrafter, root: int, depth: int, width: int, nodes: int) -> tuple[list[int], list[int]]:
    """EAGLE-2's tree of one row, in plain Python: tokens and parents."""
    width = min(width, nodes)  # as Dynamic has it: which of two tied tokens topk takes depends on how many it takes
    born: list[tuple[float, Path]] = []
    beam: list[tuple[float, Path]] = [(0.0, (root,))]
    for _ in range(depth):
        level = []
        for value, above in beam:
            gains = drafter.at(above).log_softmax(-1)
            best = gains.topk(min(width, drafter.vocab))
            level += [
                (value + g, (*above, t)) for g, t in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
        born += level
        beam = sorted(level, key=lambda candidate: -candidate[0])[:width]  # stable: first come, first kept
    ranked = sorted(range(len(born)), key=lambda c: -born[c][0])[:nodes]
    chosen = [(root,), *(born[c][1] for c in sorted(ranked))]
    return [p[-1] for p in chosen], [-1, *(chosen.index(p[:-1]) for p in chosen[1:])]


class Ranked:
    """Not random: draws the most probable tokens, so that a test knows what must come out."""

    def categorical(self, probs: Tensor) -> Tensor:
        """The most probable index."""
        return probs.argmax(-1)

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """The k most probable indices, -1 where the probability is 0."""
        law = torch.nn.functional.pad(probs, (0, max(0, k - probs.shape[-1])))
        values, indices = law.topk(k)
        return indices.masked_fill(values == 0, -1)

    def bernoulli(self, p: Tensor) -> Tensor:
        """Never asked for while drafting."""
        raise AssertionError(f"a policy tossed {math.prod(p.shape)} coins")


def assert_sound(tree: TokenTree, levels: int) -> None:
    """Holds a draft to what TokenTree promises."""
    batch, count = tree.tokens.shape
    for part in (tree.parent, tree.valid, tree.draw):
        assert part.shape == (batch, count)
    assert tree.tokens.dtype == tree.parent.dtype == tree.draw.dtype == torch.int64
    assert (tree.parent[:, 0] == -1).all() and tree.valid[:, 0].all()
    assert (tree.parent[:, 1:] >= 0).all()
    assert (tree.parent < torch.arange(count)).all()
    assert (tree.tokens >= 0).all()
    above = tree.valid.gather(1, tree.parent.clamp(min=0))
    assert (above | ~tree.valid).all(), "a valid node below an invalid one"
    assert tree.levels == levels
    assert int(tree.depth.max()) <= levels


class Keyed:
    """Draws that are a function of the law they are drawn from: the order of drawing makes no difference."""

    def __init__(self, salt: int) -> None:
        self.salt = salt

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law."""
        flat = probs.double().flatten(0, -2)
        picks = [self._pick([(i, round(x, 9)) for i, x in enumerate(row) if x > 0]) for row in flat.tolist()]
        return torch.tensor(picks).reshape(probs.shape[:-1])

    def _pick(self, options: list[tuple[int, float]]) -> int:
        share = zlib.crc32(repr((self.salt, options)).encode()) / 2**32
        total = 0.0
        for index, mass in options:
            total += mass
            if share < total:
                return index
        return options[-1][0]


def draw(random: object, weights: list[float]) -> int:
    law = torch.tensor([weights], dtype=torch.float64)
    return int(random.categorical(law / law.sum()))  # type: ignore[attr-defined]


def assert_lossless_cycles(policy: Callable[[], TreePolicy], verifier: Callable[[], Verifier]) -> None:
    """Single cycles of a tree policy and a verifier, enumerated over three pairs of laws, keep the target's."""
    pairs = list(law_pairs())
    for p, q in (pairs[0], pairs[3], pairs[4]):
        comparison = compare_cycle(policy(), verifier(), p, q)
        assert comparison.enumeration.exhausted and comparison.tv < 1e-12
