"""Tau of drafters by the length of the text before the answer, and acceptance by depth.

    python research/analysis/long_prompts.py --out "$SPECFRAME_DATA/long"
    python research/analysis/copying/contexts.py record "$SPECFRAME_DATA/long" --out runs/contexts
    python research/analysis/copying/contexts.py replay runs/contexts recipes/eagle.yaml,drafter.window=256

`record` decodes prompts plainly, at temperature 0, and keeps the answer with the target's features and its last layer's
keys and values. Every drafter then drafts along the same answer: greedy text does not depend on the drafter, so tau is
that of decoding, and no target runs again. A draft has the recipe's whole tree, whatever it costs. RECIPE,KEY=VALUE,..
gives a recipe settings of its own. Counts do not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

import specframe
from specframe import Sampling
from specframe.plugin import Committed, Context, Cycle, Prompts
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.random import SeededRandom

LENGTHS = (250, 1000, 4000, 7500)
"""Tokens of the prompts; the first is cut from those of the second."""
REQUEST = 40
"""Tokens at the end of a prompt that a cut leaves: the request."""


@dataclass(frozen=True)
class View:
    """The keys and values of one layer that a target has committed, as drafters read them."""

    keys: Tensor  # [1, B, heads of keys, S, d]
    values: Tensor
    counts: Sequence[int]

    @property
    def count(self) -> Tensor:
        """The committed slots of each row."""
        return torch.tensor(self.counts)


def prompts(folder: Path, tasks: Sequence[str], number: int, tokenizer: Any) -> Iterator[tuple[str, int, str, str]]:
    """Yield a file's name, length, task and text of the first `number` prompts of each task."""
    for length in LENGTHS:
        path = folder / f"long-{max(length, 1000)}.jsonl"
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for task in tasks:
            for place, record in enumerate([record for record in records if record["task"] == task][:number]):
                tokens = tokenizer.encode(record["prompt"], add_special_tokens=False)
                cut = tokens[: length - REQUEST] + tokens[-REQUEST:] if len(tokens) > length else tokens
                yield f"{length}-{task}-{place}.pt", length, task, tokenizer.decode(cut)


def record(
    folder: Path, recipe: str, taps: frozenset[str], tasks: Sequence[str], number: int, new: int, out: Path
) -> None:
    """Decode plainly, and write what a drafter is given along each answer."""
    pipeline = specframe.load(recipe).plain()
    target: Any = pipeline.parts.target
    target.request(taps)
    out.mkdir(parents=True, exist_ok=True)
    kept: list[Committed] = []
    drafter: Any = pipeline.parts.drafter
    drafter.commit = kept.append
    for name, length, task, text in prompts(folder, tasks, number, pipeline.tokenizer):
        if (out / name).exists():
            continue
        kept.clear()
        tokens = list(pipeline.encode(text))
        requests = pipeline.requests([tokens], replace(pipeline.sampling, max_new_tokens=new))
        views: dict[int, tuple[Tensor, Tensor]] = {}

        def look(cycle: Cycle, views: dict[int, tuple[Tensor, Tensor]] = views) -> None:
            memory = target.memory()
            if count := max(memory.counts, default=0):
                views.clear()
                views[count] = memory.keys[-1:, :, :, :count].clone(), memory.values[-1:, :, :, :count].clone()

        with pipeline.open(requests) as session:
            session.run(requests, look)
        features = {tap: torch.cat([each.features[tap] for each in kept], 1)[0] for tap in taps}
        whole = [tokens[0], *torch.cat([each.tokens for each in kept], 1)[0].tolist()]
        ((keys, values),) = views.values()
        found = {"length": length, "task": task, "prompt": len(tokens), "tokens": whole, "features": features}
        torch.save(found | {"keys": keys, "values": values}, out / name)
        print(f"{length} {task}: {len(tokens)} tokens and {len(whole) - len(tokens)} new ones", flush=True)


