"""Keys of a file's metadata: read, without effect, refused, or named in one warning."""

import gguf
import pytest

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.loading import load
from specframe.kernel.errors import InputError
from specframe_gguf.header import GGUFFile
from specframe_gguf.model import read_config
from specframe_gguf.tokenizer import read_tokenizer
from tests.small_gguf import VOCABULARY, WIDTH, write_gguf

END = VOCABULARY - 1
"""The token <|end|>."""


def config(path, architecture="llama", **metadata):
    spaces = ("tokenizer.", "general.", "other.", "split.")
    keys = {key if key.startswith(spaces) else f"{architecture}.{key}": value for key, value in metadata.items()}
    return read_config(GGUFFile.read(write_gguf(path / "small.gguf", architecture=architecture, metadata=keys)))


REFUSED = {
    "logit_scale": 0.5,
    "residual_scale": 2.0,
    "embedding_scale": 12.0,
    "attention.scale": 0.1,
    "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0,
    "attention.causal": False,
    "attention.sliding_window": 16,
    "attention.value_length": 8,
    "attn_logit_softcapping": 50.0,
    "expert_count": 4,
    "use_parallel_residual": True,
    "nextn_predict_layers": 1,
    "rope.scaling.alpha": 1000.0,
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_changes_the_numbers_is_one_line(key, tmp_path):
    with pytest.raises(InputError, match=rf"has llama\.{key} = .*, which changes the model's numbers") as caught:
        config(tmp_path, **{key: REFUSED[key]})
    assert "\n" not in str(caught.value)


def test_at_values_that_change_nothing_the_same_keys_are_silent(tmp_path, caplog):
    values = {
        "logit_scale": 1.0,
        "residual_scale": 0.0,
        "attention.scale": (WIDTH / 2) ** -0.5,
        "attention.clamp_kqv": 0.0,
        "attention.causal": True,
        "attention.sliding_window": 4096,
        "expert_count": 0,
        "use_parallel_residual": False,
        "tensor_data_layout": "Meta AI original pth",
        "rope.scaling.finetuned": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.fim_pre_token_id": 3,
        "tokenizer.chat_template.tool_use": "tools",
    }
    config(tmp_path, **values)
    assert not caplog.records


def test_other_keys_are_named_in_one_warning(tmp_path, caplog):
    unknown = {"attention.mystery": 1.0, "tokenizer.ggml.normalizer.lowercase": True, "other.kind": 3}
    config(tmp_path, **unknown, **{"general.mystery": 1})
    (record,) = caplog.records
    assert record.getMessage().endswith(
        "may change tokens or numbers: llama.attention.mystery, tokenizer.ggml.normalizer.lowercase, other.kind"
    )


def test_the_scale_of_a_gemmas_attention_and_its_windows_are_read(tmp_path):
    found = config(tmp_path, "gemma3", **{"attention.scale": 0.125, "attention.sliding_window_pattern": 2})
    assert found.query_pre_attn_scalar == pytest.approx(64.0)
    assert found.layer_types == ["sliding_attention", "full_attention"]
    found = config(
        tmp_path, "gemma2", **{"attention.sliding_window_pattern": [False, True], "final_logit_softcapping": 0.0}
    )
    assert found.layer_types == ["full_attention", "sliding_attention"] and found.final_logit_softcapping is None


@pytest.mark.parametrize(
    "key", ["context_length", "rope.freq_base", "rope.scaling.factor", "rope.dimension_count", "split.count"]
)
def test_a_value_of_another_type_is_one_line(key, tmp_path):
    with pytest.raises(InputError, match=rf"cannot be read as GGUF: its .*{key} is 'two'") as caught:
        config(tmp_path, **{key: "two"})
    assert "\n" not in str(caught.value)


def test_tokens_outside_the_vocabulary_are_none_and_named(tmp_path, caplog):
    keys = {f"tokenizer.ggml.{kind}_token_id": 2**32 - 1 for kind in ("eos", "bos", "padding")}
    file = write_gguf(tmp_path / "small.gguf", metadata=keys)
    target = HFTarget(model=str(file), device="cpu")
    assert target.ends == frozenset() and target.config.pad_token_id is None and target.tokenizer.bos_token is None
    assert all(key in caplog.text for key in keys)


def test_a_file_without_tokens_has_the_end_that_it_names(tmp_path, caplog):
    keys = {"tokenizer.ggml.tokens": None, "tokenizer.ggml.token_type": None}
    assert HFTarget(model=str(write_gguf(tmp_path / "small.gguf", metadata=keys)), device="cpu").ends == {END}
    assert not caplog.records


def test_a_rotary_embedding_cannot_be_stretched_by_less_than_nothing(tmp_path):
    with pytest.raises(InputError, match="stretches its rotary embedding by -2, which cannot be"):
        config(tmp_path, **{"rope.scaling.factor": -2.0})


def test_a_list_of_the_layers_is_read_where_they_are_alike(tmp_path):
    assert config(tmp_path, **{"attention.head_count_kv": [1, 1]}).num_key_value_heads == 1
    with pytest.raises(InputError, match=r"layers of different llama\.attention\.head_count_kv"):
        config(tmp_path, **{"attention.head_count_kv": [1, 2]})


@pytest.mark.parametrize("kind", ["adapter", "mmproj"])
def test_a_file_that_is_no_model_is_called_what_it_is(kind, tmp_path):
    with pytest.raises(InputError, match=f"holds an? {kind}, not a model"):
        config(tmp_path, **{"general.type": kind})


FOREIGN = {
    "another scaling": ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, r"rope\.scaling \(linear, by 4\)"),
    "another base": ({"rope.freq_base": 5e5}, r"rope\.freq_base"),
    "a scale": ({"logit_scale": 0.5}, r"starcoder2\.logit_scale = 0\.5, which changes the model's numbers"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_transformers_leaves_out_is_one_line(case, tmp_path):
    keys, message = FOREIGN[case]
    metadata = {f"starcoder2.{key}": value for key, value in keys.items()}
    file = write_gguf(tmp_path / "small.gguf", architecture="starcoder2", metadata=metadata)
    with pytest.raises(InputError, match=message) as caught:
        load(str(file), dtype="float32", device="cpu", revision=None, attention=None)
    assert "\n" not in str(caught.value)


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
NO_END = "{% for m in messages %}{{ '<|end|>' if m.role == 'user' }}{{ m.content }}{% endfor %}"
MESSAGES = "{% for m in messages %}{{ m.content }}{{ '<|end|>' if loop.last else 'a' }}{% endfor %}"
TEXT = "{% for m in messages %}{{ m.content }}\n### {% endfor %}"
TEMPLATES = {
    "a token after every turn": (CHATML, {7, END}),
    "the token that begins the user's turn": (NO_END, {7, END}),
    "the last answer's token": (MESSAGES, {7, END}),
    "text": (TEXT, {7}),
    "a refusal": ("{{ raise_exception('no') }}", {7}),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_token_that_the_template_writes_after_an_answer_ends_a_text(case, tmp_path):
    template, ends = TEMPLATES[case]
    file = write_gguf(tmp_path / "small.gguf", template=template, metadata={"tokenizer.ggml.eos_token_id": 7})
    assert HFTarget(model=str(file), device="cpu").ends == ends


def test_every_named_end_is_one(tmp_path):
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    assert HFTarget(model=str(write_gguf(tmp_path / "small.gguf", metadata=ends)), device="cpu").ends == {5, 6, END}


def test_a_tokenizer_without_rules_for_words_is_warned_of_once(tmp_path, caplog):
    file = write_gguf(tmp_path / "small.gguf", metadata={"tokenizer.ggml.pre": None})
    assert HFTarget(model=str(file), device="cpu").tokenizer is not None
    (record,) = caplog.records
    assert "names no rules to cut texts into words (tokenizer.ggml.pre): GPT-2's are taken" in record.getMessage()


@pytest.mark.parametrize("spaced", [None, True, False])
def test_a_space_before_a_text_of_characters_where_the_file_asks_for_it(spaced, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -2.0])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
    for name, number in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{name}_token_id")(number)
    if spaced is not None:
        writer.add_add_space_prefix(spaced)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_tokenizer(GGUFFile.read(tmp_path / "small.gguf"))
    ids = found("ab ab", add_special_tokens=False)["input_ids"]
    assert [tokens[number] for number in ids] == [["ab", "▁ab"], ["▁ab", "▁ab"]][spaced is not False]
    assert found.decode(ids) == "ab ab"
