"""The class that vLLM calls for drafts: `speculative_config={"method": "custom_class", "model": ...}`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specframe_vllm.checks import Drafting, require_same_model
from specframe_vllm.rows import Read, Rows
from specframe_vllm.supported import require_supported
from specframe_vllm.target import EngineTarget, features_of


class Proposer:
    """Drafts with a recipe's drafter for the requests of a vLLM model runner.

    Args:
        vllm_config: vLLM's configuration; `additional_config["specframe"]` has the `recipe` and its `overrides`.
    """

    def __init__(self, vllm_config: Any) -> None:
        require_supported()
        self._config = vllm_config
        self._drafting = Drafting.read(
            vllm_config.additional_config, vllm_config.speculative_config.num_speculative_tokens
        )
        self._drafting.require_features(
            pipeline=vllm_config.parallel_config.pipeline_parallel_size,
            prefix_caching=vllm_config.cache_config.enable_prefix_caching,
        )
        self._rows: Rows | None = None
        self._target: EngineTarget | None = None

    @property
    def target(self) -> EngineTarget:
        """The target, available once the model is loaded."""
        assert self._target is not None, "vLLM calls load_model first"
        return self._target

    @torch.no_grad()  # not inference_mode: a drafter reads its weights' versions
    def load_model(self, model: nn.Module) -> None:
        """Binds the drafter to vLLM's model, and begins a session with vLLM's maximum number of rows."""
        from vllm.model_executor.models.interfaces import supports_eagle3

        config, drafting = self._config.model_config, self._drafting
        require_same_model(drafting.target, config.model, model)
        self._target = EngineTarget(
            model,
            config.hf_text_config,
            name=config.model,
            tokenizer=config.tokenizer,
            dtype=config.dtype,
            context=config.max_model_len,
            device=next(model.parameters()).device,
            inner=supports_eagle3(model),
        )
        drafting.drafter.bind(self._target)
        self._rows = Rows(
            drafting.drafter,
            drafting.tree,
            self._target.head,
            slots=self._config.scheduler_config.max_num_seqs,
            room=config.max_model_len,
            length=drafting.length,
        )

    @torch.inference_mode()
    def draft(
        self, reads: Sequence[Read], last: Tensor, inner: list[Tensor] | None, unfinished: Container[str]
    ) -> list[list[int]]:
        """Returns the drafts after a forward pass, one for each request that it read.

        `last` [T, D] is the model's output for all tokens that were read, `inner` the outputs of `target.layers`.
        """
        assert self._rows is not None, "vLLM calls load_model first"
        return self._rows.draft(reads, features_of(self.target, last, inner), last, unfinished)

    def propose(self, *arguments: object, slot_mappings: object = None) -> list[list[int]]:
        """Does not draft: vLLM's own call has no hidden states, and `hooks` calls `draft` instead."""
        raise RuntimeError(
            "the plugin of specframe-vllm is not loaded: leave VLLM_PLUGINS unset, or add specframe to it"
        )
