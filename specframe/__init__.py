"""specframe: speculative decoding from parts, by recipe, with a certificate of losslessness.

These are the names for users: pipelines, sessions, measurements, errors. Authors of plugins find the contracts in
`specframe.plugin`, what neural drafters share in `specframe.neural`, and the conformance kit in `specframe.testing`.
Importing any of them imports no torch: every name is loaded on first use.
"""

from specframe._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
