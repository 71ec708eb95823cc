import pytest


@pytest.fixture
def seeing(seeing_folder, tmp_path):
    """A recipe whose target sees."""
    path = tmp_path / "seeing.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{seeing_folder}', dtype: float64}}\n"
        "drafter: {use: lookup, ngram: 1, length: 3}\n"
        "verifier: match\n"
        "sampling: {max_new_tokens: 12}\n"
        "run: {chat: true, repeats: 0}\n"
    )
    return path
