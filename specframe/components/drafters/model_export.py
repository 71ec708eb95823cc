"""Exports a drafting model for vLLM, transformers, llama.cpp and OpenVINO."""

from __future__ import annotations

from typing import Any

from specframe.components.drafters.model_readings import ReadModel
from specframe.kernel.errors import WeightsError
from specframe.kernel.interfaces import text_of
from specframe.neural.weights import gguf_file
from specframe.neural.weights.export import Export

FORMS = ("vllm", "transformers", "gguf", "openvino")
LM_HEAD = "lm_head.weight"
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    '\'{"method": "draft_model", "model": "FOLDER", "num_speculative_tokens": 3}\'',
    "transformers": "model.generate(**inputs, assistant_model=AutoModelForCausalLM.from_pretrained('FOLDER'))",
    "gguf": "llama-server -m TARGET.gguf -md FOLDER/model.gguf --spec-type draft-simple --spec-draft-n-max 3",
    "openvino": "optimum-cli export openvino -m FOLDER --task text-generation-with-past --weight-format fp32 "
    "FOLDER/openvino",
}


def export(drafter: ReadModel, form: str) -> Export:
    """The model and tokenizer in the format of another engine, for a drafter bound to its target.

    Raises WeightsError with all reasons if the format cannot represent the drafter.
    """
    reader = drafter._reader
    model: Any = reader.model
    config = model.config
    assert drafter._target is not None, "the drafter is bound"
    tokenizer = reader.tokenizer or text_of(drafter._target).tokenizer  # trained weights may come without one
    lost = {
        "its layers are rounded: set drafter.quantize=null": reader.quantization is not None,
        "the head that rates its tokens is not known there": drafter.head is not None,
        "its mask tokens (PARD) are not known there: vLLM reads the trained folder itself": drafter.masks.count > 0,
        "the KV selection is not known there": drafter.kv_selection is not None,
        "layers that are computed together are not known there": drafter._together[0] > 1,
        f"its vocabulary of {reader.vocab_size:,} tokens is not the target's": drafter._rating.shared is not None,
    }
    reasons = [reason for reason, holds in lost.items() if holds]
    reasons += gguf_file.llama_reasons(config) if form == "gguf" else []
    if reasons:
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    tensors = dict(model.state_dict())
    tied = bool(config.tie_word_embeddings)
    if tied:
        tensors.pop(LM_HEAD, None)
    dtype = "float32" if form == "gguf" else str(model.dtype).removeprefix("torch.")
    checklist = (
        ("layers", f"{config.num_hidden_layers} of {config.model_type}, width {config.hidden_size}"),
        ("vocabulary", f"{config.vocab_size:,} tokens, the target's"),
        ("LM head", "its embedding" if tied else "its own"),
        ("dtype", dtype),
    )
    if form != "gguf":
        stored = {**config.to_dict(), "architectures": [type(model).__name__], "dtype": dtype}
        return Export(stored, tensors, checklist, COMMANDS[form], tokenizer=tokenizer)
    settings = gguf_file.llama_settings("llama", config)
    settings |= gguf_file.tokenizer_settings(tokenizer, config.vocab_size)
    return Export(settings, gguf_file.llama_tensors(tensors, config), checklist, COMMANDS[form], "model.gguf")
