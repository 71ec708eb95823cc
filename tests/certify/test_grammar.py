"""Recipes with a grammar are certified under a small one, and loops that ask it about another text are not."""

import math

import pytest
import torch

import specframe
from specframe.certify.certify import certify_plan
from specframe.certify.compositions.emission import Emission
from specframe.certify.compositions.small import EOS, PROMPT, small_grammar
from specframe.certify.real import check_greedy, check_sampled
from specframe.components.drafters.lookup import Lookup
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.decoding.requests import as_prompts, pruned
from specframe.decoding.session import Parts
from specframe.sampling.grammar import GrammarCompiler, GrammarProcessor
from specframe.sampling.laws import Sampling
from tests.certify.recipes import COPIES, DRAWN, planned
from tests.small_model import make_json_tokenizer, make_model

GRAMMAR = "grammar: {json: {type: object}}"


def certified(folder, text, **parts):
    text = text.replace("TEMPERATURE}", f"TEMPERATURE, {GRAMMAR}}}")
    return certify_plan(planned(folder, text, "", **parts), budget=4000, seeds=1)


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copied_drafts_under_a_grammar_are_lossless(temperature, tmp_path):
    found = certified(tmp_path, COPIES, verifier="match", temperature=temperature)
    assert found.lossless and any("with a grammar" in case.name for case in found.cases)


@pytest.mark.full
def test_drawn_drafts_under_a_grammar_are_lossless(tmp_path):
    parts = {"tree": "chain", "verifier": "recursive", "depth": 1, "temperature": 1.0}
    assert certified(tmp_path, DRAWN, **parts).lossless


MIXED = """
specframe: 1
target: {use: table}
drafter: {use: fused, first: {use: falcon}, second: {use: lookup, length: 3}, tree: {use: chain, depth: 1, draw: iid}}
verifier: VERIFIER
sampling: {temperature: TEMPERATURE}
"""


@pytest.mark.full
@pytest.mark.parametrize("verifier", ["match", "recursive"])
def test_copies_next_to_drawn_nodes_are_lossless_without_the_forbidden_ones(verifier, tmp_path, monkeypatch):
    nodes = [0, 0]

    def counted(draft, entries):
        found = pruned(draft, entries)
        nodes[0] += int(draft.valid.sum())
        nodes[1] += int(found.valid.sum())
        return found

    monkeypatch.setattr("specframe.decoding.session.pruned", counted)
    assert certified(tmp_path, MIXED, verifier=verifier, temperature=1.0).lossless
    assert nodes[1] < nodes[0]


@pytest.mark.full
def test_a_grammar_asked_about_the_roots_text_at_every_node_is_refused(tmp_path, monkeypatch):
    own = Sampling._contexts

    def of_roots(self, tree, nodes):
        roots = torch.zeros_like(tree.tokens if nodes is None else nodes)
        return own(self, tree, roots)

    monkeypatch.setattr(Sampling, "_contexts", of_roots)
    found = certified(tmp_path, COPIES, verifier="match", temperature=1.0)
    assert found.promised and not found.exact


def test_the_law_is_the_targets_over_the_texts_of_the_grammar():
    """Each text's probability, by hand: the product of the target's laws, cut to what the grammar allows next."""
    target = TableTarget(vocab=4, order=2, seed=3, eos=EOS)
    letters = [b"a", b"", b"b", b"c"]
    grammar = GrammarCompiler.spelled(letters, frozenset({EOS})).compile({"regex": "a(b|ca)|b{2,3}|cc?"})
    texts = {"ab": (0, 2), "aca": (0, 3, 0), "bb": (2, 2), "bbb": (2, 2, 2), "c": (3,), "cc": (3, 3)}
    complete = [(*text, EOS) for text in texts.values()]
    wanted = {}
    for text in complete:
        weight = 1.0
        for place, token in enumerate(text):
            allowed = {other[place] for other in complete if other[:place] == text[:place]}
            target.open(1, 16)
            _, scores = target.admit(as_prompts([[*PROMPT, *text[:place]]]))
            law = scores.logits[0, 0].double().softmax(-1)
            weight *= float(law[token]) / math.fsum(float(law[each]) for each in allowed)
        wanted[(*text, *(-1,) * (4 - len(text)))] = weight
    drafter = Lookup(length=3)
    drafter.bind(target)
    parts = Parts(target, drafter, None, Match())
    sampling = Sampling(temperature=1.0, processors=(GrammarProcessor(grammar, len(PROMPT)),))
    emission = Emission("a small grammar", lambda: parts, sampling, 4, PROMPT, frozenset({EOS}))
    found = emission.compare()
    assert found.enumeration.exhausted and found.bound < 1e-9
    law = found.enumeration.law
    assert law.keys() == wanted.keys()
    assert max(abs(law[text] - weight) for text, weight in wanted.items()) < 1e-9


def test_a_models_texts_under_a_grammar_are_compared(tmp_path):
    make_model().double().save_pretrained(tmp_path)
    make_json_tokenizer().save_pretrained(tmp_path)
    pipeline = specframe.compose(
        target={"use": "hf", "model": str(tmp_path), "dtype": "float64"},
        drafter={"use": "suffix-recycling"},
        verifier="match",
        sampling={"max_new_tokens": 20, "temperature": 1.0, "grammar": {"regex": "a|b[0-9]|cd{2,9}"}},
    )
    row = pipeline.encode("ab ab")
    found = check_sampled(pipeline, row, 64)
    assert found.p_value > found.error_rate
    greedy = check_greedy(pipeline, [row], 20)
    assert greedy.divergences == ()


def test_the_small_grammar_leaves_choices():
    processor = GrammarProcessor(small_grammar(), 0)
    open_texts = [(), (0,), (2,), (0, 2), (2, 0)]
    counts = [
        int(processor(torch.tensor([text], dtype=torch.int64), torch.zeros(1, 3)).isfinite().sum())
        for text in open_texts
    ]
    assert min(counts) >= 1 and sum(count > 1 for count in counts) >= 3
