"""A stand-in for vLLM: greedy requests over one model, read in the portions that a test asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from specframe_vllm.checks import Drafting
from specframe_vllm.rows import Read, Rows
from specframe_vllm.target import EngineTarget, features_of

ALL = 10_000


class StandInModel(nn.Module):
    """A model of transformers with the methods that models of vLLM have."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.inner = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        self.lm_head = self.inner.lm_head
        self.outputs: list[Tensor] = []
        for layer in self.inner.model.layers:
            layer.register_forward_hook(lambda module, arguments, output: self.outputs.append(output))

    def embed_input_ids(self, tokens: Tensor) -> Tensor:
        return self.inner.get_input_embeddings()(tokens)

    def compute_logits(self, features: Tensor) -> Tensor:
        return self.lm_head(features)

    def read(self, tokens: Sequence[int]) -> list[Tensor]:
        """The outputs of all layers, and of the final norm, [T, D] each."""
        self.outputs.clear()
        last = self.inner.model(torch.tensor([tokens]), use_cache=False).last_hidden_state
        return [layer[0] for layer in (*self.outputs, last)]


def target_of(model: StandInModel, folder: Path, *, inner: bool = True) -> EngineTarget:
    """A target around a model, as the proposer makes one of vLLM's."""
    return EngineTarget(
        model,
        model.inner.config,
        name=str(folder),
        tokenizer=str(folder),
        dtype=torch.float64,
        context=256,
        device=torch.device("cpu"),
        inner=inner,
    )


@dataclass
class Job:
    """A request: its tokens, how many of them are read, and the draft that the next pass may score."""

    text: list[int]
    prompt: int
    read: int = 0
    draft: list[int] = field(default_factory=list)


class StandInEngine:
    """Requests that are decoded together with drafts of a recipe."""

    def __init__(self, folder: Path, drafting: Drafting, prompts: Mapping[str, Sequence[int]]) -> None:
        self.model = StandInModel(folder)
        self.target = target_of(self.model, folder)
        with torch.no_grad():
            drafting.drafter.bind(self.target)
            self.rows = Rows(
                drafting.drafter, drafting.tree, self.target.head, slots=8, room=256, length=drafting.length
            )
        self.jobs = {name: Job([*prompt], len(prompt)) for name, prompt in prompts.items()}
        self.drafted: dict[str, list[list[int]]] = {name: [] for name in prompts}
        """The drafts of each request, in turn."""

    @torch.inference_mode()
    def step(self, portions: Mapping[str, int]) -> None:
        """One pass over each of these requests, with the most tokens to read of it."""
        reads, outputs, place = [], list[list[Tensor]](), 0
        for name, portion in portions.items():
            job = self.jobs[name]
            tokens, start = [*job.text, *job.draft], job.read
            count = min(portion, len(tokens) - start)
            states = self.model.read(tokens[: start + count])
            outputs.append([layer[start:] for layer in states])
            new = list[int]()
            if start + count == len(tokens):
                best = self.model.compute_logits(states[-1][len(job.text) - 1 :]).argmax(-1).tolist()
                for guess, right in zip([*job.draft, None], best, strict=True):
                    new.append(right)
                    if guess != right:
                        break
                job.read = len(job.text) + len(new) - 1
                job.text += new
            else:
                job.read += count
            reads.append(Read(name, list(job.text), len(new), start, place, count, list(job.draft), 256))
            place += count
            job.draft = []
        layers = [torch.cat(part) for part in zip(*outputs, strict=True)]
        inner = [layers[layer] for layer in self.target.layers]
        drafts = self.rows.draft(reads, features_of(self.target, layers[-1], inner), layers[-1], self.jobs)
        for read, draft in zip(reads, drafts, strict=True):
            self.jobs[read.name].draft = draft
            if read.new:
                self.drafted[read.name].append(draft)

    def preempt(self, name: str) -> None:
        """Forgets what was read of a request."""
        self.jobs[name].read, self.jobs[name].draft = 0, []

    def cancel(self, name: str) -> None:
        """Ends a request."""
        del self.jobs[name]

    def new(self, name: str) -> list[int]:
        """The tokens that a request was given."""
        return self.jobs[name].text[self.jobs[name].prompt :]
