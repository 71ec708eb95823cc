"""What a checkpoint's own generation config asks for and a recipe does not do."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Any

from specframe.components.targets.hf import HFTarget

log = logging.getLogger(__name__)

SHARED = ("temperature", "top_k", "top_p", "min_p")
"""Settings that the recipe's section `sampling` has under the same names; they count where a config samples."""
NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
"""Settings that change the distribution and that recipes do not have, with the value that changes nothing."""


def report_unused(target: object, named: Collection[str]) -> None:
    """Logs, in one line, the settings of a checkpoint's generation config that are not used; `named` the recipe's."""
    if isinstance(target, HFTarget) and (found := list(unused(target.model.generation_config, named))):
        log.warning(
            "the checkpoint's generation config asks for %s, which is not used: a recipe decodes by its section "
            "`sampling` alone, and `specframe.decoder` by all of them",
            ", ".join(found),
        )


def unused(config: Any, named: Collection[str]) -> Iterator[str]:
    """Yields settings, as `name=value`, that change the distribution and of which the recipe names none."""
    given = {} if config is None else vars(config)
    for name, neutral in NEUTRAL.items():
        if given.get(name) not in (None, neutral):
            yield f"{name}={given[name]}"
    if given.get("do_sample") and not set(SHARED) & set(named):
        yield "do_sample=True"
        yield from (f"{name}={given[name]}" for name in SHARED if given.get(name) is not None)
