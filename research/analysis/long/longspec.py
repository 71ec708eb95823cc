"""Tau of LongSpec's and EAGLE's drafters on the same prompts: ``python longspec.py FILE LONGSPEC EAGLE``.

FILE has Spec-Bench's questions, LONGSPEC and EAGLE are folders of drafters for talk-7m that were trained on the same
texts. Short questions are those of five tasks; long ones are texts to summarise and passages with a question, of which
900 and 1,000 characters are kept. Changes to LongSpec's tau are paired by prompt, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

import specframe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fusion import interval, redrawn

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "small" / "longspec.yaml"
SHORT = ("writing", "reasoning", "math_reasoning", "qa", "translation")


def questions(file: Path) -> dict[str, list[str]]:
    """The first ten questions of each short task, and twelve of each long one, cut."""
    tasks: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        tasks.setdefault(found["category"], []).append(found["turns"][0])
    long = [text[:900] for text in tasks["summarization"][:12]] + [text[-1000:] for text in tasks["rag"][:12]]
    return {"short": [text for task in SHORT for text in tasks[task][:10]], "long": long}


def main() -> None:
    """Prints a row for each set and drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("longspec")
    parser.add_argument("eagle")
    options = parser.parse_args()
    ways = {
        "longspec": [f"drafter.weights={options.longspec}"],
        "eagle, window 64": [f"drafter={{use: eagle, window: 64, weights: {options.eagle}}}"],
        "eagle": [f"drafter={{use: eagle, weights: {options.eagle}}}"],
    }
    common = ["sampling.max_new_tokens=64", "run.costs=null"]
    made = {name: specframe.load(RECIPE, overrides=[*own, *common]) for name, own in ways.items()}
    for title, prompts in questions(options.file).items():
        first: torch.Tensor | None = None
        for name, pipeline in made.items():
            found = [pipeline.generate(prompt).acceptance for prompt in prompts]
            cycles = torch.tensor([each.cycles for each in found], dtype=torch.float64)
            tokens = torch.tensor([each.cycles * each.tau for each in found], dtype=torch.float64)
            drawn = redrawn(cycles, tokens)
            first = drawn if first is None else first
            change = interval(drawn / first - 1)
            print(title, len(prompts), name, float(tokens.sum() / cycles.sum()), interval(drawn), change, flush=True)


if __name__ == "__main__":
    main()
