import errno
import json
import signal
from pathlib import Path
from shutil import copytree

import pytest
from distill_server import chat_reply, serving

from specframe.cli.main import main
from specframe.kernel.errors import SpecframeError
from specframe.training import documents
from specframe_distill.store import AnswerStore

COMMAND = ["distill-data", "recipe.yaml", "--prompts", "prompts.jsonl", "--out", "out"]
HOT = ["sampling.temperature=1.0", "run.batch=2"]


def test_the_target_answers_and_train_reads_it(here, answers, model_folder, capsys):
    assert main([*COMMAND, "run.batch=3"]) == 0
    output = capsys.readouterr().out
    assert "6 conversations (" in output and "tokens/s" in output and "'train.data=[out/answers.jsonl]'" in output
    assert "train on them: specframe train RECIPE " in output and "by a recipe with a `train` section" in output
    assert main([*COMMAND, "run.batch=3", "--json"]) == 0, "done already"
    found = json.loads(capsys.readouterr().out)
    assert found["conversations"] == 6 and found["answers"] == "out/answers.jsonl"
    kept = answers()
    assert sorted(kept) == [1, 2, 3, 4, 5, 6]
    assert [m["role"] for m in kept[1]["messages"]] == ["user", "assistant"] * 2
    assert kept[4]["messages"][1]["content"] != "old"
    assert {(entry["model"], entry["temperature"]) for entry in kept.values()} == {(str(model_folder), 0.0)}
    found = list(documents.read(["out/*.jsonl"]))
    assert [document.messages[0]["content"] for document in found] == [
        entry["messages"][0]["content"] for entry in kept.values()
    ]
    about = json.loads((here / "out" / "distill.json").read_text())
    assert about["figures"]["tokens"] == sum(entry["tokens"] for entry in kept.values())
    recipe = here / "recipe.yaml"
    recipe.write_text(
        recipe.read_text().replace("float64", "float32")
        + "loss: [{use: distillation}]\n"
        + "train: {data: [out/answers.jsonl], rollout: {use: glancing}, steps: 1, batch: 2, length: 32}\n"
    )
    capsys.readouterr()
    assert main([*COMMAND[:-1], "other", "--limit", "1"]) == 0
    assert "train on them: specframe train recipe.yaml 'train.data=[other/answers.jsonl]'\n" in capsys.readouterr().out
    assert main(["train", "recipe.yaml", "train.out=trained"]) == 0


def test_variables_of_the_chat_template_are_kept_with_the_answers(here, answers, model_folder, capsys):
    copytree(model_folder, here / "styled")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ style | default('') }}"
    (here / "styled" / "chat_template.jinja").write_text(template)
    command = [*COMMAND, "target.model=styled"]
    assert main([*command, "run.chat_template_kwargs={style: b}"]) == 0
    assert {entry["chat_template_kwargs"]["style"] for entry in answers().values()} == {"b"}
    found = documents.read(["out/answers.jsonl"])
    assert all(document.fields["chat_template_kwargs"] == {"style": "b"} for document in found)
    assert main(command) == 2, "other answers"
    assert "chat_template_kwargs" in capsys.readouterr().err


def test_texts_of_a_plugin_are_prompts(here, answers, capsys):
    command = ["distill-data", "recipe.yaml", "--out", "out", "--limit", "2", "sampling.max_new_tokens=2"]
    assert main([*command, "--prompts", "zoo://smollm2-135m-answers"]) == 0
    assert len(answers()) == 1, "the other prompt is too long for this model"
    assert main([*command, "--prompts", "zoo://nothing"]) == 2
    assert "no data named 'nothing'" in capsys.readouterr().err


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, also where the tests run in the background of a shell that ignores it there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(here, answers, ctrl_c, monkeypatch, capsys):
    assert main([*COMMAND[:-1], "whole", *HOT]) == 0
    add, added = AnswerStore.add, []

    def interrupted(*arguments):
        add(*arguments)
        added.append(arguments)
        if len(added) == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerStore, "add", interrupted)
        assert main([*COMMAND, *HOT]) == 130
    assert (
        "interrupted; out/answers.jsonl keeps 3 conversations, and the same command goes on" in capsys.readouterr().err
    )
    first = answers()
    assert len(first) == 3
    assert main([*COMMAND, *HOT]) == 0
    assert "3 of 6 prompts are done already" in capsys.readouterr().err
    assert answers() == answers("whole")
    assert list(answers())[:3] == list(first)


