"""Tokens of a tokenizer as the bytes that they write, and texts as tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specframe import CompositionError

Encode = Callable[[str], tuple[list[int], list[int]]]
"""A function from a text to its tokens and their start characters."""


@dataclass(frozen=True)
class Vocabulary:
    """Bytes that each token writes, and the tokenisation of texts."""

    pieces: tuple[bytes | None, ...]
    """The bytes that each token writes; None for a special token, or an unused id."""
    encode: Encode
    encode_prompt: Callable[[str], list[int]]
    """Encodes a whole prompt, including special tokens that the tokenizer adds."""
    special: Mapping[str, int] = field(default_factory=dict)
    """Special tokens by name."""
    end: int | None = None
    """The end-of-sequence token."""

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> Vocabulary:
        """Reads the vocabulary of a transformers tokenizer, for a model of `size` tokens.

        Raises CompositionError for a tokenizer whose tokens are no pieces of text: neither byte-level nor with
        SentencePiece's `▁` for a space.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise CompositionError("translating between vocabularies needs a fast tokenizer of target and drafter each")
        to_bytes = _writer(json.loads(backend.to_str()).get("decoder"))
        added = {token.content for token in tokenizer.added_tokens_decoder.values()}
        special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        pieces: list[bytes | None] = [None] * size
        for name, number in tokenizer.get_vocab().items():
            if number < size and name not in special:
                pieces[number] = name.encode() if name in added else to_bytes(name)

        def encode(text: str) -> tuple[list[int], list[int]]:
            found = backend.encode(text, add_special_tokens=False)
            return found.ids, [start for start, _ in found.offsets]

        def encode_prompt(text: str) -> list[int]:
            return list(tokenizer(text)["input_ids"])

        return cls(tuple(pieces), encode, encode_prompt, special, tokenizer.eos_token_id)

    @classmethod
    def of_pieces(cls, pieces: Sequence[str]) -> Vocabulary:
        """Creates a small vocabulary of these pieces, which tokenises by the longest piece; for certificates."""
        longest = sorted(range(len(pieces)), key=lambda number: -len(pieces[number]))

        def encode(text: str) -> tuple[list[int], list[int]]:
            tokens, starts, place = list[int](), list[int](), 0
            while place < len(text):
                found = next((number for number in longest if text.startswith(pieces[number], place)), None)
                if found is not None:
                    tokens.append(found)
                    starts.append(place)
                place += 1 if found is None else len(pieces[found])
            return tokens, starts

        return cls(tuple(piece.encode() for piece in pieces), encode, lambda text: encode(text)[0])

    def write(self, tokens: Sequence[int]) -> bytes:
        """Returns the bytes that the tokens write; special ones write nothing."""
        return b"".join(self.pieces[token] or b"" for token in tokens)

    def spell(self, piece: bytes | None) -> tuple[int, ...]:
        """Returns the canonical tokens that write these bytes; empty if they are no text, or cannot be written."""
        try:
            text = (piece or b"").decode()
        except UnicodeDecodeError:
            return ()
        tokens = tuple(self.encode(text)[0])
        return tokens if self.write(tokens) == piece else ()


def shared(drafter: Vocabulary, target: Vocabulary) -> tuple[Tensor, Tensor]:
    """Returns the tokens that both have, as the drafter's ids and the target's, int64 [v] each, in the target's order.

    Tokens are equal if they write the same bytes; special ones if they have the same name or end a sequence. If several
    write the same bytes, the first counts.
    """
    numbers: dict[bytes, int] = {}
    for number, piece in enumerate(drafter.pieces):
        if piece:
            numbers.setdefault(piece, number)
    taken: set[int] = set()
    pairs = []
    named = {target.special[name]: number for name, number in drafter.special.items() if name in target.special}
    if target.end is not None and drafter.end is not None:
        named[target.end] = drafter.end
    for number, piece in enumerate(target.pieces):
        found = named.get(number, numbers.get(piece) if piece else None)
        if found is not None and found not in taken:
            taken.add(found)
            pairs.append((found, number))
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return torch.tensor(first, dtype=torch.int64), torch.tensor(second, dtype=torch.int64)


def toys(size: int) -> tuple[Vocabulary, Vocabulary]:
    """Returns two small vocabularies that share some tokens, a drafter's and a target's of `size` tokens, at least 2.

    Each has a token that the other must write with several, and the drafter has one that the target cannot write.
    """
    words = _words(size + 1)
    own = [word for index, word in enumerate(words) if index % 3 != 2]
    return Vocabulary.of_pieces([*reversed(own), "c"]), Vocabulary.of_pieces(words[:size])


def _words(count: int) -> list[str]:
    """Returns the first strings of the letters a and b, short ones first."""
    words = ["a", "b"]
    for word in words:
        if len(words) >= count:
            break
        words += [word + "b", word + "a"]
    return words[:count]


def _writer(decoder: Any) -> Callable[[str], bytes]:
    """Returns a function from a token's name to its bytes, given a tokenizer's decoder from its JSON."""
    kinds = {step.get("type"): step for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        letters = _letters()
        return lambda name: bytes(letters[letter] for letter in name)
    spaces = kinds.get("Metaspace", {}).get("replacement") or kinds.get("Replace", {}).get("pattern", {}).get("String")
    if spaces is None:
        raise CompositionError(
            "translating between vocabularies needs tokenizers whose tokens are pieces of text, byte-level ones or "
            "SentencePiece's; this one's are not"
        )

    def write(name: str) -> bytes:
        if "ByteFallback" in kinds and len(name) == 6 and name.startswith("<0x"):
            return bytes([int(name[3:5], 16)])
        return name.replace(spaces, " ").encode()

    return write


def _steps(decoder: Any) -> Iterator[dict[str, Any]]:
    if isinstance(decoder, dict):
        yield decoder
        for step in decoder.get("decoders", ()):
            yield from _steps(step)


def _letters() -> dict[str, int]:
    """Returns the byte for which each letter of a byte-level token stands (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}
