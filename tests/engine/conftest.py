import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def make_model(seed=0, vocab=64):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).double().eval()
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
