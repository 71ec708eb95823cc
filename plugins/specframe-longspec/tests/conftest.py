"""Puts this folder's helper modules within reach, and settles for one thread: the tensors are tiny."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
