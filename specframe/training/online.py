"""Online speculative decoding (OSD): a drafter that is trained while it drafts."""

from __future__ import annotations

import copy
import logging
from collections import deque
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from specframe.components.losses.distillation import Distillation
from specframe.components.rollouts.text import AlongText
from specframe.kernel.capabilities import small_form, untrained_form
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter, Observer, Target, TreePolicy
from specframe.kernel.training import (
    Loss,
    Rollout,
    RolloutMethods,
    Trainable,
    learning_in,
    translation_of,
)
from specframe.kernel.types import Committed, Context, Cycle, Teacher, TokenTree
from specframe.recipes.registry import one_line
from specframe.training.online_learner import Learner
from specframe.training.schedule import borrowed_generators
from specframe.training.transcripts import Transcript, begin, extend

log = logging.getLogger("specframe.online")

SHARE = 4
"""One of this many requests, the first, is held out."""


class Online:
    """Drafts as another drafter does, and trains it on verification results (OSD, Liu et al. 2023, 2310.07177).

    Verification computes the target's distribution after every node. It is stored for positions at which all drafted
    tokens were rejected, and after every `every` requests the drafter is trained on these positions, between two
    cycles and without a forward pass of the target. Every fourth request is held out: an update that lowers the
    acceptance on held-out requests is undone.

    With `out` the drafter is saved after each update and resumes from there when it is loaded again; a killed process
    loses at most one update. If training fails, for example on a full disk, it stops with a warning, and decoding
    continues.

    Decoding stays lossless: a draft is verified with the distributions that it was drawn from, and training data
    comes only from earlier tokens. A row's sample depends on earlier requests unless the verifier is `match`; with
    another verifier a seed must not be reused, since the drafter was trained on its output.

    Options:
        drafter: the drafter to train, such as `model` or `eagle`, or one of another vocabulary, such as `omnidraft`
        loss: the loss to minimise; none: KL(p || q), by `distillation` with alpha 1
        rollout: how the drafter is unrolled along the texts; none: `text`, for drafters that are language models
        every: number of requests between two updates, without held-out ones
        steps: optimizer steps per update, each over all stored positions
        lr: the constant learning rate
        held: the largest number of held-out requests, the latest ones; 0: every update is kept
        length: the largest number of positions read per text, its last ones
        out: the folder for the drafter and its training state; none: nothing is saved
    """

    def __init__(
        self,
        *,
        drafter: Drafter,
        loss: Loss | None = None,
        rollout: Rollout | None = None,
        every: int = 8,
        steps: int = 1,
        lr: float = 1.0e-4,
        held: int = 4,
        length: int = 512,
        out: Path | None = None,
    ) -> None:
        learns = learning_in(drafter)
        name = type(learns).__name__
        if not hasattr(type(learns), "module"):  # of the class: the property would load weights
            raise CompositionError(f"online trains a drafter with weights, such as `model` or `eagle`; {name} has none")
        if rollout is None and not hasattr(type(learns), "read_text"):
            raise CompositionError(f"online: {name} reads features, so give a `rollout`, such as `teacher-forced`")
        if loss is None and hasattr(type(getattr(learns, "head", None)), "module"):
            raise CompositionError(
                f"online: of {name} its head is trained, which has weights of its own: give its `loss` and `rollout`"
            )
        if RolloutMethods.of(rollout).teaches:
            raise CompositionError("online: this rollout needs texts that the target has not read: give another one")
        for option, value, least in (
            ("every", every, 1),
            ("steps", steps, 1),
            ("held", held, 0),
            ("length", length, 8),
        ):
            if value < least:
                raise InputError(f"online: {option} must be at least {least}, not {value}")
        if not lr > 0:
            raise InputError(f"online: lr must be above 0, not {lr:g}")
        self.drafter = drafter
        self.loss: Loss = loss or Distillation(alpha=1.0)
        self.rollout: Rollout = rollout or AlongText()
        self.every, self.steps, self.lr, self.length, self.out = every, steps, lr, length, out
        self.promise = replace(drafter.promise, row_independent=False)
        self.learner: Learner | None = None
        """Learner that trains the drafter: from `bind` on, until learning stops."""
        self._numbers = count()
        self._rows: list[Transcript] = []
        self._ended: list[Transcript] = []
        self._held_back: deque[Transcript] = deque(maxlen=held)

    def untrained(self, vocab: int) -> Online:
        """A copy for a target of `vocab` tokens, for a certificate: sessions start untrained, cycles end in updates."""
        twin = copy.copy(self)
        twin.drafter = untrained_form(self.drafter, vocab)
        return Restless.of(twin)

    def smaller(self) -> Online:
        """A copy with the small form of its drafter."""
        twin = copy.copy(self)
        twin.drafter = small_form(self.drafter)
        twin.promise = replace(twin.drafter.promise, row_independent=False)
        return twin

    @property
    def taps(self) -> frozenset[str]:
        """The target features that the drafter reads."""
        return self.drafter.taps

    def bind(self, target: Target) -> None:
        """Binds the drafter and loads its saved training state.

        Raises the errors of the drafter's `bind` and of `Learner`, and CompositionError for a drafter without trainable
        parameters.
        """
        self.drafter.bind(target)
        drafter = learning_in(self.drafter)
        if not isinstance(drafter, Trainable) or not any(p.requires_grad for p in drafter.module.parameters()):
            raise CompositionError(f"online: {type(drafter).__name__} has nothing to train")
        self.learner = None  # it may hold the folder
        self.learner = Learner(drafter, self.loss, self.rollout, lr=self.lr, steps=self.steps, out=self.out)

    def open(self, slots: int, room: int) -> None:
        """Begins a session; the requests of an earlier one have ended."""
        self.drafter.open(slots, room)
        self._end(self._rows)
        self._rows = []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The drafter's draft below root [B]."""
        return self.drafter.propose(root, tree, context)

    def commit(self, committed: Committed) -> None:
        """Passes the commit to the drafter."""
        self.drafter.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Records the target's answers; passes the cycle to a drafter that observes."""
        if isinstance(self.drafter, Observer):
            self.drafter.observe(cycle)
        if self.learner is None:
            return
        if cycle.committed.prompt is None:
            extend(self._rows, cycle, self.taps)
        else:
            held_back = [self._held_back.maxlen != 0 and next(self._numbers) % SHARE == 0 for _ in cycle.committed.root]
            self._rows += begin(cycle, self.taps, held_back)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; the others have ended."""
        self.drafter.keep(rows)
        if self.learner is None:
            return
        order = rows.tolist()
        ended = [row for number, row in enumerate(self._rows) if number not in order]
        self._rows = [self._rows[number] for number in order]
        self._end(ended)

    def _end(self, transcripts: list[Transcript]) -> None:
        """Stores the requests that have ended, and starts an update when it is due."""
        for transcript in transcripts:
            (self._held_back if transcript.held_back else self._ended).append(transcript)
        if len(self._ended) >= self.every:
            self._learn(self._ended)
            self._ended = []

    def _learn(self, transcripts: list[Transcript]) -> None:
        """Runs an update; if it fails, decoding continues without training."""
        if self.learner is None:
            return
        try:
            with torch.inference_mode(False), torch.enable_grad(), borrowed_generators(transcripts[0].first.device):
                teachers, unseen = ([self._teacher(each) for each in part] for part in (transcripts, self._held_back))
                self.learner.learn(teachers, unseen)
        except Exception as error:  # whatever goes wrong in learning, requests are waiting
            log.warning("the drafter learns no more: %s", one_line(error))
            self.learner = None
            self._rows, self._ended = [], []
            self._held_back.clear()

    def _teacher(self, transcript: Transcript) -> Teacher:
        """Returns the training example of a request, in the trained drafter's tokens."""
        teacher = transcript.teacher(self.length)
        translate = translation_of(self.drafter)
        return teacher if translate is None else translate(teacher, transcript.answer(self.length))


