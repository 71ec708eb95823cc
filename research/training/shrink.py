"""Write a trained drafter in 8 bits, as the package keeps it: ``python shrink.py runs/smollm2-135m-medusa OUT``."""

from __future__ import annotations

import argparse

from specframe.neural import checkpoint

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what training wrote")
    parser.add_argument("out", help="a folder")
    options = parser.parse_args()
    checkpoint.shrink(options.folder, options.out)
