"""Runs vLLM in a process of its own: `python vllm_process.py OUT` reads a task as JSON, and writes figures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from specframe_vllm.engine import ARGUMENTS, QUIET, counts, generate


def speculative(length: int) -> dict[str, Any]:
    return {"method": "custom_class", "model": "specframe_vllm.Proposer", "num_speculative_tokens": length}


def cancelled(llm: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Texts and counts of a batch whose second request is cancelled after some steps."""
    from vllm import SamplingParams, TokensPrompt

    engine, texts, before = llm.llm_engine, {}, counts(llm)
    for number, prompt in enumerate(prompts):
        settings = SamplingParams(temperature=0.0, max_tokens=tokens)
        engine.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), settings)
    steps = 0
    while engine.has_unfinished_requests():
        for answer in engine.step():
            texts[answer.request_id] = [*answer.outputs[0].token_ids]
        steps += 1
        if steps == 4:
            engine.abort_request(["1"])
    return {
        "texts": [texts[str(number)] for number in range(len(prompts)) if number != 1],
        "counts": [new - old for new, old in zip(counts(llm), before, strict=True)],
    }


def refused(llm: Any, prompts: list[list[int]]) -> str:
    """The error of a request with a temperature."""
    from vllm import SamplingParams, TokensPrompt

    try:
        llm.generate(TokensPrompt(prompt_token_ids=prompts[0]), SamplingParams(temperature=0.7, max_tokens=1))
    except ValueError as error:
        return str(error)
    return ""


def preempted(llm: Any) -> int:
    """The number of preemptions."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def main(task: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM

    llm = LLM(task["model"], disable_log_stats=False, **ARGUMENTS | task["arguments"])
    prompts, tokens = task["prompts"], task["tokens"]
    found: dict[str, Any] = {}
    for name in task["runs"]:
        if name == "cancel":
            found[name] = cancelled(llm, prompts, tokens)
        elif name == "sampled":
            found[name] = refused(llm, prompts)
        else:
            found[name] = generate(llm, prompts, tokens, together=name == "together")
    return found | {"preempted": preempted(llm)}


if __name__ == "__main__":
    os.environ.update(QUIET)
    Path(sys.argv[1]).write_text(json.dumps(main(json.load(sys.stdin))))
