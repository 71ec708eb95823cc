"""Make see-8m: a small vision transformer and a projector in front of talk-7m, on pictures that are drawn here.

Run ``python see.py --base TALK --model FOLDER``, on a GPU with ``--device cuda --workers 6``. First the encoder learns
what is drawn in each patch. Then all is trained on captions and answers. talk-7m's own weights stay as they are: small
matrices are added to its layers, so that what is kept beside it, ``own.safetensors``, is below 4 MB. A run that is
started again goes on where it was saved. At the end, or by ``--report`` alone, the held-out accuracy of each kind
of question is printed, with the picture and with a blank one in its place; of a whole model, too, such as the one that
specframe-zoo makes. ``--export OUT`` writes the whole model with its processor, ``--parts OUT`` the files of
specframe-zoo, which adds talk-7m's weights on first use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from lessons import MARK, Arrays, Writer, batches, examination, facts, lesson
from pictures import COLOURS, SHAPES, SIZES
from safetensors.torch import save_file
from seeing import KEPT, Adapted, adapt, build, export, look, own, read
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, LlavaForConditionalGeneration

SAVED = "training.pt"


def place(model: LlavaForConditionalGeneration, device: str) -> None:
    """Move the model to the device; on a GPU the maps that stay as they are become bfloat16, as they were released."""
    model.to(device)
    if device != "cpu":
        for part in model.modules():
            if isinstance(part, Adapted):
                part.frozen.bfloat16()


def autocast(device: str) -> torch.autocast:
    """Return the arithmetic of a forward: bfloat16 on a GPU, float32 on a CPU."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device != "cpu")


def tensors(arrays: Arrays, device: str) -> dict[str, Tensor]:
    """Return a batch on the device, its pictures as the encoder reads them: [B, 3, SIZE, SIZE] from -1 to 1."""
    moved = {name: torch.from_numpy(part).to(device) for name, part in arrays.items() if part.dtype.kind != "U"}
    return moved | {"pictures": moved["pictures"].permute(0, 3, 1, 2).float() / 127.5 - 1}


