"""Decoding a batch: the session that feature drafters share, with the LSTM's state from pair to pair."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specframe.neural import FeatureSession
from specframe_falcon.network import LSTM_LAYERS, Network

SPARE = 256
"""How many slots more than it needs a cache gets when it is made or grown."""


def open_session(network: Network, embed: Callable[[Tensor], Tensor], block: int, batch: int) -> FeatureSession:
    """The decoding state of `batch` rows before their prompts; the LSTM starts from zeros."""
    start = next(network.parameters()).new_zeros(LSTM_LAYERS, batch, network.lstm.hidden_size)
    return FeatureSession(network.layer, network.recall, embed, batch, block=block, state=(start, start), spare=SPARE)
