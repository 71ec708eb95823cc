"""Store a draft vocabulary for the head ``trimmed``: ``python vocabulary.py --counts FILE --vocab N --out FOLDER``.

``specframe train RECIPE --count-tokens FILE`` counts the tokens that the target writes; the most frequent
ones are kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specframe.components.heads import read_counts, store_vocabulary

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, required=True)
    parser.add_argument("--vocab", type=int, required=True, help="the target's vocabulary, as its config.json has it")
    parser.add_argument("--keep", type=int, default=8192)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    counts = read_counts(options.counts, options.vocab)
    tokens = counts.sort(descending=True, stable=True).indices[: options.keep]
    store_vocabulary(tokens, options.vocab, options.out)
    print(f"{int(counts[tokens].sum()) / int(counts.sum()):.1%} of what was counted, in {options.out}")
