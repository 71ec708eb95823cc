"""Train the byte-level BPE tokenizer: ``python tokenizer.py --splits DIR --out FOLDER``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from documents import KINDS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|bos|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>")
"""Special tokens; the position of each is its id."""

VOCABULARY = 4096
CONTEXT = 1024

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'].strip() }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""A role token opens each message; only the assistant's turns are closed, since only those are generated."""

# Bytes of each kind that the trainer sees. Equal shares would waste merges on identifiers of single modules.
SAMPLE_BYTES = {"text": 14_000_000, "dialogue": 12_000_000, "maths": 4_000_000, "code": 10_000_000}


def sample(splits: Path, scale: float = 1.0) -> Iterator[str]:
    """Yield the beginnings of the shuffled training splits."""
    for kind in KINDS:
        left = SAMPLE_BYTES[kind] * scale
        with (splits / "train" / f"{kind}.jsonl").open(encoding="utf-8") as handle:
            for line in handle:
                record = json.loads(line)
                for text in [record["text"]] if "text" in record else [item["content"] for item in record["messages"]]:
                    left -= len(text)
                    yield text
                if left <= 0:
                    break


def train(texts: Iterator[str], vocabulary: int = VOCABULARY, context: int = CONTEXT) -> PreTrainedTokenizerFast:
    """Train a tokenizer on ``texts`` and wrap it for transformers."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|bos|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", "<|system|>"],
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that older and newer releases of transformers both read it.

    The library writes the class name and the key of its own release, which other releases do not know.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    extra = config.pop("extra_special_tokens", None)
    config["additional_special_tokens"] = extra or config.get("additional_special_tokens", [])
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="model folder to save the tokenizer in")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the size of the sample")
    parser.add_argument("--entries", type=int, default=VOCABULARY, help="size of the vocabulary")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens that the model reads at most")
    arguments = parser.parse_args()
    texts = sample(arguments.splits, arguments.scale)
    tokenizer = train(texts, arguments.entries, arguments.context)
    save(tokenizer, arguments.out)
    print(f"{len(tokenizer)} entries saved in {arguments.out}")


if __name__ == "__main__":
    main()