def replay(pipeline: specframe.Pipeline, text: Mapping[str, Any]) -> tuple[int, int]:
    """Draft along an answer; return its committed tokens and cycles."""
    drafter: Any = pipeline.parts.drafter
    tree: Any = pipeline.parts.tree
    target: Any = pipeline.parts.target
    tokens, features, prompt = text["tokens"], text["features"], text["prompt"]
    context = Context(Sampling(), SeededRandom(0, 1).draft)
    depth = tree.promise.depth
    target.memory = drafter._memory = lambda: View(text["keys"], text["values"], [root])
    drafter.open(1, len(tokens) + 64)
    root = prompt  # the place of the last committed token
    drafter.commit(_commit(tokens, features, 0, prompt, prompt))
    cycles = 0
    while root + depth + 1 < len(tokens):
        draft = drafter.propose(torch.tensor([tokens[root]]), tree, context)
        node, accepted = 0, 0
        drafted, parents, valid = draft.tokens[0].tolist(), draft.parent[0].tolist(), draft.valid[0].tolist()
        while True:
            wanted = tokens[root + accepted + 1]
            children = [i for i, parent in enumerate(parents) if parent == node and valid[i] and drafted[i] == wanted]
            if not children:
                break
            node, accepted = children[0], accepted + 1
        drafter.commit(_commit(tokens, features, root, root + accepted + 1))
        root += accepted + 1
        cycles += 1
    return root - prompt, cycles


def _commit(tokens: Sequence[int], features: Mapping[str, Tensor], start: int, end: int, prompt: int = 0) -> Committed:
    """The tokens after `start`, up to `end`, each with the features of the token before."""
    new = torch.tensor([tokens[start + 1 : end + 1]])
    pairs = {tap: values[None, start:end] for tap, values in features.items()}
    prompts = Prompts(torch.tensor([tokens[:prompt]]), torch.tensor([prompt])) if prompt else None
    return Committed(new, torch.tensor([end - start]), pairs, new[:, -1], prompts)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("record")
    write.add_argument("folder", type=Path, help="what long_prompts.py wrote")
    write.add_argument("--recipe", default="recipes/eagle.yaml", help="of the target")
    write.add_argument("--taps", default="last,layer.1,layer.14,layer.26,layer.28", help="features that drafters read")
    write.add_argument("--tasks", default="summary,code", help="tasks of the set")
    write.add_argument("--number", type=int, default=3, help="prompts of each task and length")
    write.add_argument("--new", type=int, default=64, help="tokens of an answer")
    write.add_argument("--out", type=Path, required=True)
    read = commands.add_parser("replay")
    read.add_argument("folder", type=Path, help="what `record` wrote")
    read.add_argument("recipes", nargs="+", help="RECIPE,KEY=VALUE,..")
    options = parser.parse_args()
    if options.command == "record":
        taps, tasks = frozenset(options.taps.split(",")), options.tasks.split(",")
        record(options.folder, options.recipe, taps, tasks, options.number, options.new, options.out)
        return
    texts = [torch.load(path) for path in sorted(options.folder.glob("*.pt"))]
    target = None
    for given in options.recipes:
        path, *settings = given.split(",")
        planned = plan(Recipe.read(path, [*settings, "run.costs=null"]), discover())
        pipeline = specframe.Pipeline.build(planned, target)
        target = pipeline.parts.target
        counts = [(text["length"], text["task"], *replay(pipeline, text)) for text in texts]
        shown = [
            f"{sum(c[2] for c in counts if c[0] == n) / max(1, sum(c[3] for c in counts if c[0] == n)):6.2f}"
            for n in sorted({c[0] for c in counts})
        ]
        tasks = {
            task: mean(c[2] / c[3] for c in counts if c[1] == task and c[0] > 1000) for task in {c[1] for c in counts}
        }
        print(given, *shown, {task: round(value, 2) for task, value in sorted(tasks.items())}, flush=True)


if __name__ == "__main__":
    main()
