"""Self-test of trees after images, run on the first image that a kind of model reads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.components.targets.forward import resume
from specframe.components.targets.kind import TransformersTarget, fingerprint
from specframe.components.targets.probe import EDITION, LEAVES, PARENTS, remember, tolerance
from specframe.kernel.errors import InputError
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.neural.forward import agree
from specframe.recipes.folders import cache_folder


def check_once(target: TransformersTarget, prompts: Prompts) -> bool:
    """Compares a tree after the prompts' images with its paths as texts, outside of the session.

    Returns True if the kind of model has passed, now or earlier on this machine, so that it need not be tested again.
    Prompts without images, or without room for a tree, are not compared. Raises InputError for a kind that fails, and
    for images that cannot be read.
    """
    if not prompts.inputs or prompts.tokens.shape[1] + len(PARENTS) > target.context:
        return False
    note = cache_folder() / "checked" / f"{fingerprint(target, EDITION)}-images"
    if note.exists():
        return True
    kind = target.parts.vision.kind
    if not agree(*_logits(target, prompts), tolerance(target)):
        raise InputError(f"{kind} does not score trees after an image as it scores texts, so leave the image out")
    remember(note, f"{kind} scores trees after images as it scores each path\n")
    return True


@torch.no_grad()
def _logits(target: TransformersTarget, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """Returns the logits of a tree's nodes after each prompt, and of the paths to them as texts: [A, 5, V] each."""
    (rows, width), device, parts = prompts.tokens.shape, prompts.tokens.device, target.parts
    parent = torch.tensor(PARENTS, device=device).expand(rows, -1)
    tokens = (torch.arange(parent.numel(), device=device).view_as(parent) * 7 + 11) % target.vocab_size
    for token in parts.vision.tokens:  # no node is an image token
        tokens = torch.where(tokens == token, prompts.tokens[:, -1:], tokens)
    tree = TokenTree(tokens, parent, torch.ones_like(parent, dtype=torch.bool), torch.zeros_like(parent), levels=2)

    state = parts.begin(target.forward, rows, width + len(PARENTS), device, None)
    _, features = state.read_prompts(target.forward, prompts, parts.taps, parts.vision)
    state.take(features)
    nothing = torch.zeros(rows, dtype=torch.int64, device=device)
    first = TokenTree.root_only(tokens[:, 0])
    state.commit(first, Verdict(first.tokens[:, :0], nothing, bonus=tokens[:, 0]))
    nodes, _ = resume.score(target.computing, frozenset(), tree, state.rows, target.context, None)

    found = []
    for leaf in LEAVES:
        path = tokens[:, tree.ancestors[0, leaf]]  # [A, 3]
        places = prompts.count[:, None] + torch.arange(path.shape[1], device=device)
        texts = pad(prompts.tokens, (0, path.shape[1])).scatter(1, places, path)
        seen = torch.arange(texts.shape[1], device=device) <= places[:, -1:]
        logits = target.teach(texts, seen, None, _longer(prompts, path.shape[1])).logits
        found.append(logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[2])))
    one, other = found
    return nodes, torch.stack([one[:, 0], one[:, 1], other[:, 1], one[:, 2], other[:, 2]], 1)


def _longer(prompts: Prompts, more: int) -> dict[str, Tensor]:
    """Extends the inputs of prompts by `more` tokens: zeros for inputs with a value per token."""
    inputs = dict(prompts.inputs)
    for name, values in prompts.inputs.items():
        if values.shape == prompts.tokens.shape:
            inputs[name] = pad(values, (0, more))
    return inputs
