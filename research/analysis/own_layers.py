"""The target as its own drafter, measured: ``python research/analysis/own_layers.py``, or one of its analyses.

    agreement   how often the likeliest token without some layers is the target's: whole layers, attentions, MLPs, exits
    speed       new tokens per second next to plain decoding's, in turns
    choosing    the same of exits by draft length, of `del` and of `swift`, and what these two chose

The target of `agreement` and `choosing` is that of `--recipe`, SmolLM2 by default, or `--model`. `swift` searches on
from round to round, so that its rounds differ. Numbers go to own_layers.json. Agreement is the share of cycles that
accept a draft of one token, at temperature 0.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from sample import choose, command, keep, prompts

import specframe
from specframe import Pipeline

NUMBERS = Path(__file__).resolve().parent / "own_layers.json"
RECIPE = Path(__file__).resolve().parent.parent.parent / "recipes" / "lookup.yaml"
DEFAULT = RECIPE.parent.name + "/" + RECIPE.name
EXITS = (5, 10, 15, 20, 25, 27, 28, 29)
DEPTHS = {
    "exit: 25": 1,
    "exit: 20": 1,
    "skip: [3, 4, 5]": 2,
    "skip: [24, 25, 26]": 2,
    "skip: {mlp: [3, 4, 5, 6, 7, 8]}": 2,
}
"""Drafters timed next to plain decoding: the drafter's option, and the depth of its chains."""
LENGTHS = (1, 2, 4)
"""The draft lengths that fixed exits are timed with."""
THRESHOLD = {"use": "threshold", "depth": 8, "threshold": 0.5}
CHOOSING: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "del": ({"use": "del"}, None),
    "del, 4 exits": ({"use": "del", "exits": None}, None),
    "swift": ({"use": "swift", "window": 16}, THRESHOLD),
    "swift, every 4th cycle": ({"use": "swift", "window": 16, "interval": 4}, THRESHOLD),
}
"""Methods that choose layers by themselves: drafter and tree."""


def opened(drafter: str, tree: str, tokens: int, recipe: Path = RECIPE, model: str | None = None) -> Pipeline:
    """The recipe's target, SmolLM2 by default, or another model as its target, with this drafter and tree."""
    settings = [f"drafter={drafter}", f"tree={tree}", f"sampling.max_new_tokens={tokens}", "sampling.ignore_eos=true"]
    named = [f"target.model={model}"] if model else []
    return specframe.load(recipe, overrides=[*settings, "verifier=match", *named])


def agreement(limit: int, tokens: int, recipe: Path, model: str | None) -> dict[str, Any]:
    """Returns by the layers left out the share of drafted tokens that were accepted, each drafted alone.

    Of a target with more layers than `EXITS` has numbers, these are the exits; of a smaller one, all.
    """
    target: Any = opened("{use: none}", "null", tokens, recipe, model).parts.target
    count = target.config.num_hidden_layers
    left_out = {
        "exit": {number: f"exit: {number}" for number in (EXITS if count > EXITS[-1] else range(1, count))},
        "layer": {layer: f"skip: [{layer}]" for layer in range(count)},
        "attention": {layer: f"skip: {{attention: [{layer}]}}" for layer in range(count)},
        "mlp": {layer: f"skip: {{mlp: [{layer}]}}" for layer in range(count)},
    }
    found: dict[str, Any] = {}
    for kind, options in left_out.items():
        found[kind] = {}
        for number, option in options.items():
            pipeline = opened(f"{{use: self, {option}}}", "{use: chain, depth: 1}", tokens, recipe, model)
            generated = pipeline.generate(prompts(pipeline, limit))
            found[kind][number] = generated.acceptance.tau - 1
            print(kind, number, f"{found[kind][number]:.3f}", flush=True)
    return found


def speed(limit: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Returns by drafter tau and new tokens per second: the median of rounds in turns, and all of them."""
    pipelines = {"plain": opened("{use: none}", "null", tokens)}
    for option, depth in DEPTHS.items():
        pipelines[option] = opened(f"{{use: self, {option}}}", f"{{use: chain, depth: {depth}}}", tokens)
    return timed(pipelines, limit, rounds)


def choosing(limit: int, tokens: int, recipe: Path, model: str | None, rounds: int) -> dict[str, Any]:
    """Returns by drafter tau and new tokens per second as in `speed`; for `del` and `swift` also their choices.

    All share the target's weights, and none the features that another one asks for.
    """
    settings = ["drafter=none", "tree=null", "verifier=match", *([f"target.model={model}"] if model else [])]
    target: Any = specframe.load(recipe, overrides=settings).parts.target
    layers = target.config.num_hidden_layers
    exits = sorted({max(1, layers * eighth // 8) for eighth in range(1, 8)})
    wanted: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {"plain": ({"use": "none"}, None)}
    for exit, length in product(exits, LENGTHS):
        wanted[f"exit: {exit}, length {length}"] = {"use": "self", "exit": exit}, {"use": "chain", "depth": length}
    for name, (drafter, tree) in CHOOSING.items():
        wanted[name] = (drafter | {"exits": exits[-4:]} if "exits" in drafter else drafter), tree
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    pipelines = {
        name: specframe.compose(
            target=target.sibling(), drafter=drafter, tree=tree, verifier="match", sampling=sampling, run={"batch": 1}
        )
        for name, (drafter, tree) in wanted.items()
    }
    found = timed(pipelines, limit, rounds)
    for name, pipeline in pipelines.items():
        part: Any = pipeline.parts.drafter
        if hasattr(part, "choices"):
            found[name]["chosen"] = {f"exit: {e}, length {d}": n for (e, d), n in part.choices.most_common()}
        elif hasattr(part, "search"):
            found[name]["chosen"] = {"skip": part.skip, "matchness": part.search.score}
            found[name]["sets"] = len(part.search.scores)
    return found


def timed(pipelines: dict[str, Pipeline], limit: int, rounds: int) -> dict[str, Any]:
    """Returns by name tau and new tokens per second: the median of rounds in turns, and all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in pipelines}
    taus: dict[str, float] = {}
    asked = prompts(pipelines["plain"], limit)
    for turn in range(rounds + 1):  # the first warms up
        for name, pipeline in pipelines.items():
            start = perf_counter()
            generated = pipeline.generate(asked)
            if turn:
                seconds[name].append(sum(map(len, generated.tokens)) / (perf_counter() - start))
            taus[name] = generated.acceptance.tau
    return {name: {"tau": taus[name], "median": median(seconds[name]), "rounds": seconds[name]} for name in pipelines}


ANALYSES = ("agreement", "speed", "choosing")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes what is asked for."""
    parser = command(__doc__, tokens=64)
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="the recipe whose target is measured")
    parser.add_argument("--model", help="another model as its target")
    parser.add_argument("--rounds", type=int, default=3, help="that are timed (default: 3); for tau, 1 will do")
    options = choose(parser, ANALYSES, arguments)
    for name in options.analyses:
        begin = os.getloadavg()[0]
        asked = options.model or options.recipe.parent.name + "/" + options.recipe.name
        if name == "speed":
            found = speed(options.limit, options.tokens, options.rounds)
        elif name == "agreement":
            found = agreement(options.limit, options.tokens, options.recipe, options.model)
            name = name if asked == DEFAULT else f"{name} {asked}"
        else:
            found = choosing(options.limit, options.tokens, options.recipe, options.model, options.rounds)
            name = f"{name} {asked}"
        load = {"load": [begin, os.getloadavg()[0]], "limit": options.limit, "tokens": options.tokens}
        keep(NUMBERS, {name: load | found})
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
