"""A drafter's conformance by recipe: decoded and trained as its users will do it."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specframe.cli.main import main
from specframe.components.targets.tiny import random_model
from specframe.decoding.pipeline import Pipeline, load
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.training import Trainable
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.training.validation import measure

PROMPTS = [[1, 2, 3], [0], [5, 6]]
DECODING = """
specframe: 1
target: {{use: table, vocab: 7, seed: 3}}
drafter: {drafter}
tree: {tree}
verifier: {verifier}
sampling: {{temperature: 0.0, max_new_tokens: 12}}
run: {{batch: 3}}
"""

VOCAB, PROMPT, NEW = 24, 3, 60
TAUGHT, HELD = 96, 48
TRAINING = """
specframe: 1
target: {{use: hf, model: {folder}/model, dtype: float32}}
drafter: {drafter}
verifier: match
sampling: {{temperature: 0.0, max_new_tokens: {new}, ignore_eos: true}}
run: {{batch: {held}}}
"""
COURSE = """
tree: {{use: chain, depth: {levels}}}
loss: {losses}
train:
  {{data: ['{out}/texts.jsonl'], rollout: {{use: {rollout}}}, out: {out}/weights, steps: {steps}, batch: 12, length: 64,
    lr: 1.0e-2, warmup: 0, log_every: 10, validation: 0.1}}
"""


TREES = (
    "{use: chain, depth: 4}",
    "{use: dynamic, depth: 4, width: 3, nodes: 9}",
    "{use: fixed, widths: [2, 1, 2], draw: iid}",
    "{use: fixed, widths: [2, 2, 1, 1]}",
    "{use: fixed, paths: ['0', '1', '2', '0.0', '0.1', '1.0', '0.0.0', '1.0.0', '0.0.0.0']}",
    "{use: fixed, widths: [3, 2, 1], draw: without_replacement}",
)
"""Tree policies that every drafter of four levels can grow, one of each kind."""


def check_decoding(drafter: str, tree: str) -> Pipeline:
    """The pipeline that decoded; raises AssertionError unless its greedy output is the plain target's.

    `drafter` and `tree` are sections of a recipe, `{use: chain, depth: 4}`. A batch of ragged prompts is continued
    on a table; a tree that declares how it draws is judged by `recursive`, any other by `match`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(DECODING.format(drafter="{use: none}", tree="null", verifier="match"), encoding="utf-8")
        plain = load(path).generate(PROMPTS)
        verifier = "recursive" if "draw" in tree else "match"
        path.write_text(DECODING.format(drafter=drafter, tree=tree, verifier=verifier), encoding="utf-8")
        pipeline = load(path)
    result = pipeline.generate(PROMPTS)
    assert result.tokens == plain.tokens, "greedy output differs from plain decoding"
    assert result.acceptance.drafted > 0, "nothing was drafted"
    return pipeline


def check_training(
    drafter: str, losses: str, *, rollout: str = "all-levels", levels: int = 3, steps: int = 30
) -> Pipeline:
    """The pipeline of the trained drafter; raises AssertionError unless it learned, and its tau is the one simulated.

    `specframe train` takes it from texts to weights, for `steps` on the greedy texts of a tiny random Llama. Each of
    the losses must fall by a tenth; on other such texts the weights, loaded by a recipe, must decode with a chain of
    `levels` at the tau that validation computes without decoding, within 3 %, and emit the target's own tokens.

    `drafter` is a recipe's section, without weights, `losses` its list, and `rollout` a name.
    """
    texts = _greedy_texts()
    with tempfile.TemporaryDirectory() as out:
        lines = (" ".join(f"w{token}" for token in text) for text in texts[:-HELD])
        data = "\n".join(json.dumps({"text": line}) for line in lines)
        Path(out, "texts.jsonl").write_text(data, encoding="utf-8")
        path = Path(out, "recipe.yaml")
        course = COURSE.format(levels=levels, losses=losses, rollout=rollout, out=out, steps=steps)
        path.write_text(_recipe(drafter) + course, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["train", str(path)]) == 0, "training failed"
        report = json.loads(Path(out, "weights", "train.json").read_text(encoding="utf-8"))
        names = ["loss", *(part.entry.name for part, _ in plan(Recipe.read(path), discover()).losses)]
        pipeline = load(path, overrides=[f"drafter.weights={out}/weights"])
    first, *_, last = report["losses"]
    for name in names:
        assert last[name] < 0.9 * first[name], f"{name} has not fallen: {first[name]:.4g}, then {last[name]:.4g}"

    unseen = torch.tensor(texts[-HELD:])
    mask = torch.arange(unseen.shape[1]).expand_as(unseen) >= PROMPT
    target, trained = pipeline.parts.target, pipeline.parts.drafter
    assert isinstance(target, NeuralTarget) and isinstance(trained, Trainable)
    teacher = target.teach(unseen, mask)
    unroll = discover().find("rollout", rollout).load()()
    simulated = measure(trained, [teacher], [], unroll)["tau"]
    result = pipeline.generate(unseen[:, :PROMPT].tolist())
    assert result.tokens == unseen[:, PROMPT:].tolist(), "greedy output differs from plain decoding"
    tau = 1 + result.acceptance.accepted / result.acceptance.cycles
    assert tau > 1.1, f"nothing was learned: tau is {tau:.3f}"
    assert abs(simulated - tau) < 0.03 * tau, f"validation gives tau {simulated:.3f}, decoding {tau:.3f}"
    return pipeline


def _recipe(drafter: str) -> str:
    return TRAINING.format(folder=_home(), drafter=drafter, new=NEW, held=HELD)


@lru_cache(maxsize=1)
def _home() -> Path:
    """A folder with a random Llama whose tokens are words w0, w1, ... and that seldom repeats itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    wrap: Any = PreTrainedTokenizerFast
    holder = tempfile.TemporaryDirectory(prefix="specframe-words-")
    _HOLDERS.append(holder)
    folder = Path(holder.name)
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrap(tokenizer_object=tokenizer, eos_token="w0").save_pretrained(folder / "model")
    random_model(vocab=VOCAB, size=16, seed=1).float().save_pretrained(folder / "model")
    return folder


@lru_cache(maxsize=1)
def _greedy_texts() -> list[list[int]]:
    """Returns greedy answers to random prompts: TAUGHT texts to learn from, and HELD others."""
    path = _home() / "plain.yaml"
    path.write_text(_recipe("{use: none}"), encoding="utf-8")
    chance = torch.Generator().manual_seed(3)
    prompts = torch.randint(1, VOCAB, (TAUGHT + HELD, PROMPT), generator=chance).tolist()
    answers = load(path).generate(prompts).tokens
    return [prompt + tokens for prompt, tokens in zip(prompts, answers, strict=True)]


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []
