"""A tiny neural target and a tiny feature drafter, enough to train."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specframe.kernel.types import Teacher
from specframe.neural import checkpoint

torch.set_num_threads(1)


class TinyTarget:
    """The trainable side of a target, over a random Llama."""

    def __init__(self, vocab: int = 40, dtype: torch.dtype = torch.float32) -> None:
        self.config = LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=vocab,
            max_position_embeddings=128,
        )
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.model = LlamaForCausalLM(self.config).to(dtype).eval().requires_grad_(False)
            for p in self.model.parameters():
                p.normal_(0, 0.3)
        self.vocab_size = vocab
        self.context = 128
        self.rewinds = True
        self.device = torch.device("cpu")
        self.dtype = dtype

    def request(self, taps): ...

    def prefill(self, prompts, room): ...

    def score(self, tree): ...

    def commit(self, tree, verdict): ...

    def keep(self, rows): ...

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.model.embed_tokens(tokens)

    def head(self, features: Tensor) -> Tensor:
        return self.model.lm_head(features)

    @torch.no_grad()
    def teach(self, tokens: Tensor, mask: Tensor) -> Teacher:
        last = self.model.model(tokens, use_cache=False).last_hidden_state
        return Teacher(tokens, mask, {"last": last}, self.head(last))


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
    draws = None
    nodes = None

    def __init__(self, target: TinyTarget, block: int = 2, dropout: float = 0.0) -> None:
        self.target = target
        self.block = block
        self.net = TinyNet(target.config.hidden_size, dropout).to(target.dtype)
        self.inputs: list[tuple[Tensor, Tensor]] = []

    @property
    def module(self) -> nn.Module:
        return self.net

    def save(self, folder) -> None:
        checkpoint.save(self.net, {"block": self.block}, folder)

    def predict(self, features: Tensor, tokens: Tensor) -> Tensor:
        self.inputs.append((features, tokens))
        return self.net(torch.cat([features, self.target.embed(tokens)], -1))

    def logits(self, features: Tensor) -> Tensor:
        return self.target.head(features)


@pytest.fixture
def target() -> TinyTarget:
    return TinyTarget()


@pytest.fixture
def make_target():
    return TinyTarget


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
