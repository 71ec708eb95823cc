"""First layers run over a draft's nodes, verification that resumes above them, and replay of committed tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specframe.kernel.layers import ChosenSlots, LayerChoice
from specframe.kernel.types import TokenTree, Verdict
from specframe.native.visibility import Listed, Mask
from specframe.neural.forward import EVERY, NONE, Features, HookedForward, Output, Pass, Run, is_query
from specframe.neural.slot_map import SlotMap


@dataclass(frozen=True)
class Drafted:
    """Features that the first layers computed for a draft's nodes; node i's cache slot is i slots after the root's."""

    chosen: LayerChoice
    tree: TokenTree
    features: Mapping[str, Tensor]  # tap -> [B, N, D]; undefined at nodes that these layers did not run over
    known: Tensor  # [B, N] bool, nodes that these layers ran over

    @classmethod
    def put(
        cls, before: Drafted | None, chosen: LayerChoice, tree: TokenTree, nodes: Tensor, features: Mapping[str, Tensor]
    ) -> Drafted:
        """Adds features [B, F, D] of nodes [B, F] to the known ones and matches the result to the current tree."""
        batch, count = tree.tokens.shape
        rows = torch.arange(batch, device=nodes.device)[:, None]
        known = torch.zeros(batch, count, dtype=torch.bool, device=nodes.device)
        made = {}
        goes_on = before is not None and before.chosen == chosen and tree.levels > 0
        if before is not None and goes_on:
            known[:, : before.known.shape[1]] = before.known
        known[rows, nodes] = True
        for tap, values in features.items():
            if tap == "last":
                continue
            made[tap] = values.new_zeros(batch, count, values.shape[-1])
            if before is not None and goes_on:
                made[tap][:, : before.known.shape[1]] = before.features[tap]
            made[tap][rows, nodes] = values
        return cls(chosen, tree, made, known)

    def places(self, tree: TokenTree) -> Tensor:
        """Returns, for each node of a tree, the recorded node with the same path, [B, N]; -1 if there is none."""
        batch, count = tree.tokens.shape
        mine = self.tree
        places = torch.full((batch, count), -1, dtype=torch.int64, device=tree.tokens.device)
        places[:, 0] = torch.where(self.known[:, 0] & (mine.tokens[:, 0] == tree.tokens[:, 0]), 0, -1)
        for _ in range(tree.levels):
            parents = places.gather(1, tree.parent.clamp(min=0))  # [B, N]
            same = mine.parent[:, None] == parents[..., None]  # [B, N, M]
            same &= mine.tokens[:, None] == tree.tokens[..., None]
            same &= self.known[:, None] & ((parents >= 0) & (tree.parent >= 0) & tree.valid)[..., None]
            found = torch.where(same.any(-1), same.int().argmax(-1), -1)
            places[:, 1:] = found[:, 1:]
        return places


def score(
    run: Run, taps: frozenset[str], tree: TokenTree, rows: SlotMap, context: int, drafted: Drafted | None
) -> tuple[Tensor, Features]:
    """Returns the logits [B, N, V] and features of a tree's nodes, resuming above layers that ran over the draft.

    If a draft was run, its layers run over the remaining nodes and the other layers over all nodes. The result may
    contain more taps than requested.
    """
    logits, features = _run(run, tree, _asked(tree, rows, context, taps), rows, drafted)
    assert logits is not None
    return logits, features


def choose(
    run: HookedForward, taps: frozenset[str], tree: TokenTree, rows: SlotMap, context: int, drafted: Drafted | None
) -> tuple[Features, Verdict | None]:
    """Returns the features with `best` and `last` but without logits, and the verdict on `best` if it is known."""
    greedy = run.inner.greedy
    if greedy is not None and drafted is None and rows.offset is None and not any(map(is_query, taps)):
        return run.between(greedy, tree, rows, taps, context)
    return _run(run, tree, _asked(tree, rows, context, taps | {"best", "last"}, NONE), rows, drafted)[1], None


def _asked(tree: TokenTree, rows: SlotMap, context: int, taps: frozenset[str], keep: slice = EVERY) -> Pass:
    positions = positions_of(rows, tree, context)
    return Pass(
        tree.tokens, positions, rows.tree(tree), taps=taps, rounded=True, keep=keep, places=rows.places(positions)
    )


