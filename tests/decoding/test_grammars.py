"""Texts of a grammar: those of token-by-token decoding under it, whatever is drafted, and complete or cut off."""

import gc
import json
import random
import re
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import specframe
from specframe.decoding.baseline import find_divergences, generate_with_transformers
from specframe.decoding.requests import pruned
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.errors import InputError, SpecframeError
from specframe.sampling.grammar import GrammarCompiler, GrammarProcessor, grammar_of
from tests.small_model import make_json_tokenizer, make_model, make_tokenizer

PROMPTS = ["give me: a name", "true or not:", "ab ab ab"]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
    "required": ["ok", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "json": {"json": SCHEMA},
    "regex": {"regex": r"(ab|a b|b){2,9}( [0-9]{3})?"},
    "choice": {"choice": ["true", "tr", "abab", "null"]},
    "lark": {"lark": 'start: "[" [item ("," item)*] "]"\nitem: /[0-9]{1,2}/ | start'},
}
DRAFTERS = {"lookup": None, "suffix-recycling": None, "model": {"use": "fixed", "widths": [3, 2, 1]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_model().double().save_pretrained(path)
    make_json_tokenizer().save_pretrained(path)
    return path


def pipeline_of(folder, drafter="lookup", batch=3, **sampling):
    model = {"use": "hf", "model": str(folder), "dtype": "float64"}
    parts = {"drafter": drafter}
    if drafter == "model":
        parts = {"drafter": model | {"use": "model"}, "tree": DRAFTERS["model"], "verifier": "recursive"}
    return specframe.compose(
        target=model, **{"verifier": "match"} | parts, sampling={"max_new_tokens": 70} | sampling, run={"batch": batch}
    )


def follows(name, text):
    if name == "json":
        found = json.loads(text)
        return set(found) == {"ok", "tags"} and isinstance(found["ok"], bool) and set(found["tags"]) <= {"a", "b"}
    if name == "lark":
        return isinstance(json.loads(re.sub(r"\b0+(?=\d)", "", text)), list)
    return text in GRAMMARS["choice"]["choice"] if name == "choice" else re.fullmatch(GRAMMARS["regex"]["regex"], text)


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["lookup", "suffix-recycling"])
@pytest.mark.parametrize("name", GRAMMARS)
def test_texts_are_those_of_token_by_token_decoding(folder, name, drafter, temperature):
    drafting = pipeline_of(folder, drafter, temperature=temperature, grammar=GRAMMARS[name])
    alone = pipeline_of(folder, "none", batch=1, temperature=temperature, grammar=GRAMMARS[name])
    ended = set()
    for seed in range(3):
        found, wanted = drafting.generate(PROMPTS, seed=seed), alone.generate(PROMPTS, seed=seed)
        assert found.tokens == wanted.tokens and found.ended == wanted.ended
        for text, reason in zip(found.texts, found.ended, strict=True):
            assert reason == "length" or follows(name, text), text
        ended |= {*found.ended}
    assert "end" in ended


@pytest.mark.sampled
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_texts_are_those_of_fresh_matchers_and_of_generate(folder, name, drafter):
    pipeline = pipeline_of(folder, drafter, grammar=GRAMMARS[name])
    model, rows = pipeline.parts.target.model, [pipeline.encode(prompt) for prompt in PROMPTS]
    found = pipeline.generate(rows).tokens
    grammar = grammar_of(pipeline.parts.target, pipeline.sampling.grammar)
    for row, tokens in zip(rows, found, strict=True):
        wanted = []
        while len(wanted) < 70 and wanted[-1:] != [1]:
            text = torch.tensor([[*row, *wanted]])
            with torch.no_grad():
                logits = model(text).logits[:, -1]
            wanted.append(int(GrammarProcessor(grammar, len(row))(text, logits).argmax()))
        assert tokens == wanted
    theirs = generate_with_transformers(model, rows, pipeline.sampling, pipeline.ends, grammar=grammar)
    assert theirs == found
    assert find_divergences(model, rows, found, theirs, pipeline.sampling, grammar) == []


def test_rows_of_other_settings_in_one_batch(folder):
    """Prompts of different lengths, each with a processor of its own; then rows with and without a grammar."""
    pipeline = pipeline_of(folder, "suffix-recycling", grammar=GRAMMARS["json"])
    free = replace(pipeline.sampling, grammar=None, temperature=1.0)
    rows = [pipeline.encode(prompt) for prompt in PROMPTS]
    requests = [*pipeline.requests(rows), *pipeline.requests(rows, free)]
    requests = [replace(request, number=number) for number, request in enumerate(requests)]
    with pipeline.open(requests, slots=6) as session:
        together = [entry.tokens for entry in session.run(requests)]
    plain = pipeline.plain()
    alone = plain.generate(rows).tokens + replace(plain, sampling=free).generate(rows).tokens
    assert together == alone


def test_a_rolled_back_matcher_answers_as_a_fresh_one(folder):
    pipeline = pipeline_of(folder)
    for form in GRAMMARS.values():
        grammar = grammar_of(pipeline.parts.target, form)
        rolled, draws = GrammarProcessor(grammar, 1), random.Random(0)
        texts = [[5]]
        for _ in range(200):
            text = texts[draws.randrange(len(texts))]
            asked = torch.tensor([text])
            answer = rolled(asked, torch.zeros(1, 64))
            assert answer.equal(GrammarProcessor(grammar, 1)(asked, torch.zeros(1, 64)))
            allowed = answer[0].isfinite().nonzero()[:, 0].tolist()
            token = draws.choice(allowed) if draws.random() < 0.9 else draws.randrange(64)
            texts.append([*text, token])
            if token not in allowed:  # no text goes on after it, and its logits stay
                assert rolled.accepts(texts[-1][1:]) == len(text) - 1
                assert rolled(torch.tensor([texts[-1]]), torch.zeros(1, 64)).isfinite().all()


def test_nodes_of_a_draft_are_allowed_as_their_paths_are(folder):
    pipeline, draws = pipeline_of(folder), random.Random(1)
    for form in GRAMMARS.values():
        grammar = grammar_of(pipeline.parts.target, form)
        asked, fresh, text = GrammarProcessor(grammar, 1), GrammarProcessor(grammar, 1), [5]
        for _ in range(60):
            mask = fresh(torch.tensor([text]), torch.zeros(1, 64))[0].isfinite().nonzero()[:, 0].tolist()
            tokens, parents, paths = [text[-1]], [-1], [[]]
            for node in range(1, 12):
                parents.append(draws.randrange(node))
                tokens.append(draws.choice(mask) if draws.random() < 0.7 else draws.randrange(64))
                paths.append([*paths[parents[-1]], tokens[-1]])
            whole = len(text) - 1
            over = fresh.accepts(text[1:]) < whole or text[-1] == 1
            wanted = [over or fresh.accepts([*text[1:], *path]) == whole + len(path) for path in paths]
            assert asked.allows(text, tokens, parents) == wanted
            text = [5] if over else [*text, draws.choice(mask)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nodes_that_a_grammar_forbids_are_not_scored_and_change_no_text(folder, drafter, temperature, monkeypatch):
    pipeline = pipeline_of(folder, drafter, grammar=GRAMMARS["json"], temperature=temperature)
    grammar = grammar_of(pipeline.parts.target, pipeline.sampling.grammar)
    rows = [pipeline.encode(prompt) for prompt in PROMPTS]
    requests = [replace(each, number=number) for number, each in enumerate(pipeline.requests(rows))]

    def decode():
        """The texts, the nodes that were scored, and those of them that the grammar forbids."""
        scored, forbidden = 0, 0
        with pipeline.open(requests, slots=3) as session:
            before = {}

            def watch(cycle):
                nonlocal scored, forbidden
                for row, entry in enumerate(session.cycle_rows):
                    text = before.get(entry.request.number, [])
                    before[entry.request.number] = list(entry.tokens)
                    if cycle.committed.prompt is None:
                        tree = cycle.draft.take(torch.tensor([row]))
                        seen = GrammarProcessor(grammar, 0).allows(
                            text, *(x[0].tolist() for x in (tree.tokens, tree.parent))
                        )
                        scored += int(tree.valid.sum())
                        forbidden += sum(v and not s for v, s in zip(tree.valid[0].tolist(), seen, strict=True))

            return [entry.tokens for entry in session.run(requests, watch)], scored, forbidden

    texts, scored, forbidden = decode()
    monkeypatch.setattr("specframe.decoding.session.pruned", lambda draft, entries: draft)
    wanted, most, banned = decode()
    assert forbidden == 0 < banned and scored < most
    if drafter != "model" or temperature == 0:  # `recursive` has one random number for each child that it tries
        assert texts == wanted


def test_nodes_that_are_drawn_are_drawn_under_the_grammar(folder, monkeypatch):
    tree = {"use": "fixed", "widths": [3, 2, 1], "draw": "without_replacement"}
    monkeypatch.setitem(DRAFTERS, "model", tree)
    pipeline = pipeline_of(folder, "model", grammar=GRAMMARS["json"], temperature=1.0)
    counts = []

    def watched(draft, entries):
        lists = zip(*(part.tolist() for part in (draft.tokens, draft.parent, draft.valid)), strict=True)
        for entry, (tokens, parents, valid) in zip(entries, lists, strict=True):
            (processor,) = entry.request.sampling.processors
            allowed = processor.allows(entry.text, tokens, parents)
            over = [False]  # nodes after an end
            for node, parent in enumerate(parents[1:], 1):
                over.append(over[parent] or tokens[parent] == 1)
                assert allowed[node] or over[node] or not valid[node]
            counts.append(sum(valid))
        return pruned(draft, entries)

    monkeypatch.setattr("specframe.decoding.session.pruned", watched)
    pipeline.generate(PROMPTS)
    assert sum(counts) > len(counts)


def test_only_an_end_follows_a_complete_text(folder):
    pipeline = pipeline_of(folder, grammar={"regex": "ab"}, min_new_tokens=9)
    grammar = grammar_of(pipeline.parts.target, pipeline.sampling.grammar)
    processor, ids = GrammarProcessor(grammar, 0), pipeline.tokenizer("ab")["input_ids"]
    assert processor(torch.tensor([ids]), torch.zeros(1, 70)).isfinite().nonzero().tolist() == [[0, 1]]
    assert processor.accepts([*ids, 1, 1]) == len(ids) + 1 and processor.accepts([1]) == 0
    found = pipeline.generate(PROMPTS)  # a least length does not hold a complete text up
    assert found.texts == ["ab"] * 3 and found.ended == ["end"] * 3


def test_a_text_that_tokens_cannot_finish_fails_in_one_line(folder):
    pipeline = pipeline_of(folder, grammar={"regex": "[ab]{2}(A|B)"})
    with pytest.raises(InputError, match=r"prompt 1, position .*: no token has any probability"):
        pipeline.generate(PROMPTS[0])


def test_tokenizers_that_llguidance_does_not_read_are_spelled():
    tokenizer = make_tokenizer()
    compiler = GrammarCompiler.of_tokenizer(tokenizer, 64, frozenset({1}))
    processor = GrammarProcessor(compiler.compile({"choice": ["yes", "you", "no"]}), 0)
    mask = processor(torch.tensor([tokenizer("y")["input_ids"]]), torch.zeros(1, 64)).isfinite()[0]
    assert tokenizer.decode(mask.nonzero()[:, 0]) == "eo"
    assert processor(torch.tensor([tokenizer("no")["input_ids"]]), torch.zeros(1, 64)).isfinite()[0].nonzero() == 1


@pytest.mark.parametrize("make", [make_json_tokenizer, make_tokenizer])
def test_what_was_read_of_a_tokenizer_goes_with_it(make):
    tokenizer = make()
    target = SimpleNamespace(tokenizer=tokenizer, ends={1}, vocab_size=64)
    assert grammar_of(target, {"choice": ["no"]}) is grammar_of(target, {"choice": ["no"]})
    gone = weakref.ref(tokenizer)
    del target, tokenizer
    gc.collect()
    assert gone() is None


def test_a_grammar_of_llamacpp_is_read(folder):
    pipeline = pipeline_of(folder, grammar={"lark": 'root ::= "a" [0-9]{3} | "b"'})
    assert all(re.fullmatch(r"a[0-9]{3}|b", text) for text in pipeline.generate(PROMPTS).texts)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({}, "a grammar has one of the forms json, regex, choice, lark"),
        ({"regex": "a", "json": {}}, "one of the forms"),
        ({"ebnf": "a"}, "one of the forms"),
        ({"choice": []}, "grammar.choice is a list of texts"),
        ({"choice": [True]}, "grammar.choice is a list of texts"),
        ({"json": 5}, "grammar.json is a JSON schema"),
        ({"regex": 5}, "grammar.regex is a text"),
        ({"json": {"type": "nothing"}}, "grammar.json: Invalid type: nothing"),
        ({"json": '{"type":'}, "grammar.json: "),
        ({"json": {"not": {"type": "string"}}}, r'grammar.json: Unimplemented keys: \["not"\]'),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 2}}, "grammar.json: Unsatisfiable schema"),
        ({"json": {"$ref": "http://example.com/"}}, "grammar.json: Resource 'http://example.com/'"),
        ({"regex": "("}, "grammar.regex: .*unclosed group"),
        ({"regex": "(?=a)b"}, "grammar.regex: .*look-around"),
        ({"regex": "A+"}, "grammar.regex: the target's tokens can write no text of it"),
        ({"lark": "start: nothing"}, 'grammar.lark: .*unknown name: "nothing"'),
        ({"lark": 'root ::= "a'}, "grammar.lark: "),
    ],
)
def test_what_is_no_grammar_is_refused_in_one_line(folder, form, words):
    with pytest.raises(SpecframeError, match=words) as caught:
        pipeline_of(folder, grammar=form).generate("ab")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_grammar_needs_a_tokenizer_an_end_and_the_package(folder, monkeypatch):
    with pytest.raises(InputError, match="ignore_eos ignores it"):
        SamplingSettings(grammar={"regex": "a"}, ignore_eos=True)
    pipeline = pipeline_of(folder)
    with pytest.raises(InputError, match="needs a target that has an end-of-sequence token"):
        GrammarCompiler.of_tokenizer(pipeline.tokenizer, 64, frozenset())
    table = specframe.compose(target={"use": "table"}, sampling={"grammar": {"regex": "a"}})
    with pytest.raises(InputError, match="a grammar needs a target with a tokenizer"):
        table.generate([0, 1])
    for name in [name for name in sys.modules if name.partition(".")[0] == "llguidance"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r'needs the package llguidance: pip install "specframe\[grammar\]"'):
        replace(pipeline, sampling=replace(pipeline.sampling, grammar={"regex": "a"})).generate("ab")


def test_generate_of_transformers_takes_the_processor(folder, tmp_path):
    """Asked along each path of a draft by its copies."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{folder}'}}\ndrafter: {{use: suffix-recycling}}\nverifier: {{use: match}}\n"
    )
    pipeline = pipeline_of(folder, grammar=GRAMMARS["json"])
    grammar = grammar_of(pipeline.parts.target, pipeline.sampling.grammar)
    row = pipeline.encode(PROMPTS[0])
    found = pipeline.parts.target.model.generate(
        torch.tensor([row]),
        custom_generate=specframe.decoder(path),
        logits_processor=[GrammarProcessor(grammar, len(row))],
        max_new_tokens=70,
        do_sample=False,
    )
    assert found[0, len(row) :].tolist() == pipeline.generate(PROMPTS[0]).tokens[0]
