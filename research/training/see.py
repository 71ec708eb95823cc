"""Make see-8m: a small vision transformer and a projector in front of talk-7m, on pictures that are drawn here.

Run ``python see.py --base TALK --model FOLDER``. First the encoder learns what is drawn in each patch: with 500 steps
it knows half of the shapes, with 3,000 nine of ten. Then all is trained on captions and answers. talk-7m's own weights
stay as they are: small matrices of rank 8 are added to its layers, so that what is kept beside it is below 2 MB. A run
that is started again goes on where it was saved. ``--report`` prints the held-out accuracy of each kind of question,
with the picture and with a blank one in its place. ``--export OUT`` writes the whole model with its processor.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pictures import COLOURS, SHAPES, SIZE, SIZES, Question, Scene, ask, caption
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

PATCH, PARTS = 8, 64
MARK = "<image>"
RANK = 8
ROWS, PICTURES = 8, 32
"""Pictures of a step: of the whole model, and of the encoder alone."""
HELD_OUT = 10**9
"""The first seed of held-out pictures; a training picture's seed is its number."""
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'].strip() }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}"
    "{% else %}{{ part['text'].strip() }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class Adapted(nn.Module):
    """A linear map that stays as it is, and a trained one of low rank beside it, which begins at zero."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both maps."""
        return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)


def build(base: Path) -> LlavaForConditionalGeneration:
    """Return the model: talk-7m's weights, one row of embeddings more, and an encoder from noise."""
    talk = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    text = talk.config.to_dict() | {"vocab_size": talk.config.vocab_size + 1}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": SIZE,
        "patch_size": PATCH,
        "vision_use_head": False,
    }
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=talk.config.vocab_size,
        image_seq_length=PARTS,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    old = talk.model.state_dict()
    rows = old["embed_tokens.weight"]
    # The mark of an image is embedded as padding is: neither is ever an answer.
    old["embed_tokens.weight"] = torch.cat([rows, rows[talk.config.pad_token_id][None]])
    model.model.language_model.load_state_dict(old)
    model.tie_weights()
    model.generation_config = talk.generation_config
    return model.requires_grad_(False)


def adapt(model: LlavaForConditionalGeneration) -> dict[str, nn.Parameter]:
    """Add the trained matrices to the decoder; return all that is trained, by name."""
    for layer in model.model.language_model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, part in list(block.named_children()):
                if isinstance(part, nn.Linear):
                    setattr(block, name, Adapted(part, RANK))
    chosen = ("vision_tower.", "multi_modal_projector.", ".down", ".up")
    trained = {
        name: p
        for name, p in model.named_parameters()
        if any(part in name for part in chosen[:2]) or name.endswith(chosen[2:])
    }
    for parameter in trained.values():
        parameter.requires_grad_(True)
    return trained


def merge(model: LlavaForConditionalGeneration) -> None:
    """Add the trained matrices to the decoder's own, which then are plain ones again."""
    for layer in model.model.language_model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, part in list(block.named_children()):
                if isinstance(part, Adapted):
                    part.frozen.weight.data += part.up.data @ part.down.data
                    setattr(block, name, part.frozen)


def pixels(scenes: list[Scene]) -> Tensor:
    """Return the pictures as the encoder reads them, [B, 3, SIZE, SIZE] from -1 to 1."""
    drawn = np.stack([np.asarray(scene.draw()) for scene in scenes])
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 127.5 - 1


def train_encoder(model: LlavaForConditionalGeneration, steps: int, rate: float) -> None:
    """Train the encoder to know the shape, colour and size of what each patch shows."""
    tower = model.model.vision_tower
    sizes = [len(SHAPES) + 1, len(COLOURS) + 1, len(SIZES) + 1]
    head = nn.Linear(tower.config.hidden_size, sum(sizes))
    optimizer = torch.optim.AdamW([*tower.parameters(), *head.parameters()], lr=rate, weight_decay=0.0)
    for step in range(steps):
        scenes = [Scene.random(random.Random(-1 - number)) for number in range(step * PICTURES, (step + 1) * PICTURES)]
        wanted = torch.tensor([scene.facts(PATCH) for scene in scenes])  # [B, 64, 3]
        seen = tower(pixel_values=pixels(scenes), output_hidden_states=True).hidden_states[-1]
        parts = head(seen).split(sizes, -1)
        losses = [F.cross_entropy(part.flatten(0, 1), wanted[..., i].flatten()) for i, part in enumerate(parts)]
        sum(losses).backward()
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50, (steps - step) / (0.4 * steps))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 25 == 0:
            right = [(p.argmax(-1) == wanted[..., i])[wanted[..., i] > 0] for i, p in enumerate(parts)]
            print(f"encoder, step {step}:", [round(float(hit.float().mean()), 3) for hit in right], flush=True)


