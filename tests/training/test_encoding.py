"""Documents as tokens: which of a chat's are answers, by the template's own renderings."""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specframe.kernel.errors import InputError
from specframe.training import documents
from specframe.training.encoding import encode


def chat(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]}


def marked(tokenizer, ids, flags, wanted=True):
    return tokenizer.decode([i for i, flag in zip(ids, flags, strict=True) if flag == wanted])


@pytest.mark.parametrize("fast", [True, False])
def test_only_the_assistant_s_turns_are_answers(tokenizer, fast, monkeypatch):
    if not fast:
        monkeypatch.setattr(type(tokenizer), "is_fast", property(lambda self: False))
    document = documents.as_document(chat("Hi", "Hello you", "Bye", "So long"), "x:1")
    ((ids, answer),) = encode(document, tokenizer)
    text = "<user>Hi</s>\n<assistant>Hello you</s>\n<user>Bye</s>\n<assistant>So long</s>\n"
    assert tokenizer.decode(ids) == text
    assert marked(tokenizer, ids, answer) == "Hello you</s>\nSo long</s>\n"


THINKING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>\n' + m.get('reasoning_content', '') + '\n</think>\n\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Qwen3's: thoughts of earlier turns are left out, and the last turn has a block for them in any case."""


def learnt(record, tokenizer):
    """The text that is given and the text that is learnt, of each sample of a record."""
    found = encode(documents.as_document(record, "x:1"), tokenizer)
    return [(marked(tokenizer, *sample, wanted=False), marked(tokenizer, *sample)) for sample in found]


def test_a_template_that_leaves_earlier_thoughts_out_gives_a_sample_for_each_turn(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", THINKING)
    asked = "<|im_start|>user\nYes or no: is it blue?<|im_end|>\n<|im_start|>assistant\n"
    last, first = learnt(chat("Yes or no: is it blue?", "Yes", "More", "No"), tokenizer)
    assert first == (asked, "<think>\n\n</think>\n\nYes<|im_end|>\n")
    assert last == (
        asked + "Yes<|im_end|>\n<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n",
        "<think>\n\n</think>\n\nNo<|im_end|>\n",
    )


def test_all_that_a_message_and_its_record_have_reaches_the_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", THINKING + "{{ note }}{{ tools }}{{ mode }}")
    record = chat("Hi", "Hello")
    record["messages"][1]["reasoning_content"] = "They greet."
    record |= {"note": "n", "tools": [], "chat_template_kwargs": {"mode": "m"}, "padding": True}
    ((_, answer),) = learnt(record, tokenizer)
    assert answer == "<think>\nThey greet.\n</think>\n\nHello<|im_end|>\nn[]m"


PAIRS = (  # of prompt and answer: turns of real templates, in short
    ("### User: {}\n### Assistant: ", "{}\n"),
    ("USER: {} ASSISTANT:", " {}</s>"),
    ("[INST] {} [/INST]", " {}</s>"),
    (
        "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "{}<|eot_id|>",
    ),
    ("<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n", "{}<end_of_turn>\n"),
)


@pytest.mark.parametrize(("prompt", "answer"), PAIRS)
def test_each_answer_and_the_end_of_its_turn_are_learnt(tokenizer, monkeypatch, prompt, answer):
    user, end = prompt.split("{}")
    template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}"
        + user
        + "{{ m['content'] }}"
        + end
        + "{% else %}"
        + answer.replace("{}", "{{ m['content'] }}")
        + "{% endif %}{% endfor %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", template)
    ((_, found),) = learnt(chat("a", "Yes", "Yes", "a"), tokenizer)
    assert found == answer.format("Yes") + answer.format("a")


def test_a_token_that_begins_in_the_prompt_is_learnt(monkeypatch):
    words = Tokenizer(models.WordLevel({"?": 0, ":": 1, " Yes": 2, " it": 3, "A": 4}, "?"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(" ?[a-zA-Z]+|:"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}A{% else %}: {{ m['content'] }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}: {% endif %}"
    )
    ((ids, answer),) = encode(documents.as_document(chat("A", "Yes it"), "x:1"), tokenizer)
    assert [ids[i] for i in range(len(ids)) if answer[i]] == [2, 3]


@pytest.mark.parametrize(
    "record",
    [
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "id": "x"},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {"role": "assistant", "content": "Hello"},
            ]
        },
    ],
)
def test_the_forms_of_public_sets_are_read(tokenizer, record):
    assert learnt(record, tokenizer) == [("<user>Hi</s>\n<assistant>", "Hello</s>\n")]


def test_a_prompt_and_its_completion_are_one_text_of_which_the_completion_is_learnt(tokenizer):
    assert learnt({"prompt": "One, ", "completion": "two"}, tokenizer) == [("One, ", "two</s>")]


def test_an_input_of_alpaca_s_follows_the_instruction(tokenizer):
    ((given, _),) = learnt({"instruction": "Add.", "input": "1 2", "output": "3"}, tokenizer)
    assert given == "<user>Add.\n\n1 2</s>\n<assistant>"


def test_plain_texts_count_whole_and_end(tokenizer):
    ((ids, answer),) = encode(documents.Document("x:1", text="abc"), tokenizer)
    assert tokenizer.decode(ids) == "abc</s>" and all(answer)


def test_messages_without_a_template_and_refusing_templates(tokenizer, monkeypatch):
    document = documents.as_document(chat("a", "b"), "file.jsonl:7")
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"file\.jsonl:7: the chat template refuses .*roles must alternate"):
        encode(document, tokenizer)
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(InputError, match=r"file\.jsonl:7: .*no chat template"):
        encode(document, tokenizer)


CHOSEN = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if style is defined %}{{ style }}{% endif %}"
)


def test_a_recipes_variables_reach_the_template_and_a_records_own_come_first(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", CHOSEN)
    plain = chat("A", "B")
    own = plain | {"chat_template_kwargs": {"style": "glad"}}
    for record, variables, end in ((plain, {"style": "sad"}, "sad"), (own, {"style": "sad"}, "glad"), (plain, {}, "")):
        ((ids, _),) = encode(documents.as_document(record, "x:1"), tokenizer, variables)
        assert tokenizer.decode(ids) == f"<user>A<assistant>B{end}"
