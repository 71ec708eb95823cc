"""Every model of transformers' registries that writes texts, tiny and random: which ones decode as `generate` does.

`python -m tests.components.targets.registry` decodes all of them and writes docs/reference/architectures.md;
`python -m tests.components.targets.registry llama gpt2` decodes some and prints what came out.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
import transformers

from tests.components.targets.images import FAMILIES
from tests.components.targets.registry.configs import names, reads_images
from tests.components.targets.registry.page import PAGE, render
from tests.components.targets.registry.pictures import decodes_after_image
from tests.components.targets.registry.walk import examine


def main(chosen: Sequence[str]) -> int:
    """Examines the chosen architectures, or all; 1 if any decodes wrongly."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    for name in chosen or names():
        rows.append(examine(name))
        if rows[-1].outcome == "identical" and (reads_images(name) or name in FAMILIES):
            rows[-1] = replace(rows[-1], images=decodes_after_image(name))
        print(f"{rows[-1].outcome:10} {name:28} {rows[-1].images} {rows[-1].detail}{rows[-1].layers}"[:230], flush=True)
    print(Counter(row.outcome for row in rows))
    if not chosen:
        PAGE.write_text(render(rows), encoding="utf-8")
    return int(any("wrong" in (row.outcome, row.images) for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