def encode(tokenizer: Any, turns: list[Question]) -> tuple[list[int], list[int]]:
    """Return a conversation's tokens behind an image, and its labels: the answers, -100 elsewhere."""
    tokens, labels = [], []
    for number, turn in enumerate(turns):
        head = f"<|bos|><|user|>{MARK * PARTS}" if number == 0 else "<|user|>"
        asked = tokenizer(f"{head}{turn.text}<|assistant|>", add_special_tokens=False)["input_ids"]
        answer = tokenizer(f"{turn.answer}<|end|>", add_special_tokens=False)["input_ids"]
        tokens += asked + answer
        labels += [-100] * len(asked) + answer
    return tokens, labels


def batch(tokenizer: Any, numbers: range) -> dict[str, Tensor]:
    """Return the training pictures of these numbers: four of five with questions, one with a caption."""
    scenes, rows = [], []
    for number in numbers:
        dice = random.Random(number)
        scenes.append(scene := Scene.random(dice))
        rows.append(encode(tokenizer, [caption(scene, dice)] if number % 5 == 0 else ask(scene, dice)))
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.tensor([tokens + [2] * (width - len(tokens)) for tokens, _ in rows])
    labels = torch.tensor([marks + [-100] * (width - len(marks)) for _, marks in rows])
    mask = torch.tensor([[1] * len(tokens) + [0] * (width - len(tokens)) for tokens, _ in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "pixel_values": pixels(scenes)}


@torch.no_grad()
def accuracy(model: nn.Module, tokenizer: Any, pictures: int, blank: bool) -> dict[str, float]:
    """Return the share of held-out questions of each kind whose whole answer is the likeliest, token by token."""
    right: dict[str, list[bool]] = {}
    for number in range(HELD_OUT, HELD_OUT + pictures):
        dice = random.Random(number)
        scene = Scene.random(dice)
        asked = ask(scene, dice)
        rows = [encode(tokenizer, [question]) for question in asked]
        width = max(len(tokens) for tokens, _ in rows)
        ids = torch.tensor([tokens + [2] * (width - len(tokens)) for tokens, _ in rows])
        labels = torch.tensor([marks + [-100] * (width - len(marks)) for _, marks in rows])
        seen = pixels([scene]).repeat(len(rows), 1, 1, 1)
        found = model(input_ids=ids, pixel_values=torch.zeros_like(seen) if blank else seen).logits[:, :-1].argmax(-1)
        same = ((found == labels[:, 1:]) | (labels[:, 1:] == -100)).all(1)
        for question, hit in zip(asked, same.tolist(), strict=True):
            right.setdefault(question.kind, []).append(hit)
    return {kind: round(sum(hits) / len(hits), 3) for kind, hits in sorted(right.items())}


def export(model: LlavaForConditionalGeneration, tokenizer: Any, out: Path) -> None:
    """Write the whole model and its processor."""
    merge(model)
    model.bfloat16().save_pretrained(out)
    image = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    LlavaProcessor(
        image, tokenizer, patch_size=PATCH, vision_feature_select_strategy="full", chat_template=TEMPLATE
    ).save_pretrained(out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="talk-7m's folder")
    parser.add_argument("--model", type=Path, required=True, help="folder for the trained parts, saved every 50 steps")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--encoder-steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--report", type=int, metavar="PICTURES", help="print held-out accuracies, and train no more")
    parser.add_argument("--export", type=Path, metavar="OUT", help="write the whole model, and train no more")
    options = parser.parse_args()
    torch.manual_seed(4)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    tokenizer.add_special_tokens({"additional_special_tokens": [MARK]})
    model = build(options.base)
    trained = adapt(model)
    print(f"{sum(p.numel() for p in trained.values()):,} trained parameters", flush=True)
    optimizer = torch.optim.AdamW(trained.values(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    options.model.mkdir(parents=True, exist_ok=True)
    saved, first = options.model / "training.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        first = state["step"]
        optimizer.load_state_dict(state["optimizer"])
        model.load_state_dict(state["trained"], strict=False)
    if options.report:
        for blank in (False, True):
            print("blank" if blank else "seen", accuracy(model, tokenizer, options.report, blank), flush=True)
        return
    if options.export:
        export(model, tokenizer, options.export)
        return
    if first == 0:
        train_encoder(model, options.encoder_steps, options.rate)
    start = time.monotonic()
    for step in range(first, options.steps):
        given = batch(tokenizer, range(step * ROWS, (step + 1) * ROWS))
        loss = model(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        rate = options.rate * min(1.0, (step + 1) / 50, (options.steps - step) / (0.4 * options.steps))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"{time.monotonic() - start:.0f} s step {step} rate {rate:.1e} loss {loss.item():.4f}", flush=True)
        if (step + 1) % 50 == 0 or step + 1 == options.steps:
            weights = {name: p.detach() for name, p in trained.items()}
            torch.save({"step": step + 1, "trained": weights, "optimizer": optimizer.state_dict()}, saved)
        if (step + 1) % 200 == 0:
            print("held out", accuracy(model, tokenizer, 60, blank=False), flush=True)


if __name__ == "__main__":
    main()