def train_encoder(model: LlavaForConditionalGeneration, options: argparse.Namespace) -> None:
    """Train the encoder to know the shape, colour and size of what each patch shows."""
    tower = model.model.vision_tower
    steps, device = options.encoder_steps, options.device
    sizes = [len(SHAPES) + 1, len(COLOURS) + 1, len(SIZES) + 1]
    head = nn.Linear(tower.config.hidden_size, sum(sizes)).to(device)
    learned = [*tower.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=options.encoder_rate, weight_decay=0.0, fused=True)
    start = time.monotonic()
    for step, arrays in enumerate(batches(partial(facts, options.encoder_rows), range(steps), options.workers)):
        given = tensors(arrays, device)
        with autocast(device):
            parts = head(look(model, given["pictures"])).float().split(sizes, -1)
        wanted = given["facts"]
        losses = [F.cross_entropy(part.flatten(0, 1), wanted[..., i].flatten()) for i, part in enumerate(parts)]
        sum(losses).backward()
        optimizer.param_groups[0]["lr"] = options.encoder_rate * min(
            1.0, (step + 1) / 50, (steps - step) / (0.4 * steps)
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step + 1 == steps:
            right = [(p.argmax(-1) == wanted[..., i])[wanted[..., i] > 0] for i, p in enumerate(parts)]
            shares = [round(float(hit.float().mean()), 3) for hit in right]
            print(f"{time.monotonic() - start:.0f} s encoder, step {step}: {shares}", flush=True)


@torch.no_grad()
def accuracy(
    model: LlavaForConditionalGeneration, writer: Writer, pictures: int, blank: bool, device: str
) -> dict[str, float]:
    """Return the share of held-out questions of each kind whose whole answer is the likeliest, token by token."""
    right: dict[str, list[bool]] = {}
    each = min(64, pictures)
    for step in range(-(-pictures // each)):
        arrays = examination(writer, each, step)
        given = tensors(arrays, device)
        if blank:
            given["pictures"].zero_()
        with autocast(device):
            wrong = (read(model, given).argmax(-1) != given["answers"]).float()
        rows, width = given["tokens"].shape
        hits = torch.zeros(rows, device=device).index_add(0, given["places"] // width, wrong) == 0
        for kind, hit in zip(arrays["kinds"].tolist(), hits.tolist(), strict=True):
            right.setdefault(kind, []).append(hit)
    return {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(right.items())}


def report(model: LlavaForConditionalGeneration, writer: Writer, pictures: int, device: str) -> None:
    """Print the held-out accuracy of each kind of question, with the picture and with a blank one."""
    for blank in (False, True):
        print("blank" if blank else "seen", accuracy(model, writer, pictures, blank, device), flush=True)


def timed(batches: Iterator[Arrays], waited: list[float]) -> Iterator[Arrays]:
    """Yield the batches; the list gets the seconds that each one was waited for."""
    while True:
        start = time.monotonic()
        if (found := next(batches, None)) is None:
            return
        waited.append(time.monotonic() - start)
        yield found


def train(
    model: LlavaForConditionalGeneration,
    writer: Writer,
    trained: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    first: int,
    options: argparse.Namespace,
) -> None:
    """Train all on captions and answers, from a step on, to the last one or for so many seconds."""
    start, waited = time.monotonic(), list[float]()
    made = batches(partial(lesson, writer, options.rows), range(first, options.steps), options.workers)
    for step, arrays in enumerate(timed(made, waited), first):
        seconds = time.monotonic() - start
        left = min(1 - step / options.steps, 1 - seconds / options.seconds if options.seconds else 1.0)
        rate = options.rate * max(0.0, min(1.0, (step + 1) / options.warm_up, left / 0.5))
        optimizer.param_groups[0]["lr"] = rate
        given = tensors(arrays, options.device)
        with autocast(options.device):
            logits = read(model, given)
        loss = F.cross_entropy(logits.float(), given["answers"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(
                f"{seconds:.0f} s, {sum(waited):.1f} waiting, step {step} rate {rate:.1e} loss {loss.item():.4f}",
                flush=True,
            )
        last = step + 1 == options.steps or left <= 0
        if (step + 1) % options.save_every == 0 or last:
            save(options.model, trained, step + 1, optimizer)
            print(f"held out at {step + 1}", accuracy(model, writer, 64, False, options.device), flush=True)
        if last:
            break


def save(folder: Path, trained: dict[str, nn.Parameter], step: int, optimizer: torch.optim.Optimizer) -> None:
    """Write what a later run goes on from, and the trained parts in bfloat16."""
    weights = {name: p.detach() for name, p in trained.items()}
    torch.save({"step": step, "trained": weights, "optimizer": optimizer.state_dict()}, folder / SAVED)
    save_file(own(trained), folder / KEPT, {"format": "pt"})


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="talk-7m's folder")
    parser.add_argument("--model", type=Path, required=True, help="folder for the trained parts, or of a whole model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="processes that draw")
    parser.add_argument("--rank", type=int, default=24, help="of the matrices added to talk-7m's")
    parser.add_argument("--rows", type=int, default=64, help="pictures a step of the whole model")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seconds", type=float, help="end after so many, the rate's decay in time")
    parser.add_argument("--encoder-rows", type=int, default=128, help="pictures a step of the encoder alone")
    parser.add_argument("--encoder-steps", type=int, default=800)
    parser.add_argument("--encoder-rate", type=float, default=2e-3)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warm-up", type=int, default=100, help="steps until the full rate")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    parser.add_argument("--held-out", type=int, metavar="PICTURES", default=512, help="of the report at the end")
    parser.add_argument("--report", type=int, metavar="PICTURES", help="print held-out accuracies, and train no more")
    parser.add_argument("--export", type=Path, metavar="OUT", help="write the whole model, and train no more")
    parser.add_argument("--parts", type=Path, metavar="OUT", help="write what the zoo keeps of it, and train no more")
    options = parser.parse_args()
    torch.manual_seed(4)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    tokenizer.add_special_tokens({"additional_special_tokens": [MARK]})
    writer = Writer(tokenizer)
    if (options.model / "config.json").exists():
        if not options.report:
            parser.error(f"{options.model} is a whole model: it is reported on, not trained")
        whole = LlavaForConditionalGeneration.from_pretrained(options.model)
        report(whole.to(options.device), writer, options.report, options.device)
        return
    model = build(options.base)
    trained = adapt(model, options.rank)
    place(model, options.device)
    print(f"{sum(p.numel() for p in trained.values()):,} trained parameters", flush=True)
    optimizer = torch.optim.AdamW(trained.values(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    options.model.mkdir(parents=True, exist_ok=True)
    saved, first = options.model / SAVED, 0
    if saved.exists():
        state = torch.load(saved, weights_only=True, map_location=options.device)
        first = state["step"]
        optimizer.load_state_dict(state["optimizer"])
        model.load_state_dict(state["trained"], strict=False)
    if options.export or options.parts:
        if options.parts:
            export(model, tokenizer, options.parts, trained)
        if options.export:
            export(model, tokenizer, options.export)
        return
    if not options.report:
        if first == 0:
            train_encoder(model, options)
        train(model, writer, trained, optimizer, first, options)
    report(model, writer, options.report or options.held_out, options.device)


if __name__ == "__main__":
    main()
