"""`specframe chat`: what it prints, and that it is the recipe's decoding."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

import specframe
from specframe.cli import chat
from specframe.cli.main import main


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


def test_a_target_without_a_chat_template_is_refused(recipe, capsys):
    assert main(["chat", str(recipe), "target={use: table, vocab: 8}", "drafter=none", "tree=null"]) == 2
    assert "this target cannot chat" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nothing.yaml"], []])
def test_what_cannot_be_read_is_refused(arguments, capsys):
    assert main(["chat", *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err
