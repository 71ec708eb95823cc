"""The steps of a training run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from specframe.components.losses.scored import scored
from specframe.files.provenance import write_json
from specframe.files.text import counted
from specframe.kernel.errors import CompositionError, SpecframeError
from specframe.kernel.training import RolloutMethods, Trainable
from specframe.training import precision, state
from specframe.training.processes import Interruption, Processes
from specframe.training.progress import Watcher
from specframe.training.report import Report, describe, make_report, record
from specframe.training.schedule import End, MixedOrder, Order, ends_of, learning_rate, progress, seed_generators
from specframe.training.settings import TrainSettings
from specframe.training.state import RunState
from specframe.training.teaching import Teaching
from specframe.training.texts import Texts
from specframe.training.validation import Losses, measure

Evaluate = Callable[[], dict[str, float]]

INDIFFERENT = ("rollout", "data", "chat_template_kwargs", "out", "save_every", "log_every", "cache", "log", "watcher")
"""Settings that may differ in a resumed run, or that its identity stores in another form."""

LAST = "last"
"""Subfolder of the last checkpoint."""


@dataclass(frozen=True)
class TaughtTexts:
    """Texts and their teachers."""

    texts: Texts
    teaching: Teaching


class Trainer:
    """State and steps of a training run; `run` runs all of them."""

    def __init__(
        self,
        drafter: Trainable,
        losses: Losses,
        settings: TrainSettings,
        taught: TaughtTexts,
        validation: TaughtTexts,
        processes: Processes,
        watcher: Watcher,
        evaluate: Evaluate | None,
        device: torch.device,
    ) -> None:
        self.drafter, self.losses, self.settings = drafter, losses, settings
        self.taught, self.validation = taught, validation
        self.processes, self.watcher, self.evaluate, self.device = processes, watcher, evaluate, device
        self.module = drafter.module
        self.parameters: list[nn.Parameter] = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        self.begun = state.begun_with(settings.out, processes.count)
        group = settings.batch * settings.accumulate * self.begun
        counts = taught.texts.counts
        plain = Order(counts, group, settings.seed)
        self.ends = ends_of(settings, plain)
        self.total = self.ends[-1].step
        self.every = settings.validate_every or plain.steps(1)
        self.order: Order | MixedOrder = plain
        if (mixture := settings.mixed) is not None:
            self.order = MixedOrder(counts, taught.texts.mixed, group, settings.seed, mixture, self.total)
        self.window = torch.zeros(len(losses) + 1, device=device)
        self.run_state = state.load(settings.out, self.module, self.optimizer, RunState(self._identity()))
        if self.run_state.window:
            self.window += torch.tensor(self.run_state.window, device=device)
        self.tokens = 0

    def run(self) -> Report:
        """Trains from the current step to the end, then trains the branches of a cooldown with several ends.

        At SIGINT or SIGTERM it finishes the current step, saves the state and raises KeyboardInterrupt.
        """
        resumed = self.run_state.step
        self.watcher.start(resumed, self.total, self._note())
        self.processes.share(self.module)
        self._clock = time.monotonic()
        note = f"training failed after step {self.run_state.step}"
        try:
            with Interruption() as interruption:
                for step in range(resumed, self.total):
                    self.take(step)
                    self.run_state.step = step + 1
                    self._keep(interruption)
            self._finish()
            note = f"trained {counted(self.run_state.step, 'step')}; the drafter is in {self.settings.out}"
        except KeyboardInterrupt:
            note = "interrupted"
            raise KeyboardInterrupt(
                f"interrupted after step {self.run_state.step} of {self.total}; "
                f"the state is in {self.settings.out}: run the same command again to go on"
            ) from None
        finally:
            self.watcher.finish(note)
        self._branch()
        return make_report(self.settings.out, self.run_state, resumed)

    def take(self, step: int) -> None:
        """Runs one optimizer step without synchronising with the device."""
        settings, processes = self.settings, self.processes
        self.module.train()
        if (begin := RolloutMethods.of(settings.rollout).begin) is not None:
            begin(step, self.total)
        taken = self.order.rows(step)
        batches = torch.split(taken, settings.batch)
        weight = processes.count / len(batches)  # gradients are averaged over the processes
        for number in processes.shared_out(len(batches)):
            rows = batches[number]
            seed_generators(settings.seed, step, number, self.device)
            teacher = self.taught.teaching(rows)
            with precision.autocast(settings, self.device):
                student = settings.rollout(self.drafter, teacher, progress(settings, step, self.total))
                parts = scored([loss for loss, _, _ in self.losses], student, teacher)
                loss = torch.stack([w * part for (_, w, _), part in zip(self.losses, parts, strict=True)]).sum()
            if not loss.requires_grad:
                names = ", ".join(name for _, _, name in self.losses)
                raise CompositionError(
                    f"nothing that is trained has a part in the losses ({names}): "
                    "a head that is trained needs the rollout and the loss made for it"
                )
            torch.autograd.backward(loss * weight, inputs=self.parameters)
            self.window += torch.stack([loss, *parts]).detach() * weight
        processes.average(self.parameters)
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, self.total)
        self.optimizer.step()
        increment_version(self.parameters)  # fused steps do not, and a quantized drafter is rounded anew by it
        self.optimizer.zero_grad(set_to_none=True)
        tokens = int(self.taught.texts.counts[taken].sum())
        self.tokens += tokens
        self.run_state.tokens += tokens

    def settled(self) -> float:
        """The time in seconds, read after synchronising with the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _keep(self, interruption: Interruption) -> None:
        """Runs what is due after a step: report, validation, saving."""
        step, settings = self.run_state.step, self.settings
        self.run_state.window_steps += 1
        last = step == self.total
        report = last or step % settings.log_every == 0
        if report:
            self._report()
        if len(self.validation.texts) and (last or step % self.every == 0):
            self._validate()
        # with several processes they must agree on stopping, which costs an exchange: at reports only
        asked = interruption.asked
        stop = self.processes.any(asked, self.device) if report or self.processes.count == 1 else False
        if stop or last or step % settings.save_every == 0:
            self._save()
        for end in self.ends[:-1]:
            if end.parting == step:
                self._fork(end)
        if stop and not last:
            raise KeyboardInterrupt

    def _report(self) -> None:
        """Reports the mean losses since the last report."""
        run_state = self.run_state
        values = (self.processes.mean(self.window) / run_state.window_steps).tolist()
        self._check(values)
        losses = dict(zip(["loss", *(name for _, _, name in self.losses)], values, strict=True))
        now = time.monotonic()
        seconds = max(now - self._clock, 1e-9)
        run_state.losses.append({"step": run_state.step, **losses})
        run_state.seconds += seconds
        speed = self.tokens / seconds
        rate = learning_rate(self.settings, run_state.step - 1, self.total)
        self.watcher.report(run_state.step, {**losses, "lr": rate, "tokens/s": speed})
        self.window.zero_()
        run_state.window_steps, self.tokens, self._clock = 0, 0, now

    def _validate(self) -> None:
        """Validates on the held-back texts, and saves the drafter if it is the best so far."""
        settings, run_state = self.settings, self.run_state
        seed_generators(settings.seed, 0, 0, self.device)  # the same validation every time, everywhere
        self.module.eval()
        batches = torch.split(torch.arange(len(self.validation.texts)), settings.batch)
        with precision.autocast(settings, self.device), torch.no_grad():
            figures = measure(self.drafter, map(self.validation.teaching, batches), self.losses, settings.rollout)
            figures |= self.evaluate() if self.evaluate else {}
        self.watcher.validated(run_state.step, figures)
        run_state.history.append({"step": run_state.step, **figures})
        if settings.cooldown is not None and run_state.step < self.total:
            return  # a drafter at the constant rate is not compared with those that have decayed
        if run_state.best is None or figures["tau"] > run_state.best:
            run_state.best = figures["tau"]
            if self.processes.main:
                self.drafter.save(settings.out)

    def _save(self) -> None:
        """Writes the training state and the current drafter."""
        self.run_state.window = self._mean_window()
        self._check(self.run_state.window)
        if self.processes.main:
            state.save(self.settings.out, self.module, self.optimizer, self.run_state)
            self.drafter.save(self.settings.out / LAST)
        self.processes.wait()

    def _fork(self, end: End) -> None:
        """Writes the current state as that of a run with this end."""
        run_state = replace(self.run_state, identity=self._identity(end), window=self._mean_window())
        if self.processes.main:
            state.save(end.settings.out, self.module, self.optimizer, run_state)

    def _mean_window(self) -> list[float]:
        """The sums of the losses since the last report, averaged over the processes."""
        self.window.copy_(self.processes.mean(self.window))
        sums: list[float] = self.window.tolist()
        return sums

    def _branch(self) -> None:
        """Trains the branches to their ends, then restores the main run's final weights."""
        self.processes.wait()
        parts = (self.taught, self.validation, self.processes, self.watcher, self.evaluate, self.device)
        for end in self.ends[:-1]:
            Trainer(self.drafter, self.losses, end.settings, *parts).run()
        if len(self.ends) > 1:
            state.load(self.settings.out, self.module, self.optimizer, self.run_state)

    def _finish(self) -> None:
        """Writes train.json, and the best checkpoint if there was no validation."""
        if self.processes.main:
            if not len(self.validation.texts):
                self.drafter.save(self.settings.out)
            write_json(self.settings.out / "train.json", record(self.run_state, self.module, self.device))
        self.processes.wait()

    def _check(self, values: list[float]) -> None:
        if not all(map(math.isfinite, values)):
            raise SpecframeError(
                f"the loss is no longer finite at step {self.run_state.step}; lower train.lr or lengthen "
                f"train.warmup. What {self.settings.out} holds is from before"
            )

    def _identity(self, end: End | None = None) -> dict[str, Any]:
        """Returns the values that must be equal for a run, or a branch, to resume from the state."""
        settings = {k: v for k, v in vars(end.settings if end else self.settings).items() if k not in INDIFFERENT}
        identity = {
            "settings": settings,
            "steps": end.step if end else self.total,
            "rollout": describe(self.settings.rollout),
            "losses": [{"name": n, "weight": w, **describe(loss)} for loss, w, n in self.losses],
            "data": {"train": self.taught.texts.digest, "validation": self.validation.texts.digest},
            "processes": self.begun,
        }
        back: dict[str, Any] = json.loads(json.dumps(identity, default=str))  # as the file will have it
        return back

    def _note(self) -> str:
        size = sum(p.numel() for p in self.parameters)
        texts = self.taught.texts
        begin = f"resuming after step {self.run_state.step}: " if self.run_state.step else ""
        return (
            f"{begin}training {size:,} parameters on {counted(len(texts), 'text')} ({len(texts.tokens):,} tokens), "
            f"{counted(self.total, 'step')}, {self.device}"
        )
