import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from transformers.generation import TextStreamer

import specframe
from specframe.cli.main import main
from specframe.decoding.baseline import find_divergences, generate_with_transformers, measure_noise
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.errors import InputError, RecipeError
from tests.small_model import make_model

COMPOSITIONS = [
    ["drafter.use=none", "tree=null"],
    ["drafter.use=lookup", "tree=null"],
    ["drafter.block=1"],
    ["drafter.block=3", "tree={use: chain, depth: 4}"],
    ["verifier.use=recursive", "tree={use: fixed, widths: [3, 2, 1]}"],
    ["verifier.use=recursive", "tree={use: chain, depth: 3, draw: iid}"],
]


@pytest.mark.sampled
@pytest.mark.parametrize("overrides", COMPOSITIONS, ids=" ".join)
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_output_is_generates(recipe, overrides, batch):
    pipeline = specframe.load(recipe, overrides=[*overrides, f"run.batch={batch}"])
    prompts = ["hello", "good morning to you", "what?"]
    rows = [pipeline.encode(prompt) for prompt in prompts]
    model = pipeline.parts.target.model
    theirs = [generate_with_transformers(model, [row], pipeline.sampling, pipeline.ends)[0] for row in rows]
    assert pipeline.generate(prompts).tokens == theirs


@pytest.mark.sampled
@pytest.mark.parametrize("overrides", COMPOSITIONS, ids=" ".join)
def test_a_rows_output_depends_on_neither_neighbours_nor_batch_size(recipe, overrides):
    prompts = ["hello", "good morning to you", "what?", "a"]
    texts = [
        specframe.load(recipe, overrides=[*overrides, "sampling.temperature=0.9", f"run.batch={batch}"])
        .generate(prompts)
        .tokens
        for batch in (1, 2, 4)
    ]
    assert texts[0] == texts[1] == texts[2]


def test_the_seed_decides_the_output(recipe):
    pipeline = specframe.load(recipe, overrides=["sampling.temperature=1.0"])
    first, again, other = (pipeline.generate("hello", seed=seed).tokens for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_gives_the_text_piece_by_piece(recipe, temperature):
    pipeline = specframe.load(recipe, overrides=[f"sampling.temperature={temperature}"])
    pieces = list(pipeline.stream("hello", max_new_tokens=12, seed=3))
    assert len(pieces) > 1
    assert "".join(pieces) == pipeline.generate("hello", max_new_tokens=12, seed=3).texts[0]


def test_a_stream_that_is_closed_frees_the_target(recipe):
    pipeline = specframe.load(recipe)
    stream = pipeline.stream("hello")
    first = next(stream)
    with pytest.raises(InputError, match="decoding already"):
        pipeline.generate("hello")
    stream.close()
    assert pipeline.generate("hello").texts[0].startswith(first)


class Halves:
    """A tokenizer whose tokens are halves of characters."""

    def decode(self, tokens, skip_special_tokens):
        return "ä" * (len(tokens) // 2) + "\ufffd" * (len(tokens) % 2)


def test_a_stream_holds_half_a_character_back(recipe):
    pipeline = replace(specframe.load(recipe, overrides=["drafter.use=none", "tree=null"]), tokenizer=Halves())
    assert [piece for piece in pipeline.stream([1, 2], max_new_tokens=5) if piece] == ["ä", "ä", "\ufffd"]


def test_stop_texts_and_budgets(recipe):
    pipeline = specframe.load(recipe)
    text = pipeline.generate("hello").texts[0]
    stopped = specframe.load(recipe, overrides=[f"sampling.stop=['{text[3:5]}']"]).generate("hello")
    assert stopped.ended == ["stop"]
    assert stopped.texts[0] == text[: text.index(text[3:5]) + 2]
    assert len(pipeline.generate("hello", max_new_tokens=3).tokens[0]) == 3


def test_a_prompt_may_fill_the_context_but_for_one_token(recipe):
    pipeline = specframe.load(recipe)
    assert len(pipeline.generate([5] * 127).tokens[0]) == 1
    assert len(pipeline.generate([5] * 120).tokens[0]) <= 8
    with pytest.raises(InputError, match="leaves no room"):
        pipeline.generate([5] * 128)


@pytest.mark.parametrize(
    ("prompt", "words"), [("  ", "empty"), ([], "no prompt"), ([[]], "empty"), ([[999]], "vocabulary of 64")]
)
def test_prompts_that_cannot_be_decoded(recipe, prompt, words):
    with pytest.raises(InputError, match=words):
        specframe.load(recipe).generate(prompt)


@pytest.mark.parametrize(
    "prompt", [None, 3, 2.5, object(), {"role": "user", "content": "hi"}, [["hi"]], [[2.5]], [None], ["hi", b"hi"]]
)
def test_what_is_no_prompt_is_named(recipe, prompt):
    with pytest.raises(InputError, match=r"^a prompt is a text, a list of token ids, or a conversation, .*; got "):
        specframe.load(recipe).generate(prompt)


CHAT = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (CHAT, ["hello!"]),
        (tuple(CHAT), ["hello!"]),
        ([CHAT], ["hello!"]),
        ([CHAT, "ab", [4, 5], CHAT * 2], ["hello!", "ab", [4, 5], "hellohello!"]),
    ],
)
def test_a_conversation_is_a_prompt(recipe, prompt, texts):
    pipeline = specframe.load(recipe)
    assert pipeline.generate(prompt).tokens == pipeline.generate(texts).tokens


