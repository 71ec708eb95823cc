"""The model see-8m: talk-7m after a small vision transformer, what is trained of it, and the files that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lessons import PARTS, PATCH
from pictures import SIZE
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, LlavaConfig, LlavaForConditionalGeneration

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'].strip() }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}"
    "{% else %}{{ part['text'].strip() }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
KEPT = "own.safetensors"


class Adapted(nn.Module):
    """A linear map that stays as it is, plus a trained one of low rank, which begins at zero."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the map by the sum of both matrices."""
        return F.linear(x, torch.addmm(self.frozen.weight, self.up, self.down))


def build(base: Path) -> LlavaForConditionalGeneration:
    """Return the model: talk-7m's weights, one row of embeddings more, and an encoder from noise."""
    talk = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    text = talk.config.to_dict() | {"vocab_size": talk.config.vocab_size + 1}
    text = {name: value for name, value in text.items() if name not in ("_name_or_path", "dtype")}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": SIZE,
        "patch_size": PATCH,
        "vision_use_head": False,
    }
    config = LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=talk.config.vocab_size,
        image_seq_length=PARTS,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    old = talk.model.state_dict()
    rows = old["embed_tokens.weight"]
    # The mark of an image is embedded as padding is: neither is ever an answer.
    old["embed_tokens.weight"] = torch.cat([rows, rows[talk.config.pad_token_id][None]])
    model.model.language_model.load_state_dict(old)
    model.tie_weights()
    model.generation_config = talk.generation_config
    return model.requires_grad_(False)


def adapt(model: LlavaForConditionalGeneration, rank: int) -> dict[str, nn.Parameter]:
    """Add the trained matrices to the decoder; return all that is trained, by name."""
    for layer in model.model.language_model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, part in list(block.named_children()):
                if isinstance(part, nn.Linear):
                    setattr(block, name, Adapted(part, rank))
    chosen = ("vision_tower.", "multi_modal_projector.", ".down", ".up")
    trained = {
        name: p
        for name, p in model.named_parameters()
        if any(part in name for part in chosen[:2]) or name.endswith(chosen[2:])
    }
    for parameter in trained.values():
        parameter.requires_grad_(True)
    return trained


def merge(model: LlavaForConditionalGeneration) -> None:
    """Add the trained matrices to the decoder's own, which then are plain ones again."""
    for layer in model.model.language_model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, part in list(block.named_children()):
                if isinstance(part, Adapted):
                    part.frozen.weight.data += part.up.data @ part.down.data
                    setattr(block, name, part.frozen)


def look(model: LlavaForConditionalGeneration, pictures: Tensor) -> Tensor:
    """Return what the encoder makes of each patch, [B, 64, D]."""
    tower = model.model.vision_tower
    seen: Tensor = tower(pixel_values=pictures.to(tower.dtype), output_hidden_states=True).hidden_states[-1]
    return seen


def read(model: LlavaForConditionalGeneration, given: dict[str, Tensor]) -> Tensor:
    """Return the logits at the places that are asked for, [M, V]; the image follows the row's first two tokens.

    Rows are padded at their end, so that causal attention needs no other mask.
    """
    language = model.model.language_model
    patches = model.model.multi_modal_projector(look(model, given["pictures"]))
    entries = language.embed_tokens(given["tokens"])
    entries = torch.cat([entries[:, :2], patches.to(entries.dtype), entries[:, 2 + PARTS :]], 1)
    hidden = language(inputs_embeds=entries, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden.flatten(0, 1)[given["places"]])
    return logits


def own(trained: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return the trained parts in bfloat16, named as in the model's file; a low-rank pair is NAME.up and .down."""
    kept = {}
    for name, weight in trained.items():
        name = name.removeprefix("model.")
        if name.startswith("language_model."):
            module, part = name.removeprefix("language_model.").rsplit(".", 1)
            name = f"language_model.model.{module}.weight.{part}"
        kept[name] = weight.detach().bfloat16().cpu().contiguous()
    return kept


def export(
    model: LlavaForConditionalGeneration, tokenizer: Any, out: Path, trained: dict[str, nn.Parameter] | None = None
) -> None:
    """Write the model and its processor: its weights whole or, where `trained` is given, only what is not talk-7m's."""
    from transformers import LlavaProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    out.mkdir(parents=True, exist_ok=True)
    if trained is None:
        merge(model)
        model.bfloat16().save_pretrained(out)
    else:
        model.config.architectures, model.config.dtype = [type(model).__name__], torch.bfloat16
        model.config.save_pretrained(out)
        model.generation_config.save_pretrained(out)
        save_file(own(trained), out / KEPT, {"format": "pt"})
    image = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    LlavaProcessor(
        image, tokenizer, patch_size=PATCH, vision_feature_select_strategy="full", chat_template=TEMPLATE
    ).save_pretrained(out)
