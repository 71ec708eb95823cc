"""Every causal language model of transformers' registry, tiny and random: which ones decode as `generate` does.

`python -m tests.components.targets.registry` decodes all of them and writes docs/reference/architectures.md;
`python -m tests.components.targets.registry llama gpt2` decodes some and prints what came out.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from specframe.components.targets.architectures import refusal
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.source import first_line
from specframe.kernel.errors import SpecframeError
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, VOCABULARY, accept, batch, random_tree

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "architectures.md"
COUNT = 8
LARGEST = 20_000_000
ALWAYS = {"pad_token_id", "bos_token_id", "head_dim", "num_key_value_heads"}
"""Names to set even where the default is None."""
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "n_vocab"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "dim_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "dim_ff"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "d_kv"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"), 256),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_k", "n_shared_experts"), 2),
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "word_embed_proj_dim": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_kv_shared_layers": 0,
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 6),  # shorter than what is decoded
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "rotary_dim": 8,
    "image_size": 32,
    "patch_size": 8,
    "mamba_d_state": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "state_size": 4,
}
"""Sizes under all the names that configs have for them."""


@dataclass(frozen=True)
class Row:
    """What came out for one architecture."""

    name: str
    outcome: str
    """`identical`, `refused`, `wrong` or `not built`."""
    detail: str


SPECIAL: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"is_decoder": True},
}
"""What the defaults of a config leave out, or what real models of this type have."""


def config_of(name: str) -> Any:
    """A small config of a model type, of its text decoder where it has one of its own."""
    config = _shrunk(transformers.CONFIG_MAPPING[name], SPECIAL.get(name, {}))
    text = config.get_text_config()
    return text if _model_class(type(config)).config_class is type(text) else config


def _model_class(config_class: Any) -> Any:
    found: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    return found[0] if isinstance(found, tuple) else found


def _shrunk(config_class: Any, changes: dict[str, Any]) -> Any:
    default = config_class()
    known = {*vars(default), *getattr(default, "attribute_map", {})}
    sizes = {
        key: value
        for key, value in SMALL.items()
        if key in known and (value is None or key in ALWAYS or _value(default, key) is not None)
    }
    if "qk_rope_head_dim" in known:
        sizes.pop("head_dim", None)
        sizes["num_key_value_heads"] = 4  # latent attention has as many as queries
    for key in ("layer_types", "mlp_layer_types"):
        if key in vars(default) and _value(default, key):
            sizes[key] = _four(_value(default, key))
    for key in getattr(default, "sub_configs", {}):
        part = _value(default, key)
        if part is not None:
            sizes[key] = _shrunk(type(part), {}).to_dict()
    return config_class(**sizes | changes)


def _value(config: Any, key: str) -> Any:
    """A setting, or None where the config has none or has one for each layer."""
    try:
        return getattr(config, key, None)
    except Exception:  # a class that is private to transformers
        return None


def _four(kinds: Sequence[str]) -> list[str]:
    """Four layers with every kind that the list has."""
    distinct = list(dict.fromkeys(kinds))[:4]
    return [*distinct, *[distinct[-1]] * (4 - len(distinct))]


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random model in evaluation mode."""
    torch.manual_seed(0)
    config = config_of(name)
    model_class = _model_class(transformers.CONFIG_MAPPING[name])
    config._experts_implementation = "eager"  # the others have no float64
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in model_class._from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"its smallest config here has {size / 1e6:.0f} million weights")
    model: Any = model_class._from_config(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.normal_(0, 0.25)
    return model


@torch.no_grad()
def plain(model: Any, prompt: list[int]) -> tuple[list[int], Tensor]:
    """The greedy continuation by transformers' own `generate`, and the logits of its steps: [COUNT], [COUNT, V]."""
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 0}
    out = model.generate(ids, **options, return_dict_in_generate=True, output_logits=True)
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def compare(target: HFTarget, wanted: list[tuple[list[int], Tensor]]) -> str | None:
    """What is wrong with greedy tree decoding of the three prompts together, or None.

    Its random trees hold the right continuation. Tokens must be equal, and the logits of every root to 1e-4.
    """
    noise = torch.Generator().manual_seed(7)
    out: list[list[int]] = [[] for _ in PROMPTS]
    tree, scores = admitted(target, batch(PROMPTS), COUNT + 30)
    while True:
        for row, (found, (_, logits)) in enumerate(zip(out, wanted, strict=True)):
            if len(found) < COUNT:
                near = torch.allclose(scores.logits[row, 0].float(), logits[len(found)], rtol=1e-4, atol=1e-4)
                if not near:
                    return f"row {row} has other logits than generate for new token {len(found) + 1}"
        committed = target.commit(tree, accept(tree, scores.logits))
        for row, found in enumerate(out):
            new = committed.tokens[row, : int(committed.count[row])].tolist()
            found += new[-1:] if committed.prompt is not None else new
            if found[:COUNT] != wanted[row][0][: len(found)]:
                return f"row {row} has other tokens than generate"
        if all(len(found) >= COUNT for found in out):
            return None
        rest = [future[len(found) :] for (future, _), found in zip(wanted, out, strict=True)]
        tree = random_tree(committed.root, rest, 7, noise)
        scores = target.score(tree)


