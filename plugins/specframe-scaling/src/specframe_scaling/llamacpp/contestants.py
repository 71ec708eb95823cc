"""llama.cpp, decoding the target's GGUF file in a separate process, plain and with its own speculation."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from specframe import CompositionError, InputError
from specframe.plugin import Outcome, text_of

if TYPE_CHECKING:
    from specframe.plugin import Target


class LlamaCpp:
    """llama.cpp on the target's GGUF file, with torch's number of threads, one prompt at a time."""

    name = "llamacpp"
    lossless: bool | None = True
    speculation = "NONE"
    """One of llama.cpp's types, as in `common_speculative_type`."""

    def __init__(self) -> None:
        self._worker: subprocess.Popen[str] | None = None
        self._tokenizer: Any = None

    def prepare(self, target: Target, sampling: Any, batch: int) -> None:
        """Loads the file. Raises CompositionError if the target has none, InputError for a batch of several."""
        if find_spec("xllamacpp") is None:
            raise CompositionError(f"{self.name} needs xllamacpp: pip install 'specframe-scaling[llamacpp]'")
        file, self._tokenizer = text_of(target).gguf, text_of(target).tokenizer
        if file is None or self._tokenizer is None:
            raise CompositionError(f"{self.name} decodes GGUF files, and the target has none with a tokenizer")
        if batch > 1:
            raise InputError(f"{self.name} decodes one prompt at a time; use --batch 1")
        if sampling.grammar is not None or sampling.stop_token_ids or sampling.law(0, {0}).processors:
            raise InputError(f"{self.name} knows no grammars, penalties, biases or stop tokens of a recipe: omit them")
        command = [sys.executable, "-m", "specframe_scaling.llamacpp.worker"]
        self._worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        weakref.finalize(self, _end, self._worker)
        self._send(
            {
                "file": str(file),
                "context": target.context,
                "threads": torch.get_num_threads(),
                "speculation": self.speculation,
            }
        )
        if self._receive() != "ready":
            raise InputError(f"llama.cpp does not load {file}")
        self._ends = frozenset(text_of(target).ends)
        self._request = {
            "n_predict": sampling.max_new_tokens,
            "ignore_eos": sampling.ignore_eos,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p or 1.0,
            "min_p": sampling.min_p or 0.0,
            "repeat_penalty": 1.0,
            "cache_prompt": False,  # otherwise a repeated prompt would not be read again
            "stream": True,
        }

    def decode(self, rows: Sequence[Sequence[int]], seed: int) -> Outcome:
        """Continues the prompt."""
        if self._worker is None:
            raise RuntimeError("a contestant decodes only after it was prepared")
        pieces: list[tuple[float, Mapping[str, Any]]] = []
        request = {**self._request, "prompt": list(rows[0]), "seed": seed % 2**31}
        self._send(request)
        while (piece := self._receive()) is not None:
            pieces.append((perf_counter(), piece))
        failed = next((piece for _, piece in pieces if "choices" not in piece), None)
        if failed is not None or not pieces:
            raise InputError(f"llama.cpp refuses the prompt: {failed}")
        texts = [str(piece["choices"][0]["text"]) for _, piece in pieces]
        tokens, arrivals = self._align(texts, [time for time, _ in pieces])
        if pieces[-1][1]["choices"][0]["finish_reason"] == "stop":
            tokens, arrivals = [*tokens, min(self._ends)], [*arrivals, pieces[-1][0]]
        most = self._request["n_predict"]  # a text may be tokenised into more tokens than were generated
        tokens, arrivals = tokens[:most], arrivals[:most]
        return Outcome([tokens], [arrivals], lambda: [pieces[-1][1].get("timings", {})])

    def _send(self, line: Mapping[str, Any]) -> None:
        assert self._worker is not None and self._worker.stdin is not None
        self._worker.stdin.write(json.dumps(line) + "\n")
        self._worker.stdin.flush()

    def _receive(self) -> Any:
        """Reads the worker's next message. Raises InputError if the worker has ended."""
        assert self._worker is not None and self._worker.stdout is not None
        if not (line := self._worker.stdout.readline()):
            raise InputError(f"{self.name}: llama.cpp has ended (exit status {self._worker.wait()})")
        return json.loads(line)

    def _align(self, texts: Sequence[str], times: Sequence[float]) -> tuple[list[int], list[float]]:
        """Returns the tokens of a text that came in pieces, each with the time of its last character."""
        whole = "".join(texts)
        found = self._tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        arrivals: list[float] = []
        piece, length = 0, len(texts[0])
        for _, end in found["offset_mapping"]:
            while length < end:
                piece += 1
                length += len(texts[piece])
            arrivals.append(times[piece])
        return list(found["input_ids"]), arrivals


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.communicate()  # closes its pipes and waits for it


class LlamaCppNgram(LlamaCpp):
    """llama.cpp's own speculation from n-grams of the text, with its default settings."""

    name = "llamacpp-ngram"
    speculation = "NGRAM_SIMPLE"
