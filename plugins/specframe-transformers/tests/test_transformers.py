import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation import StoppingCriteriaList, StopStringCriteria, TextStreamer

import specframe


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 15},
        {"bad_words_ids": [[5], [6, 7]]},
    ],
)
def test_greedy_generate_gives_the_same_with_our_decoder(recipe, model, options):
    tokens = torch.tensor([[5, 6, 7, 5, 6], [0, 0, 9, 8, 7]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    call = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False, "pad_token_id": 2, **options}
    theirs = model.generate(tokens, **call)
    ours = model.generate(tokens, **call, custom_generate=specframe.decoder(recipe))
    assert ours.tolist() == theirs.tolist()


def test_sampling_follows_torchs_seed(recipe, model):
    tokens = torch.tensor([[5, 6, 7]])
    decoder = specframe.decoder(recipe)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        output = model.generate(
            tokens, max_new_tokens=20, do_sample=True, top_k=10, temperature=1.5, custom_generate=decoder
        )
        runs.append(output.tolist())
    assert runs[0] == runs[1] != runs[2]


def test_streamers_and_stop_strings_are_theirs(recipe, model, tokenizer, capsys):
    tokens = torch.tensor([[15, 16, 17]])
    call = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    plain = model.generate(tokens, **call)
    stop = tokenizer.decode(plain[0, 6:8])
    theirs = model.generate(tokens, **call, stop_strings=[stop], tokenizer=tokenizer)
    ours = model.generate(
        tokens,
        **call,
        stopping_criteria=StoppingCriteriaList([StopStringCriteria(tokenizer, [stop])]),
        streamer=TextStreamer(tokenizer, skip_prompt=True),
        custom_generate=specframe.decoder(recipe),
    )
    assert ours.tolist() == theirs.tolist()
    assert tokenizer.decode(ours[0, 3:]) in capsys.readouterr().out


def test_the_callers_model_is_left_as_it_was(recipe, model):
    before = dict(model.named_modules())
    hooks = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in before.items()}
    model.generate(torch.tensor([[5, 6]]), max_new_tokens=5, custom_generate=specframe.decoder(recipe))
    after = dict(model.named_modules())
    assert before.keys() == after.keys()
    assert hooks == {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in after.items()}


@pytest.mark.parametrize("more", [6, -6])
def test_one_loop_decodes_a_model_whose_vocabulary_changes(recipe, model_folder, more):
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64)
    decoder = specframe.decoder(recipe)

    def both(tokens):
        call = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 2}
        texts = [model.generate(torch.tensor([tokens]), **call, **loop) for loop in ({}, {"custom_generate": decoder})]
        assert texts[0].tolist() == texts[1].tolist()
        return texts[0]

    before = both([5, 6, 7, 5, 6])
    model.resize_token_embeddings(size := model.config.vocab_size + more)
    both([5, 6, 7, 5, 6, size - 1])
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(model.get_output_embeddings().weight.roll(1, 0))
    assert both([5, 6, 7, 5, 6]).tolist() != before.tolist()
    model.set_output_embeddings(torch.nn.Linear(model.config.hidden_size, size, bias=False, dtype=model.dtype))
    both([5, 6, 7, 5, 6])
    model.float()  # bfloat16 ties tokens of an untrained head
    both([5, 6, 7])