def examine(name: str) -> Row:
    """Builds, decodes and compares one architecture."""
    reason = _refused_by_config(name)
    if reason is not None:
        return Row(name, "refused", reason)
    found = Row(name, "not built", "")
    for dtype in (torch.float64, torch.float32):  # some forward passes have parts that are float32 for good
        found = _examine(name, dtype)
        if found.outcome in {"identical", "refused"}:
            break
    return found


def _refused_by_config(name: str) -> str | None:
    """Why the default config of a model type is refused before any weights are read."""
    config_class = transformers.CONFIG_MAPPING[name]
    try:
        return refusal(_model_class(config_class), config_class().get_text_config())
    except Exception:  # a default config that its own checks do not let through
        return None


def _examine(name: str, dtype: torch.dtype) -> Row:
    try:
        model = build(name, dtype)
        with torch.no_grad():
            model(torch.tensor(PROMPTS[:1]))
    except Exception as error:
        return Row(name, "not built", f"{type(error).__name__}: {first_line(error)}")
    try:
        target = HFTarget.from_model(model)
    except SpecframeError as error:
        return Row(name, "refused", str(error).removeprefix("this model cannot be a target: "))
    try:
        wanted = [plain(model, prompt) for prompt in PROMPTS]
    except Exception as error:
        return Row(name, "not built", f"generate fails, {type(error).__name__}: {first_line(error)}")
    try:
        wrong = compare(target, wanted)
    except SpecframeError as error:
        return Row(name, "refused", str(error))
    except Exception as error:
        wrong = f"{type(error).__name__}: {first_line(error)}"
    return Row(name, "identical", "") if wrong is None else Row(name, "wrong", wrong)


def names() -> list[str]:
    """The model types of transformers' registry of causal language models."""
    return sorted({config.model_type for config in transformers.MODEL_FOR_CAUSAL_LM_MAPPING})


def render(rows: Sequence[Row]) -> str:
    """The page of what came out."""
    count = Counter(row.outcome for row in rows)
    identical = ", ".join(f"`{row.name}`" for row in rows if row.outcome == "identical")
    parts = [
        "# Architectures\n",
        "<!-- Written by `python -m tests.components.targets.registry`: run it again to change the page. -->\n",
        f"Every causal language model in the registry of transformers {transformers.__version__}, tiny and with random "
        "weights: three prompts of different lengths are decoded together by random trees of seven nodes, and compared "
        f"with `generate` of each alone: {COUNT} tokens, and the logits before each of them. {count['identical']} "
        f"decode identically, {count['refused']} are refused, {count['wrong']} decode wrongly. Any other model is "
        "tried when it is loaded for the first time: a batch and a small tree are compared with plain forward passes: "
        "the result is remembered in the cache folder (`SPECFRAME_CACHE`).\n",
        "## Identical\n",
        identical + "\n",
    ]
    for outcome, title in (("refused", "Refused"), ("wrong", "Wrong"), ("not built", "Not tried")):
        chosen = [row for row in rows if row.outcome == outcome]
        if chosen:
            parts += [f"## {title}\n", "| architecture | why |\n|---|---|"]
            parts += [f"| `{row.name}` | {_cell(row)} |" for row in chosen]
            parts.append("")
    parts.append("*Not tried* means that no small model of it could be made here, or that its own `generate` fails.\n")
    return "\n".join(parts)


def _cell(row: Row) -> str:
    return row.detail.removeprefix(f"{row.name} ").replace("|", "\\|")


def main(chosen: Sequence[str]) -> int:
    """Examines the chosen architectures, or all; 1 if any decodes wrongly."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    for name in chosen or names():
        rows.append(examine(name))
        print(f"{rows[-1].outcome:10} {name:28} {rows[-1].detail}"[:230], flush=True)
    print(Counter(row.outcome for row in rows))
    if not chosen:
        PAGE.write_text(render(rows), encoding="utf-8")
    return int(any(row.outcome == "wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
