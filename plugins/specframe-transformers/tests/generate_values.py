"""Values of the fields of transformers' `generate`, for the tests that try each of them."""

from __future__ import annotations

from typing import Any

from transformers import WatermarkingConfig
from transformers.generation import SynthIDTextWatermarkingConfig

GREEDY: dict[str, list[dict[str, Any]]] = {
    "max_length": [{"max_length": 12, "max_new_tokens": None}],
    "max_new_tokens": [{"max_new_tokens": 9}],
    "min_length": [{"min_length": 8, "eos_token_id": [32, 8, 23, 4]}, {"min_length": 14}],
    "min_new_tokens": [{"min_new_tokens": 3, "eos_token_id": [32, 8, 23, 4]}, {"min_new_tokens": 12}],
    "early_stopping": [{"early_stopping": True}],
    "max_time": [{"max_time": 1e3}],
    "use_cache": [{"use_cache": False}],
    "cache_implementation": [{"cache_implementation": "dynamic"}],
    "cache_config": [{"cache_config": {}}],
    "max_cache_len": [{"max_cache_len": 64}],
    "repetition_penalty": [{"repetition_penalty": 1.7}, {"repetition_penalty": 0.6}],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 2.5}],
    "length_penalty": [{"length_penalty": 2.0}],
    "no_repeat_ngram_size": [{"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2}],
    "bad_words_ids": [{"bad_words_ids": [[24], [8, 8, 8]]}],
    "renormalize_logits": [{"renormalize_logits": True}],
    "forced_bos_token_id": [{"forced_bos_token_id": 5}],
    "forced_eos_token_id": [{"forced_eos_token_id": 1}],
    "remove_invalid_values": [{"remove_invalid_values": True}],
    "exponential_decay_length_penalty": [{"exponential_decay_length_penalty": (3, 1.5)}],
    "suppress_tokens": [{"suppress_tokens": [32, 8, 45]}],
    "begin_suppress_tokens": [{"begin_suppress_tokens": [2, 8, 4]}],
    "sequence_bias": [{"sequence_bias": [[[15, 16], -6.0], [[22], 2.0]]}],
    "watermarking_config": [
        {"watermarking_config": WatermarkingConfig(bias=5.0)},
        {"watermarking_config": WatermarkingConfig(bias=5.0, seeding_scheme="selfhash", context_width=4)},
    ],
    "output_attentions": [{"output_attentions": False}],
    "output_hidden_states": [{"output_hidden_states": False}],
    "output_scores": [{"output_scores": True}],
    "output_logits": [{"output_logits": True}],
    "return_dict_in_generate": [{"return_dict_in_generate": True}],
    "pad_token_id": [{"pad_token_id": 7}, {"pad_token_id": None}],
    "bos_token_id": [{"bos_token_id": 3}],
    "eos_token_id": [{"eos_token_id": [16, 23, 8]}, {"eos_token_id": None}],
    "encoder_no_repeat_ngram_size": [{"encoder_no_repeat_ngram_size": 1}],
    "decoder_start_token_id": [{"decoder_start_token_id": 4}],
    "num_assistant_tokens": [{"num_assistant_tokens": 3}],
    "num_assistant_tokens_schedule": [{"num_assistant_tokens_schedule": "heuristic"}],
    "assistant_confidence_threshold": [{"assistant_confidence_threshold": 0.5}],
    "max_matching_ngram_size": [{"max_matching_ngram_size": 2}],
    "assistant_lookbehind": [{"assistant_lookbehind": 4}],
    "target_lookbehind": [{"target_lookbehind": 4}],
    "assistant_ensemble_weight": [{"assistant_ensemble_weight": 0.5}],
    "speculation_type": [{"speculation_type": None}],
    "compile_config": [{"compile_config": None}],
    "disable_compile": [{"disable_compile": True}],
    "continuous_batching_config": [{"continuous_batching_config": None}],
    "low_memory": [{"low_memory": True}],
    "diversity_penalty": [{"diversity_penalty": 0.0}],
    "prefill_chunk_size": [{"prefill_chunk_size": 2}],
    "transformers_version": [{"transformers_version": "5.0.0"}],
}
"""Values of fields that are exact, each with do_sample=False."""

EFFECTIVE = {
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "repetition_penalty",
    "encoder_repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "watermarking_config",
    "pad_token_id",
    "eos_token_id",
    "encoder_no_repeat_ngram_size",
}
"""Those whose values change the greedy tokens of the three rows."""

SAMPLED: dict[str, list[dict[str, Any]]] = {
    "do_sample": [{}],
    "temperature": [{"temperature": 2.0}],
    "top_k": [{"top_k": 3}, {"top_k": 0}],
    "top_p": [{"top_p": 0.7}],
    "min_p": [{"min_p": 0.2}],
    "top_h": [{"top_h": 0.4}],
    "typical_p": [{"typical_p": 0.5}, {"typical_p": 0.5, "temperature": 3.0, "top_p": 0.9}],
    "epsilon_cutoff": [{"epsilon_cutoff": 0.05, "temperature": 3.0}],
    "eta_cutoff": [{"eta_cutoff": 0.3, "temperature": 3.0}],
    "num_return_sequences": [{"num_return_sequences": 2}],
    "repetition_penalty": [{"repetition_penalty": 1.7, "top_p": 0.9}],
    "encoder_repetition_penalty": [{"encoder_repetition_penalty": 2.5, "num_return_sequences": 2}],
    "renormalize_logits": [{"renormalize_logits": True, "top_k": 5}],
    "exponential_decay_length_penalty": [{"exponential_decay_length_penalty": (3, 1.5), "temperature": 2.0}],
    "watermarking_config": [{"watermarking_config": WatermarkingConfig(bias=2.0), "temperature": 3.0}],
}
"""Values of fields that are exact, each with do_sample=True."""

REFUSED: dict[str, dict[str, Any]] = {
    "num_beams": {"num_beams": 3},
    "use_mtp": {"use_mtp": True},
    "cache_implementation": {"cache_implementation": "quantized"},
    "token_healing": {"token_healing": True},
    "guidance_scale": {"guidance_scale": 1.5},
    "watermarking_config": {"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2, 3])},
    "is_assistant": {"is_assistant": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "assistant_early_exit": {"assistant_early_exit": 1},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_layers": {"dola_layers": "low"},
    "num_beam_groups": {"num_beam_groups": 2, "num_beams": 2},
    "constraints": {"constraints": [object()]},
    "force_words_ids": {"force_words_ids": [[5]]},
}
"""A value of each field that is refused for some."""
