"""SWIFT finds the layers that do nothing, and its drafts are lossless."""

from __future__ import annotations

import pytest
import torch
from idle import target_with_idle
from transformers import OPTConfig, OPTForCausalLM

import specframe
import specframe.plugin
from specframe import CompositionError, InputError
from specframe.components.trees.fixed import Chain
from specframe.plugin import Draw
from specframe.testing import check_drafter, check_plugin, tiny_target
from specframe_self.layers.skipping import SWIFT

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10], [11, 12]]
CHAIN = {"use": "chain", "depth": 3}


def composed(target, drafter, temperature=0.0, batch=3, tokens=50, tree=CHAIN):
    sampling = {"temperature": temperature, "max_new_tokens": tokens}
    tree = None if drafter == "none" else tree
    return specframe.compose(
        target=target, drafter=drafter, tree=tree, verifier="match", sampling=sampling, run={"batch": batch}
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_finds_the_layers_that_do_nothing(temperature):
    drafter = SWIFT(ratio=0.5, window=12)
    pipeline = composed(target_with_idle({2, 4}, layers=6), drafter, temperature)
    assert drafter.skip == {"attention": [1, 3], "mlp": [1, 3]}
    pipeline.generate(PROMPTS)
    assert drafter.skip == {"attention": [2, 4], "mlp": [2, 4]}
    if temperature == 0:
        assert drafter.search.score == 1 and drafter.search.done
        after = len(drafter.search.scores)
        found = pipeline.generate(PROMPTS)
        assert len(drafter.search.scores) == after, "the search has ended, and the next requests draft by it"
        assert found.acceptance.tau > 3


@torch.no_grad()
def test_matchness_is_how_often_the_set_would_have_drafted_the_text():
    """One token after the other, over the rows that have generated enough, from their own texts."""
    window, found = 5, []
    model = tiny_target(layers=4, vocab=64, size=16)

    class Watched(SWIFT):
        def _matchness(self, chosen, tokens, ready):
            score = super()._matchness(chosen, tokens, ready)
            texts = [row[:count] for row, count in zip(self._text.tokens.tolist(), self._text.lengths, strict=True)]
            ready_texts = [text for text, counts in zip(texts, ready.tolist(), strict=True) if counts]
            found.append((score, chosen, ready_texts, tokens.clone()))
            return score

    composed(model, Watched(window=window, enough=1.0), temperature=1.0, tokens=12).generate(PROMPTS)
    assert len(found) > 10
    other = tiny_target(layers=4, vocab=64, size=16)
    for score, chosen, texts, _ in found[::4]:
        right = []
        for text in texts:
            other.open(1, 64)
            before = torch.tensor([text[: -window - 1]])
            tree, _ = other.admit(specframe.plugin.Prompts(before, torch.tensor([before.shape[1]])))
            nothing = torch.zeros(1, dtype=torch.int64)
            other.commit(tree, specframe.plugin.Verdict(tree.tokens[:, :0], nothing, torch.tensor([text[-window - 1]])))
            for place in range(window):
                path = torch.tensor([text[-window - 1 :][: place + 1]])
                parent = torch.arange(place + 1)[None] - 1
                seen = specframe.plugin.TokenTree(path, parent, path >= 0, torch.zeros_like(path), place)
                last = other.run_layers(chosen, seen, torch.tensor([[place]]))["last"]
                right.append(int(other.head(last).argmax()) == text[len(text) - window + place])
        assert score == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("tree", [CHAIN, {"use": "threshold", "depth": 4}, {"use": "fixed", "widths": [2, 2]}])
def test_greedy_output_is_the_target_s(tree):
    target = tiny_target(layers=4, vocab=64, size=16)
    wanted = composed(target, "none").generate(PROMPTS).tokens
    assert composed(target, SWIFT(window=3), tree=tree).generate(PROMPTS).tokens == wanted


def test_under_match_a_seed_gives_the_same_text_with_every_batch_and_history():
    target = tiny_target(layers=4, vocab=64, size=16)
    wanted = composed(target, "none", temperature=1.0, tokens=20).generate(PROMPTS).tokens
    drafter = SWIFT(window=3)
    for batch in (1, 3):
        pipeline = composed(target, drafter, temperature=1.0, batch=batch, tokens=20)
        assert pipeline.generate(PROMPTS).tokens == wanted
        assert len(drafter.search.scores) > 10


def test_it_keeps_the_contract_of_drafters_and_the_distribution():
    def target():
        return tiny_target(layers=3, vocab=3, seed=3)

    check_drafter(lambda: SWIFT().untrained(3), lambda: Chain(depth=2), target=target)
    check_drafter(lambda: SWIFT().untrained(3), lambda: Chain(depth=1, draw=Draw.IID), target=target)


def test_rows_change_each_other_and_that_is_declared():
    pipeline = composed(tiny_target(layers=4, vocab=64, size=16), SWIFT())
    assert not pipeline.parts.promise.row_independent, "of the composition, whose tree policy is another part"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 0.0}, "are shares"),
        ({"ratio": 1.0}, "are shares"),
        ({"enough": 1.5}, "are shares"),
        ({"ends": -1}, "ends must be at least 0"),
        ({"window": 0}, "window must be at least 1"),
        ({"interval": 0}, "interval must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        SWIFT(**options)


def test_a_target_of_too_few_layers_is_refused():
    with pytest.raises(CompositionError, match="the target has 1 layers, of which 2 attentions and MLPs"):
        SWIFT(ratio=0.2).bind(tiny_target(layers=1))
    with pytest.raises(CompositionError, match="before bind"):
        SWIFT()._bound()


def test_the_package_keeps_the_contract_of_plugins():
    check_plugin("specframe-self")


def test_a_target_whose_mlp_is_no_module_is_refused_before_it_decodes():
    """Its first set leaves out whole layers; the search comes to an attention or an MLP alone later."""
    config = OPTConfig(
        vocab_size=50,
        hidden_size=16,
        word_embed_proj_dim=16,
        num_hidden_layers=8,
        num_attention_heads=2,
        ffn_dim=32,
        max_position_embeddings=64,
    )
    with pytest.raises(CompositionError, match=r"which module of a OPTDecoderLayer is its mlp.*leave out whole layers"):
        composed(OPTForCausalLM(config).eval(), SWIFT())
