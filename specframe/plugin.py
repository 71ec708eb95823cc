"""The contracts that plugins are written against: interfaces, the values between them, and what built-in parts share.

Errors, `Sampling`, `Session` and `Pipeline` are in `specframe`; networks' building blocks in `specframe.neural`.
"""

from specframe._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
