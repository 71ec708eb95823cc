"""Write a target's own answers, many at a time: ``python answers.py --model FOLDER --questions FILE --out FILE``.

For a Llama on a GPU: 2,048 conversations of similar length side by side. ``specframe distill-data`` writes such answers
of any target, 64 at a time on a CPU, and can be resumed. Temperatures 0, 0.7 and 1 take turns by ``SHARES``. With
``--data`` (laid out as ``SPECFRAME_DATA``), answers that share ten words in a row with a benchmark are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from corpora import benchmark_shingles, shingles
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

SHARES = {0.0: 0.4, 0.7: 0.3, 1.0: 0.3}
"""Shares of the temperatures."""
LONGEST = 420
"""Tokens of a question, with those of the chat template."""
PREFILL = 256
"""Conversations that are read at a time."""
COMPACT = 16
"""Steps after which conversations that have ended make room."""


class Llama:
    """A Llama's weights, and a cache in which all conversations end at the same place: they are padded on the left."""

    def __init__(self, folder: Path, device: str) -> None:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
        config = self.config = model.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        self.embedding, self.head = model.model.embed_tokens.weight, model.lm_head.weight
        self.norm, self.eps = model.model.norm.weight, config.rms_norm_eps
        self.layers = [
            (
                layer.input_layernorm.weight,
                torch.cat([getattr(layer.self_attn, f"{name}_proj").weight for name in "qkv"]),
                layer.self_attn.o_proj.weight,
                layer.post_attention_layernorm.weight,
                torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]),
                layer.mlp.down_proj.weight,
            )
            for layer in model.model.layers
        ]
        theta = config.rope_parameters["rope_theta"]
        turns = theta ** (-torch.arange(0, self.size, 2, device=device).float() / self.size)
        self.angles = torch.outer(torch.arange(config.max_position_embeddings, device=device).float(), turns)

    def open(self, rows: int, room: int) -> None:
        """Make an empty cache."""
        shape = (len(self.layers), 2, rows, self.groups, room, self.size)
        self.cache = torch.empty(shape, dtype=self.embedding.dtype, device=self.embedding.device)

    def read(self, tokens: Tensor, start: int, padding: Tensor, first: int = 0) -> Tensor:
        """Return the logits after the last of the tokens [B, T], which stand from ``start`` on; rows from ``first``."""
        rows, count = tokens.shape
        end, here = start + count, slice(first, first + rows)
        places = torch.arange(end, device=tokens.device)
        angles = self.angles[(places[start:] - padding[:, None]).clamp(min=0)][:, None]  # [B, 1, T, size / 2]
        cos, sin = (torch.cat([f(angles)] * 2, -1).to(self.embedding.dtype) for f in (torch.cos, torch.sin))
        seen = (places >= padding[:, None, None]) & (places <= places[start:, None])  # [B, T, end]
        hidden = self._hidden(tokens, cos, sin, seen[:, None], slice(start, end), here)
        return (F.rms_norm(hidden[:, -1], (hidden.shape[-1],), self.norm, self.eps) @ self.head.T).float()

    def _hidden(self, tokens: Tensor, cos: Tensor, sin: Tensor, seen: Tensor, new: slice, here: slice) -> Tensor:
        """Return the last layer's output [B, T, D]."""
        rows, count = tokens.shape
        repeats = self.heads // self.groups
        bias = torch.zeros(seen.shape, dtype=cos.dtype, device=cos.device).masked_fill(~seen, -3e38)
        bias = bias.repeat(1, 1, repeats, 1)  # [B, 1, repeats T, end]
        x = self.embedding[tokens]
        width = (x.shape[-1],)
        for (before, qkv, out, after, gate_up, down), (keys, values) in zip(self.layers, self.cache, strict=True):
            parts = (F.rms_norm(x, width, before, self.eps) @ qkv.T).view(rows, count, -1, self.size).transpose(1, 2)
            turned = torch.cat([-parts[..., self.size // 2 :], parts[..., : self.size // 2]], -1)
            placed = parts * cos + turned * sin
            q = placed[:, : self.heads].reshape(rows, self.groups, repeats * count, self.size) * self.size**-0.5
            keys[here, :, new] = placed[:, self.heads : self.heads + self.groups]
            values[here, :, new] = parts[:, self.heads + self.groups :]
            law = (q @ keys[here, :, : new.stop].transpose(2, 3) + bias).float().softmax(-1).to(x.dtype)
            mixed = (law @ values[here, :, : new.stop]).view(rows, self.heads, count, self.size)
            x = x + mixed.transpose(1, 2).reshape(rows, count, -1) @ out.T
            gate, up = (F.rms_norm(x, width, after, self.eps) @ gate_up.T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ down.T
        return x


@torch.inference_mode()
def answer(model: Llama, prompts: list[list[int]], temperatures: list[float], most: int, ends: int) -> list[list[int]]:
    """Return the answers' tokens, at most ``most``, the one that ends an answer included."""
    device = model.embedding.device
    width = max(map(len, prompts))
    padding = torch.tensor([width - len(prompt) for prompt in prompts], device=device)
    tokens = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    heat = torch.tensor(temperatures, device=device)[:, None]
    model.open(len(prompts), width + most)
    logits = torch.cat(
        [
            model.read(tokens[first : first + PREFILL], 0, padding[first : first + PREFILL], first)
            for first in range(0, len(prompts), PREFILL)
        ]
    )
    written = torch.full((len(prompts), most), ends, device=device)
    row = torch.arange(len(prompts), device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(most):
        noise = torch.empty_like(logits).exponential_().log_().mul_(-heat)  # Gumbel noise: an exact sample
        chosen = logits.add_(noise).argmax(-1)
        written[row, step] = torch.where(done, ends, chosen)
        done |= chosen == ends
        if step + 1 == most:
            break
        if step % COMPACT == COMPACT - 1 and bool(done.float().mean() > 0.2):
            kept = (~done).nonzero().squeeze(1)
            if not len(kept):
                break
            model.cache = torch.stack([layer[:, kept] for layer in model.cache])
            row, done, padding, heat, chosen = row[kept], done[kept], padding[kept], heat[kept], chosen[kept]
        logits = model.read(chosen[:, None], width + step, padding)
    return [line[: line.index(ends) + 1] if ends in line else line for line in written.tolist()]


def encode(tokenizer: Any, record: dict[str, Any]) -> list[int]:
    """Return the tokens of a question in the chat template."""
    text = tokenizer.apply_chat_template(record["messages"], tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def finish(tokenizer: Any, ends: int, held: set[int], made: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the chat with its answer, None for one that shares a passage with a benchmark or is empty."""
    record, heat, tokens = made
    text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
    if not text or not held.isdisjoint(shingles(text)):
        return None
    turns = [*record["messages"], {"role": "assistant", "content": text}]
    facts = {"source": record["source"], "temperature": heat, "finished": tokens[-1] == ends, "tokens": len(tokens)}
    return {"messages": turns} | facts


def batches(prompts: list[list[int]], size: int, dice: random.Random, longest: int = LONGEST) -> Iterator[list[int]]:
    """Yield the prompts' numbers in batches of similar length, in random order; without those that are longer."""
    order = sorted((n for n, prompt in enumerate(prompts) if len(prompt) <= longest), key=lambda n: len(prompts[n]))
    groups = [order[first : first + size] for first in range(0, len(order), size)]
    dice.shuffle(groups)
    yield from groups


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="questions.py writes it")
    parser.add_argument("--out", type=Path, required=True, help="a JSONL file of messages")
    parser.add_argument("--data", type=Path, help="the folder that SPECFRAME_DATA names")
    parser.add_argument("--rows", type=int, default=2048, help="conversations side by side")
    parser.add_argument("--most", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no batch after this time")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that encode and decode")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    ends: int = tokenizer.eos_token_id
    held = benchmark_shingles(options.data) if options.data else set()
    records = [json.loads(line) for line in options.questions.open()]
    with get_context("fork").Pool(options.workers) as pool:  # before the GPU is in use; hashes stay comparable
        prompts = pool.map(partial(encode, tokenizer), records, chunksize=64)
        dice = random.Random(options.seed)
        heats = dice.choices(list(SHARES), list(SHARES.values()), k=len(records))
        torch.manual_seed(options.seed)
        model = Llama(options.model, device)
        start, made = time.monotonic(), []
        longest = min(LONGEST, len(model.angles) - options.most)  # a text ends where the model's positions do
        for group in batches(prompts, options.rows, dice, longest):
            if time.monotonic() - start > options.seconds:
                break
            texts = answer(model, [prompts[n] for n in group], [heats[n] for n in group], options.most, ends)
            made += [(records[n], heats[n], text) for n, text in zip(group, texts, strict=True)]
            count = sum(len(text) for _, _, text in made)
            print(f"{len(made):,} answers, {count:,} tokens, {time.monotonic() - start:.0f} s", flush=True)
        finished = pool.map(partial(finish, tokenizer, ends, held), made, chunksize=64)
    with options.out.open("w") as file:
        for record in filter(None, finished):
            file.write(json.dumps(record) + "\n")
    print(f"{sum(record is not None for record in finished):,} answers kept")


if __name__ == "__main__":
    main()
