"""The version of specframe, which is that of its plugin interface."""

__version__ = "0.3.0"
