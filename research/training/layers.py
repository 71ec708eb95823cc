"""Worth of each layer: ``python layers.py --splits DIR --model FOLDER``.

Prints the held-out loss of every kind in nats a token, and how much the mean over the kinds rises without each layer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from growth import choose
from net import load
from packing import streams
from pretrain import held_out_loss
from transformers import AutoTokenizer

LENGTH, ROWS, BATCHES = 384, 4, 6
"""Tokens of a window, windows of a batch, and batches, of every kind."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    device = torch.device("cpu")
    net = load(options.model, device)
    held = streams(options.splits / "heldout", AutoTokenizer.from_pretrained(options.model), device)
    whole = held_out_loss(net, held, LENGTH, ROWS, BATCHES)
    mean = sum(whole.values()) / len(whole)
    print(f"{whole}, mean {mean:.4f}")
    for left_out in range(net.shape.layers):
        rest = choose(net, [layer for layer in range(net.shape.layers) if layer != left_out])
        losses = held_out_loss(rest, held, LENGTH, ROWS, BATCHES)
        print(f"without layer {left_out}: {sum(losses.values()) / len(losses) - mean:+.4f}", flush=True)


if __name__ == "__main__":
    main()
