"""Assisted generation of transformers with an exported model, for `specframe export --to transformers --check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a task; returns the version of transformers, texts, cycles and accepted tokens.

    A prompt's first token is decoded alone, because drafting begins after it in specframe. Decoding continues beyond
    the task's tokens, so that no draft is cut short; cycles that begin there are not counted.
    """
    import torch
    import transformers
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    torch.set_num_threads(1)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model, assistant = (load(task[name], dtype=torch.float32) for name in ("target", "folder"))
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = task["length"], "constant"
    settings.assistant_confidence_threshold = 0.0
    tokens, texts, cycles = task["tokens"], [], list[int]()
    matched: list[tuple[int, int]] = []

    def note(self: Any, input_ids: Any, scores: Any, num_matches: Any) -> None:
        matched.append((input_ids.shape[1], int(num_matches)))

    AssistedCandidateGenerator.update_candidate_strategy = note  # type: ignore[method-assign]
    for prompt in task["prompts"]:
        matched.clear()
        first = model.generate(torch.tensor([prompt]), max_new_tokens=1, do_sample=False)
        longer = tokens + task["length"]
        text = model.generate(first, assistant_model=assistant, max_new_tokens=longer, do_sample=False)
        texts.append(text[0, len(prompt) :].tolist()[:tokens])
        cycles += [count for end, count in matched if end - count - 1 < len(prompt) + tokens]
    version = f"transformers {transformers.__version__}"
    return {"engine": version, "texts": texts, "cycles": len(cycles), "accepted": sum(cycles)}
