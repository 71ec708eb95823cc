import pytest
import torch
from transformers import PreTrainedTokenizerFast

from specframe.engine.certificate.tiny import random_model


def make_model():
    """A random Llama with norms as small as its weights: it hangs on the last tokens, and soon repeats itself."""
    model = random_model(vocab=64, size=32, layers=3, eos=1)
    torch.manual_seed(9)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


def make_tokenizer():
    """One character a token, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [*"<>/", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?!"]
    vocabulary = {token: index for index, token in enumerate(letters[:64])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    return fast


@pytest.fixture(scope="session")
def model():
    return make_model()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def recipe(model_folder, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: falcon, block: 2}\n"
        "tree: {use: dynamic, depth: 4, width: 3, nodes: 8}\n"
        "verifier: {use: match}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 20}\n"
        "run: {prompts: [hello there, good morning], seed: 1, repeats: 1}\n"
    )
    return path
