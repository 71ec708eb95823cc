"""llama.cpp, by the package xllamacpp, with an exported drafter, for `specframe export --to gguf --check`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a task; returns the version, texts, cycles and accepted tokens.

    Decoding continues beyond the task's tokens, so that no draft is cut short; cycles that begin there are not counted.
    Raises WeightsError for a target that is not Llama's.
    """
    os.environ.pop("GOMP_SPINCOUNT", None)  # set for torch's threads; llama.cpp's threads wait in their own way
    import xllamacpp  # type: ignore[import-untyped]

    words = task["command"]
    kind = words[words.index("--spec-type") + 1].upper().replace("-", "_")
    with tempfile.TemporaryDirectory() as place:
        options = xllamacpp.CommonParams()
        options.model.path = str(write_target(task["target"], Path(place) / "target.gguf"))
        options.n_ctx, options.n_parallel, options.ui, options.verbosity = 4096, 1, False, 0
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
        speculative = options.speculative
        speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
        speculative.draft.mparams.path = words[words.index("-md") + 1]
        speculative.draft.n_max, speculative.draft.n_min, speculative.draft.p_min = task["length"], 0, 0.0
        server = xllamacpp.Server(options)
        found = [decode(server, prompt, task) for prompt in task["prompts"]]
    return {
        "engine": f"llama.cpp (xllamacpp {version('xllamacpp')})",
        "texts": [text for text, _, _ in found],
        "cycles": sum(cycles for _, cycles, _ in found),
        "accepted": sum(accepted for _, _, accepted in found),
    }


def decode(server: Any, prompt: list[int], task: Mapping[str, Any]) -> tuple[list[int], int, int]:
    """Returns a prompt's new tokens, cycles and accepted tokens: counts from a stream, ids from a complete answer."""
    tokens, pieces, whole = task["tokens"], list[str](), list[str]()
    request = {"prompt": prompt, "n_predict": tokens + task["length"] + 1, "temperature": 0, "cache_prompt": False}
    server.handle_completions(json.dumps({**request, "stream": True, "timings_per_token": True}), pieces.append)
    server.handle_completions(json.dumps({**request, "logprobs": 1}), whole.append)
    counts = [json.loads(piece)["timings"] for piece in pieces]
    counted = [(count.get("draft_n", 0), count.get("draft_n_accepted", 0)) for count in counts[:tokens]]
    text = [token["id"] for token in json.loads(whole[0])["choices"][0]["logprobs"]["content"]]
    return text[:tokens], len({drafted for drafted, _ in counted} - {0}), counted[-1][1]


def write_target(folder: str, file: Path) -> Path:
    """Writes the model of a folder as a GGUF file in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specframe import WeightsError
    from specframe.neural import gguf_file

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, tensors = model.config, dict(model.state_dict())
    if reasons := gguf_file.llama_reasons(config):
        raise WeightsError(f"the target is not written to GGUF: {'; '.join(reasons)}")
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    settings = gguf_file.llama_settings("llama", config)
    settings |= gguf_file.tokenizer_settings(AutoTokenizer.from_pretrained(folder), config.vocab_size)
    gguf_file.write_gguf(file, settings, gguf_file.llama_tensors(tensors, config))
    return file
