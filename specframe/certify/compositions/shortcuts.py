"""Checks at temperature 0, of a session and its verifier, and of a native search, which an enumeration does not see.

At temperature 0 an enumeration sees one text, and a session does not ask the rule where all rows are greedy. Here every
node of a tree that the composition drafts is made the end of the accepted path once.

An enumeration runs on a model in float64, which native code does not take. So the recipe's drafter and tree are run
once more, on a model in float32, where every draft of the native search must be that of the search level by level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specframe.certify.compositions.controls import Around
from specframe.certify.compositions.counterexample import Counterexample, Place, branch_trace
from specframe.certify.compositions.emission import Emission
from specframe.certify.compositions.guided import Deepest
from specframe.certify.compositions.small import SmallComposition
from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.recording import WatchedTree
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.inspect.detokenise import Wording
from specframe.inspect.trace import traced_cycle
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import TreePolicy, Verifier
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Committed, Context, Cycle, Expand, Scores, TokenTree, Verdict
from specframe.neural import NeuralDrafter
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom

VOCAB, KEPT, SIZE, LAYERS = 60, 40, 64, 8
"""Shape of the model that is searched natively: the native code reads 32 weights at a time."""
SEARCHES, CONTEXT = 4, 1024
"""Cycles of two rows that a search drafts in, and the most tokens of a row."""
FIELDS = {
    "tokens": "tokens",
    "parent": "parents",
    "valid": "valid nodes",
    "draw": "kinds of draws",
    "depth": "depths",
    "ancestors": "ancestors",
}
"""The fields of a tree that are compared, in words."""

RULE = "the verifier's `verify`"
Judge = Callable[[TokenTree, Tensor], Verdict]
"""A tree and the target's argmax after its nodes, [B, N], make a verdict."""


@dataclass(frozen=True)
class Astray:
    """A verdict at temperature 0 that emits another token than the target's."""

    tree: TokenTree  # of one row
    verdict: Verdict
    argmax: Tensor  # [1, N] int64, the target's token after each node
    emitted: list[int]
    due: list[int]

    def __str__(self) -> str:
        return f"{self.emitted} is emitted where {self.due} is due"

    def example(self, case: str, vocab: int, place: Place) -> Counterexample:
        """The verdict as a counter-example, whose token was decided at a place."""
        law = one_hot(self.argmax, vocab).double()  # [1, N, V]
        cycle = Cycle(self.tree, Scores(law, {}), self.verdict, Committed.of(self.verdict, self.tree, {}))
        root = int(self.tree.tokens[0, 0])
        traced = traced_cycle(1, cycle, law[0], lambda path: None, len(self.emitted), Wording(None), [root])
        wrong = next(i for i, token in enumerate(self.emitted) if self.due[i : i + 1] != [token])
        return Counterexample(
            case=case,
            before=tuple(self.emitted[:wrong]),
            token=self.emitted[wrong],
            wanted=0.0,
            got=1.0,
            node=(0, *traced.path)[wrong],
            draws=(),
            decided=place,
            trace=branch_trace(case, [root], 0.0, [traced]),
        )


def check_shortcuts(verifier: Verifier | None, trees: Iterable[TokenTree], vocab: int) -> dict[str, Astray]:
    """The wrong tokens at temperature 0 of a session and of its lossless verifier, by their words; empty: none.

    Each tree has one row. A session follows the argmax itself where all rows are greedy, and asks the rule where greedy
    rows stand among sampled ones: both must emit the target's tokens, whichever these are. A rule that follows its
    session is asked within one: see `probe_session`.
    """
    judges: dict[str, Judge] = {"the session's `follow_argmax`": follow_argmax}
    if verifier is not None:
        judges[RULE] = lambda tree, argmax: _on_sure_laws(verifier, tree, argmax, vocab)
    found: dict[str, Astray] = {}
    for tree in trees:
        argmax = _leading(tree, vocab)  # [R, N]
        rows = tree.take(torch.zeros(len(argmax), dtype=torch.int64))
        for name, judge in judges.items():
            if wrong := _astray(judge, rows, argmax):
                found.setdefault(f"{name} at temperature 0: {wrong}", wrong)
    return found


