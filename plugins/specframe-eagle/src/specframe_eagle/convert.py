"""Conversion of a pickled EAGLE checkpoint to safetensors: `python -m specframe_eagle.convert FOLDER NEW_FOLDER`."""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from specframe import SpecframeError, WeightsError
from specframe.neural import checkpoint
from specframe_eagle.published import PICKLED


def convert(folder: Path, out: Path) -> None:
    """Writes config.json and model.safetensors of `folder`'s checkpoint, with names and values unchanged.

    Only tensors are unpickled, so a file that would run code is refused. Raises WeightsError when a file cannot be read
    or written.
    """
    config = checkpoint.read_config(folder)
    try:
        stored = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
        tensors = {name: tensor.clone().contiguous() for name, tensor in stored.items()}
    except (OSError, RuntimeError, EOFError, AttributeError, pickle.UnpicklingError) as error:
        raise WeightsError(f"cannot read {folder / PICKLED}: {checkpoint.reason(error)}") from error
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (
            checkpoint.replacing(out / checkpoint.WEIGHTS) as weights,
            checkpoint.replacing(out / checkpoint.CONFIG) as words,
        ):
            save_file(tensors, weights, metadata={"format": "pt"})
            words.write_text(text, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot write the checkpoint to {out}: {checkpoint.reason(error)}") from error


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m specframe_eagle.convert", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"the folder with config.json and {PICKLED}")
    parser.add_argument("out", type=Path, help="where config.json and model.safetensors go")
    options = parser.parse_args(arguments)
    try:
        convert(options.folder, options.out)
    except SpecframeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"drafter: {{use: eagle, weights: {options.out}}}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
