"""The page of which architectures decode as `generate` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import transformers

from tests.components.targets.registry.configs import reads_images
from tests.components.targets.registry.walk import COUNT, NODES, Row

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "architectures.md"

UNTRIED = "its texts are identical; no image was tried"


def render(rows: Sequence[Row]) -> str:
    """The page of what came out."""
    count = Counter(row.outcome for row in rows)
    identical = [row for row in rows if row.outcome == "identical"]
    drafting = [row for row in identical if not row.layers]
    parts = [
        "# Architectures\n",
        "<!-- Written by `python -m tests.components.targets.registry`: run it again to change the page. -->\n",
        "The table covers every causal language model in the registry of transformers "
        f"{transformers.__version__}, and every model that reads images and writes text, each tiny and with random "
        f"weights. Three text prompts of different lengths are decoded together by random trees of {NODES} nodes. "
        f"{COUNT} tokens, and the logits before each, are compared with `generate` of each prompt alone. "
        f"{count['identical']} decode identically, {count['refused']} are refused, {count['wrong']} decode wrongly. "
        "Any other model is tested when it is first loaded, by comparing a batch and a small tree with plain forward "
        "passes; the result is stored in the cache folder (`SPECFRAME_CACHE`).\n",
        "## Identical\n",
        _listed(row for row in identical if not reads_images(row.name)),
        "By the text decoder of a model that reads images, too:\n",
        _listed(row for row in identical if reads_images(row.name)),
        "## After images\n",
        "Results after [an image](../howto/model.md#images), if inputs could be made for a random model. Any other "
        "model is tested with the first image that it reads, by comparing a tree after it with plain forward passes.\n",
        *_table(((row.name, row.images or UNTRIED) for row in rows if _sees(row)), "after an image"),
        "## Own layers\n",
        f"Of these {len(identical)}, {len(drafting)} can [draft with their own layers](../methods/self.md): texts are "
        "identical if the first half of the layers drafts, or all but one, and verification resumes above them. The "
        "others are refused:\n",
        *_table((row.name, row.layers.removeprefix(f"{row.name} ")) for row in identical if row.layers),
    ]
    for outcome, title in (("refused", "Refused"), ("wrong", "Wrong"), ("not built", "Not tried")):
        chosen = [row for row in rows if row.outcome == outcome]
        if chosen:
            parts += [f"## {title}\n", *_table((row.name, row.detail.removeprefix(f"{row.name} ")) for row in chosen)]
    parts.append("*Not tried* means that no small model could be made, or that its own `generate` fails.\n")
    return "\n".join(parts)


def _listed(rows: Iterable[Row]) -> str:
    return ", ".join(f"`{row.name}`" for row in rows) + "\n"


def _sees(row: Row) -> bool:
    return row.images != "" or (row.outcome == "identical" and reads_images(row.name))


def _table(cells: Iterable[tuple[str, str]], title: str = "why") -> list[str]:
    lines = [f"| `{name}` | {why.replace('|', chr(92) + '|')} |" for name, why in cells]
    return [f"| architecture | {title} |\n|---|---|", *lines, ""]