class Restless(Online):
    """An online drafter for certificates: each session starts untrained, each cycle ends with an update from all rows.

    Its drafts then depend as much as possible on everything committed before.
    """

    @classmethod
    def of(cls, online: Online) -> Restless:
        """A copy of the drafter that learns in every cycle."""
        twin = cls.__new__(cls)
        vars(twin).update(vars(online), lr=0.1, out=None, learner=None)
        twin._rows, twin._ended, twin._held_back = [], [], deque(maxlen=0)
        return twin

    def bind(self, target: Target) -> None:
        """Binds the drafter and stores its initial weights."""
        super().bind(target)
        assert self.learner is not None
        self._weights = copy.deepcopy(self.learner.module.state_dict())

    def open(self, slots: int, room: int) -> None:
        """Restores the initial weights."""
        self.drafter.open(slots, room)
        self._rows = []
        drafter = learning_in(self.drafter)
        with torch.inference_mode(False):
            drafter.module.load_state_dict(self._weights)
            self.learner = Learner(drafter, self.loss, self.rollout, lr=self.lr, steps=self.steps, out=None)

    def observe(self, cycle: Cycle) -> None:
        """Records a cycle and runs an update."""
        super().observe(cycle)
        self._learn(self._rows)

    def _end(self, transcripts: list[Transcript]) -> None:
        """Learns from the transcripts that ended."""
