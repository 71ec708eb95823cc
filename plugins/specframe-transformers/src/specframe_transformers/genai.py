"""OpenVINO GenAI with an exported model, for `specframe export --to openvino --check`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
"""Properties of a device that computes, and keeps keys and values, in float32."""


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """The version, texts, cycles and accepted tokens of a task.

    The converted drafter stays in the folder that the task's command names, and the target's is removed.
    """
    import openvino_genai

    out = Path(task["command"][-1])
    settings = openvino_genai.SchedulerConfig()
    settings.enable_prefix_caching, settings.max_num_batched_tokens = False, 8192
    with tempfile.TemporaryDirectory() as place:
        target, drafter = convert(task["target"], Path(place)), convert(task["folder"], out)
        draft = openvino_genai.draft_model(drafter, "CPU", **EXACT)
        pipeline = openvino_genai.LLMPipeline(target, "CPU", draft_model=draft, scheduler_config=settings, **EXACT)
        found = [decode(pipeline, prompt, task) for prompt in task["prompts"]]
    return {
        "engine": f"OpenVINO GenAI {version('openvino-genai')}",
        "texts": [text for text, _ in found],
        "cycles": sum(len(accepted) for _, accepted in found),
        "accepted": sum(sum(accepted) for _, accepted in found),
    }


def convert(folder: str, out: Path) -> Path:
    """Writes the model and tokenizer of a folder for OpenVINO, in float32."""
    import torch
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    kind = {"task": "text-generation-with-past", "library_name": "transformers"}
    main_export(folder, out, ov_config=OVConfig(dtype="fp32"), convert_tokenizer=True, **kind)
    return out


def decode(pipeline: Any, prompt: list[int], task: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """A prompt's new tokens, and the accepted tokens of each cycle.

    A prompt's first token is decoded alone, as in specframe. The text goes on beyond the task's tokens, so that no
    draft is cut short; cycles that begin there are not counted.
    """
    import openvino
    import openvino_genai
    import torch

    settings, tokens = pipeline.get_generation_config(), task["tokens"]
    settings.max_new_tokens, settings.do_sample = tokens + task["length"] + 1, False
    settings.num_assistant_tokens = task["length"]
    ids = torch.tensor([prompt])
    inputs = openvino_genai.TokenizedInputs(*(openvino.Tensor(part.numpy()) for part in (ids, torch.ones_like(ids))))
    result = pipeline.generate(inputs, settings)
    committed = list(result.extended_perf_metrics.main_model_metrics.raw_metrics.m_batch_sizes)
    begins = [sum(committed[:cycle]) for cycle in range(len(committed))]
    accepted = [count - 1 for begin, count in zip(begins, committed, strict=True) if 0 < begin < tokens]
    return list(result.tokens[0])[:tokens], accepted
