"""A tiny neural target and a tiny feature drafter, enough to train."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from specframe.components.targets.hf import HFTarget
from specframe.kernel.promises import Promise
from specframe.kernel.types import PairSpec, Predicted, Teacher
from specframe.neural import checkpoint
from specframe.testing import tiny_target

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

    def forward(self, pair: Tensor) -> Tensor:
        return self.outer(self.drop(torch.tanh(self.inner(pair))))


class TinyDrafter:
    """A FeatureDrafter that sees one pair a position, plus the end of its block."""

    taps = frozenset({"last"})
    promise = Promise()
    spec = PairSpec()
    levels = 1

    def __init__(self, target: HFTarget, block: int = 2, dropout: float = 0.0) -> None:
        self.target = target
        self.block = block
        self.net = TinyNet(target.config.hidden_size, dropout).to(target.dtype)
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
        return self.net(torch.cat([features, self.target.embed(tokens)], -1))

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
