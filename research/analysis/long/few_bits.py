"""Keys and values in fewer bits, and drafts by a copy in 4 bits, on long prompts.

    python research/analysis/long/few_bits.py "$SPECFRAME_DATA"/long/long-7500.jsonl --task summary --task code

The file is what `research/analysis/long/long_prompts.py` writes. For each form of keys and values: memory a token, the
perplexity of a prompt's last tokens and how often its most probable token is the exact form's, the milliseconds of a
plain step; and tau and speed of drafts over plain decoding with the same form, whose text each must give. Keys and
values in int8 are not handed on, so a prompt is read anew for each way to decode. Time is
processor time on one thread; the forms, and the ways to decode, take turns.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor

import specframe
from specframe.decoding.requests import Request
from specframe.decoding.session import Session
from specframe.kernel.types import KnownPrefix, Prompts, TokenTree, Verdict
from specframe.neural.split_int8 import SplitInt8Cache

FORMS = (None, "bfloat16", "int8")
WINDOW = {"use": "self", "kv_selection": {"use": "window", "sinks": 4, "recent": 508}}
UPPER = {"use": "self", "quantize": "int4", "kv_selection": {"use": "upper"}}
DRAFTS: dict[str, tuple[Any, int]] = {
    "window": (WINDOW, 4),
    "int4, window": (WINDOW | {"quantize": "int4"}, 4),
    "int4, window, 2 tokens": (WINDOW | {"quantize": "int4"}, 2),
}
JUDGED, STEPS, TOKENS = 1000, 24, 64


@dataclass
class Found:
    """Figures of one form, over prompts."""

    pipelines: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    tau: dict[str, list[float]] = field(default_factory=dict)
    speed: dict[str, list[float]] = field(default_factory=dict)
    bytes: int = 0


def pipelines(form: str | None) -> dict[str, Any]:
    """Plain decoding and each draft, on one target."""
    options = {"use": "hf", "model": "zoo://smollm2-135m", "dtype": "bfloat16", "native": True, "cache": form}
    sampling = {"temperature": 0.0, "max_new_tokens": TOKENS}
    plain = specframe.compose(target=options, sampling=sampling)
    target = plain.parts.target
    made = {"plain": plain}
    drafts = {"int4, window": DRAFTS["int4, window"], "int4, upper": (UPPER, 4)} if form == "int8" else DRAFTS
    for name, (drafter, depth) in drafts.items():
        tree = {"use": "chain", "depth": depth}
        made[name] = specframe.compose(target=target, drafter=drafter, tree=tree, sampling=sampling)
    return made


def read(found: Found, tokens: list[int]) -> tuple[KnownPrefix | None, Tensor]:
    """Reads a prompt; its keys and values, and the most probable token after each of its last ones."""
    target = found.pipelines["plain"].parts.target
    target.request(frozenset({"last"}))
    target.open(1, target.context)
    text = torch.tensor([tokens])
    tree, scores = target.admit(Prompts(text, torch.tensor([len(tokens)])))
    judged = min(JUDGED, len(tokens) - 1)
    logits = target.head(scores.features["last"][0, -judged - 1 : -1]).float()
    found.losses.append(float(torch.nn.functional.cross_entropy(logits, text[0, -judged:])))
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.tensor([0]), scores.logits[:, 0].argmax(-1)))
    count = len(tokens) - 1
    if isinstance(cache := target._state.cache, SplitInt8Cache):
        stored = cache.stored
        assert stored is not None
        kept = (stored.codes, stored.key_scales, stored.value_scales)
        found.bytes = sum(part.nbytes for part in kept) // cache.capacity
        return None, logits.argmax(-1)
    memory = target.memory().copy(0, count)
    found.bytes = memory.numel() * memory.element_size() // count
    features = {"last": scores.features["last"][:, :count].clone()}
    return KnownPrefix(tokens[:count], memory, features), logits.argmax(-1)


def step(found: Found, tokens: list[int], prefix: KnownPrefix | None) -> None:
    """Times plain steps after a prompt, or on from where the target is."""
    target = found.pipelines["plain"].parts.target
    nothing = torch.tensor([0])
    root = torch.tensor([tokens[-1]])
    if prefix is not None:
        target.open(1, target.context)
        target.admit(Prompts(torch.tensor([tokens]), torch.tensor([len(tokens)]), prefixes=(prefix,)))
        target.commit(TokenTree.root_only(root), Verdict(root[:, None][:, :0], nothing, root))
    for _ in range(STEPS):
        tree = TokenTree.root_only(root)
        begun = process_time()
        root = target.score(tree).logits[:, 0].argmax(-1)
        found.steps.append(process_time() - begun)
        target.commit(tree, Verdict(tree.tokens[:, :0], nothing, root))


def decode(pipeline: Any, tokens: list[int], prefix: KnownPrefix | None) -> tuple[list[int], float, float]:
    """The text, tau, and the seconds of its cycles after the first."""
    cycles: list[float] = []
    session = Session(pipeline.parts, 1, 8192, watch=lambda cycle: cycles.append(process_time()))
    (entry,) = session.run([Request(tokens=tokens, max_new_tokens=TOKENS, prefix=prefix)])
    return entry.tokens, (len(entry.tokens) - 1) / (len(cycles) - 1), cycles[-1] - cycles[0]


def main() -> None:
    """Prints a line for each form, and one for each draft on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--task", action="append", required=True, help="of the prompts; may be repeated")
    parser.add_argument("--form", action="append", choices=["float32", "bfloat16", "int8"], help="(default: all)")
    parser.add_argument("--count", type=int, default=1, help="prompts of each task (default: %(default)s)")
    asked = parser.parse_args()
    records = [json.loads(line) for line in asked.prompts.read_text(encoding="utf-8").splitlines()]
    chosen = [r for task in asked.task for r in [r for r in records if r["task"] == task][: asked.count]]
    torch.set_num_threads(1)
    forms = [form for form in FORMS if asked.form is None or (form or "float32") in asked.form]
    all_found = {form or "float32": Found(pipelines(form)) for form in forms}
    tokenizer = next(iter(all_found.values())).pipelines["plain"].parts.target.tokenizer
    with torch.inference_mode():
        for record in chosen:
            tokens = tokenizer(record["prompt"])["input_ids"]
            prefixes, exact = {}, None
            for form, found in all_found.items():
                prefixes[form], best = read(found, tokens)
                exact = best if exact is None else exact
                found.same.append(float((best == exact).float().mean()))
            for _ in range(2):
                for form, found in all_found.items():
                    step(found, tokens, prefixes[form])
            for form, found in all_found.items():
                text, _, plain = decode(found.pipelines["plain"], tokens, prefixes[form])
                for name in [name for name in found.pipelines if name != "plain"]:
                    same, tau, seconds = decode(found.pipelines[name], tokens, prefixes[form])
                    assert same == text, (form, name)
                    found.tau.setdefault(name, []).append(tau)
                    found.speed.setdefault(name, []).append(plain / seconds)
            report(record["task"], len(tokens), all_found)


def report(task: str, length: int, all_found: dict[str, Found]) -> None:
    """Prints what was found so far."""
    print(f"with {task} of {length} tokens:")
    for form, found in all_found.items():
        print(
            f"  {form}: {found.bytes} bytes a token, perplexity "
            f"{torch.tensor(found.losses).mean().exp():.4f}, agreement {sum(found.same) / len(found.same):.4f}, "
            f"plain step {1e3 * median(found.steps):.1f} ms",
            flush=True,
        )
        for name in found.tau:
            taus = ", ".join(f"{tau:.2f}" for tau in found.tau[name])
            speeds = ", ".join(f"{speed:.2f}" for speed in found.speed[name])
            print(f"    {name}: tau {taus}; {speeds} x plain", flush=True)


if __name__ == "__main__":
    main()
