"""Puts this package's helper modules within reach, and settles for one thread: the tensors are tiny."""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = map(str, (HERE, *(folder for folder in HERE.iterdir() if folder.is_dir())))
torch.set_num_threads(1)
