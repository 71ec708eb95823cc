"""Write a trained drafter in 8 or 4 bits, as the package keeps it: ``python shrink.py runs/my-drafter OUT``."""

from __future__ import annotations

import argparse

from specframe.neural import checkpoint

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what training wrote")
    parser.add_argument("out", help="a folder")
    parser.add_argument("--bits", type=int, choices=(4, 8), default=8)
    options = parser.parse_args()
    checkpoint.shrink(options.folder, options.out, options.bits)
