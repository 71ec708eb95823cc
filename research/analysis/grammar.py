"""The cost of a grammar: ``python research/analysis/grammar.py RECIPE`` decodes prompts with and without one.

It prints, for plain decoding, for the recipe, and for the recipe when nodes that the grammar forbids are scored, too,
milliseconds of CPU time a token on one thread, which other processes hardly change, tau, the nodes that a cycle scores,
and the share of the time that the grammar takes; medians of rounds in turns. The grammar `any text` allows every text,
so that its texts are those without a grammar; `a schema` is a JSON schema.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from time import process_time
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import specframe
from specframe.sampling.grammar import GrammarProcessor

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 5},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
GRAMMARS = {"none": None, "any text": {"regex": "(?s:.*)"}, "a schema": {"json": SCHEMA}}
PROMPTS = ["Describe a person as JSON.", "Who likes to read? Answer in JSON.", "Write a JSON object about a sailor."]


KINDS = ("plain", "the recipe", "forbidden nodes scored")


@contextmanager
def watched(spent: list[float]) -> Iterator[None]:
    """Add the seconds that each call of a grammar's processor takes to a list."""
    own, allows = GrammarProcessor.__call__, GrammarProcessor.allows

    def call(self: GrammarProcessor, tokens: Tensor, logits: Tensor) -> Tensor:
        start = process_time()
        found = own(self, tokens, logits)
        spent.append(process_time() - start)
        return found

    def asked(self: GrammarProcessor, *given: Any) -> list[bool]:
        start = process_time()
        found = allows(self, *given)
        spent.append(process_time() - start)
        return found

    with patch.object(GrammarProcessor, "__call__", call), patch.object(GrammarProcessor, "allows", asked):
        yield


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = specframe.load(given.recipe, overrides=given.overrides)
    times: dict[tuple[str, str], list[float]] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    taus: dict[tuple[str, str], tuple[float, float]] = {}
    texts: dict[str, list[list[int]]] = {}
    plain = recipe.plain()
    for turn in range(given.rounds + 1):
        for kind in KINDS:
            pipeline = plain if kind == "plain" else recipe
            whole = patch("specframe.decoding.session.pruned", lambda draft, entries: draft)
            for name, form in GRAMMARS.items():
                if form is None and kind == KINDS[2]:
                    continue
                settings = replace(recipe.sampling, grammar=form, max_new_tokens=given.tokens)
                spent: list[float] = []
                with watched(spent), whole if kind == KINDS[2] else nullcontext():
                    start = process_time()
                    result = replace(pipeline, sampling=settings).generate(PROMPTS)
                    seconds = process_time() - start
                if turn:  # the first one warms up
                    times.setdefault((kind, name), []).append(seconds / sum(map(len, result.tokens)))
                    shares.setdefault((kind, name), []).append(sum(spent) / seconds)
                    nodes = 1 + result.acceptance.drafted / result.acceptance.cycles
                    taus[kind, name] = result.acceptance.tau, nodes
                if result.tokens != texts.setdefault(name, result.tokens):
                    print(f"{kind}, {name}: the texts differ")
    print("| decoding | grammar | ms a token | tau | nodes a cycle | share of the grammar |\n|---|---|---|---|---|---|")
    for (kind, name), found in times.items():
        share = 100 * median(shares[kind, name])
        tau, nodes = taus[kind, name]
        print(f"| {kind} | {name} | {1000 * median(found):.2f} | {tau:.2f} | {nodes:.1f} | {share:.1f} % |")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
