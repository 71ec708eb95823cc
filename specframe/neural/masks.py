"""Attention masks shared by drafters, windows of a text, positions of drafts after it, and conditional drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.neural.transfer import tensor_on

if TYPE_CHECKING:
    from specframe.kernel.types import Drafts


ANCHORS = 4
"""The most entries at a text's start that keep their positions when the others are moved."""


@dataclass(frozen=True)
class TextWindow:
    """The committed entries that drafts see: a row's first `sinks` and its newest `recent`.

    A cache holds up to `slack` further, hidden entries. Before it exceeds `most`, the visible ones are rewritten at the
    first positions. So memory is constant, positions stay below `most`, and the contents of a row's cache depend on the
    number of its entries alone, not on other rows or on how the entries were committed.
    """

    recent: int
    sinks: int

    @classmethod
    def checked(cls, name: str, recent: int | None, sinks: int) -> TextWindow | None:
        """The window given by a drafter's options, or None. Raises InputError in the drafter's name."""
        if sinks < 0 or (recent is not None and recent < 1):
            raise InputError(f"{name}: window must be at least 1 and sinks at least 0, not {recent} and {sinks}")
        return None if recent is None else cls(recent, sinks)

    @property
    def slack(self) -> int:
        """The most hidden entries."""
        return max(16, self.recent // 2)

    @property
    def most(self) -> int:
        """The most entries of a row that are cached."""
        return self.sinks + self.recent + self.slack

    def cached(self, total: int) -> int:
        """Returns the number of cached entries of a row with `total` entries."""
        over = total - self.most
        return total if over <= 0 else total + self.slack * (-over // self.slack)

    def sees(self, entry: Tensor, counts: Sequence[int]) -> Tensor | None:
        """Mask of entries [W] that rows with `counts` cached entries see: [B, W] bool; None: all of them."""
        if max(counts, default=0) <= self.sinks + self.recent:
            return None
        return (entry < self.sinks) | (entry >= tensor_on(entry.device, counts)[:, None] - self.recent)


def pairs_before(slots: Tensor, counts: Tensor, width: int, shift: int, window: TextWindow | None) -> Tensor:
    """Mask of the slots 0 .. width - 1 that pairs at `slots` [B, T] see, those up to their own: [B, T, width] bool.

    Pair i of a row with `counts` pairs stands at slot i + shift. Entries that are no pair see what the first or the
    last pair sees. A window ends at each pair itself, so that its keys do not depend on the commit that it was in.
    """
    own = torch.minimum((slots - shift).clamp(min=0), counts[:, None] - 1)[..., None]  # [B, T, 1]
    pair = torch.arange(-shift, width - shift, device=slots.device)  # the one at each slot
    seen = (pair >= 0) & (pair <= own)
    return seen if window is None else seen & ((pair < window.sinks) | (pair > own - window.recent))


def layer_windows(config: Mapping[str, Any], layers: int, problems: list[str]) -> tuple[int | None, ...]:
    """The `sliding_window` of each layer of a config, None for full attention; empty if no layer has a window.

    Reasons why windows cannot be read are added to `problems`.
    """
    kinds = list(config.get("layer_types") or [])
    if "sliding_attention" not in kinds:
        return ()
    window = config.get("sliding_window")
    if unknown := sorted(set(kinds) - {"sliding_attention", "full_attention"}):
        problems.append(f"layer_types: layers of {', '.join(unknown)} are not supported")
    elif len(kinds) != layers:
        problems.append(f"layer_types: it lists {len(kinds)} layers, and there are {layers}")
    elif not isinstance(window, int) or window < 1:
        problems.append("layer_types: layers with a sliding window are not supported in a drafter of no sliding_window")
    else:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    return ()


def block_end(length: int, block: int, device: torch.device | str | None = None) -> Tensor:
    """The last position of each position's block, [length] int64.

    Blocks of `block` positions end at the last position and at every `block`-th before it; the first
    one is short when `length` is no multiple of `block`.
    """
    position = torch.arange(length, device=device)
    return position + (length - 1 - position) % block


def block_causal(length: int, block: int, device: torch.device | str | None = None) -> Tensor:
    """Returns Falcon's relaxed causal mask, [1, 1, length, length] bool (Falcon, Section 3.4).

    A position sees its own block, later positions of it included, and all earlier ones; `block_end` gives the
    ends of blocks. `block` 1 is the plain causal mask.
    """
    key = torch.arange(length, device=device)
    return (key <= block_end(length, block, device)[:, None])[None, None]


def draft_positions(drafts: Drafts) -> Tensor:
    """The positions of the texts' tokens and of the drafts after them: [B, L + levels K] int64."""
    batch, _ = drafts.roots.shape
    text = torch.arange(drafts.length, device=drafts.roots.device).expand(batch, -1)
    return torch.cat([text, *(drafts.roots + level for level in range(1, drafts.levels + 1))], 1)


def visible_drafts(drafts: Drafts) -> Tensor:
    """Returns the attention mask of the texts' tokens and the drafts after them: [B, T, T] bool, T = L + levels K.

    A text is causal. A drafted token sees the text up to its root, the earlier tokens of its chain, and itself.
    """
    batch, count = drafts.roots.shape
    device = drafts.roots.device
    text = torch.arange(drafts.length, device=device)
    chain = torch.arange(count, device=device).repeat(drafts.levels)  # [levels K]
    level = torch.arange(drafts.levels, device=device).repeat_interleave(count)
    own = (chain == chain[:, None]) & (level <= level[:, None])  # [levels K, levels K]
    prefix = text <= drafts.roots.repeat(1, drafts.levels)[..., None]  # [B, levels K, L]
    seen = torch.zeros(batch, *2 * (drafts.length + drafts.count,), dtype=torch.bool, device=device)
    seen[:, : drafts.length, : drafts.length] = text <= text[:, None]
    seen[:, drafts.length :, : drafts.length] = prefix
    seen[:, drafts.length :, drafts.length :] = own
    return seen


def anchored_positions(batch: int, length: int, offset: int, device: torch.device | str | None = None) -> Tensor | None:
    """Positions of entries as in a long text, [batch, length] int64, below `offset`; None if that is no longer.

    The first 0 to 4 entries keep their positions, and all others are shifted by one random number (LongSpec's
    anchor-offset indices), so that short texts train the positions of long ones.
    """
    if offset <= length:
        return None
    stay = int(torch.randint(ANCHORS + 1, ()))  # the host's generator: no sync
    jump = int(torch.randint(offset - length + 1, ()))
    index = torch.arange(length, device=device)
    return torch.where(index < stay, index, index + jump).expand(batch, -1)


def require_offset(rollout: str, offset: int) -> int:
    """The offset, a number of positions. Raises InputError in the rollout's name if it is negative."""
    if offset < 0:
        raise InputError(f"{rollout}: offset must not be negative, not {offset}")
    return offset


def require_shares(rollout: str, keep: float, least: float) -> None:
    """Raises InputError, in the name of a rollout, for shares that `sample_rows` cannot keep."""
    if not 0 < keep <= 1 or not 0 <= least <= 1:
        raise InputError(f"{rollout}: keep must be above 0 and at most 1, least from 0 to 1, not {keep} and {least}")


def sample_rows(counts: Tensor, levels: int, keep: float, least: float) -> list[tuple[Tensor, Tensor]]:
    """The mask rows that are kept, level by level: their entries [B, M] int64, ascending, and a mask of the valid M.

    `counts` [B, n] bool is True if the prediction for entry i counts, as does the row d levels below entry i - d.
    A row is kept only if the one above it is. Level d keeps a share max(keep^d, least) of the counted entries minus d
    (PARD, arXiv 2504.18583; P-EAGLE, 2602.01469). Rows are drawn by torch's global generator, as in training.
    """
    batch, n = counts.shape
    index = torch.arange(n, device=counts.device)
    chance = torch.rand(counts.shape, device=counts.device)  # one number per entry ranks its rows at every level
    total = counts.sum(1)
    alive = torch.ones_like(counts)
    rows = []
    for level in range(1, min(levels, n)):
        alive = alive & torch.cat([counts[:, level:], counts.new_zeros(batch, level)], 1)
        size = ((total - level).clamp(min=0) * max(keep**level, least)).long()
        order = chance.masked_fill(~alive, -1.0).argsort(1, descending=True).argsort(1)
        alive = alive & (order < size[:, None])
        most = int(alive.sum(1).max())
        if most == 0:
            break
        entries = torch.where(alive, index, n).sort(1).values[:, :most]
        rows.append((entries.clamp(max=n - 1), entries < n))
    return rows