def _run(run: Run, tree: TokenTree, asked: Pass, rows: SlotMap, drafted: Drafted | None) -> Output:
    if drafted is None:
        return run(asked, rows.memory)
    chosen = drafted.chosen.rest
    found = _resumed(run, drafted, asked, tree, rows)
    upper_taps = frozenset(
        tap for tap in asked.taps if "." not in tap or int(tap.partition(".")[2]) >= chosen.active_layers[0]
    )
    entry = found[f"layer.{drafted.chosen.whole - 1}"]
    logits, features = run(replace(asked, states=entry, layers=chosen, taps=upper_taps), rows.memory)
    return logits, {**found, **features}


def run_over(
    run: Run,
    taps: frozenset[str],
    chosen: LayerChoice,
    tree: TokenTree,
    nodes: Tensor,
    rows: SlotMap,
    context: int,
    slots: ChosenSlots | None = None,
) -> Features:
    """Returns the features [B, F, D] of nodes [B, F] of a tree after the chosen layers alone.

    These are `last`, the taps of the first `chosen.whole` layers, and the tap of the last of these. If the nodes see
    chosen slots instead of all, they are `last` and the requested queries.
    """
    rows.memory.reserve(rows.origin + tree.tokens.shape[1])
    positions = positions_of(rows, tree, context).clamp(min=0)  # meaningless for a row that has too few tokens
    lower_taps = {f"{kind}.{layer}" for kind in ("layer", "query") for layer in range(chosen.whole)}
    wanted = (taps & lower_taps) | {"last"} | ({f"layer.{chosen.whole - 1}"} if chosen.whole else set())
    visibility: Mask | Listed
    if slots is None:
        visibility = rows.nodes(tree, nodes, positions)
    else:
        wanted, visibility = frozenset({"last", *filter(is_query, taps)}), rows.chosen(tree, nodes, slots)
    asked = Pass(
        tree.tokens.gather(1, nodes),
        placed := positions.gather(1, nodes),
        visibility,
        layers=chosen,
        taps=frozenset(wanted),
        keep=NONE,
        places=rows.places(placed),
    )
    return run(asked, rows.memory)[1]


def replay(run: Run, chosen: LayerChoice, tokens: Tensor, rows: SlotMap, context: int) -> Tensor:
    """Returns the feature `last` [B, W, D] of tokens [B, W] after the chosen layers; `rows` end before the first.

    The keys and values are written after those of all rows, where the next tree will be written. The first token sees
    the full model's entries of earlier tokens; each later token also sees these layers' entries of the tokens between.
    """
    order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    chain = TokenTree(
        tokens=tokens,
        parent=order - 1,
        valid=torch.ones_like(tokens, dtype=torch.bool),
        draw=torch.zeros_like(tokens),
        levels=tokens.shape[1] - 1,
    )
    return run_over(run, frozenset(), chosen, chain, order, rows, context)["last"]


def _resumed(run: Run, drafted: Drafted, asked: Pass, tree: TokenTree, rows: SlotMap) -> dict[str, Tensor]:
    """Returns the first layers' features [B, N, D] of all nodes of a tree, and writes their entries into its slots."""
    chosen, places = drafted.chosen, drafted.places(tree)  # [B, N]
    found = places >= 0
    standing = torch.arange(places.shape[1], device=places.device)
    if bool((found & (places != standing)).any()):
        rows.memory.compact(rows.origin + torch.where(found, places, standing), rows.origin)
    features = {
        tap: values.gather(1, places.clamp(min=0)[..., None].expand(-1, -1, values.shape[-1]))
        for tap, values in drafted.features.items()
    }  # [B, N, D] each
    missing = (~found).any(0).nonzero()[:, 0]  # missing in some row; rows that have them recompute the same values
    if len(missing):
        nodes = missing.expand(len(places), -1)
        rest = Pass(
            tree.tokens[:, missing],
            asked.positions[:, missing],
            rows.nodes(tree, nodes, asked.positions),
            layers=LayerChoice.first(chosen.whole, chosen.layers),
            taps=frozenset(features),
            keep=NONE,
            places=rows.places(asked.positions[:, missing]),
        )
        more = run(rest, rows.memory)[1]
        for tap, values in features.items():
            values[:, missing] = more[tap]
    return features


def positions_of(rows: SlotMap, tree: TokenTree, context: int) -> Tensor:
    """Returns the nodes' positions [B, N], clamped to the context's last one. Scores there are meaningless, and the
    session's budget ends before them, but a table of positions must not be exceeded.
    """
    positions = rows.count[:, None]  # [B, 1]
    if tree.tokens.shape[1] > 1:
        positions = positions + tree.depth  # [B, N]
    if rows.offset is not None:
        return positions.minimum(context - 1 - rows.offset[:, None])
    if rows.base + tree.levels >= context:
        positions = positions.clamp(max=context - 1)
    return positions