def test_one_prompt_may_stand_in_a_list(recipe):
    pipeline = specframe.load(recipe)
    whole = pipeline.generate("hi")
    assert "".join(pipeline.stream(["hi"])) == whole.texts[0]
    assert [token.token for token in specframe.trace(pipeline, ["hi"]).pieces] == whole.tokens[0]
    assert specframe.trace(pipeline, CHAT).prompt == "hello!"
    for use in (specframe.trace, lambda pipeline, prompts: list(pipeline.stream(prompts))):
        with pytest.raises(InputError, match="one prompt at a time, not 2"):
            use(pipeline, ["hi", "ho"])


@pytest.mark.parametrize("chat", [[{"role": "user"}], [{"content": "hi"}], [{}]])
def test_a_turn_without_role_or_content_is_named(recipe, chat):
    with pytest.raises(InputError, match="a turn of a conversation has a `role` and a `content`, unlike"):
        specframe.load(recipe).generate(chat)


THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{% if thinking is defined and not thinking %}n{% endif %}"


@pytest.mark.parametrize("how", ["text", "turns", "chat"])
def test_a_recipe_sets_variables_of_the_chat_template(recipe, how):
    overrides = ["run.chat=true", "run.chat_template_kwargs={thinking: false}"]
    pipeline, plain = (specframe.load(recipe, overrides=each) for each in (overrides, ["run.chat=true"]))
    for each in (pipeline, plain):
        each.tokenizer.chat_template = THINKING
    use = {
        "text": lambda p: p.encode("hello"),
        "turns": lambda p: p.encode_turns([{"role": "user", "content": "hello"}]),
        "chat": lambda p: p.encode([{"role": "user", "content": "hello"}]),
    }[how]
    words = [pipeline.tokenizer(text)["input_ids"] for text in ("hellon", "hello")]
    assert [use(pipeline), use(plain)] == words
    assert pipeline.encode_turns([{"role": "user", "content": "hello"}], {"thinking": True}) == words[1]


@pytest.mark.parametrize("name", ["thinkin", "tokenize", "add_generation_prompt"])
def test_a_variable_that_the_template_does_not_read_is_refused(recipe, name):
    pipeline = specframe.load(recipe, overrides=["run.chat=true", f"run.chat_template_kwargs={{{name}: false}}"])
    pipeline.tokenizer.chat_template = THINKING
    hint = r"; did you mean 'thinking'\?" if name == "thinkin" else ""
    with pytest.raises(InputError, match=f"^run.chat_template_kwargs: .* does not read '{name}'{hint}"):
        pipeline.encode("hello")


def test_prompts_of_a_recipe_may_be_token_ids(recipe):
    pipeline = specframe.load(recipe, overrides=["run.prompts=[[15, 16, 17], abc]"])
    assert pipeline.run.prompts == [[15, 16, 17], "abc"]
    assert pipeline.generate(pipeline.run.prompts).tokens == pipeline.generate([[15, 16, 17], "abc"]).tokens
    with pytest.raises(RecipeError, match=r"run.prompts.*expected"):
        specframe.load(recipe, overrides=["run.prompts=[[a]]"])


def test_a_models_folder_is_loaded_as_the_command_line_loads_it(recipe):
    folder = yaml.safe_load(recipe.read_text())["target"]["model"]
    pipeline = specframe.load(folder, overrides=["run.costs=null"])
    assert pipeline.plan.parts["drafter"].entry.name == "suffix-recycling"
    assert pipeline.plan.parts["target"].options["model"] == folder
    plain = pipeline.plain().generate([15, 16, 17], max_new_tokens=8)
    assert pipeline.generate([15, 16, 17], max_new_tokens=8).tokens == plain.tokens
    with pytest.raises(RecipeError, match=r"neither a recipe nor a model: the folder has no config.json"):
        specframe.load(Path(folder).parent)


