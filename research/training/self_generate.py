"""Let the trained target answer training prompts: ``python self_generate.py --splits DIR --model FOLDER --out
DIR``.

The answers are what drafters are distilled on: a drafter has to foresee what the target says, not what people
wrote. Half of the prompts are answered greedily, the rest at temperatures 0.7 and 1.0. Lines are ``{"kind",
"temperature", "finished", "tokens", "messages" | "text"}``; ``tokens`` counts the generated ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from net import Net, load
from packing import read, render
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SHARES = {"dialogue": 0.45, "maths": 0.20, "code": 0.25, "text": 0.10}
TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
END, PAD = 1, 2
# Any special token ends an answer: the target has been taught nothing sensible after one.
STOPS = (0, 1, 2, 3, 4, 5)
PART_BYTES = 13_000_000
COMPACT_EVERY = 16


@dataclass
class Prompt:
    """A prompt: the record it came from, cut before the answer, and its token ids."""

    kind: str
    record: dict[str, Any]
    ids: list[int]
    temperature: float


def prompts(
    splits: Path, tokenizer: PreTrainedTokenizerFast, count: int, longest: int, seed: int, limit: int | None
) -> list[Prompt]:
    """Cut ``count`` prompts out of the training split: chats before a random answer, texts after a random
    opening."""
    out: list[Prompt] = []
    for kind, share in SHARES.items():
        chance = random.Random(f"{seed} {kind}")
        records = list(read(splits / "train" / f"{kind}.jsonl", limit))
        chance.shuffle(records)
        wanted, found = int(count * share), 0
        # Several passes where documents are few: a chat has several answers, and a temperature is drawn anew.
        for record in (record for _ in range(4) for record in records):
            if found == wanted:
                break
            if "text" in record:
                cut = {"text": record["text"][: chance.randint(60, 400)]}
                ids = tokenizer.encode(cut["text"])
                # The last token may be half a word, which no model would have produced.
                ids = ids[:-1]
            else:
                turns = record["messages"]
                at = chance.choice([index for index, turn in enumerate(turns) if turn["role"] == "assistant"])
                cut = {"messages": turns[:at]}
                ids = tokenizer.encode(render(cut) + "<|assistant|>", add_special_tokens=False)
            if len(ids) <= longest:
                found += 1
                out.append(Prompt(kind, cut, ids, TEMPERATURES[chance.randrange(len(TEMPERATURES))]))
    random.Random(seed).shuffle(out)
    return out


def choose(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Return one token a row: the likeliest where the temperature is 0, else a draw (by the Gumbel-max
    rule)."""
    noise = torch.rand(logits.shape, device=logits.device, generator=generator).clamp_(1e-10, 1 - 1e-7)
    gumbel = -torch.log(-torch.log(noise))
    scaled = logits.float() / temperatures.clamp(min=1e-3)[:, None] + gumbel
    return torch.where(temperatures == 0, logits.float().argmax(-1), scaled.argmax(-1))


@torch.inference_mode()
def answer(net: Net, batch: list[Prompt], budget: int, generator: torch.Generator) -> list[list[int]]:
    """Answer a batch of prompts together, up to ``budget`` tokens each; rows that ended are dropped as it
    goes."""
    device = net.embedding.device
    width = max(len(prompt.ids) for prompt in batch)
    padded = torch.tensor([[PAD] * (width - len(prompt.ids)) + prompt.ids for prompt in batch], device=device)
    pads = torch.tensor([width - len(prompt.ids) for prompt in batch], device=device)
    temperatures = torch.tensor([prompt.temperature for prompt in batch], device=device)
    rows = torch.arange(len(batch), device=device)
    caches = net.caches(len(batch), width + budget, net.embedding.dtype)
    columns = torch.arange(width + budget, device=device)
    readable = columns[None, :] >= pads[:, None]
    # A padding query has nothing to read; letting it read itself keeps NaN out of the cache.
    causal = columns[None, :width] <= columns[:width, None]
    own = torch.eye(width, dtype=torch.bool, device=device)
    mask = (causal[None] & readable[:, None, :width] | own[None])[:, None]
    positions = (columns[None, :width] - pads[:, None]).clamp(min=0)
    logits = net.step(padded, positions, caches, 0, mask)
    stops = torch.tensor(STOPS, device=device)
    written = torch.full((len(batch), budget), PAD, dtype=torch.long, device=device)
    alive = torch.ones(len(batch), dtype=torch.bool, device=device)
    for done in range(budget):
        tokens = torch.where(alive, choose(logits, temperatures, generator), PAD)
        written[rows, done] = tokens
        alive &= ~torch.isin(tokens, stops)
        if done + 1 == budget:
            break
        if (done + 1) % COMPACT_EVERY == 0:
            left = alive.nonzero().squeeze(1)
            if not len(left):
                break
            if len(left) < 0.75 * len(alive):
                caches = [(key[left], value[left]) for key, value in caches]
                rows, pads, temperatures, tokens = rows[left], pads[left], temperatures[left], tokens[left]
                readable, alive = readable[left], alive[left]
        end = width + done
        logits = net.step(tokens[:, None], (end - pads)[:, None], caches, end, readable[:, None, None, : end + 1])
    return written.tolist()


