"""The tokenizer of a GGUF file: its words, its special tokens, its template."""

import gguf
import pytest
from transformers import AutoTokenizer

from specframe.kernel.errors import InputError
from specframe_gguf.header import GGUFFile
from specframe_gguf.tokenizer import read_tokenizer
from tests.small_gguf import VOCABULARY, write_gguf

TEXTS = ["A drab crab, 42 times?", "  two  spaces\n\n\tand 3.14159", "don't <|end|> naïve 数字 🙂", ""]


def tokenizer(path, **options):
    return read_tokenizer(GGUFFile.read(write_gguf(path / "small.gguf", **options)))


@pytest.mark.parametrize("rules", ["gpt-2", "qwen2", "llama-bpe", "tekken"])
def test_words_are_those_of_transformers_reading(rules, tmp_path):
    found = tokenizer(tmp_path, metadata={"tokenizer.ggml.pre": rules})
    wanted = AutoTokenizer.from_pretrained(tmp_path, gguf_file="small.gguf")
    for text in TEXTS:
        assert found(text)["input_ids"] == wanted(text)["input_ids"], text
        assert found.decode(found(text)["input_ids"]) == text
    assert len(found) == VOCABULARY


def test_every_digit_is_a_word_by_the_rules_that_say_so(tmp_path):
    cut = [
        [
            word
            for word, _ in tokenizer(
                tmp_path, metadata={"tokenizer.ggml.pre": rules}
            ).backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  42")
        ]
        for rules in ("smollm", "gpt-2")
    ]
    assert cut == [["a", "ĠĠ", "4", "2"], ["a", "Ġ", "Ġ42"]]


def test_special_tokens_are_whole_and_left_out_of_shown_texts(tmp_path):
    found = tokenizer(tmp_path)
    ids = found("ab<|end|>a")["input_ids"]
    assert ids[1] == VOCABULARY - 1 and found.eos_token == "<|end|>"
    assert found.decode(ids, skip_special_tokens=True) == "aba"
    assert found.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi!"


@pytest.mark.parametrize("first", [True, False])
def test_a_token_before_every_text_where_the_file_asks_for_it(first, tmp_path):
    found = tokenizer(tmp_path, metadata={"tokenizer.ggml.add_bos_token": first})
    assert (found("a")["input_ids"][0] == VOCABULARY - 1) is first
    assert found("a", add_special_tokens=False)["input_ids"] != [VOCABULARY - 1]


def test_what_is_saved_is_read_back(tmp_path):
    found = tokenizer(tmp_path, metadata={"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": True})
    found.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in TEXTS:
        assert again(text)["input_ids"] == found(text)["input_ids"]
    assert again.chat_template == found.chat_template and again.eos_token == found.eos_token


def test_unknown_rules_are_warned_of(tmp_path, caplog):
    assert tokenizer(tmp_path, metadata={"tokenizer.ggml.pre": "mystery"})("ab")["input_ids"] == [VOCABULARY - 2]
    assert "by the rules 'mystery', which are not known here" in caplog.text


def test_a_tokenizer_of_an_unknown_kind_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"the tokenizer of .* cannot be read"):
        tokenizer(tmp_path, metadata={"tokenizer.ggml.model": "mystery"})


def test_a_tokenizer_of_characters_begins_texts_with_its_token(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -2.0])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_tokenizer(GGUFFile.read(tmp_path / "small.gguf"))
    assert [tokens[number] for number in found("ab ab</s>")["input_ids"]] == ["<s>", "▁ab", "▁ab", "</s>"]
    assert found.decode(found("ab ab")["input_ids"], skip_special_tokens=True) == "ab ab"
