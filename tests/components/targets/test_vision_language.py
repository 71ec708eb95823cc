"""Models that read images decode texts by their text decoder."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

import specframe
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.source import take_texts
from specframe.kernel.errors import CompositionError
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, batch
from tests.components.targets.registry.walk import build, compare, plain

FAMILIES = ["llava", "smolvlm", "idefics3", "internvl", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
RECIPE = """specframe: 1
target: {use: hf, model: nowhere}
drafter: {use: lookup}
verifier: {use: match}
"""


def tower(model) -> nn.Module:
    """The vision tower of a model."""
    inner = model.model
    return next(getattr(inner, name) for name in ("vision_tower", "vision_model", "visual") if hasattr(inner, name))


def lists(module: nn.Module, length: int) -> list[nn.ModuleList]:
    return [inner for inner in module.modules() if isinstance(inner, nn.ModuleList) and len(inner) == length]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_are_the_text_decoder_s_not_the_vision_tower_s(family):
    model = build(family)
    seen = tower(model)
    depth = model.config.get_text_config().num_hidden_layers
    assert lists(seen, depth), "the tower is as deep as the decoder"
    for inner in seen.modules():  # nothing marks what is in it
        vars(inner).pop("config", None)
    target = HFTarget.from_model(model)
    assert list(target.parts.layers) == list(model.get_decoder().layers)
    assert not set(target.parts.layers) & set(seen.modules())
    taps = frozenset({"last", *(f"layer.{number}" for number in range(depth))})
    target.request(taps)
    _, scores = admitted(target, batch(PROMPTS), 4)
    assert scores.features.keys() == taps


def test_a_decoder_that_is_in_no_place_of_its_own_is_found_where_there_is_no_tower():
    model = build("modernbert-decoder")
    assert not isinstance(model.get_decoder(), type(model.model))
    assert list(HFTarget.from_model(model).parts.layers) == list(model.model.layers)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_saved_model_decodes_texts_as_generate_does(family, tmp_path):
    model = build(family)
    model.save_pretrained(tmp_path)
    target = HFTarget(model=str(tmp_path), dtype="float64", device="cpu")
    assert type(target.model) is type(model)
    assert compare(target, [plain(model, prompt) for prompt in PROMPTS]) is None


def test_an_earlier_image_does_not_move_the_positions_of_a_text():
    model = build("qwen2_5_vl")
    wanted = [plain(model, prompt) for prompt in PROMPTS]
    target = HFTarget.from_model(model)
    text = torch.tensor([PROMPTS[0]])
    taught = target.teach(text, torch.ones_like(text, dtype=torch.bool)).logits
    model.model.rope_deltas = torch.tensor([[-3]])  # what `generate` leaves after an image
    assert compare(target, wanted) is None
    assert torch.equal(target.teach(text, torch.ones_like(text, dtype=torch.bool)).logits, taught)


@pytest.mark.parametrize("family", ["blip-2", "t5gemma2", "paligemma", "musicgen"])
def test_the_others_are_refused_in_one_line(family, tmp_path):
    if family == "paligemma":
        build(family).save_pretrained(tmp_path)
    else:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(CompositionError) as caught:
        HFTarget(model=str(tmp_path), dtype="float64", device="cpu")
    assert "\n" not in str(caught.value) and "target" in str(caught.value)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_generate_takes_a_loop_for_texts(family, tmp_path):
    (tmp_path / "loop.yaml").write_text(RECIPE)
    model, loop = build(family), specframe.decoder(tmp_path / "loop.yaml")
    ids = torch.tensor([[0, 0, 5, 6, 7], [5, 6, 7, 8, 9]])
    call = {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "mm_token_type_ids": torch.zeros_like(ids),
        "max_new_tokens": 8,
        "do_sample": False,
        "pad_token_id": 0,
    }
    if family == "llava":
        del call["mm_token_type_ids"]
    assert torch.equal(model.generate(**call, custom_generate=loop), model.generate(**call))


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (
            "{% for m in messages %}<{{ m['role'] }}>"
            "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
            "{% endfor %}",
            "<user>a b",
        ),
        (
            "{% for m in messages %}"
            "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
            "{% endfor %}",
            "a b",
        ),
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "a b"),
    ],
    ids=["SmolVLM", "LLaVA", "a text's"],
)
def test_chat_templates_of_lists_of_parts_take_texts(template, wanted, tmp_path):
    from tokenizers import Tokenizer, models

    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>")), chat_template=template
    ).save_pretrained(tmp_path)
    build("llama").save_pretrained(tmp_path)
    tokenizer = HFTarget(model=str(tmp_path), device="cpu").tokenizer
    turns = [{"role": "user", "content": "a b"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == wanted
    if "selectattr" in template or "type" in template:
        assert tokenizer.apply_chat_template(parts, tokenize=False) == wanted


def test_a_chat_template_that_nothing_helps_stays_as_it_is():
    class Tokenizer:
        chat_template = "{{ raise_exception('no') }}"

        def apply_chat_template(self, turns, **options):
            raise ValueError("no")

    tokenizer = Tokenizer()
    take_texts(tokenizer)
    assert tokenizer.chat_template == Tokenizer.chat_template
