"""P-EAGLE's drafter in the forms of vLLM and speculators. SGLang and the authors of EAGLE-3 have none for it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch

from specframe import WeightsError
from specframe.neural import Export, ambiguous_taps
from specframe_eagle.engines3 import checklist, wrapped
from specframe_eagle.layout3 import D2T, LM_HEAD, MASK, T2D
from specframe_eagle.parallel.layout import PublishedParallel
from specframe_eagle.published import EMBEDDING
from specframe_eagle.wide import Switches

if TYPE_CHECKING:
    from specframe_eagle.parallel.drafter import PEagle

FORMS = ("vllm", "speculators")
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    '\'{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": LEVELS, "parallel_drafting": true}\'',
    "speculators": "vllm serve FOLDER",
}


def export(drafter: PEagle, form: str) -> Export:
    """The drafter in a form. Raises WeightsError, every reason named, where the form has no place for it."""
    layout, target = drafter.parallel_layout, drafter.target
    reasons = ambiguous_taps(layout.taps, target.config.num_hidden_layers)
    if layout.switches.fc_norm:
        reasons.append("vLLM does not pass fc_norm on to P-EAGLE")
    if reasons:
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    vocab = target.config.vocab_size
    plain = replace(layout, names=frozenset(), mask_shape=())
    tensors = dict(PublishedParallel(drafter.drafting, plain, target).state_dict())
    if LM_HEAD not in tensors:
        tensors[LM_HEAD] = drafter.rows()
    rows = len(tensors[LM_HEAD])
    layout = replace(layout, rows=rows)
    if form == "speculators" or rows < vocab:
        support = layout.support if layout.support is not None else drafter.support
        tokens = torch.arange(vocab) if support is None else support.cpu()
        tensors[D2T] = tokens - torch.arange(rows)
        tensors[T2D] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
    own = EMBEDDING in tensors
    if form == "speculators" and not own:
        with torch.no_grad():
            tensors[EMBEDDING] = target.embed(torch.arange(vocab, device=target.device))
    config = layout.config
    if form == "speculators":
        config = wrapped(layout, config, drafter, "PEagleDraftModel", drafter.levels) | {"mask_token_id": layout.mask}
        config |= {switch.name: getattr(layout.switches, switch.name) for switch in fields(Switches)}
        config["embed_requires_grad"] = own
    shown = dict(checklist(layout, form, rows, vocab))
    shown["layer"] += f", {layout.shape.num_hidden_layers} of them"
    if own:
        shown["embedding"] = "its own, trained"
    shown["mask rows"] = f"token {layout.mask} and the vector {MASK}; {drafter.levels} tokens a forward pass"
    stored = {name: part.to(layout.dtype) if part.is_floating_point() else part for name, part in tensors.items()}
    return Export(config, stored, tuple(shown.items()), COMMANDS[form].replace("LEVELS", str(drafter.levels)))
