"""Positions at which verification rejects a drafter's drafts along a text, found without decoding."""

from __future__ import annotations

import torch
from torch import Tensor


def failed_roots(choices: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the roots of cycles whose draft is partly rejected, [B, L] bool.

    `choices` [B, L, levels] has the token drafted at each level below each root, if all tokens above it are the text's
    own. tokens [B, L] is the text, assumed to be the target's answer; mask [B, L] marks the positions that count.

    A root is a token of an answer: the position before it counts, too. A draft ends, without a rejection, at the last
    position that counts. The next cycle's root is the token after the accepted ones, which the target gave.
    """
    length, levels = tokens.shape[1], choices.shape[2]
    judged = mask & mask.roll(-1, 1)
    judged[:, -1] = False  # the text's last token has no successor
    following = tokens.roll(-1, 1)
    expected = [_shifted(following, step) for step in range(levels)]
    counted = torch.stack([_shifted(judged, step) for step in range(levels)], 2).long().cumprod(2)  # [B, L, levels]
    right = (choices == torch.stack(expected, 2)).long() * counted
    accepted = right.cumprod(2).sum(2)  # [B, L]
    failed = accepted < counted.sum(2)
    possible = judged.clone()
    possible[:, 1:] &= mask[:, :-1]
    possible[:, 0] = False
    starts, due = torch.zeros_like(possible), torch.zeros_like(accepted[:, 0])
    for place in range(length):
        starts[:, place] = possible[:, place] & (due <= place)
        due = torch.where(starts[:, place], place + 1 + accepted[:, place], due)
    return starts & failed


def choose(roots: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Chooses at most `count` of each row's roots [B, L] at random: positions [B, K], and which are valid [B, K].

    K is the largest number of chosen roots of a row, at least 1; padding positions are 1.
    """
    most = max(1, min(count, int(roots.sum(1).max())))
    order = torch.rand(roots.shape, device=roots.device) + roots
    places = order.topk(most, dim=1).indices
    real = roots.gather(1, places)
    return torch.where(real, places, 1), real


def _shifted(values: Tensor, steps: int) -> Tensor:
    """Shifts values [B, L] left by `steps` positions, with 0 beyond the end."""
    moved = torch.zeros_like(values)
    moved[:, : values.shape[1] - steps] = values[:, steps:]
    return moved
