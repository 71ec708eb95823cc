"""An untrained EAGLE drafter with a narrower MLP, to train on: ``python narrow.py --out DIR``."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

from specframe.components.targets.hf import HFTarget
from specframe_eagle.drafter import Eagle

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo://state-5m", help="the target (default: %(default)s)")
    parser.add_argument("--width", type=int, default=448, help="units of the MLP (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    options = parser.parse_args()
    target = HFTarget(model=options.model)
    shape = copy.copy(target)
    shape.config = copy.deepcopy(target.config)
    shape.config.intermediate_size = options.width
    drafter = Eagle()
    drafter.bind(shape)
    drafter.save(options.out)
    print(f"{options.out}: {sum(weight.numel() for weight in drafter.module.parameters()):,} parameters")
