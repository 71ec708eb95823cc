"""Tokens committed by copying drafters where the answer repeats the question: `edits` with their reference answers.

    python research/analysis/copying/edits.py recipes/suffix.yaml recipes/lookup.yaml

No model writes the answers: a draft is accepted as far as it agrees with the function without its mistakes, in a code
block. What a target's own answers give is for a bench to show, with `--data edits`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import quantiles

import torch

from specframe import Pipeline, Sampling, load
from specframe.bench.contest.datasets import edits
from specframe.plugin import Committed, Context, Drafter, Prompts, TokenTree
from specframe.sampling.random import SeededRandom


def replay(drafter: Drafter, prompt: list[int], answer: list[int]) -> int:
    """The cycles that a drafter needs after the answer's first token, which the prompt's forward pass gives."""
    text = [*prompt, *answer]
    drafter.open(1, 2 * len(text))
    begun = torch.tensor([text[1 : len(prompt) + 1]])
    read = Prompts(torch.tensor([prompt]), torch.tensor([len(prompt)]))
    drafter.commit(Committed(begun, read.count, {}, begun[:, -1], prompt=read))
    context = Context(Sampling(), SeededRandom(0, 1).draft)
    place, cycles = len(prompt) + 1, 0
    while place < len(text):
        tree = drafter.propose(torch.tensor([text[place - 1]]), None, context)
        gained = text[place : place + accepted(tree, text[place:]) + 1]
        drafter.commit(Committed(torch.tensor([gained]), torch.tensor([len(gained)]), {}, torch.tensor(gained[-1:])))
        place, cycles = place + len(gained), cycles + 1
    return cycles


def accepted(tree: TokenTree, text: Sequence[int]) -> int:
    """Returns the number of a text's tokens that a draft of one row has below its root."""
    children = {
        key: node for node, key in enumerate(zip(tree.parent[0].tolist(), tree.tokens[0].tolist(), strict=True))
    }
    node, found = 0, 0
    for token in text:
        if (node, token) not in children:
            break
        node, found = children[node, token], found + 1
    return found


def answers(pipeline: Pipeline) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens of every prompt, and of its reference answer."""
    for edit in edits():
        answer = pipeline.tokenizer(f"```python\n{edit.answer}\n```", add_special_tokens=False)["input_ids"]
        yield list(pipeline.encode(edit.prompt)), answer


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line a recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="recipes whose drafters read the text alone")
    for recipe in parser.parse_args(arguments).recipes:
        pipeline = load(recipe, overrides=["run.costs=null"])
        if pipeline.parts.drafter.taps:
            parser.error(f"{recipe}: its drafter reads the target's states, which a replay without the target lacks")
        pairs = list(answers(pipeline))
        cycles = [replay(pipeline.parts.drafter, *pair) for pair in pairs]
        tokens = [len(answer) - 1 for _, answer in pairs]
        each = quantiles(a / b for a, b in zip(tokens, cycles, strict=True))
        quarters = ", ".join(f"{tau:.2f}" for tau in each)
        print(f"{recipe}: tau {sum(tokens) / sum(cycles):.2f}, quarters {quarters}, {len(pairs)} answers", flush=True)


if __name__ == "__main__":
    main()