@dataclass(frozen=True)
class ShortcutProbe(Around):
    """A rule that follows its session; in every cycle a copy of it judges by laws that are one-hot.

    In each row another node is the end of the accepted path, by another token.
    """

    vocab: int
    found: dict[str, Astray]
    """Dictionary that gets what is wrong, by its words."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The inner verdict."""
        if tree.levels:
            copied = deepcopy(self.inner)
            count = tree.tokens.shape[1]
            ends = [(row % count, row // count % self.vocab) for row in range(len(tree.tokens))]
            argmax = torch.tensor([_row(tree, row, *end, end[1] + 1, self.vocab) for row, end in enumerate(ends)])
            if wrong := _astray(lambda rows, most: _on_sure_laws(copied, rows, most, self.vocab), tree, argmax):
                self.found.setdefault(f"{RULE} at temperature 0: {wrong}", wrong)
        return self.inner.verify(tree, laws, random)


def probe_session(emission: Emission, vocab: int) -> None:
    """Decodes an emission whose verifier is a ShortcutProbe in as many equal rows as there are nodes and tokens."""
    parts = emission.parts()
    rows = parts.nodes * vocab
    request = Request(tokens=emission.prompt, sampling=emission.sampling, max_new_tokens=emission.length)
    Session(parts, rows, len(emission.prompt) + emission.length + parts.nodes).run([request] * rows)


def _on_sure_laws(verifier: Verifier, tree: TokenTree, argmax: Tensor, vocab: int) -> Verdict:
    """A rule's verdict for laws that are one-hot at argmax [B, N]."""
    laws = AllLaws(one_hot(argmax, vocab).double())
    return verifier.verify(tree, laws, SeededRandom(0, len(argmax)).verify)


def _astray(judge: Judge, rows: TokenTree, argmax: Tensor) -> Astray | None:
    """A row in which a judge emits another token than the target's, argmax [R, N]; None where there is none."""
    verdict = judge(rows, argmax)
    nodes = verdict.slots  # [R, A + 1], -1 padded
    real = nodes >= 0
    due = argmax.gather(1, nodes.clamp(min=0)).where(real, -1)
    emitted = verdict.emitted(rows).where(real, -1)
    apart = rows.parent.gather(1, nodes[:, 1:].clamp(min=0)) != nodes[:, :-1]
    wrong = ((emitted != due) | torch.nn.functional.pad(apart & real[:, 1:], (1, 0))).any(1).nonzero()[:, 0]
    if not len(wrong):
        return None
    row = wrong[:1]
    pair = ([token for token in found[int(row)].tolist() if token >= 0] for found in (emitted, due))
    one = Verdict(verdict.path[row], verdict.length[row], verdict.bonus[row])
    return Astray(rows.take(row), one, argmax[row], *pair)


def _leading(tree: TokenTree, vocab: int) -> Tensor:
    """The target's tokens after the nodes of a tree [1, N], such that paths end at each node by each token: [R, N]."""
    nodes = [node for node, valid in enumerate(tree.valid[0].tolist()) if valid]
    choices = product(nodes, range(vocab), range(vocab))
    return torch.tensor([_row(tree, 0, end, bonus, fill, vocab) for end, bonus, fill in choices])


def _row(tree: TokenTree, row: int, end: int, bonus: int, fill: int, vocab: int) -> list[int]:
    """The target's tokens after a row's nodes, such that a path ends at a node by a token; `fill` shifts all others."""
    parents, tokens = tree.parent[row].tolist(), tree.tokens[row].tolist()
    found = [(node + fill) % vocab for node in range(len(tokens))]
    found[end], node = bonus, end
    while (parent := parents[node]) >= 0:
        found[parent], node = tokens[node], parent
    return found


class HeldTree(WatchedTree):
    """A tree policy whose native drafts are grown level by level, too."""

    def __init__(self, policy: TreePolicy) -> None:
        super().__init__(policy, lambda expand: expand, lambda search: search)
        self.differing: dict[str, None] = {}
        """Fields of a tree in which a draft differed."""

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The policy's tree."""
        found = super().grow(expand, root, context)
        if context.search is not None:
            wanted = super().grow(expand, root, replace(context, search=None))
            self.differing |= dict.fromkeys(_differing(found, wanted))
        return found


def check_search(small: SmallComposition) -> list[str]:
    """The differences between a drafter's native search and the one level by level, in words; empty if there are none.

    Drafters in floats, and those of other targets than Llama's kind, have no native search here.
    """
    drafter, policy = small.make_drafter(VOCAB), small.make_tree()
    if policy is None or not isinstance(drafter, NeuralDrafter) or drafter.quantize is None:
        return []
    head = small.drafter.build().head
    if isinstance(head, Trimmed):
        drafter.head = Trimmed(keep=KEPT, quantize=head.quantize)
    target = HFTarget.from_model(_model())
    try:
        drafter.bind(target)
    except SpecframeError:
        return []
    policies = HeldTree(policy)
    parts = Parts(target, drafter, policies, Deepest())
    prompts = [[*range(1, 8)], [*range(9, 12)]]
    length = min(SEARCHES * parts.nodes, CONTEXT - len(prompts[0]) - parts.nodes)
    session = Session(parts, len(prompts), len(prompts[0]) + length + parts.nodes)
    for prompt in prompts:
        session.admit([Request(tokens=prompt, max_new_tokens=length)])
        for _ in range(SEARCHES // len(prompts)):
            session.step()
    return [f"the drafter's native search: other {FIELDS[name]} than level by level" for name in policies.differing]


@lru_cache(maxsize=1)
def _model() -> Any:
    model = random_model(vocab=VOCAB, size=SIZE, layers=LAYERS).float()
    model.config.max_position_embeddings = CONTEXT
    return model


def _differing(found: TokenTree, wanted: TokenTree) -> list[str]:
    """The fields in which a draft differs from the reference."""
    return [name for name in FIELDS if not torch.equal(getattr(found, name), getattr(wanted, name))]
