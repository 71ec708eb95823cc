"""One thread: the arrays are tiny."""

import torch

torch.set_num_threads(1)
