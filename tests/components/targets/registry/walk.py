"""One architecture, tiny and random: does it decode as `generate` does, and draft with its own layers?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from specframe.components.targets.architectures import refusal
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import SpecframeError, first_line
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, accept, batch, random_tree
from tests.components.targets.registry.configs import class_of, config_of

COUNT = 8
NODES = 7
LARGEST = 20_000_000


@dataclass(frozen=True)
class Row:
    """The outcome for one architecture."""

    name: str
    outcome: str
    """`identical`, `refused`, `wrong` or `not built`."""
    detail: str = ""
    layers: str = ""
    """Why it does not draft with its own layers, where it decodes identically; empty if it does."""
    images: str = ""
    """`identical`, `wrong`, or why it does not decode after an image; empty if none was tried."""


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random model in evaluation mode."""
    torch.manual_seed(0)
    config = config_of(name)
    model_class = class_of(transformers.CONFIG_MAPPING[name])
    config._experts_implementation = "eager"  # the others have no float64
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"its smallest config here has {size / 1e6:.0f} million weights")
    model: Any = model_class._from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_(0, 0.25)
    return model


@torch.no_grad()
def plain(model: Any, prompt: list[int]) -> tuple[list[int], Tensor]:
    """The greedy continuation by transformers' own `generate`, and the logits of its steps: [COUNT], [COUNT, V]."""
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0}
    out = model.generate(input_ids=ids, **options, return_dict_in_generate=True, output_logits=True)
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def compare(target: HFTarget, wanted: list[tuple[list[int], Tensor]], chosen: LayerChoice | None = None) -> str | None:
    """The fault of greedy tree decoding of the three prompts together, or None.

    Its random trees hold the right continuation. Tokens must be equal, and the logits of every root to 1e-4. The chosen
    layers, if any, draft first: they run over most nodes of every tree.
    """
    noise = torch.Generator().manual_seed(7)
    out: list[list[int]] = [[] for _ in PROMPTS]
    tree, scores = admitted(target, batch(PROMPTS), COUNT + 30)
    while True:
        for row, (found, (_, logits)) in enumerate(zip(out, wanted, strict=True)):
            if len(found) < COUNT:
                near = torch.allclose(scores.logits[row, 0].float(), logits[len(found)], rtol=1e-4, atol=1e-4)
                if not near:
                    return f"row {row} has other logits than generate for new token {len(found) + 1}"
        committed = target.commit(tree, accept(tree, scores.logits))
        for row, found in enumerate(out):
            new = committed.tokens[row, : int(committed.count[row])].tolist()
            found += new[-1:] if committed.prompt is not None else new
            if found[:COUNT] != wanted[row][0][: len(found)]:
                return f"row {row} has other tokens than generate"
        if all(len(found) >= COUNT for found in out):
            return None
        rest = [future[len(found) :] for (future, _), found in zip(wanted, out, strict=True)]
        tree = random_tree(committed.root, rest, NODES, noise)
        if chosen is not None:
            _draft(target, chosen, tree)
        scores = target.score(tree)


def _draft(target: HFTarget, chosen: LayerChoice, tree: TokenTree) -> None:
    for start in range(0, NODES - 2, 2):
        target.run_layers(chosen, tree, torch.arange(start, start + 2).expand(len(tree.tokens), -1))


def examine(name: str) -> Row:
    """Builds, decodes and compares one architecture."""
    reason = _refused_by_config(name)
    if reason is not None:
        return Row(name, "refused", reason)
    found = Row(name, "not built")
    for dtype in (torch.float64, torch.float32):  # some forward passes have parts that are float32 for good
        found = _examine(name, dtype)
        if found.outcome in {"identical", "refused"}:
            break
    return found


def _refused_by_config(name: str) -> str | None:
    """Why the default config of a model type is refused before any weights are read."""
    config_class = transformers.CONFIG_MAPPING[name]
    try:
        return refusal(class_of(config_class), config_class())
    except SpecframeError as error:
        return str(error)
    except Exception:  # a default config that its own checks do not let through
        return None


def _examine(name: str, dtype: torch.dtype) -> Row:
    try:
        model = build(name, dtype)
    except Exception as error:
        return Row(name, "not built", _words(error))
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor(PROMPTS[:1]))
    except Exception as error:
        outcome = "refused" if "pixel_values" in str(error) else "not built"
        return Row(name, outcome, f"fails on text alone, {_words(error)}")
    try:
        target = HFTarget.from_model(model)
    except SpecframeError as error:
        return Row(name, "refused", str(error).removeprefix("this model cannot be a target: "))
    try:
        wanted = [plain(model, prompt) for prompt in PROMPTS]
    except Exception as error:
        return Row(name, "not built", f"generate fails, {_words(error)}")
    wrong = _wrong(target, wanted)
    return Row(name, "identical", layers=_own_layers(target, wanted)) if wrong is None else replace(wrong, name=name)


def _wrong(target: HFTarget, wanted: list[tuple[list[int], Tensor]], chosen: LayerChoice | None = None) -> Row | None:
    """The outcome in place of an identical text, of no name; None if it is identical."""
    try:
        fault = compare(target, wanted, chosen)
    except SpecframeError as error:
        return Row("", "refused", str(error))
    except Exception as error:
        fault = _words(error)
    return None if fault is None else Row("", "wrong", fault)


def _own_layers(target: HFTarget, wanted: list[tuple[list[int], Tensor]]) -> str:
    """Why the target does not draft with some of its own layers; empty if it does. Raises nothing."""
    layers = target.config.num_hidden_layers
    for chosen in (LayerChoice.first(layers // 2, layers), LayerChoice.without(layers, [1], [1])):
        try:
            target.check_layers(chosen)
        except SpecframeError as error:
            return str(error)
        if (wrong := _wrong(target, wanted, chosen)) is not None:
            return f"decodes wrongly: {wrong.detail}"
    return ""


def _words(error: BaseException) -> str:
    cause = error.__cause__ or error  # checks of a config wrap what they found
    return f"{type(cause).__name__}: {first_line(cause)}"
