import pytest

from tests.seeing_model import save_picture, save_seeing_model


@pytest.fixture(scope="session")
def seeing_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    save_seeing_model(folder)
    return folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    return [save_picture(folder / f"{seed}.png", seed) for seed in (1, 2)]


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
