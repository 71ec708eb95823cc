"""Times a pair of layers on a core each against both cores on each layer: ``python research/analysis/layers_apart.py``.

EasySpec gives the layers of a group one input, so that devices can compute them at the same time. Here the devices
are cores: a thread for each layer, joined once a pair, against one layer after the other by two threads of OpenMP.
Both ways take turns; ratios are of times within a turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

SHAPES = {
    "SmolLM2's layer": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "FastDraft's layer": {
        "hidden_size": 96,
        "intermediate_size": 288,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
}


def layers_of(shape: dict[str, int], copies: int) -> Callable[[int, Tensor], Tensor]:
    """Random layers in bfloat16, by number: [1, N, D] -> [1, N, D]; more than a cache holds, taken in turn."""
    config = LlamaConfig(**shape, max_position_embeddings=512, attn_implementation="sdpa")
    layers = [LlamaDecoderLayer(config, index).bfloat16().eval() for index in range(copies)]
    rotary = LlamaRotaryEmbedding(config)

    def run(number: int, states: Tensor) -> Tensor:
        places = rotary(states, torch.arange(states.shape[1])[None])
        found: Tensor = layers[number % copies](states, position_embeddings=places)
        return found

    return run


def milliseconds(work: Callable[[int], object], pairs: int) -> float:
    """The time of a pair of layers in milliseconds."""
    start = time.perf_counter()
    for pair in range(pairs):
        work(2 * pair)
    return 1e3 * (time.perf_counter() - start) / pairs


def main() -> None:
    """Prints a table: nodes, both ways' times and their ratio, the quartiles of the turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=30)
    asked = parser.parse_args()
    print("| layer | nodes | a core each, ms a pair | both cores on each, ms | ratio |\n|---|---|---|---|---|")
    with torch.inference_mode(), ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as cores:
        for name, shape in SHAPES.items():
            run = layers_of(shape, 30)
            for nodes in (1, 4, 16):
                states = torch.randn(1, nodes, shape["hidden_size"]).bfloat16()

                def apart(first: int, run=run, states=states) -> Tensor:
                    """One input, two layers at the same time, their outputs added."""
                    one, two = (cores.submit(torch.inference_mode(run), first + k, states) for k in (0, 1))
                    return one.result() + two.result() - states

                def together(first: int, run=run, states=states) -> Tensor:
                    """The same, one layer after the other on all cores."""
                    return run(first, states) + run(first + 1, states) - states

                torch.set_num_threads(2)
                milliseconds(apart, 15), milliseconds(together, 15)
                turns = [
                    (milliseconds(apart, asked.pairs), milliseconds(together, asked.pairs)) for _ in range(asked.turns)
                ]
                ratios = [one / two for one, two in turns]
                low, middle, high = statistics.quantiles(ratios, n=4)
                one, two = (statistics.median(times) for times in zip(*turns, strict=True))
                print(f"| {name} | {nodes} | {one:.2f} | {two:.2f} | {middle:.2f} [{low:.2f}, {high:.2f}] |")


if __name__ == "__main__":
    main()
