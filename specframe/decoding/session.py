"""The decoding loop: rows are admitted, then draft, score, verify and commit repeat until each row is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from specframe.decoding.clock import Clock
from specframe.decoding.exclusive import Claimed, claim, require_claim
from specframe.decoding.overlap import Overlap, Threads
from specframe.decoding.requests import (
    Entry,
    Request,
    enter,
    following,
    groups,
    prompts_of,
    pruned,
    refilled,
    register,
    sampling_of,
)
from specframe.decoding.verification import Verification, malformed
from specframe.kernel.capabilities import Promise
from specframe.kernel.composition import draft_of
from specframe.kernel.costs import Costs, DraftRecord
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter, Observer, Target, TreePolicy, Verifier, text_of
from specframe.kernel.sampling import Streams
from specframe.kernel.types import Context, Cycle, GreedyScores, KnownPrefix, Scores, TokenTree
from specframe.neural.forward import without_tracking
from specframe.neural.transfer import tensor_on
from specframe.sampling.laws import RowSampling, Sampling
from specframe.sampling.random import SeededRandom


@dataclass(frozen=True)
class Parts:
    """Parts that a recipe composes."""

    target: Target
    drafter: Drafter
    tree: TreePolicy | None
    verifier: Verifier
    costs: Costs | None = None
    """Costs of forward passes, for trees that choose their size by them."""
    threads: Threads | None = None
    """Numbers of threads of the target and of a drafter that works while it scores; None: all for both."""

    @property
    def promise(self) -> Promise:
        """Promise of every draft: the drafter's own, or that of the tree policy it grows."""
        return draft_of(self.drafter, self.tree)

    @property
    def nodes(self) -> int:
        """The most nodes a draft has, the root included."""
        return self.promise.nodes or 1

    @property
    def observers(self) -> list[Observer]:
        """The parts that follow the session."""
        parts: tuple[object, ...] = (self.tree, self.verifier, self.drafter)
        return [part for part in parts if isinstance(part, Observer)]

    @property
    def stateful(self) -> list[Target | Drafter | Observer]:
        """The parts that keep state per row, each once."""
        return [self.target, self.drafter, *(part for part in self.observers if part is not self.drafter)]


