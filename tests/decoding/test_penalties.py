"""Penalties, biases and least lengths of a recipe's sampling: the texts of `generate` with its own processors."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LogitsProcessorList

import specframe
from specframe.decoding.baseline import find_divergences, generate_with_transformers, penalised
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.errors import InputError
from specframe.recipes.recipe import RecipeError
from tests.small_model import make_model

ROWS = [[5, 9, 5, 9, 5], [7, 8, 9], [3, 4, 3, 4, 3, 4, 3]]
NEW = 16
BAD = [[45, 18], [55, 55, 55], [3]]
DRAFTERS = {"lookup": None, "recycling": None, "suffix": None, "model": {"use": "fixed", "widths": [2, 2, 1]}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model().double().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)


def pipeline_of(model, drafter="lookup", batch=3, **sampling):
    given = {"use": "model", "model": model.name_or_path, "dtype": "float64"} if drafter == "model" else drafter
    settings = {"max_new_tokens": NEW, "ignore_eos": True} | sampling
    run = {"batch": batch}
    return specframe.compose(target=model, drafter=given, tree=DRAFTERS[drafter], sampling=settings, run=run)


def counting(prompt, frequency, presence):
    """OpenAI's two penalties after a prompt of so many tokens, token by token."""

    def process(tokens, scores):
        scores = scores.clone()
        for token in set(tokens[0, prompt:].tolist()):
            scores[0, token] -= frequency * int((tokens[0, prompt:] == token).sum()) + presence
        return scores

    return LogitsProcessorList([process])


def generated(model, row, **options):
    with torch.no_grad():
        found = model.generate(torch.tensor([row]), do_sample=False, max_new_tokens=NEW, eos_token_id=None, **options)
    return found[0, len(row) :].tolist()


OWN = {
    "repetition": ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
    "bias": ({"logit_bias": {"55": -100, "3": -0.5}}, {"sequence_bias": {(55,): -100.0, (3,): -0.5}}),
    "n-grams": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "n-grams of one token": ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    "words": ({"bad_words_ids": BAD}, {"bad_words_ids": BAD}),
    "words under a penalty": (
        {"bad_words_ids": BAD, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2},
        {"bad_words_ids": BAD, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2},
    ),
}
QUICK = {"repetition", "bias", "words under a penalty"}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in OWN])
def test_the_texts_are_those_of_generates_own_processors(model, name, drafter):
    sampling, options = OWN[name]
    wanted = [generated(model, row, **options) for row in ROWS]
    assert pipeline_of(model, drafter, **sampling).generate(ROWS).tokens == wanted
    assert wanted != [generated(model, row) for row in ROWS]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_frequency_and_presence_count_the_continuation_alone(model, drafter):
    sampling = {"frequency_penalty": 0.3, "presence_penalty": 0.2}
    wanted = [generated(model, row, logits_processor=counting(len(row), 0.3, 0.2)) for row in ROWS]
    assert pipeline_of(model, drafter, **sampling).generate(ROWS).tokens == wanted
    assert wanted != [generated(model, row) for row in ROWS]


def test_no_end_comes_before_the_least_length(model):
    plain = pipeline_of(model).generate(ROWS[0]).tokens[0]
    end = plain[3]
    sampling = {"stop_token_ids": [end], "min_new_tokens": 9}
    (found,) = pipeline_of(model, **sampling).generate(ROWS[0]).tokens
    options = {"min_new_tokens": 9, "max_new_tokens": NEW, "eos_token_id": end}
    wanted = model.generate(torch.tensor([ROWS[0]]), do_sample=False, **options)[0, len(ROWS[0]) :].tolist()
    assert found == wanted and len(found) >= 9 and end not in found[:9]


ALL = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": -0.1, "logit_bias": {"7": 0.4}}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafting_and_batches_change_no_text(model, temperature):
    """A seed's texts are those of plain decoding, whatever drafter and batch."""
    pipelines = [pipeline_of(model, *each, temperature=temperature, **ALL) for each in (["lookup", 3], ["model", 2])]
    wanted = pipelines[0].plain().generate(ROWS, seed=3).tokens
    assert [each.generate(ROWS, seed=3).tokens for each in pipelines] == [wanted, wanted]
    assert wanted != pipeline_of(model, temperature=temperature).plain().generate(ROWS, seed=3).tokens


def test_the_baseline_decodes_under_the_same_penalties_whatever_the_padding(model):
    pipeline = pipeline_of(model, **ALL, min_new_tokens=4)
    ours = pipeline.generate(ROWS).tokens
    assert generate_with_transformers(model, ROWS, pipeline.sampling, frozenset()) == ours


def test_a_gap_between_texts_is_that_of_penalised_logits(model):
    settings = SamplingSettings(logit_bias={"7": 1000.0})
    found = find_divergences(model, [[5, 6]], [[7]], [[8]], settings)
    assert 900 < found[0].gap < 1100
    logits = torch.arange(4.0)
    assert penalised(SamplingSettings(presence_penalty=1.0), [0, 1], [3], logits).tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0 is no positive number"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty nan is no positive number"),
        ({"frequency_penalty": 2.5}, r"frequency_penalty 2.5 is outside \[-2, 2\]"),
        ({"presence_penalty": -3.0}, r"presence_penalty -3.0 is outside \[-2, 2\]"),
        ({"logit_bias": {"the": 1.0}}, "logit_bias names the token 'the'"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias names the token '-1'"),
        ({"logit_bias": {"7": float("inf")}}, "logit_bias inf of token 7 is no finite number"),
        ({"logit_bias": {"7": "much"}}, "expected number"),
        ({"min_new_tokens": -1}, "min_new_tokens -1 is negative"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size -2 is negative"),
        ({"bad_words_ids": [[]]}, "are no lists of token ids"),
        ({"bad_words_ids": [[4, -1]]}, "are no lists of token ids"),
        ({"typical_p": 0.9}, "sampling.typical_p: unknown option"),
    ],
)
def test_values_outside_their_range_are_refused_in_one_line(model, sampling, words):
    with pytest.raises(RecipeError, match=words):
        pipeline_of(model, **sampling)


def test_biases_of_tokens_that_the_target_lacks_are_refused(model):
    with pytest.raises(InputError, match="logit_bias has tokens outside the target's vocabulary of 64"):
        pipeline_of(model, logit_bias={64: 1.0}).generate(ROWS[0])


def test_words_of_tokens_that_the_target_lacks_are_refused(model):
    with pytest.raises(InputError, match="bad_words_ids has tokens outside the target's vocabulary of 64"):
        pipeline_of(model, bad_words_ids=[[1, 64]]).generate(ROWS[0])


def test_an_end_alone_is_no_bad_word_as_in_generate(model):
    end = pipeline_of(model).generate(ROWS[0]).tokens[0][3]
    (found,) = pipeline_of(model, stop_token_ids=[end], bad_words_ids=[[end]]).generate(ROWS[0]).tokens
    options = {"bad_words_ids": [[end]], "max_new_tokens": NEW, "eos_token_id": end}
    wanted = model.generate(torch.tensor([ROWS[0]]), do_sample=False, **options)[0, len(ROWS[0]) :].tolist()
    assert found == wanted and found[-1] == end


def test_a_text_that_has_every_token_goes_on(model):
    """Where bans leave nothing, they are lifted: the distribution stays one."""
    found = pipeline_of(model, no_repeat_ngram_size=1).generate(list(range(64))).tokens[0]
    assert found == pipeline_of(model).generate(list(range(64))).tokens[0]
