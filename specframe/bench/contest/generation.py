"""Contestants that decode with transformers' own `generate`, on the same model as the recipes."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from specframe.decoding.baseline import generate_with_transformers
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.contestant import Outcome
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Target, text_of
from specframe.native.linear import unpack_again
from specframe.neural.cache import cache_name
from specframe.neural.compiled import width_of
from specframe.sampling.grammar import TextGrammar, grammar_of


class Generate:
    """transformers' `generate` with the target's own settings, its ends of sequence and nothing else."""

    name = "hf:generate"
    lossless: bool | None = True
    alone = False
    """True if it decodes one prompt at a time only."""

    def __init__(self) -> None:
        self._model: Any = None
        self._sampling = SamplingSettings()
        self._grammar: TextGrammar | None = None
        self._ends: frozenset[int] = frozenset()
        self._options: dict[str, Any] = {}
        self._batch = 1

    def prepare(self, target: Target, sampling: SamplingSettings, batch: int) -> None:
        """Takes the target's model. Raises an error for a target without a transformers model."""
        self._model = text_of(target).model
        if not callable(getattr(self._model, "generate", None)):
            raise CompositionError(f"{self.name} needs a target that is a transformers model: {{use: hf, ...}}")
        if self.alone and batch > 1:
            raise InputError(f"{self.name} decodes one prompt at a time (transformers allows no more); use --batch 1")
        self._sampling, self._batch, self._grammar = sampling, batch, grammar_of(target, sampling.grammar)
        self._ends = frozenset() if sampling.ignore_eos else frozenset(text_of(target).ends)
        self._options = self._extras(target)
        unpack_again(self._model)  # what is timed must not unpack weights in every step

    def _extras(self, target: Target) -> dict[str, Any]:
        """Returns further arguments of `generate`."""
        return {}

    def _extras_for(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Returns further arguments of `generate` for these prompts."""
        return {}

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompts, batch by batch."""
        tokens: list[list[int]] = []
        arrivals: list[list[float]] = []
        for start in range(0, len(rows), self._batch):
            chunk, ear = rows[start : start + self._batch], Ear()
            with torch.inference_mode():
                options = {**self._options, **self._extras_for(chunk), "streamer": ear}
                given = self._sampling, self._ends, options, self._grammar
                found = generate_with_transformers(self._model, chunk, *given)
            tokens += found
            arrivals += [ear.times[: len(row)] for row in found]
        return Outcome(tokens, arrivals)


class GenerateCompiled(Generate):
    """transformers' `generate` with a static cache and torch.compile for its forward passes except over prompts.

    One cache is kept per power of two of positions, so that further prompts need no recompilation.

    Args:
        backend: torch.compile's
    """

    name = "hf:generate-compiled"

    def __init__(self, *, backend: str = "inductor") -> None:
        super().__init__()
        self._backend = backend
        self._caches: dict[tuple[int, int], Any] = {}

    def _extras(self, target: Target) -> dict[str, Any]:
        from transformers.generation.configuration_utils import CompileConfig

        self._caches.clear()
        mode: Any = "reduce-overhead" if self._backend == "inductor" else None
        config = CompileConfig(dynamic=False, backend=self._backend, mode=mode)
        config._compile_all_devices = True  # type: ignore[assignment] # a CPU, too
        return {"compile_config": config}

    def _extras_for(self, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
        from transformers import StaticCache

        positions = max(map(len, rows)) + self._sampling.max_new_tokens
        key = len(rows), width_of(positions)
        if key not in self._caches:
            self._caches[key] = StaticCache(self._model.config.get_text_config(), max_cache_len=key[1])
        self._caches[key].reset()
        return {cache_name(self._model): self._caches[key]}


class PromptLookup(Generate):
    """transformers' assisted generation with n-grams of the prompt as drafts (`prompt_lookup_num_tokens`)."""

    name = "hf:prompt-lookup"
    alone = True

    def __init__(self, *, tokens: int = 10) -> None:
        super().__init__()
        self._tokens = tokens

    def _extras(self, target: Target) -> dict[str, Any]:
        return {"prompt_lookup_num_tokens": self._tokens}


class Assisted(Generate):
    """transformers' assisted generation (`assistant_model`), with its own schedule of draft lengths.

    Args:
        model: a local folder, a name on the Hugging Face Hub, or zoo://name
        dtype: the dtype of its weights; auto as for the target
        revision: a branch, tag or commit on the Hub
    """

    name = "hf:assisted"
    alone = True

    def __init__(
        self,
        *,
        model: str,
        dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto",
        revision: str | None = None,
    ) -> None:
        super().__init__()
        self._place, self._dtype, self._revision = model, dtype, revision

    def _extras(self, target: Target) -> dict[str, Any]:
        from specframe.components.targets.loading import load

        device = str(text_of(target).device or "cpu")
        assistant: Any = load(self._place, dtype=self._dtype, device=device, revision=self._revision, attention=None)
        mine, theirs = assistant.config.get_text_config().vocab_size, target.vocab_size
        if mine != theirs:
            raise CompositionError(f"the assistant {self._place} has {mine} tokens and the target {theirs}")
        return {"assistant_model": assistant}


class Ear:
    """A transformers streamer that records only the arrival times of tokens; the prompt comes first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._begun = False

    def put(self, value: Tensor) -> None:
        """Records the arrival of one token for each row [B], or of several for the only row [1, T]."""
        if self._begun:
            self.times += [perf_counter()] * (value.shape[-1] if value.dim() > 1 else 1)
        self._begun = True

    def end(self) -> None:
        """Does nothing."""
