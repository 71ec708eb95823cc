"""A network with a larger vocabulary that begins with what the smaller one knows.

Only the embedding grows, which is the head, too. An entry of the new tokenizer starts as the mean of the
entries that the old tokenizer spells it with; one that both have keeps its row.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from net import Net, load
from torch import Tensor
from transformers import PreTrainedTokenizerFast


def spellings(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> list[list[int]]:
    """Return how the old tokenizer spells each entry of the new one, as ids, by id."""
    special = {token: old.convert_tokens_to_ids(token) for token in old.all_special_tokens}
    model = old.backend_tokenizer.model
    return [
        [special[token]] if token in special else [piece.id for piece in model.tokenize(token)]
        for token in new.convert_ids_to_tokens(range(len(new)))
    ]


def widen(folder: Path, tokenizer: PreTrainedTokenizerFast) -> Net:
    """Return the network of ``folder`` with a row for every entry of ``tokenizer``."""
    small = load(folder, torch.device("cpu"))
    old = PreTrainedTokenizerFast.from_pretrained(folder)
    net = Net(replace(small.shape, vocabulary=len(tokenizer)))
    state: dict[str, Tensor] = small.state_dict()
    rows = [small.embedding[ids].mean(0) for ids in spellings(old, tokenizer)]
    net.load_state_dict(state | {"embedding": torch.stack(rows)})
    return net
