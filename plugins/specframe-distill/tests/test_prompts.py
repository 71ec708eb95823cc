import json

import pytest

from specframe.kernel.errors import InputError
from specframe_distill.dialogue import Dialogue, DialogueAnswer, read_dialogues


def test_all_layouts_are_read(here):
    dialogues = read_dialogues(here / "prompts.jsonl", chat=True)
    assert [each.line for each in dialogues] == [1, 2, 3, 4, 5, 6]
    assert dialogues[0].turns == ("hello there", "and then?")
    assert [each.turns[0] for each in dialogues[1:]] == ["good morning to you", "why?", "hi", "what is it", "a b c"]
    assert all(each.chat and not each.done for each in dialogues)
    assert len(read_dialogues(here / "prompts.jsonl", chat=True, limit=2)) == 2


def test_of_a_chat_the_messages_of_user_and_system_stay(tmp_path):
    path = tmp_path / "chats.jsonl"
    roles = ["system", "user", "assistant", "user", "assistant"]
    path.write_text("\n" + json.dumps({"messages": [{"role": r, "content": f"{r}!"} for r in roles], "prompt": "no"}))
    (dialogue,) = read_dialogues(path, chat=False)
    assert (dialogue.line, dialogue.system, dialogue.turns) == (2, "system!", ("user!", "user!"))
    assert dialogue.chat


def test_without_chat_a_prompt_is_the_opening_of_a_text(here):
    path = here / "texts.txt"
    path.write_text("Once upon a time\n\nThere was\n")
    dialogues = read_dialogues(path, chat=False)
    assert [(each.line, each.turns, each.chat) for each in dialogues] == [
        (1, ("Once upon a time",), False),
        (3, ("There was",), False),
    ]
    assert read_dialogues(here / "prompts.jsonl", chat=False)[0].turns == ("hello there",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "set.jsonl:2: not valid JSON"),
        ('{"prompt": "a"}\n{"prompt": " "}', "set.jsonl:2: no prompt in it"),
        ('{"messages": []}', "set.jsonl:1: `messages` must be a list with at least one"),
        ('{"messages": [{"role": "user"}]}', "set.jsonl:1: a message needs"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "set.jsonl:1: the user's text is empty"),
        ('{"messages": [{"role": "user", "content": " "}]}', "set.jsonl:1: the user's text is empty in a message"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}',
            "set.jsonl:1: a message of the role tool",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}',
            "set.jsonl:1: a system message stands first",
        ),
        ("\n\n", "there is no prompt in it"),
    ],
)
def test_bad_files_name_the_line(tmp_path, text, words):
    path = tmp_path / "set.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_dialogues(path, chat=True)


def test_each_answer_is_part_of_the_next_question():
    dialogue = Dialogue(1, ("one", "two"), system="be kind")
    assert [m["content"] for m in dialogue.messages] == ["be kind", "one"]
    dialogue.add(DialogueAnswer("first", 3, True))
    assert [m["content"] for m in dialogue.messages] == ["be kind", "one", "first", "two"]
    assert not dialogue.done
    dialogue.add(DialogueAnswer("second", 4, False))
    assert dialogue.done
    kept = dialogue.describe()
    assert [m["role"] for m in kept["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert (kept["tokens"], kept["finished"]) == (7, False)


@pytest.mark.parametrize(
    ("answer", "reason"), [(DialogueAnswer(" ", 1, True), "empty"), (DialogueAnswer("and", 9, False), "unfinished")]
)
def test_a_conversation_that_cannot_go_on_keeps_its_messages(answer, reason):
    dialogue = Dialogue(1, ("one", "two", "three"), finished_only=True)
    dialogue.add(DialogueAnswer("first", 3, True))
    dialogue.add(answer)
    assert dialogue.done and dialogue.stopped == reason
    assert [m["content"] for m in dialogue.describe()["messages"]] == ["one", "first"]
    assert dialogue.describe()["finished"]


def test_tokens_that_an_endpoint_does_not_report_are_not_made_up():
    dialogue = Dialogue(1, ("one", "two"))
    dialogue.add(DialogueAnswer("first", 3, True))
    dialogue.add(DialogueAnswer("second", None, True))
    assert dialogue.describe()["tokens"] is None
