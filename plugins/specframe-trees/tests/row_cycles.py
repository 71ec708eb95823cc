"""Cycles of rows: their admission, and those without a draft."""

from dataclasses import replace

import torch

from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.testing.policies import cycle_of


def admission(tokens):
    """The cycle that admits prompts, [B, L]."""
    root = tokens[:, -1:]
    verdict = Verdict(root[:, :0], torch.zeros(len(tokens), dtype=torch.int64), root[:, 0])
    cycle = cycle_of(TokenTree.root_only(root[:, 0]), verdict, 2)
    prompt = Prompts(tokens, torch.full((len(tokens),), tokens.shape[1]))
    return replace(cycle, committed=replace(cycle.committed, prompt=prompt))


def cycle_without_draft(rows):
    root = torch.zeros(rows, dtype=torch.int64)
    return TokenTree.root_only(root), Verdict(root[:, None][:, :0], root, root)
