"""The helper modules within reach; one thread, since the tensors are tiny."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
