"""Turn the splits into token streams, and streams into batches in an order that only the seed decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from documents import KINDS
from torch import Tensor
from transformers import PreTrainedTokenizerFast

CHUNK = 4000


def render(record: dict[str, Any]) -> str:
    """Return a record as the text to tokenise, special tokens spelt out, closed by the end token.

    This is what the chat template gives for a chat; writing it here spares a template run per document.
    """
    if "text" in record:
        return f"<|bos|>{record['text']}<|end|>"
    parts = ["<|bos|>"]
    for message in record["messages"]:
        parts.append(f"<|{message['role']}|>{message['content'].strip()}")
        if message["role"] == "assistant":
            parts.append("<|end|>")
    return "".join(parts)


def read(path: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records of a JSONL file, at most ``limit``."""
    with path.open(encoding="utf-8") as handle:
        for index, line in enumerate(handle):
            if limit is not None and index >= limit:
                return
            yield json.loads(line)


def stream(path: Path, tokenizer: PreTrainedTokenizerFast, limit: int | None = None) -> np.ndarray:
    """Tokenise one split file into a single array of 16-bit ids, documents one after the other."""
    backend = tokenizer.backend_tokenizer
    texts = [render(record) for record in read(path, limit)]
    parts: list[np.ndarray] = []
    for start in range(0, len(texts), CHUNK):
        encodings = backend.encode_batch_fast(texts[start : start + CHUNK], add_special_tokens=False)
        parts += [np.asarray(encoding.ids, dtype=np.uint16) for encoding in encodings]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint16)


def streams(
    folder: Path, tokenizer: PreTrainedTokenizerFast, device: torch.device, limit: int | None = None
) -> dict[str, Tensor]:
    """Return the token stream of every kind, on the device, in as few bytes as PyTorch can index with
    ease."""
    out: dict[str, Tensor] = {}
    for kind in KINDS:
        ids = stream(folder / f"{kind}.jsonl", tokenizer, limit)
        out[kind] = torch.from_numpy(ids.astype(np.int16)).to(device)
    return out


class Windows:
    """Endless seeded windows of one stream: each pass over it is cut at another offset and visited in another
    order."""

    def __init__(self, tokens: Tensor, length: int, seed: int) -> None:
        self.tokens, self.length = tokens, length
        self.random = np.random.default_rng(seed)
        self.starts = np.zeros(0, dtype=np.int64)
        self.used = 0
        self.passes = 0
        self.span = torch.arange(length + 1, device=tokens.device)

    def take(self, rows: int) -> Tensor:
        """Return the next ``rows`` windows of ``length + 1`` tokens as 64-bit ids."""
        while len(self.starts) - self.used < rows:
            offset = int(self.random.integers(self.length))
            fresh = np.arange(offset, len(self.tokens) - self.length - 1, self.length)
            if not len(fresh):
                fresh = np.zeros(1, dtype=np.int64)
            self.random.shuffle(fresh)
            self.starts = np.concatenate((self.starts[self.used :], fresh))
            self.used = 0
            self.passes += 1
        chosen = torch.from_numpy(self.starts[self.used : self.used + rows]).to(self.tokens.device)
        self.used += rows
        return self.tokens[chosen[:, None] + self.span].long()


class Mixture:
    """Batches with a fixed share of every kind."""

    def __init__(self, data: dict[str, Tensor], shares: dict[str, float], rows: int, length: int, seed: int) -> None:
        self.counts = {kind: int(rows * share) for kind, share in shares.items()}
        largest = max(shares, key=lambda kind: shares[kind])
        self.counts[largest] += rows - sum(self.counts.values())
        self.counts = {kind: count for kind, count in self.counts.items() if count}
        self.windows = {
            kind: Windows(data[kind], length, seed * 1000 + index)
            for index, kind in enumerate(KINDS)
            if kind in self.counts
        }

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of the next step, each [rows, length]."""
        both = torch.cat([self.windows[kind].take(count) for kind, count in self.counts.items()])
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def passes(self) -> dict[str, int]:
        """Return how many passes over each stream have been begun."""
        return {kind: windows.passes for kind, windows in self.windows.items()}
