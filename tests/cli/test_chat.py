"""`specframe chat`: what it prints, and that it is the recipe's decoding."""

import io
import json
from types import SimpleNamespace

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

import specframe
from specframe.cli import chat
from specframe.cli.main import main
from specframe.cli.questions import TypedQuestions


def talk(monkeypatch, recipe, lines, *arguments):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return main(["chat", str(recipe), *arguments])


def test_an_answer_is_that_of_a_run_and_the_conversation_goes_on(monkeypatch, recipe, capsys):
    pipeline = specframe.load(recipe, overrides=["run.chat=true"])
    first = pipeline.generate("hello").texts[0]
    turns = [
        {"role": role, "content": text} for role, text in (("user", "hello"), ("assistant", first), ("user", "so"))
    ]
    second = pipeline.generate([pipeline.encode_turns(turns)]).texts[0]
    assert talk(monkeypatch, recipe, ["hello", "", "so", "/new", "hello"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(first) >= 2 and second in printed
    assert printed.count("; tau ") == 3 and "20 tokens, " in printed
    assert f"> hello\n{first}" in printed  # a question from a pipe stands above its answer


def test_accepted_drafts_are_coloured(recipe, monkeypatch):
    pipeline = specframe.load(recipe, overrides=["drafter={use: lookup, ngram: 1, length: 3}", "tree=null"])
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    seen = []
    monkeypatch.setattr(
        chat.Printed,
        "_print",
        lambda self, text, style, own=chat.Printed._print: (seen.append(style), own(self, text, style)),
    )
    text = chat.answer(pipeline, [{"role": "user", "content": "hello hello hello"}], console)
    raw = console.file.getvalue()
    assert "\x1b[32m" in raw and {"green", None} == set(seen)
    plain = Console(file=io.StringIO(), width=200)
    assert chat.answer(pipeline, [{"role": "user", "content": "hello hello hello"}], plain) == text
    assert plain.file.getvalue().startswith(text)


def test_control_characters_of_a_model_are_shown_as_escapes():
    class Pipeline:
        def decode(self, tokens):
            return "".join(map(chr, tokens))

    entry = SimpleNamespace(tokens=[*b"a\x1b[2Jb"])
    console = Console(file=io.StringIO(), width=200)
    printed = chat.Printed(Pipeline(), console)
    printed.show(entry, [1, 2])
    printed.finish()
    assert console.file.getvalue() == "a\\x1b[2Jb\n" and printed.text == "a\x1b[2Jb"


def test_ctrl_c_ends_an_answer_and_not_the_chat(recipe, monkeypatch):
    pipeline = specframe.load(recipe)
    show, calls = chat.Printed.show, []

    def interrupted(self, entry, path):
        show(self, entry, path)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(chat.Printed, "show", interrupted)
    console = Console(file=io.StringIO(), width=200)
    text = chat.answer(pipeline, [{"role": "user", "content": "hello"}], console)
    assert len(calls) == 2 and text and " ..." in console.file.getvalue()
    assert len(chat.answer(pipeline, [{"role": "user", "content": "hello"}], console)) > len(text)


def test_a_conversation_that_is_too_long_is_reported_and_can_begin_anew(monkeypatch, recipe, capsys):
    assert talk(monkeypatch, recipe, ["a" * 600, "hello"]) == 0
    printed = capsys.readouterr().out
    assert "leaves no room in the target's context" in printed.replace("\n", " ") and printed.count("; tau ") == 1


def test_commands_begin_anew_set_the_system_message_and_save(monkeypatch, recipe, tmp_path, capsys):
    kept = tmp_path / "kept.jsonl"
    lines = ["/save x", "hello", "/reset", "/system Be brief.", "hello", f"/save {kept}", "/help", "/nwe", "/save"]
    assert talk(monkeypatch, recipe, lines) == 0
    printed = capsys.readouterr().out
    (record,) = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert [turn["role"] for turn in record["messages"]] == ["system", "user", "assistant"]
    assert record["messages"][0]["content"] == "Be brief." and record["messages"][2]["content"] in printed
    assert printed.count("a new conversation") == 2 and all(usage in printed for usage in chat.HELP)
    for line in ("no answer to save yet", "no command /nwe; did you mean '/new'?", "/save needs a file"):
        assert line in printed


def test_a_file_that_cannot_be_written_loses_nothing(monkeypatch, recipe, tmp_path, capsys):
    assert talk(monkeypatch, recipe, ["hello", f"/save {tmp_path}", "so"]) == 0
    printed = capsys.readouterr().out
    assert "cannot be written to: Is a directory" in " ".join(printed.split()) and printed.count("; tau ") == 2


def test_a_full_context_is_noticed(monkeypatch, recipe, capsys):
    assert talk(monkeypatch, recipe, ["hello"], "target.context=40", "sampling.max_new_tokens=100") == 0
    assert "the context of 40 tokens is full; /new begins anew" in capsys.readouterr().out


def test_pictures_are_the_next_questions(monkeypatch, seeing_folder, photos, tmp_path, capsys):
    path = tmp_path / "seeing.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{seeing_folder}'}}\ndrafter: {{use: lookup}}\nverifier: {{use: match}}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 8}\nrun: {chat: true}\n"
    )
    pipeline = specframe.load(path)
    wanted = pipeline.generate("what", images=[photos[0]]).texts[0]
    lines = ["/image none.png", f"/image {photos[0]}", "what", "/save x", "so"]
    assert talk(monkeypatch, path, lines) == 0
    printed = capsys.readouterr().out
    assert "there is no file none.png" in printed and "the next question is about 1 picture" in printed
    assert wanted in printed and "about pictures cannot be saved" in printed and printed.count("; tau ") == 2


def test_a_picture_for_a_target_of_texts_is_refused(monkeypatch, recipe, photos, capsys):
    assert talk(monkeypatch, recipe, [f"/image {photos[0]}", "hello"]) == 0
    printed = capsys.readouterr().out
    assert "reads texts alone" in printed and printed.count("; tau ") == 1


def test_bytes_that_are_no_utf_8_are_replaced(monkeypatch, recipe, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"h\xffllo\n"), encoding="utf-8"))
    assert main(["chat", str(recipe)]) == 0
    assert capsys.readouterr().out.count("; tau ") == 1


@pytest.fixture
def typed():
    """Keys that are typed at a terminal."""
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def test_typed_lines_have_a_history_and_are_cleared_by_ctrl_c(typed):
    questions = TypedQuestions(chat.COMMANDS, chat.OF_FILES)
    for keys, question in {
        "hello\r": "hello",
        "gone\x03 so \r": "so",
        "\x1b[A\r": "so",
        "one\x1b\rtwo\r": "one\ntwo",
        "\x1b[200~three\nfour\x1b[201~\r": "three\nfour",
        "\x04": None,
    }.items():
        typed.send_text(keys)
        assert questions.ask() == question


def test_a_target_without_a_chat_template_is_refused(recipe, capsys):
    assert main(["chat", str(recipe), "target={use: table, vocab: 8}", "drafter=none", "tree=null"]) == 2
    assert "this target cannot chat" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nothing.yaml"], []])
def test_what_cannot_be_read_is_refused(arguments, capsys):
    assert main(["chat", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err
