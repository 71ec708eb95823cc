import pytest

import specframe
from specframe.kernel.errors import InputError
from specframe_distill.decoding import Decoding
from specframe_distill.dialogue import Dialogue, read_dialogues


def decode(here, *overrides, lines=None, chat=True, prompts="prompts.jsonl", **settings):
    """The outcome of every conversation, by its line."""
    pipeline = specframe.load(here / "recipe.yaml", overrides=[*overrides, f"run.chat={str(chat).lower()}"])
    dialogues = read_dialogues(here / prompts, chat=chat, **settings)
    chosen = [each for each in dialogues if lines is None or each.line in lines]
    done = list(Decoding(pipeline, seed=5).answer(chosen))
    assert sorted(each.line for each in done) == [each.line for each in chosen]
    return {each.line: each for each in done}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("drafter", [[], ["drafter.use=none", "tree=null"]], ids=["falcon", "none"])
def test_greedy_answers_are_those_of_generate_one_by_one(here, batch, drafter):
    pipeline = specframe.load(here / "recipe.yaml")
    done = decode(here, f"run.batch={batch}", *drafter)
    for dialogue in done.values():
        messages = []
        for turn, answer in zip(dialogue.turns, dialogue.answers, strict=True):
            messages.append({"role": "user", "content": turn})
            alone = pipeline.generate([pipeline.encode_turns(messages)])
            assert answer.text == alone.texts[0] and answer.tokens == len(alone.tokens[0])
            assert answer.finished == (alone.ended[0] != "length")
            messages.append({"role": "assistant", "content": answer.text})
    assert len(done[1].answers) == 2


def test_sampled_answers_depend_on_the_seed_and_the_line_alone(here):
    hot = "sampling.temperature=1.0"
    whole = decode(here, hot, "run.batch=4")
    rest = decode(here, hot, "run.batch=2", lines={1, 4, 6})
    assert {line: each.answers for line, each in rest.items()} == {line: whole[line].answers for line in (1, 4, 6)}
    assert whole[1].answers[0].text != whole[1].answers[1].text


def test_one_prompt_many_times_is_answered_in_many_ways(here):
    (here / "same.txt").write_text("hello\n" * 4)
    done = decode(here, "sampling.temperature=1.0", "run.batch=4", prompts="same.txt")
    assert len({each.answers[0].text for each in done.values()}) == 4


def test_texts_go_on_where_their_opening_ends(here):
    pipeline = specframe.load(here / "recipe.yaml", overrides=["run.chat=false"])
    (here / "texts.txt").write_text("once upon\nthere was a\n")
    done = decode(here, "run.batch=2", chat=False, prompts="texts.txt")
    for line, opening in enumerate(["once upon", "there was a"], 1):
        assert done[line].describe()["text"] == opening + pipeline.generate(opening).texts[0]


def test_what_does_not_fit_the_context_is_left_out(here):
    (here / "long.jsonl").write_text(
        f'{{"prompt": "{"a" * 200}"}}\n{{"prompt": "hello"}}\n{{"turns": ["hello", "{"b" * 120}"]}}\n'
    )
    done = decode(here, "run.batch=3", prompts="long.jsonl")
    assert (done[1].answers, done[1].stopped) == ([], "too long")
    assert done[2].stopped is None
    assert (len(done[3].answers), done[3].stopped) == (1, "too long")
    assert done[3].describe()["messages"][1]["content"] == done[2].answers[0].text


def test_chats_need_a_template(here):
    pipeline = specframe.load(here / "recipe.yaml")
    pipeline.tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        list(Decoding(pipeline, seed=0).answer([Dialogue(1, ("hello",))]))


def test_what_a_template_refuses_is_named_by_its_line(here):
    pipeline = specframe.load(here / "recipe.yaml")
    pipeline.tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    with pytest.raises(InputError, match=r"line 7: .* no system here"):
        list(Decoding(pipeline, seed=0).answer([Dialogue(7, ("hello",), system="be kind")]))
