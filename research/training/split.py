"""Write EAGLE's trained drafter as one of FSPAD that computes the same: ``python split.py zoo://eagle-drafter OUT``.

Training goes on from it. The token's gate adds nothing yet (its last map is zero), and both halves of the layer's
output are EAGLE's one.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specframe.neural import checkpoint
from specframe.neural.weights.rounded import restore_matrices

DOWN = "layers.0.mlp.down_proj.weight"


def split(eagle: dict[str, Tensor], inner: int, seed: int) -> dict[str, Tensor]:
    """The tensors of FSPAD's network, from those of EAGLE's; the gate is `inner` wide, as the layer's MLP is."""
    random = torch.Generator().manual_seed(seed)
    hidden = eagle["fc.weight"].shape[0]
    gate = ("gate_proj", "up_proj")
    wide = {f"fc.mlp.{name}.weight": torch.randn(inner, hidden, generator=random) * 0.02 for name in gate}
    fusion = {f"fc.fc.{name}": eagle.pop(f"fc.{name}") for name in ("weight", "bias")}
    down = eagle.pop(DOWN)
    return {
        **eagle,
        **fusion,
        **wide,
        "fc.mlp.down_proj.weight": torch.zeros(hidden, inner),
        "fc.post_attention_layernorm.weight": torch.ones(hidden),
        DOWN: torch.cat([down, down]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", help="EAGLE's: a folder or zoo://name")
    parser.add_argument("out", help="a folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, out = checkpoint.locate(options.drafter), Path(options.out)
    stored = restore_matrices(load_file(folder / checkpoint.WEIGHTS))
    tensors = split(stored, checkpoint.read_config(folder)["intermediate_size"], options.seed)
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, out / checkpoint.WEIGHTS)
    shutil.copyfile(folder / checkpoint.CONFIG, out / checkpoint.CONFIG)