def test_chat_wraps_prompts_in_the_template(recipe):
    pipeline = specframe.load(recipe, overrides=["run.chat=true"])
    plain = specframe.load(recipe)
    assert pipeline.encode("hello") == plain.encode("hello!")


def test_the_acceptance_figures_add_up(recipe):
    acceptance = specframe.load(recipe).generate(["hello", "good morning"]).acceptance
    assert acceptance.tau == pytest.approx(1 + sum(acceptance.alpha))
    assert 1 <= len(acceptance.alpha) <= 4
    assert acceptance.drafted == 8 * acceptance.cycles


def test_divergences_carry_the_gap_of_the_logits(model):
    row = [5, 6, 7]
    logits = model(torch.tensor([row])).logits[0, -1].detach()
    best, second = logits.topk(2).indices.tolist()
    found = find_divergences(model, [row], [[best, 3]], [[second, 3]], SamplingSettings())
    assert found[0].position == 0
    assert found[0].gap == pytest.approx(float(logits[best] - logits[second]))
    assert not found[0].tie
    assert find_divergences(model, [row], [[best]], [[best]], SamplingSettings()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_near_tie_is_separated_from_a_difference_by_the_dtypes_own_noise(dtype):
    model = make_model().to(dtype)
    row = [5, 6, 7, 8, 9, 10, 11]
    logits, noise = measure_noise(model, row)
    resolution = torch.finfo(dtype).eps * float(logits.max())
    assert resolution <= noise < 50 * resolution
    best = int(logits.argmax())
    with torch.no_grad():  # another token's row of the LM head nearly the best one's
        rows = model.get_output_embeddings().weight
        rows[3 if best != 3 else 4] = rows[best] * (1 - torch.finfo(dtype).eps)
    twin = 3 if best != 3 else 4
    far = int(logits.argmin())
    near, apart = find_divergences(model, [row, row], [[best], [best]], [[twin], [far]], SamplingSettings())
    assert near.tie and near.gap <= 2 * near.noise
    assert not apart.tie and apart.gap > 2 * apart.noise


def test_a_text_that_is_only_shorter_is_no_tie(model):
    (found,) = find_divergences(model, [[5, 6]], [[7]], [[7, 8]], SamplingSettings())
    assert not found.tie and found.theirs == 8 and found.ours is None


def test_transformers_streamers_get_the_text_as_it_comes(recipe, capsys):
    pipeline = specframe.load(recipe)
    result = pipeline.generate("hello", streamer=TextStreamer(pipeline.tokenizer, skip_prompt=True))
    assert capsys.readouterr().out.rstrip("\n") == pipeline.tokenizer.decode(result.tokens[0]).rstrip("\n")
    with pytest.raises(InputError, match="one prompt"):
        pipeline.generate(["a", "b"], streamer=TextStreamer(pipeline.tokenizer))


def test_run_prints_one_json_object_and_keeps_its_provenance(recipe, tmp_path, capsys):
    status = main(["run", str(recipe), "--json", "--prompt", "hello", "--out", str(tmp_path / "out")])
    assert status == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in ("text", "tau", "alpha", "tokens_per_second", "speedup", "speedup_hf", "overhead", "phases"):
        assert summary[name] is not None
    assert summary["lossless"] is True and summary["identical_to_generate"] is True
    kept = json.loads((tmp_path / "out" / "run.json").read_text())
    assert kept["figures"]["text"] == summary["text"]
    assert kept["recipe"]["data"]["drafter"]["use"] == "falcon"
    assert kept["origins"]["drafter.use"].endswith("recipe.yaml:2")


def test_run_streams_text_for_people(recipe, tmp_path, capsys):
    assert main(["run", str(recipe), "run.repeats=0", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for text in specframe.load(recipe).generate(["hello there", "good morning"]).texts:
        assert text in out
    assert "> hello there" in out and "lossless" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["sampling.max_new_tokens=0"],
        ["target.model=/nowhere/at/all"],
        ["run.prompts=[]"],
        ["drafter.weights=/nowhere"],
        ["--prompt", " "],
        ["--prompt", "a" * 500],
    ],
)
def test_bad_input_is_one_clear_line_and_exit_status_2(recipe, arguments, capsys):
    assert main(["run", str(recipe), *arguments]) == 2
    output = capsys.readouterr().err.strip()
    assert output and "Traceback" not in output and len(output.splitlines()) == 1
