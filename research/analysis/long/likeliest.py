"""Tokens that an 8-bit copy of an LM head leaves to the head itself: ``python research/analysis/long/likeliest.py``.

The head is SmolLM2's, the states are those of its own answers that come with specframe-zoo. Prints how many tokens are
left at a position, at how many the token found is the likeliest, and the largest error as a share of its bound.
"""

from __future__ import annotations

import argparse
import gzip
import json

import torch
from torch import Tensor

import specframe
from specframe.components.targets.hf import HFTarget
from specframe.native.argmax import BoundedHead
from specframe.native.linear import QuantizedLinear
from specframe.recipes.zoo import data_file
from specframe.sampling.laws import first_argmax


def states(target: HFTarget, texts: int) -> Tensor:
    """The LM head's inputs at the last 150 tokens of each of so many answers, [T, D]."""
    target.request(frozenset({"last"}))
    with gzip.open(data_file("zoo://smollm2-135m-answers"), "rt") as file:
        turns = [json.loads(next(file))["messages"] for _ in range(texts)]
    found = []
    for turn in turns:
        tokens = target.tokenizer.apply_chat_template(turn, return_tensors="pt", return_dict=True)["input_ids"]
        found.append(target.teach(tokens, torch.ones_like(tokens).bool()).features["last"][0, -150:])
    return torch.cat(found)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=12)
    target = HFTarget(model="zoo://smollm2-135m", dtype="bfloat16", native=True)
    head = target.forward.head
    assert isinstance(head, QuantizedLinear)
    rows, bounded = states(target, parser.parse_args().texts), BoundedHead(head)
    exact, copied = head.product(rows), bounded.copy.product(rows)  # [T, V]
    bounds = bounded.bounds(rows)
    left = (copied + bounds >= (copied - bounds).amax(1, keepdim=True)).sum(1).float()
    print(f"{len(rows)} positions of {head.out_features} tokens (specframe {specframe.__version__})")
    print(f"left: {left.median():.0f} in the median, {left.mean():.1f} in the mean, {left.max():.0f} at the most")
    print(f"the likeliest token: {int((bounded.argmax(rows) == first_argmax(exact)).sum())} of {len(rows)}")
    print(f"largest error as a share of its bound: {((exact - copied).abs() / bounds).max():.2f}")


if __name__ == "__main__":
    main()