def finish(prompt: Prompt, ids: list[int], tokenizer: PreTrainedTokenizerFast) -> dict[str, Any] | None:
    """Return the output line for an answer, or nothing where the answer is empty."""
    stop = next((index for index, token in enumerate(ids) if token in STOPS), len(ids))
    said = tokenizer.decode(ids[:stop])
    if not said.strip():
        return None
    finished = stop < len(ids) and ids[stop] == END
    line = {
        "kind": prompt.kind,
        "temperature": prompt.temperature,
        "finished": finished,
        "tokens": stop + finished,
    }
    if "text" in prompt.record:
        opening = tokenizer.decode(prompt.ids[1:])
        return line | {"text": opening + said}
    return line | {"messages": [*prompt.record["messages"], {"role": "assistant", "content": said}]}


def batches(items: list[Prompt], size: int) -> Iterator[list[Prompt]]:
    """Yield batches of prompts of similar length, in shuffled order, so that an early stop leaves no length
    out."""
    pools = [
        sorted(items[start : start + 8 * size], key=lambda item: len(item.ids))
        for start in range(0, len(items), 8 * size)
    ]
    for pool in pools:
        cuts = [pool[start : start + size] for start in range(0, len(pool), size)]
        random.Random(len(cuts)).shuffle(cuts)
        yield from cuts


class Parts:
    """Writes lines to compressed files, a new one whenever the last has grown to ``PART_BYTES``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.number = folder, 0
        self.handle = self._open()

    def _open(self) -> IO[str]:
        self.path = self.folder / f"self-{self.number:02d}.jsonl.gz"
        return gzip.open(self.path, "wt", encoding="utf-8", compresslevel=5)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line to the open part."""
        self.handle.write(json.dumps(line, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        """Bring all lines to the disk, so that a stopped run loses nothing; start a new part when due."""
        self.handle.flush()
        if self.path.stat().st_size > PART_BYTES:
            self.handle.close()
            self.number += 1
            self.handle = self._open()

    def close(self) -> None:
        """Close the open part."""
        self.handle.close()


def main() -> None:
    """Run the command line."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for self-NN.jsonl.gz")
    parser.add_argument("--count", type=int, default=100_000, help="prompts to answer at most")
    parser.add_argument("--seconds", type=float, default=90.0, help="time for the whole program")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--budget", type=int, default=256, help="tokens of an answer at most")
    parser.add_argument("--longest", type=int, default=256, help="tokens of a prompt at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="read only so many documents of each file (for a trial)")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    net = load(options.model, device)
    asked = prompts(options.splits, tokenizer, options.count, options.longest, options.seed, options.limit)
    print(f"{time.monotonic() - started:.0f} s: {len(asked)} prompts")
    generator = torch.Generator(device).manual_seed(options.seed)
    parts, tokens, slowest = Parts(options.out), 0, 0.0
    for batch in batches(asked, options.batch):
        begun = time.monotonic()
        if begun - started + slowest > options.seconds:
            break
        for prompt, ids in zip(batch, answer(net, batch, options.budget, generator), strict=True):
            line = finish(prompt, ids, tokenizer)
            if line is not None:
                tokens += line["tokens"]
                parts.write(line)
        parts.flush()
        took = time.monotonic() - begun
        slowest = max(slowest, took)
        print(f"{time.monotonic() - started:.0f} s: {tokens} tokens, {took:.1f} s for {len(batch)} answers")
    parts.close()
    print(f"generated {tokens} tokens")


if __name__ == "__main__":
    main()
