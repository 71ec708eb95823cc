"""specframe: speculative decoding with interchangeable parts, configured by recipes and certified lossless.

These are the names for users: pipelines, sessions, measurements, errors. Authors of plugins find the contracts in
`specframe.plugin`, what neural drafters share in `specframe.neural`, and the conformance kit in `specframe.testing`.
Importing any of them imports no torch: every name is loaded on first use.
"""

import os
import sys

from specframe._exports import exports

if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    # Between two operators the threads of torch's OpenMP wait for more work in a busy loop, some 3 ms by default, on a
    # core that the native passes need. The number is read when torch is loaded; without it they end these threads.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__getattr__, __dir__, __all__ = exports(__name__, __file__)
