"""Online updates of a drafter, kept only if the acceptance on held-out texts does not fall."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor, nn

from specframe.components.losses.divergences import TotalVariation
from specframe.components.losses.scored import scored
from specframe.files.folders import hold
from specframe.files.provenance import write_json
from specframe.kernel.training import Loss, Rollout, Trainable
from specframe.kernel.types import Teacher
from specframe.neural.weights.checkpoint import remove_parts
from specframe.training import state
from specframe.training.state import RunState

REMEDY = "give another drafter.out"
"""Remedy for a folder that cannot be written to or belongs to another drafter."""
RECORD = "online.json"
"""The record of the updates, in the folder of the drafter."""
RECENT = 1000
"""Number of updates kept in the record."""
CLIP = 1.0
"""The largest norm of a step's gradient."""


class Learner:
    """Trains a drafter, bound to its target, in place.

    Steps are computed in float32 or better: a drafter in half precision gets rounded weights, while the state on disk
    has the unrounded ones.
    """

    def __init__(
        self, drafter: Trainable, loss: Loss, rollout: Rollout, *, lr: float, steps: int, out: Path | None
    ) -> None:
        """A learner that resumes from the state in `out`, if there is one.

        Raises InputError if the folder is not writable or in use by another process, and WeightsError for the state of
        another drafter.
        """
        self.drafter, self.loss, self.rollout, self.steps, self.out = drafter, loss, rollout, steps, out
        self.module = drafter.module
        self.parameters: list[nn.Parameter] = [p for p in self.module.parameters() if p.requires_grad]
        half = any(p.dtype.itemsize < 4 for p in self.parameters)
        self.master = copy.deepcopy(self.module).float() if half else self.module
        self.masters: list[nn.Parameter] = [p for p in self.master.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.masters, lr=lr, weight_decay=0.0)
        self.run_state = RunState({})
        if out is not None:
            self._lock = hold(out, REMEDY)  # until this learner is gone
            try:
                self._resume(out)
            except BaseException:  # its traceback keeps this learner, and with it the lock
                self._lock.release()
                raise

    def _resume(self, out: Path) -> None:
        """Resumes from the state in the folder, if there is one."""
        remove_parts(out)
        fresh = RunState({"drafter that learning began with": _fingerprint(self.module)})
        self.run_state = state.load(out, self.master, self.optimizer, fresh, "drafter.out")
        self._copy_masters()

    def learn(self, teachers: Sequence[Teacher], validation: Sequence[Teacher]) -> bool:
        """Runs `steps` optimizer steps over the teachers; returns whether they were kept.

        They are undone if a loss is not finite or the acceptance on the held-out teachers falls. Raises WeightsError if
        the state cannot be written; the weights in memory are then valid, and those saved before stay.
        """
        positions = int(sum(teacher.mask.sum() for teacher in teachers))
        if not positions:
            return False
        start = time.monotonic()
        before = self.acceptance(validation)
        weights = [p.detach().clone() for p in self.masters]
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        improved = False
        try:
            losses = [self._step(teachers, positions) for _ in range(self.steps)]
            after = self.acceptance(validation)
            improved = all(map(isfinite, losses)) and (not validation or after >= before)
        finally:
            if not improved:
                self._restore(weights, optimizer)
        self.run_state.step += 1
        entry = {"loss": losses[0], "held_before": before, "held_after": after, "kept": float(improved)}
        sizes = {"update": self.run_state.step, "requests": len(teachers), "positions": positions}
        self.run_state.history.append(sizes | entry | {"seconds": time.monotonic() - start})
        del self.run_state.history[:-RECENT]
        if self.out is not None:
            self._save(self.out, improved)
        return improved

    @torch.no_grad()
    def acceptance(self, teachers: Sequence[Teacher]) -> float:
        """The mean of sum of min(p, q) over the positions of all teachers; 0 if there are none."""
        total = count = 0.0
        for teacher in teachers:
            positions = int(teacher.mask.sum())
            made = self.rollout(self.drafter, teacher, 1.0)
            total += (1 - float(scored([TotalVariation()], made, teacher)[0])) * positions
            count += positions
        return total / max(count, 1)

    def _step(self, teachers: Sequence[Teacher], positions: int) -> float:
        """Runs one optimizer step over all teachers, text by text; returns the mean loss per position before it."""
        total = 0.0
        for teacher in teachers:
            share = int(teacher.mask.sum()) / positions
            if share:
                loss = scored([self.loss], self.rollout(self.drafter, teacher, 1.0), teacher)[0] * share
                torch.autograd.backward(loss, inputs=self.parameters)
                total += float(loss.detach())
        if self.master is not self.module:
            for own, p in zip(self.masters, self.parameters, strict=True):
                own.grad = None if p.grad is None else p.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, CLIP)
        self.optimizer.step()
        for p in (*self.masters, *self.parameters):
            p.grad = None
        self._copy_masters()
        return total

    @torch.no_grad()
    def _copy_masters(self) -> None:
        if self.master is not self.module:
            for own, p in zip(self.masters, self.parameters, strict=True):
                p.copy_(own)

    @torch.no_grad()
    def _restore(self, weights: Sequence[Tensor], optimizer: dict[str, object]) -> None:
        for p, value in zip(self.masters, weights, strict=True):
            p.copy_(value)
        for p in (*self.masters, *self.parameters):
            p.grad = None
        self._copy_masters()
        self.optimizer.load_state_dict(optimizer)

    def _save(self, out: Path, changed: bool) -> None:
        """Writes the record and the changed files, the training state first."""
        if changed:
            state.save(out, self.master, self.optimizer, self.run_state)
            self.drafter.save(out)
        write_json(out / RECORD, {"updates": self.run_state.step, "history": self.run_state.history})


def _fingerprint(module: nn.Module) -> str:
    """A fingerprint of the weights: equal for equal weights."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {list(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
