"""P-EAGLE's drafter in the forms of vLLM and speculators. SGLang and EAGLE-3's authors have no form for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch

from specframe import WeightsError
from specframe.neural import Export, ambiguous_taps
from specframe_eagle.engines3 import checklist, stored, token_maps, wrapped
from specframe_eagle.layout3 import LM_HEAD, MASK
from specframe_eagle.published import EMBEDDING
from specframe_eagle.wide import Switches

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import NeuralTarget
    from specframe_eagle.parallel.layout import ParallelLayout

FORMS = ("vllm", "speculators")
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    '\'{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": LEVELS, "parallel_drafting": true}\'',
    "speculators": "vllm serve FOLDER",
}


def export(
    form: str,
    own: Mapping[str, Tensor],
    layout: ParallelLayout,
    target: NeuralTarget,
    support: Tensor | None,
    levels: int,
) -> Export:
    """Converts a drafter with these tensors, under the published names with an LM head, and this layout to a form.

    `support` holds the tokens that it drafts, `levels` at a time. Raises WeightsError, with every reason, if the form
    has no place for something.
    """
    reasons = ambiguous_taps(layout.taps, target.config.num_hidden_layers)
    if layout.switches.fc_norm:
        reasons.append("vLLM does not pass fc_norm on to P-EAGLE")
    if reasons:
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    vocab = target.config.vocab_size
    tensors = dict(own)
    rows = len(tensors[LM_HEAD])
    layout = replace(layout, rows=rows)
    if rows < vocab:
        tensors |= token_maps(layout.support if layout.support is not None else support, rows, vocab)
    trained = EMBEDDING in tensors
    if form == "speculators" and not trained:
        with torch.no_grad():
            tensors[EMBEDDING] = target.embed(torch.arange(vocab, device=target.device))
    config = layout.config
    if form == "speculators":
        config = wrapped(layout, config, target.config, "PEagleDraftModel", levels) | {"mask_token_id": layout.mask}
        config |= {switch.name: getattr(layout.switches, switch.name) for switch in fields(Switches)}
        config["embed_requires_grad"] = trained
    shown = dict(checklist(layout, form, rows, vocab))
    shown["layer"] += f", {layout.shape.num_hidden_layers} of them"
    if trained:
        shown["embedding"] = "its own, trained"
    shown["mask rows"] = f"token {layout.mask} and the vector {MASK}; {levels} tokens a forward pass"
    found = {name: stored(part, layout) for name, part in tensors.items()}
    return Export(config, found, tuple(shown.items()), COMMANDS[form].replace("LEVELS", str(levels)), length=levels)
