"""A loaded recipe: `specframe.load("recipes/falcon.yaml").generate("Hello")`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch

from specframe.components.drafters.none import NoDrafter
from specframe.components.verifiers.match import Match
from specframe.decoding.clock import Clock
from specframe.decoding.costs import costs_of
from specframe.decoding.encoding import Prompt, PromptEncoder, Turn, as_list, images_of, inputs_of, sole
from specframe.decoding.exclusive import exclusive_use
from specframe.decoding.models import read_recipe, report_defaults, with_defaults
from specframe.decoding.overlap import threads_of
from specframe.decoding.requests import Request, StopTexts, budget, require_whole
from specframe.decoding.session import Parts, Session
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.decoding.stats import Acceptance, Result
from specframe.decoding.timing import DraftNumbers, watch, wrapped
from specframe.kernel.capabilities import is_approximate
from specframe.kernel.composition import attach
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import Target, text_of
from specframe.kernel.types import Cycle
from specframe.native.linear import release_memory
from specframe.recipes.build import Plan, plan
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registry
from specframe.sampling.grammar import grammar_of
from specframe.sampling.random import row_seed

if TYPE_CHECKING:
    from specframe.components.targets.image_processor import Image


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
    numbers: DraftNumbers = field(default_factory=DraftNumbers, repr=False, compare=False)
    """Checks that the drafter's logits are numbers; shared by copies, so that it warns once."""

    @classmethod
    def build(cls, plan: Plan, target: Target | None = None) -> Self:
        """The pipeline of a validated recipe: loads the models and binds the drafter to the target.

        A given `target` is used in place of the one that the recipe's target section would load.
        """
        drafter = plan.parts["drafter"].build()
        threads = threads_of(plan.settings["run"].threads, drafter)
        if target is None:
            target = plan.parts["target"].build()
            report_defaults(target, plan.recipe.data.get("sampling") or ())
        plan = with_defaults(plan, target)
        drafter.bind(target)
        attach(plan.verifier, target)
        parts = Parts(target, drafter, plan.tree, plan.verifier, threads=threads)
        pipeline = cls.around(parts, plan.settings["sampling"], plan.settings["run"], plan)
        release_memory()
        return pipeline.with_parts(costs=costs_of(parts, pipeline.run, plan.recipe.data.get("drafter")))

    @classmethod
    def around(cls, parts: Parts, sampling: SamplingSettings, run: RunSettings, plan: Plan | None = None) -> Self:
        """The pipeline of parts that are already built and bound; tokenizer and end tokens are the target's."""
        return cls(
            parts=parts,
            sampling=sampling,
            run=run,
            tokenizer=text_of(parts.target).tokenizer,
            ends=frozenset(text_of(parts.target).ends),
            lossless=parts.verifier.lossless and not is_approximate(parts.target),
            plan=plan,
        )

    def with_parts(self, **parts: Any) -> Self:
        """A copy with other parts around the same target."""
        return replace(self, parts=replace(self.parts, **parts))

    def plain(self) -> Self:
        """A copy that drafts nothing: plain autoregressive decoding of the same target."""
        exact = not is_approximate(self.parts.target)
        return replace(self, parts=plain_parts(self.parts.target), lossless=exact, plan=None)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        images: Sequence[Image] = (),
        max_new_tokens: int | None = None,
        seed: int | None = None,
        listener: Callable[[int, list[int]], None] | None = None,
        streamer: Any = None,
    ) -> Result:
        """Continues the prompts, `run.batch` at a time: a row that is done makes room for the next prompt.

        A prompt is a text, a list of token ids, or a conversation: a list of turns, each a mapping of `role` and
        `content`. A single prompt gives a result of one entry. `images` are files or Pillow images, read before the
        text: one prompt takes all, several take one each. `listener(row, tokens)` is called with every cycle's tokens
        as they are committed; `streamer`, one of transformers', gets those of a single prompt.
        Raises InputError for an empty prompt, one that leaves no room in the context, or an image that cannot be read;
        and, when all other rows are done, for a row that reached a position where no token has any probability.
        """
        settings = self.sampling if max_new_tokens is None else replace(self.sampling, max_new_tokens=max_new_tokens)
        listed = as_list(prompts)
        rows = [self.encode(*each) for each in zip(listed, images_of(images, len(listed)), strict=True)]
        if streamer is not None:
            if len(rows) != 1:
                raise InputError("a streamer follows one prompt; use a listener for several")
            streamer.put(torch.tensor(rows))

        def listen(row: int, tokens: list[int]) -> None:
            if listener is not None:
                listener(row, tokens)
            if streamer is not None:
                streamer.put(torch.tensor(tokens))

        requests = self.requests(rows, settings, self.run.seed if seed is None else seed, listen)
        clock, acceptance = self.clock(), Acceptance()
        with clock.phase("session"), self.open(requests, clock=clock) as session:
            entries = session.run(requests, acceptance.add)
        clock.settle()
        if streamer is not None:
            streamer.end()
        require_whole(entries)
        return Result(
            texts=[self.decode(entry.tokens) for entry in entries],
            tokens=[entry.tokens for entry in entries],
            ended=[entry.ended or "" for entry in entries],
            acceptance=acceptance.settle(),
            clock=clock,
        )

    def stream(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        images: Sequence[Image] = (),
        max_new_tokens: int | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """Yields the pieces of a prompt's continuation as cycles commit them; joined, they are the text of `generate`.

        An incomplete character is held back until it is complete. The target is busy until the iterator is exhausted
        or closed. Raises the errors of `generate` when the first piece is requested.
        """
        settings = self.sampling if max_new_tokens is None else replace(self.sampling, max_new_tokens=max_new_tokens)
        requests, text = self.requests([self.encode(sole(prompt), images)], settings, seed), ""
        with self.open(requests) as session:
            (entry,) = session.admit(requests)
            while session.live:
                whole = self.decode(entry.tokens)
                if not whole.endswith("\ufffd"):
                    yield whole[len(text) :]
                    text = whole
                session.step()
        require_whole([entry])
        yield self.decode(entry.tokens)[len(text) :]

    @contextmanager
    def open(
        self, requests: Sequence[Request], *, slots: int | None = None, clock: Clock | None = None
    ) -> Iterator[Session]:
        """A session with room for any of the requests, by default `run.batch` of them at a time.

        A clock times the forward passes of target and drafter. Raises InputError for a prompt that is empty or leaves
        no room in the context.
        """
        limits = [budget(request, self.parts.target.context, number) for number, request in enumerate(requests)]
        longest = max((len(r.tokens) + limit for r, limit in zip(requests, limits, strict=True)), default=0)
        slots = slots or self.run.batch
        with exclusive_use(self.parts.target), self._for_rows(slots)._timed(clock) as parts:
            rows, room = min(slots, max(len(requests), 1)), longest + parts.nodes
            yield Session(parts, rows, room, clock=clock, watch=self.numbers.see)

    @contextmanager
    def open_endless(
        self,
        slots: int | None = None,
        clock: Clock | None = None,
        *,
        longest: int | None = None,
        watch: Callable[[Cycle], None] | None = None,
    ) -> Iterator[Session]:
        """A session for requests not known yet, by default `run.batch` at a time, with rows as long as the context.

        `longest` limits a row's prompt and continuation to fewer tokens in total; `watch` is called with every cycle,
        admissions included.
        """
        slots = slots or self.run.batch
        with exclusive_use(self.parts.target), self._for_rows(slots)._timed(clock) as parts:
            room = min(longest or parts.target.context, parts.target.context) + parts.nodes
            yield Session(parts, slots, room, clock=clock, watch=self.numbers.before(watch))

    def _for_rows(self, rows: int) -> Self:
        costs = self.parts.costs
        return self if costs is None or costs.rows is None else self.with_parts(costs=replace(costs, rows=rows))

    def _timed(self, clock: Clock | None) -> AbstractContextManager[Parts]:
        drafter = self.plan.parts["drafter"].entry.name if self.plan else type(self.parts.drafter).__name__
        self.numbers.open(drafter)
        if clock is None:
            return nullcontext(wrapped(self.parts, self.numbers.expand, self.numbers.search))
        return watch(self.parts, clock, self.numbers)

    def requests(
        self,
        rows: Sequence[Sequence[int]],
        settings: SamplingSettings | None = None,
        seed: int | None = None,
        listener: Callable[[int, list[int]], None] | None = None,
        *,
        first: int = 0,
    ) -> list[Request]:
        """A request for each prompt with these settings and this seed, by default the recipe's.

        A row's random numbers follow from the seed and its number; the first row has the number `first`.
        """
        settings = settings or self.sampling
        stop: StopTexts | None = None
        if settings.stop:
            if self.tokenizer is None:
                raise InputError("stop texts need a target with a tokenizer; remove sampling.stop")
            stop = StopTexts(settings.stop, self.tokenizer)
        ends = (frozenset() if settings.ignore_eos else self.ends) | frozenset(settings.stop_token_ids)
        settings.require_within(self.parts.target.vocab_size)
        grammar = grammar_of(self.parts.target, settings.grammar)
        return [
            Request(
                tokens=row,
                sampling=settings.law(len(row), ends, grammar),
                seed=row_seed(self.run.seed if seed is None else seed, number),
                max_new_tokens=settings.max_new_tokens,
                number=number,
                ends=ends,
                stop=stop,
                listener=None if listener is None else partial(listener, number),
                inputs=inputs_of(row),
            )
            for number, row in enumerate(rows, first)
        ]

    def clock(self) -> Clock:
        """A clock for the target's device."""
        return Clock.on(text_of(self.parts.target).device)

    def encode(self, prompt: Prompt, images: Sequence[Image] = ()) -> Sequence[int]:
        """The prompt's token ids; if `run.chat` is true, a text becomes a user's turn, after any images."""
        return self._encoder.encode(prompt, images)

    def encode_turns(self, turns: Sequence[Turn], options: Mapping[str, Any] = MappingProxyType({})) -> Sequence[int]:
        """The token ids of a conversation, turns of `role` and `content`, up to where the next answer begins.

        A content is a text, or a list of parts that may be images: {"type": "text", "text": "What is it?"} and
        {"type": "image", "image": "photo.png"}. `options` are further arguments of the tokenizer's
        `apply_chat_template`, and variables of the template.
        """
        return self._encoder.encode_turns(turns, options)

    @property
    def _encoder(self) -> PromptEncoder:
        return PromptEncoder(self.parts.target, self.tokenizer, self.run.chat, self.run.chat_template_kwargs)

    def decode(self, tokens: Sequence[int]) -> str:
        """The tokens as text without special tokens; without a tokenizer, the ids separated by spaces."""
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def plain_parts(target: Target) -> Parts:
    """Returns the parts that decode a target without drafting: one token a cycle."""
    return Parts(target, NoDrafter(), None, Match())


def load(
    recipe: str | Path, *, overrides: Sequence[str] = (), registry: Registry | None = None, local_code: bool = True
) -> Pipeline:
    """The pipeline of a recipe file, or of a model that needs no training: its folder, GGUF file or Hub name.

    `key=value` overrides are applied. Raises RecipeError with a list of the recipe's problems, WeightsError for
    weights that do not fit.
    """
    return Pipeline.build(plan(read_recipe(recipe, overrides), registry or discover(), local_code))
