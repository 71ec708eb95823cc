"""Untrained drafters of equally many parameters, with a linear or a gated fusion: ``python gate.py --out DIR``.

Dovetail's gate has twice the linear map's weights. The drafters with the linear map get as many more in their MLPs, so
that both kinds have the same number, to the last one where that divides among the layers. ``specframe train
--warm-start drafter.weights=DIR/linear-1`` trains them.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

from specframe.components.targets.hf import HFTarget
from specframe_eagle.drafter import Eagle

LAYERS = (1, 2, 5)


def widened(target: HFTarget, layers: int) -> HFTarget:
    """The target, whose drafters of so many layers have 2 H^2 weights more in their MLPs, or the least that is more."""
    wider = copy.copy(target)
    wider.config = copy.deepcopy(target.config)
    wider.config.intermediate_size += -(-2 * target.config.hidden_size // (3 * layers))  # an MLP is three matrices
    return wider


def drafters(target: HFTarget) -> dict[str, Eagle]:
    """The drafters by name, bound to the target."""
    made = {}
    for layers in LAYERS:
        gated, linear = Eagle(fusion="gated", layers=layers), Eagle(layers=layers)
        gated.bind(target)
        linear.bind(widened(target, layers))
        made |= {f"linear-{layers}": linear, f"gated-{layers}": gated}
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo://talk-7m", help="the target (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="a folder gets a folder for each")
    options = parser.parse_args()
    for name, drafter in drafters(HFTarget(model=options.model)).items():
        drafter.save(options.out / name)
        count = sum(weight.numel() for weight in drafter.module.parameters())
        print(f"{options.out / name}: {count:,} parameters")
