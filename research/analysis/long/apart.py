"""Time of a pass over a tree with one mask and apart: ``python research/analysis/long/apart.py FILE LENGTH ..``.

FILE is of the prompt set `long` (`long_prompts.py`), whose first prompt is cut to each LENGTH. Trees of 6, 24 and 60
nodes, two children each, are scored by transformers' passes, by turns with one mask [N, C + N] over prefix and tree and
with both apart. Printed are the shortest times of the process on one thread, the masks' bytes, and the largest
difference of a logit, as a share of the largest logit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

from specframe.components.targets.forward import split_attention
from specframe.components.targets.hf import HFTarget
from specframe.decoding.requests import as_prompts
from specframe.kernel.types import TokenTree, Verdict

NODES = (6, 24, 60)
TURNS, RUNS = 2, 5
NEVER = 2**40
"""More slots than a prefix has: the two are never apart."""


def binary_tree(nodes: int) -> TokenTree:
    """A tree of some tokens, filled level by level."""
    order = torch.arange(nodes)[None]
    parent = (order - 1) // 2
    parent[:, 0] = -1
    return TokenTree(9 + order, parent, order >= 0, torch.zeros_like(order), levels=nodes.bit_length() - 1)


def score(target: HFTarget, tree: TokenTree, long: int) -> tuple[Tensor, float]:
    """The logits, and the shortest of some times, where prefixes from `long` slots on are apart."""
    split_attention.LONG = long
    logits, times = target.score(tree).logits, []  # the first pass apart is compared with one that is not
    for _ in range(RUNS):
        begun = process_time()
        target.score(tree)
        times.append(process_time() - begun)
    return logits, min(times)


def main() -> None:
    """Prints a line for each length and tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("lengths", type=int, nargs="+")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    torch.set_num_threads(1)
    target = HFTarget(model="zoo://smollm2-135m", dtype=given.dtype)
    assert target.tokenizer is not None
    prompt = json.loads(given.file.read_text(encoding="utf-8").splitlines()[0])["prompt"]
    tokens = target.tokenizer(prompt)["input_ids"]
    for length in given.lengths:
        with torch.inference_mode():
            target.open(1, length + max(NODES) + 1)
            root, _ = target.admit(as_prompts([tokens[:length]]))
            first = torch.tensor([9])
            target.commit(root, Verdict(root.tokens[:, :0], torch.zeros_like(first), first))
            count = min(length, len(tokens))
            for nodes in NODES:
                tree = binary_tree(nodes)
                runs = [(score(target, tree, NEVER), score(target, tree, count)) for _ in range(TURNS)]
                whole, parts = (min(run[way][1] for run in runs) for way in (0, 1))
                (one, _), (other, _) = runs[0]
                dense, own = (nodes * width * target.dtype.itemsize for width in (count + nodes, nodes))
                print(f"{count} tokens, {nodes} nodes: {1e3 * whole:.0f} and {1e3 * parts:.0f} ms, masks of {dense} "
                      f"and {own} bytes, off by {float((one - other).abs().max() / one.abs().max()):.1e}",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
