"""vLLM with an exported drafter, for `specframe export --check`; runs in environments without specframe.

Decodes greedily in float32. vLLM is imported when it runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that errors are raised in this process
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
ARGUMENTS = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "enforce_eager": True}
SPECULATIVE = "--speculative-config"


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a task with its command's model and drafter; returns vLLM's version, texts, cycles and accepted tokens."""
    os.environ.update({**QUIET, "VLLM_PLUGINS": ""})
    import vllm

    words = task["command"]
    drafter = json.loads(words[words.index(SPECULATIVE) + 1]) if SPECULATIVE in words else None
    room = max(map(len, task["prompts"])) + task["tokens"] + 2 * task["length"]
    arguments = {**ARGUMENTS, "max_model_len": max(room, ARGUMENTS["max_model_len"])}
    llm = vllm.LLM(words[2], speculative_config=drafter, disable_log_stats=False, **arguments)
    found = generate(llm, task["prompts"], task["tokens"], together=False)
    cycles, _, accepted = found["counts"]
    return {"engine": f"vllm {vllm.__version__}", "texts": found["texts"], "cycles": cycles, "accepted": accepted}


def counts(llm: Any) -> list[int]:
    """Returns the numbers of cycles, drafted and accepted tokens so far."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return [int(found.get(f"vllm:spec_decode_{name}", 0)) for name in names]


def generate(llm: Any, prompts: Sequence[Sequence[int]], tokens: int, together: bool) -> dict[str, Any]:
    """Returns the continuations of prompts, all at once or one by one, and the numbers of `counts` for them."""
    from vllm import SamplingParams, TokensPrompt

    settings, before = SamplingParams(temperature=0.0, max_tokens=tokens), counts(llm)
    given = [TokensPrompt(prompt_token_ids=[*prompt]) for prompt in prompts]
    batches = [given] if together else [[one] for one in given]
    texts = [
        [*answer.outputs[0].token_ids] for batch in batches for answer in llm.generate(batch, settings, use_tqdm=False)
    ]
    return {"texts": texts, "counts": [new - old for new, old in zip(counts(llm), before, strict=True)]}
