"""Train the target: ``python pretrain.py --splits DIR --model FOLDER --seconds 400``.

Two phases. The first runs over all kinds at a constant learning rate after a warm-up; the second turns to
dialogue, mathematics and code, with longer windows, while the rate falls to zero. With ``--seconds`` the
number of steps of each phase is found from the speed seen and printed, so that the same run can be repeated
anywhere with ``--steps`` (the rate of the first steps of the second phase differs by less than a percent).
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from growth import choose, grow
from net import Net, Shape, load, state_for_llama
from packing import Mixture, Windows, streams
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

SHARES = (
    {"text": 0.12, "dialogue": 0.40, "maths": 0.20, "code": 0.28},
    {"text": 0.04, "dialogue": 0.44, "maths": 0.24, "code": 0.28},
)
"""Share of each kind in the batches of the two phases."""

FIRST_PHASE = 0.6
"""Part of the time that the first phase gets."""

WARM_UP = 60
FIRST_MARK, PROBE = 3, 30
"""Steps after which the speed of a phase is measured on a slow and on a fast machine."""


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return the bfloat16 autocast context of the device."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def optimisers(net: Net, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the blocks and AdamW for norms and embedding, at one learning rate."""
    inner = [p for name, p in net.named_parameters() if p.dim() == 2 and name != "embedding"]
    rest = [p for name, p in net.named_parameters() if p.dim() != 2 or name == "embedding"]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


@torch.no_grad()
def held_out_loss(net: Net, data: dict[str, Tensor], length: int, rows: int, batches: int) -> dict[str, float]:
    """Return the mean held-out loss of each kind, in nats a token, over the same windows every time."""
    losses: dict[str, float] = {}
    for kind, tokens in data.items():
        if len(tokens) < length + 2:
            continue
        windows = Windows(tokens, length, seed=7)
        total = 0.0
        for _ in range(batches):
            both = windows.take(rows)
            with autocast(tokens.device):
                total += float(net(both[:, :-1].contiguous(), both[:, 1:].contiguous()))
        losses[kind] = round(total / batches, 4)
    return losses


