"""A tiny neural target and a tiny feature drafter, enough to train."""

from __future__ import annotations

import json
import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from specframe.components.targets.hf import HFTarget
from specframe.kernel.capabilities import Promise
from specframe.kernel.types import PairSpec, Predicted, Teacher
from specframe.neural import checkpoint
from specframe.testing import tiny_target
from specframe.training.settings import TrainSettings
from specframe_falcon.glancing import Glancing

torch.set_num_threads(1)


def make_tiny_target(vocab: int = 40, dtype: torch.dtype = torch.float32) -> HFTarget:
    return tiny_target(vocab=vocab, size=16, dtype=dtype)


class TinyNet(nn.Module):
    """Two layers over the pair and the mean of the pairs of its block, itself included."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * size, 32)
        self.drop = nn.Dropout(dropout)
        self.outer = nn.Linear(32, size)

    def forward(self, pair: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return self.outer(self.drop(torch.tanh(self.inner(pair))))


class TinyDrafter:
    """A FeatureDrafter of any network over pairs, which remembers what it was asked.

    The network is called with the pairs [B, n, 2 D], their positions and a mask; without one it is a TinyNet.
    """

    taps = frozenset({"last"})
    promise = Promise()
    spec = PairSpec()
    levels = 1

    def __init__(
        self, target: HFTarget, block: int = 2, dropout: float = 0.0, net: type[nn.Module] | None = None
    ) -> None:
        self.target = target
        self.block = block
        made = TinyNet(target.config.hidden_size, dropout) if net is None else net(target.config)
        self.net = made.to(target.dtype)
        self.inputs: list[tuple[Tensor, Tensor]] = []

    @property
    def module(self) -> nn.Module:
        return self.net

    def save(self, folder) -> None:
        checkpoint.save(self.net, {"block": self.block}, folder)

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def predict(
        self, features: Tensor, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        self.inputs.append((features, tokens))
        return self.net(torch.cat([features, self.target.embed(tokens)], -1), positions, mask)

    def unroll(self, features: Tensor, tokens: Tensor, positions=None, mask=None) -> Predicted:
        predicted = self.predict(features, tokens, positions, mask)[:, :, None]
        return Predicted(predicted, predicted)

    def read(self, predicted: Predicted) -> Tensor:
        return self.logits(predicted.hidden)

    def logits(self, features: Tensor) -> Tensor:
        return self.target.head(features)


@pytest.fixture
def target() -> HFTarget:
    return make_tiny_target()


@pytest.fixture
def make_target():
    return make_tiny_target


@pytest.fixture
def make_drafter():
    return TinyDrafter


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def teacher(target) -> Teacher:
    """Three rows of 14 tokens, the last ones padded, the first tokens a prompt."""
    tokens = torch.randint(1, 40, (3, 14))
    mask = torch.ones(3, 14, dtype=torch.bool)
    mask[:, :3] = False
    mask[1, 9:] = False
    mask[2, 12:] = False
    return target.teach(tokens, mask)


@pytest.fixture
def numbered() -> Teacher:
    """Two rows of 7 tokens; the feature at position i of row b is 100 b + i."""
    batch, length = 2, 7
    tokens = torch.randint(1, 99, (batch, length))
    features = (100 * torch.arange(batch)[:, None] + torch.arange(length)).double()[..., None]
    return Teacher(tokens, torch.rand(batch, length) < 0.7, {"last": features}, torch.zeros(batch, length, 3))


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.jsonl"
    words = ["the cat sat", "on a mat", "and saw", "a dog run", "to the sea"]
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choice(words) for _ in range(5))}) for _ in range(24)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture
def settings(corpus, tmp_path):
    return TrainSettings(
        data=[corpus],
        rollout=Glancing(first=True),
        out=tmp_path / "out",
        steps=12,
        batch=4,
        length=40,
        lr=3e-3,
        validation=0.1,
        save_every=4,
        log_every=1,
        validate_every=6,
    )


TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer():
    """Byte-level, no merges: 256 bytes and an end token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(["</s>", *letters])}
    model = Tokenizer(models.BPE(vocab, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>", chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()