class Session:
    """The rows that are decoded together, each from its admission to its release.

    Live rows are dense: rows 0 .. R - 1 of every tensor. A new row joins after them; when a row is done, the last one
    takes its place.
    """

    def __init__(
        self,
        parts: Parts,
        slots: int,
        room: int,
        *,
        random: Streams | None = None,
        clock: Clock | None = None,
        watch: Callable[[Cycle], None] | None = None,
    ) -> None:
        """A session of at most `slots` rows of at most `room` positions each, the nodes of a draft included.

        `watch` is called with every cycle, admissions included, before finished rows leave; `cycle_rows` then has the
        entries of the cycle's rows.
        """
        if parts.nodes > parts.target.context:
            raise CompositionError(
                f"a draft of {parts.nodes} nodes does not fit the target's context of {parts.target.context}: "
                "make the tree smaller"
            )
        self.parts, self.slots = parts, slots
        self.clock = clock or Clock()
        self.live: list[Entry] = []
        """The entries of the rows being decoded, in the order of the rows."""
        self.cycle_rows: list[Entry] = []
        """The entries of the last cycle's rows, in its order."""
        self._device = text_of(parts.target).device
        self._random: Streams = random or SeededRandom(0, 0, self._device or "cpu")
        self._sampling: Sampling | RowSampling = Sampling()
        self._root = torch.zeros(0, dtype=torch.int64, device=self._device)  # [R]
        self._verification = Verification(parts.target, parts.verifier, parts.promise.block)
        self._observers, self._stateful = parts.observers, parts.stateful
        self._watch, self._room = watch, room
        self._overlap = Overlap(parts.drafter, self.clock, parts.threads)
        self._record = DraftRecord()
        self._concluding = False  # rows keep their places until the cycle is over
        self._early_prompt: Sequence[int] | None = None  # the prompt that is being read before its admission
        if isinstance(parts.tree, Observer):
            parts.tree.open(slots, room)
        self._open()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the requests in the last cycle's rows."""
        return [entry.request.number for entry in self.cycle_rows]

    @property
    def free(self) -> int:
        """Number of requests that can be admitted now."""
        return self.slots - len(self.live)

    @torch.inference_mode()
    def read_ahead(self, prompt: Sequence[int], limit: int, prefix: KnownPrefix | None = None) -> int:
        """Reads up to `limit` further tokens of a prompt that will be admitted alone; returns the total number read.

        The last token is left to the admission; a prompt not begun yet starts with `prefix`. Returns 0 for targets that
        read prompts at once. It needs a free slot; other requests may be admitted in between if they leave one.
        """
        read = text_of(self.parts.target).read_ahead
        if read is None:
            return 0
        require_claim(self.parts.target, self)
        with self.clock.phase("prefill"):
            self._early_prompt = prompt
            return read(prompt, limit, prefix)

    @torch.inference_mode()
    def admit(self, requests: Sequence[Request]) -> list[Entry]:
        """Reads the requests' prompts in one forward pass; returns their entries, each with its first token.

        Prompts with images of other shapes take further passes. Raises InputError for a prompt that is empty or too
        long, inputs that the target does not read, or more requests than free slots; then no row has changed.
        """
        if len(requests) > self.free:
            raise InputError(f"{len(requests)} requests for {self.free} free slots; admit fewer at a time")
        if not requests:
            return []
        require_claim(self.parts.target, self)
        entries = register(requests, self.parts.target.context)
        try:
            for group in groups(self.parts.target, requests):
                with Claimed(self.parts.target, self):
                    self._admit([entries[place] for place in group])
        except InputError:  # of an image; earlier groups are released
            for entry in entries:
                self.cancel(entry)
            raise
        return entries

    @without_tracking
    def step(self) -> Cycle:
        """Runs one cycle of all live rows."""
        with Claimed(self.parts.target, self):
            return self._step()

    def _step(self) -> Cycle:
        parts, sampling = self.parts, following(self._sampling, self.live, self._device)
        with self.clock.phase("draft"):
            costs = parts.costs and self._verification.costs(parts.costs, self.live, self._record, sampling)
            context = Context(sampling, self._random.draft, costs, left=[entry.left for entry in self.live])
            draft = parts.drafter.propose(self._root, parts.tree, context)
            if sampling.processors and not parts.promise.needs_all_scores:
                draft = pruned(draft, self.live)
        with self._overlap.drafting(draft, context), self.clock.phase("score"):
            scores = self._verification.score(draft, sampling)
        cycle = self._conclude(list(self.live), draft, scores, self._random, sampling)
        self._root = cycle.committed.root
        self._release()
        return cycle

    @without_tracking
    def run(self, requests: Iterable[Request], watch: Callable[[Cycle], None] | None = None) -> list[Entry]:
        """Decodes all requests to their ends and returns their entries in order; free slots are refilled at once.

        `watch` is called with every cycle; `numbers` then has the numbers of its rows' requests.
        """
        queue, entries = iter(requests), list[Entry]()
        while True:
            while waiting := list(islice(queue, self.free)):
                entries += self.admit(waiting)
            if not self.live:
                return entries
            cycle = self.step()
            if watch is not None:
                watch(cycle)

    @torch.inference_mode()
    def cancel(self, entry: Entry) -> None:
        """Releases an entry's row if it is still being decoded; in a cycle's callback, at the end of the cycle."""
        if entry.ended is None and any(entry is row for row in (*self.live, *self.cycle_rows)):
            entry.ended = "cancelled"
            if not self._concluding:
                self._release()

    def _conclude(
        self,
        entries: list[Entry],
        draft: TokenTree,
        scores: Scores | GreedyScores,
        random: Streams,
        sampling: Sampling | RowSampling,
    ) -> Cycle:
        """Verifies and commits a draft, and passes the cycle to the observers."""
        self._concluding = True
        with self.clock.phase("verify"):
            verdict, gaps = self._verification.verify(draft, scores, sampling, random)
        with self.clock.phase("commit"):
            try:
                committed = self.parts.target.commit(draft, verdict)
                self.cycle_rows = entries
                enter(entries, draft, verdict, gaps)
            except (IndexError, RuntimeError, TypeError, ValueError) as error:
                if problem := malformed(draft, verdict):
                    name = type(self.parts.verifier).__name__
                    raise CompositionError(f"{name}.verify gave no verdict: {problem}") from error
                raise
            random.advance(verdict.count, draft.levels + 1)
            cycle = Cycle(draft, scores, verdict, committed)
            self.parts.drafter.commit(committed)
            for observer in self._observers:
                observer.observe(cycle)
        if self._watch is not None:
            self._watch(cycle)
        require_claim(self.parts.target, self)
        return cycle

    def _release(self) -> None:
        """Releases the rows that have ended; the last rows take their places."""
        self._concluding = False
        order = refilled([entry.ended is None for entry in self.live])
        if order == list(range(len(self.live))):
            return
        with self.clock.phase("commit"):
            rows = tensor_on(self._device, order, dtype=torch.int64)
            self._random.keep(rows)
            if order:
                for part in self._stateful:
                    part.keep(rows)
            else:
                self._open()
            self._root = self._root[rows]
        self.live = [self.live[row] for row in order]
        self._sampling = sampling_of(self.live)

    def _admit(self, entries: list[Entry]) -> None:
        """Reads the prompts of new rows in one batch, and gives each its first token."""
        requests = [entry.request for entry in entries]
        with self.clock.phase("prefill"):
            tree, scores = self.parts.target.admit(prompts_of(requests, self._device))
        random = self._random.start([request.seed for request in requests])
        sampling = following(sampling_of(entries), entries, self._device)
        cycle = self._conclude(entries, tree, scores, random, sampling)
        self._random.join(random)
        self.live += entries
        self._verification.renew()
        if self._early_prompt in [request.tokens for request in requests]:
            self._early_prompt = None
        self._root = torch.cat([self._root, cycle.committed.root])
        self._sampling = sampling_of(self.live)
        self._release()

    def _open(self) -> None:
        """Starts with no rows: others open anew; a tree policy and a target that reads a prompt ahead keep no rows."""
        claim(self.parts.target, self)
        self._overlap.end()
        for part in self._stateful:
            if part is self.parts.tree or (part is self.parts.target and self._early_prompt is not None):
                part.keep(torch.zeros(0, dtype=torch.int64, device=self._device))
            else:
                part.open(self.slots, self._room)