class Trainer:
    """The state of a run: network, optimiser, data and the log."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device, started: float) -> None:
        self.options, self.device, self.started = arguments, device, started
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        self.data = streams(arguments.splits / "train", tokenizer, device, arguments.limit)
        self.held = streams(arguments.splits / "heldout", tokenizer, device, arguments.limit)
        sizes = {kind: len(tokens) for kind, tokens in self.data.items()}
        self.log: dict[str, Any] = {"seed": arguments.seed, "tokens in the corpora": sizes, "phases": []}
        print(f"{self.clock():.0f} s: tokenised {sizes}, held out { {k: len(v) for k, v in self.held.items()} }")
        torch.manual_seed(arguments.seed)
        torch.set_float32_matmul_precision("high")
        if arguments.start:
            start = load(arguments.start, torch.device("cpu"))
            self.net = choose(start, arguments.layers) if arguments.layers else grow(start, arguments.times)
        else:
            self.net = Net(Shape(**json.loads(arguments.shape)))
            self.net.initialise(torch.Generator().manual_seed(arguments.seed))
        self.net.to(device)
        if arguments.compile:
            self.net.compile_parts()
        self.optimisers = optimisers(self.net, arguments.rate, arguments.decay)
        self.done = [0, 0]
        if arguments.state and arguments.state.exists():
            self.resume(arguments.state)

    def resume(self, path: Path) -> None:
        """Go on from a saved state; the mixtures are drawn again up to there."""
        state = torch.load(path, weights_only=True)
        self.done, self.log = state["done"], state["log"]
        self.net.load_state_dict(state["net"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        print(f"{self.clock():.0f} s: goes on after {self.done} steps")

    def remember(self, path: Path) -> None:
        """Save what :meth:`resume` reads, whole or not at all."""
        state = {
            "done": self.done,
            "log": self.log,
            "net": self.net.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def clock(self) -> float:
        """Return the seconds since the program began."""
        return time.monotonic() - self.started

    def update(self, tokens: Tensor, labels: Tensor, rate: float) -> Tensor:
        """Take one optimiser step and return the loss, left on the device."""
        for group in (group for optimiser in self.optimisers for group in optimiser.param_groups):
            group["lr"] = rate
        with autocast(self.device):
            loss = self.net(tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def phase(self, index: int, length: int, until: float, steps: int | None) -> None:
        """Run a phase for ``steps`` steps, or until the clock shows ``until`` where no number is given."""
        options = self.options
        rows = max(1, options.tokens // length)
        mixture = Mixture(self.data, SHARES[index], rows, length, options.seed * 10 + index)
        total, step, begun, last = steps, self.done[index], self.clock(), None
        if len(self.log["phases"]) > index:
            return
        for _ in range(step):
            mixture.batch()
        mark, marked = begun, 0
        while total is None or step < total:
            if step in (FIRST_MARK, PROBE):
                mark, marked = self.settled(last), step
            # A slow machine never gets as far as two probes: a twentieth of the time has to be enough there.
            slow = marked > 0 and step > marked and self.clock() - mark > 0.05 * (until - begun)
            if total is None and (step == 2 * PROBE or slow):
                speed = (step - marked) / (self.settled(last) - mark)
                # Three per cent in hand for the held-out checks; the clock below ends the phase in any case.
                total = step + max(1, int((until - self.clock()) * speed * 0.97))
                print(
                    f"phase {index + 1}: {speed:.2f} steps/s, "
                    f"{speed * rows * length / 1e6:.4f}M tokens/s, {total} steps"
                )
            if index == 0:
                rate = options.rate * min(1.0, (step + 1) / WARM_UP)
            else:
                rate = options.rate * (1 - step / total if total else 1.0)
            last = self.update(*mixture.batch(), rate)
            step += 1
            self.done[index] = step
            if step % options.report == 0:
                print(
                    f"{self.clock():.0f} s phase {index + 1} step {step}/{total} rate {rate:.2e} loss {float(last):.4f}"
                )
            if steps is None and self.clock() > until + 2:
                print("out of time: the phase ends early")
                break
            if step % options.check == 0:
                print("held out:", self.check(length))
                if options.state:
                    self.remember(options.state)
        entry = {
            "steps": step,
            "length": length,
            "rows": rows,
            "tokens": step * rows * length,
            "passes": mixture.passes(),
        }
        self.log["phases"].append(entry | {"held out": self.check(length), "seconds": round(self.clock(), 1)})
        print(json.dumps(self.log["phases"][-1]))
        if options.state:
            self.remember(options.state)

    def settled(self, loss: Tensor | None) -> float:
        """Return the clock once the device has worked off what it was given."""
        if loss is not None:
            float(loss)
        return self.clock()

    def check(self, length: int) -> dict[str, float]:
        """Return the held-out losses uncompiled: compiling for other batches would take longer."""
        with torch.compiler.set_stance("force_eager"):
            return held_out_loss(self.net, self.held, length, max(1, self.options.tokens // length // 4), 1)

    def save(self) -> None:
        """Write the model in bfloat16, sharded, with its configuration and the log of the run."""
        model = LlamaForCausalLM(LlamaConfig(**self.net.shape.config()))
        missing = model.load_state_dict(state_for_llama(self.net), strict=False)
        if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
            raise RuntimeError(f"weights do not fit the model: {missing}")
        model.tie_weights()
        model.to(torch.bfloat16)
        model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
        model.save_pretrained(self.options.model, max_shard_size="13MB")
        (self.options.model / "training_log.json").write_text(json.dumps(self.log, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--model", type=Path, required=True, help="folder with the tokenizer; the model is saved there")
    parser.add_argument("--seconds", type=float, help="time for the whole program, tokenising and compiling included")
    parser.add_argument("--steps", type=int, nargs=2, help="steps of the two phases, instead of a time")
    parser.add_argument("--tokens", type=int, default=6144, help="tokens a step")
    parser.add_argument("--lengths", type=int, nargs=2, default=(256, 384), help="window lengths of the two phases")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--decay", type=float, default=0.1, help="weight decay of the matrices")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--shape", default="{}", help="sizes of the network as JSON, where not the defaults")
    parser.add_argument("--start", type=Path, help="start from this saved model, not from noise")
    parser.add_argument("--times", type=int, default=1, help="make the network of --start so many times as deep")
    parser.add_argument("--layers", type=int, nargs="+", help="run these layers of --start alone")
    parser.add_argument("--state", type=Path, help="file to go on from and to save to at every check")
    parser.add_argument("--limit", type=int, help="read only so many documents of each file (for a trial)")
    parser.add_argument("--report", type=int, default=100, help="steps between printed losses")
    parser.add_argument("--check", type=int, default=1000, help="steps between held-out checks")
    options = parser.parse_args()
    if (options.seconds is None) == (options.steps is None):
        parser.error("give either --seconds or --steps")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(options, device, started)
    steps = options.steps or (None, None)
    begun = trainer.clock()
    budget = (options.seconds or 0.0) - begun
    trainer.phase(0, options.lengths[0], begun + budget * FIRST_PHASE, steps[0])
    trainer.phase(1, options.lengths[1], begun + budget, steps[1])
    trainer.save()
    print(f"{trainer.clock():.0f} s: saved {options.model}")


if __name__ == "__main__":
    main()
