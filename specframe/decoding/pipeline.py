"""A loaded recipe: `specframe.load("recipes/falcon.yaml").generate("Hello")`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from specframe.decoding.clock import Clock
from specframe.decoding.ledger import Entry, Ledger, as_prompts
from specframe.decoding.loop import Cycle, Parts, decode
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.decoding.stats import Acceptance
from specframe.decoding.watch import watch
from specframe.files.text import require_unicode
from specframe.kernel.build import Plan, plan
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target
from specframe.kernel.plugins import discover
from specframe.kernel.recipe import Recipe
from specframe.kernel.registry import Registry, one_line
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom

Prompt = str | Sequence[int]
"""A text, or its token ids."""


@dataclass(frozen=True)
class Result:
    """What a generation gave: one entry per prompt, in order."""

    texts: list[str]
    tokens: list[list[int]]
    """The new tokens of each prompt; an end-of-sequence token is among them."""
    ended: list[str]
    """Why each row ended: `length`, `end` or `stop`."""
    acceptance: Acceptance
    clock: Clock


@dataclass(frozen=True)
class Pipeline:
    """A composition ready to decode."""

    parts: Parts
    sampling: SamplingSettings
    run: RunSettings
    tokenizer: Any
    """The target's transformers tokenizer, or None: then prompts are token ids."""
    ends: frozenset[int]
    lossless: bool
    plan: Plan | None = None

    @classmethod
    def build(cls, plan: Plan, target: Target | None = None) -> Self:
        """The pipeline of a validated recipe: loads the models, binds the drafter to the target.

        A `target` that is given, loaded from the recipe's target section before, is taken instead.
        """
        target = plan.parts["target"].build() if target is None else target
        drafter = plan.parts["drafter"].build()
        tree = plan.parts["tree"].build() if "tree" in plan.parts else None
        verifier = plan.parts["verifier"].build()
        drafter.bind(target)
        return cls(
            parts=Parts(target, drafter, tree, verifier),
            sampling=plan.settings["sampling"],
            run=plan.settings["run"],
            tokenizer=getattr(target, "tokenizer", None),
            ends=frozenset(getattr(target, "ends", ())),
            lossless=verifier.lossless,
            plan=plan,
        )

    def with_parts(self, **parts: Any) -> Self:
        """A copy with other parts around the same target."""
        return replace(self, parts=replace(self.parts, **parts))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        seed: int | None = None,
        listener: Callable[[int, list[int]], None] | None = None,
        streamer: Any = None,
    ) -> Result:
        """Continuations of the prompts, decoded `run.batch` at a time.

        A single prompt gives a result of one entry. `listener(row, tokens)` hears every cycle's tokens as
        they come; `streamer`, one of transformers', is given a single prompt's tokens in the same way.
        Raises InputError for an empty prompt, or one that leaves no room in the context.
        """
        settings = self.sampling if max_new_tokens is None else replace(self.sampling, max_new_tokens=max_new_tokens)
        rows = [self.encode(prompt) for prompt in _as_list(prompts)]
        clock = Clock.on(getattr(self.parts.target, "device", None))
        acceptance, entries = Acceptance(), list[Entry]()
        base = self.run.seed if seed is None else seed
        if streamer is not None:
            if len(rows) != 1:
                raise InputError("a streamer follows one prompt; use a listener for several")
            streamer.put(torch.tensor(rows))
        for start in range(0, len(rows), self.run.batch):
            chunk = rows[start : start + self.run.batch]

            def hear(row: int, tokens: list[int], first: int = start) -> None:
                if listener is not None:
                    listener(first + row, tokens)
                if streamer is not None:
                    streamer.put(torch.tensor(tokens))

            ledger = self.open_ledger(chunk, settings, hear)
            with clock.phase("session"):
                for number, cycle in enumerate(self.cycles(chunk, ledger, settings, base, start, clock)):
                    if number:  # the first is the prefill's commit
                        acceptance.add(cycle)
            clock.settle()
            entries += ledger.entries
        if streamer is not None:
            streamer.end()
        return Result(
            texts=[self.decode(entry.tokens) for entry in entries],
            tokens=[entry.tokens for entry in entries],
            ended=[entry.ended or "" for entry in entries],
            acceptance=acceptance.settle(),
            clock=clock,
        )

    @torch.inference_mode()
    def cycles(
        self,
        rows: Sequence[Sequence[int]],
        ledger: Ledger,
        settings: SamplingSettings,
        seed: int,
        first: int = 0,
        clock: Clock | None = None,
    ) -> Iterator[Cycle]:
        """The cycles of one batch; `first` is the number of its first row, which names its random stream."""
        clock = clock or Clock()
        sampling = Sampling(
            temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p, min_p=settings.min_p
        )
        device = getattr(self.parts.target, "device", None)
        random = SeededRandom(seed, first + len(rows), device=device or "cpu")
        random.keep(torch.arange(first, first + len(rows), device=device))
        with watch(self.parts, clock) as parts:
            for cycle in decode(parts, sampling, as_prompts(rows, device), random, ledger, clock):
                clock.settle()
                yield cycle

    def open_ledger(
        self,
        rows: Sequence[Sequence[int]],
        settings: SamplingSettings,
        listener: Callable[[int, list[int]], None] | None = None,
    ) -> Ledger:
        """A ledger for the rows under the pipeline's budgets, ends of sequence and stop texts."""
        tree, drafter = self.parts.tree, self.parts.drafter
        stop = None
        if settings.stop:
            if self.tokenizer is None:
                raise InputError("stop texts need a target with a tokenizer; remove sampling.stop")
            stop = self._stops(settings.stop)
        return Ledger(
            rows,
            max_new_tokens=settings.max_new_tokens,
            context=self.parts.target.context,
            nodes=drafter.nodes if drafter.nodes is not None else tree.nodes if tree is not None else 1,
            ends=frozenset() if settings.ignore_eos else self.ends,
            stop=stop,
            listener=listener,
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids; a text becomes a user's turn when `run.chat` is true."""
        if not isinstance(prompt, str):
            size = self.parts.target.vocab_size
            if any(not 0 <= token < size for token in prompt):
                raise InputError(f"a prompt has token ids outside the target's vocabulary of {size}")
            return list(prompt)
        if self.tokenizer is None:
            raise InputError("this target has no tokenizer; give prompts as lists of token ids")
        if not prompt.strip():
            raise InputError("a prompt is empty; give it some text")
        require_unicode(prompt, "a prompt")
        if not self.run.chat:
            return list(self.tokenizer(prompt)["input_ids"])
        return self.encode_turns([{"role": "user", "content": prompt}])

    def encode_turns(self, turns: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a conversation, `role` and `content` a turn, up to where the next answer begins."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError("run.chat is true, but the target's tokenizer has no chat template; set run.chat=false")
        try:
            return list(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
        except Exception as error:  # a template raises what it likes
            raise InputError(f"the target's chat template refuses the prompt: {one_line(error)}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens as text, special tokens left out; space-separated ids without a tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _stops(self, texts: list[str]) -> Callable[[Entry], bool]:
        # A stop text can span tokens, and a token can hold several characters of it: look at the tail.
        reach = max(map(len, texts)) + 8

        def stop(entry: Entry) -> bool:
            tail = self.decode(entry.tokens[-reach:])
            return any(text in tail for text in texts)

        return stop


def load(
    recipe: str | Path, *, overrides: Sequence[str] = (), registry: Registry | None = None, local_code: bool = True
) -> Pipeline:
    """The pipeline of a recipe file, `key=value` overrides applied.

    Raises RecipeError that lists every problem of the recipe, WeightsError for weights that do not fit.
    """
    read = Recipe.read(recipe, list(overrides))
    return Pipeline.build(plan(read, registry or discover(), local_code))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    if len(prompts) == 0:
        raise InputError("there is no prompt; give at least one")
    return list(prompts)  # type: ignore[arg-type]