def test_a_line_that_was_cut_off_is_made_again(here, answers):
    assert main([*COMMAND, *HOT]) == 0
    whole, path = answers(), here / "out" / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert main([*COMMAND, *HOT]) == 0
    assert answers() == whole and path.read_bytes().endswith(b"}\n")


def test_more_prompts_of_the_same_file_are_added(here, answers, capsys):
    assert main([*COMMAND, "--limit", "2"]) == 0
    assert sorted(answers()) == [1, 2]
    assert main(COMMAND) == 0
    assert sorted(answers()) == [1, 2, 3, 4, 5, 6]
    capsys.readouterr()
    assert main(COMMAND) == 0  # no model is loaded for nothing
    assert "tokens/s" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--seed", "7"], "seed"),
        (["sampling.temperature=0.5"], "sampling"),
        (["target.dtype=float32"], "target"),
        (["--finished-only"], "finished_only"),
        (["run.chat=false"], "chat"),
        (["--prompts", "others.txt"], "prompts"),
    ],
)
def test_answers_made_in_another_way_are_not_mixed(here, arguments, name, capsys):
    (here / "others.txt").write_text("hello\n")
    assert main([*COMMAND, "--limit", "1"]) == 0
    before = (here / "out" / "answers.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*COMMAND, *arguments]) == 2
    assert capsys.readouterr().err == f"out holds answers made with other {name}; give another --out\n"
    assert (here / "out" / "answers.jsonl").read_bytes() == before


def test_settings_of_a_folder_without_answers_do_not_bind(here):
    assert main([*COMMAND, "target.model=/nowhere/at/all"]) == 2
    assert main([*COMMAND, "--limit", "1"]) == 0


def test_finished_only_drops_what_the_budget_cut_off(here, answers, capsys):
    hot = ["sampling.temperature=1.0", "sampling.max_new_tokens=30", "run.batch=6"]
    (here / "prompts.jsonl").write_text("".join(f'{{"prompt": "{letter} b"}}\n' for letter in "abcdefghijkl"))
    assert main([*COMMAND, *hot]) == 0
    finished = {line for line, entry in answers().items() if entry["finished"]}
    assert 0 < len(finished) < 12
    assert f"12 conversations ({12 - len(finished)} unfinished)" in capsys.readouterr().out
    assert main([*COMMAND[:-1], "fine", *hot, "--finished-only"]) == 0
    assert answers("fine") == {line: answers()[line] for line in answers() if line in finished}
    output = capsys.readouterr().out
    assert (
        f"{len(finished)} conversations (0 unfinished)" in output
        and f"left out: {12 - len(finished)} unfinished" in output
    )
    assert main([*COMMAND[:-1], "fine", *hot, "--finished-only"]) == 0
    assert "12 of 12 prompts are done already" in capsys.readouterr().err


def test_a_full_disk_is_one_clear_line(here, answers, monkeypatch, capsys):
    opened = Path.open

    def full(path, mode="r", **options):
        if mode == "a" and path.name == "answers.jsonl" and path.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", full)
    assert main(COMMAND) == 2
    output = capsys.readouterr().err
    assert output == (
        "out/answers.jsonl cannot be written: No space left on device; what is there is kept, and the same command "
        "goes on\n"
    )
    assert len(answers()) == 1


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_an_endpoint_answers_for_the_target(here, answers, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("SPECFRAME_API_KEY", "secret")
    with serving(lambda path, body: (200, chat_reply(f"to {body['messages'][-1]['content']}"))) as (url, captured):
        command = [*COMMAND, "--endpoint", url, "--model", "big", "target.model=/nowhere/at/all"]
        assert main(command) == 0
    assert [m["content"] for m in answers()[1]["messages"]] == [
        "hello there",
        "to hello there",
        "and then?",
        "to and then?",
    ]
    assert {entry["model"] for entry in answers().values()} == {"big"}
    assert all(headers["Authorization"] == "Bearer secret" for _, _, headers in captured)
    assert "secret" not in (here / "out" / "distill.json").read_text()
    assert main([*command, "--limit", "3"]) == 0  # nothing is left to ask, so no server is needed
    assert main([*command[:4], "--out", "new", *command[6:]]) == 2


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_what_the_endpoint_refuses_is_recorded_once(here, answers, monkeypatch, capsys):
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def reply(path, body):
        if body["messages"][0]["content"] == "why?":
            return 422, {"error": {"message": "rude\r\nand long"}}
        return 200, chat_reply("yes")

    with serving(reply) as (url, captured):
        command = [*COMMAND, "--endpoint", url, "--model", "big"]
        assert main(command) == 0
        asked = len(captured)
        assert "left out: 1 refused (the reasons: out/dropped.txt)" in capsys.readouterr().out
        assert (here / "out" / "dropped.txt").read_text() == "3 refused: HTTP 422: rude\n"
        assert main(command) == 0
        assert "left out: 1 refused" in capsys.readouterr().out and len(captured) == asked
    assert sorted(answers()) == [1, 2, 4, 5, 6]


def test_a_last_write_that_failed_is_made_up_for_by_the_next_run(here, answers, monkeypatch, capsys):
    describe = AnswerStore.describe

    def full(store, run):
        if run:
            raise SpecframeError("out/distill.json cannot be written: No space left on device")
        describe(store, run)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerStore, "describe", full)
        assert main(COMMAND) == 2
    assert len(answers()) == 6
    assert main(COMMAND) == 0
    about = json.loads((here / "out" / "distill.json").read_text())
    assert about["figures"]["conversations"] == 6


def test_what_a_command_line_holds_of_secrets_is_not_kept(here, monkeypatch):
    monkeypatch.setattr("sys.argv", ["specframe", *COMMAND, "--note=https://me:pw-7@host:8/v1?key=pw-7#pw-7"])
    assert main([*COMMAND, "--limit", "1"]) == 0
    assert (
        "pw-7" not in (text := (here / "out" / "distill.json").read_text()) and "https://***@host:8/v1?***#***" in text
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompts", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["--limit", "0"], "--limit 0 answers nothing"),
        (["--model", "m"], "--endpoint URL and --model NAME belong together"),
        (["--endpoint", "localhost", "--model", "m"], "--endpoint localhost is no address"),
        (["--out", "prompts.jsonl"], "prompts.jsonl is not a folder"),
        (["verifier.use=typical"], "lossy"),
        (["target.model=/nowhere/at/all"], "/nowhere/at/all"),
        (["sampling.max_new_tokens=0"], "max_new_tokens 0"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_status_2(here, arguments, words, capsys):
    assert main([*COMMAND, *arguments]) == 2
    output = capsys.readouterr().err.strip()
    assert words in output and "Traceback" not in output and len(output.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("answers.jsonl", '{"messages": []}\n', "answers.jsonl:1: nothing that was written here"),
        ("dropped.txt", "what?\n", "dropped.txt:1: nothing that was written here"),
        ("answers.jsonl", '{"line": 1, "tokens": 2, "finished": true}\n', "distill.json does not record how"),
    ],
)
def test_a_folder_of_something_else_is_left_alone(here, name, text, words, capsys):
    (here / "out").mkdir()
    (here / "out" / name).write_text(text)
    assert main(COMMAND) == 2
    assert words in capsys.readouterr().err
    assert (here / "out" / name).read_text() == text
