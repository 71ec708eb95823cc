"""Falcon's trained modules: a two-layer LSTM that fuses tokens with features, and one decoder layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from specframe import CompositionError
from specframe.neural import (
    Cells,
    DecoderLayer,
    FeatureNetwork,
    LevelModules,
    Quantization,
    State,
    round_layers,
    round_linear,
    tensor_on,
)
from specframe.plugin import PairSpec
from specframe_falcon.recurrence import recur

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig

Cell = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
"""Maps of an LSTM layer's input and of its hidden state to the four gates, [.., D] -> [.., 4H] each."""
LSTM_LAYERS = 2
FEW = 4
"""Maximum number of pairs of a row for which the LSTM is unrolled on a CPU; every call of nn.LSTM packs its weights."""


def multiplies_bfloat16() -> bool:
    """Returns whether oneDNN supports bfloat16 on this processor; without AVX-512 it does not."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or not torch.backends.mkldnn.is_available() or bool(supported())


class FalconNetwork(FeatureNetwork):
    """Falcon's relaxed causal semi-autoregressive head (Falcon, Section 3.2).

    A pair is the embedding of token i + 1 followed by feature i, [.., 2H], as in EAGLE. The LSTM carries its state over
    the whole sequence and halves the width. A decoder layer of the target's type, with its input norm, attends under
    the relaxed causal mask. With several layers, only the last one does; the others are causal, so that keys and values
    depend only on the pairs up to their own. No norm follows, because the output is compared with features that have
    passed the target's final norm.
    """

    spec = PairSpec(side_by_side=False)

    def __init__(self, config: PretrainedConfig, block: int, dropout: float, layers: int = 1) -> None:
        super().__init__()
        self.block = block
        hidden = config.hidden_size
        self.lstm = nn.LSTM(2 * hidden, hidden, LSTM_LAYERS, batch_first=True, dropout=dropout)
        self.layer = DecoderLayer(config, layers)
        self.cells: Cells | None = None
        """The LSTM's quantized layers, if the network is quantized."""

    @property
    def native(self) -> LevelModules | None:
        """The modules with which native code can compute it, if its LSTM is quantized."""
        return None if self.cells is None else LevelModules(self.layer, cells=self.cells, block=self.block)

    def forward(
        self, pairs: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Returns the predicted features of whole texts, [B, L, 2H] -> [B, L, H]; the last block ends with the text.

        A mask or a cache raises CompositionError, because the LSTM reads the whole text whatever a mask hides.
        """
        if mask is not None or cache is not None:
            raise CompositionError(
                "drafter falcon predicts plain sequences only, since its LSTM runs along them; use the rollout "
                "glancing or teacher-forced, or the drafter eagle"
            )
        return super().forward(pairs, positions)

    def start(self, batch: int) -> State:
        """Returns the LSTM's hidden and cell state before the first pair: zeros, [2, B, H] each."""
        zeros = next(self.lstm.parameters()).new_zeros(LSTM_LAYERS, batch, self.lstm.hidden_size)
        return zeros, zeros

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the LSTM's outputs for the next pairs of every row, and its state after them.

        [B, M, 2H] -> [B, M, H]. The state is the LSTM's hidden and cell state, [2, B, H] each. With `counts`, a row has
        that many pairs, and its outputs beyond them are zeros.
        """
        if self.cells is not None and pairs.shape[1] <= self.cells.longest and not torch.is_grad_enabled():
            return self._by_cells(self.cells, pairs, state, counts)
        if counts is not None and min(counts) < max(counts):
            longest_first = sorted(range(len(counts)), key=lambda row: -counts[row])  # torch's sort waits for a GPU
            order = tensor_on(pairs.device, longest_first)
            lengths = torch.tensor([counts[row] for row in longest_first])
            packed = pack_padded_sequence(pairs[order], lengths, batch_first=True)
            outputs, (hidden, cell) = self._run(packed, (state[0][:, order], state[1][:, order]))
            back = order.argsort()
            return pad_packed_sequence(outputs, batch_first=True)[0][back], (hidden[:, back], cell[:, back])
        if pairs.is_cpu and pairs.shape[1] <= FEW:
            return self._unroll(pairs, state)
        return self._run(pairs, state)

    def text_inputs(self, pairs: Tensor) -> Tensor:
        """Returns the LSTM's outputs along whole texts, [B, L, 2H] -> [B, L, H].

        If autocast trains in bfloat16 on a CPU, it uses `recur`, whose backward pass takes half the time.
        """
        if not (
            pairs.is_cpu and torch.is_grad_enabled() and torch.is_autocast_enabled("cpu") and multiplies_bfloat16()
        ):
            return self._run(pairs)[0]
        outputs = pairs
        for number, (into, back, bias_into, bias_back) in enumerate(self.lstm.all_weights):
            if number:
                outputs = dropout(outputs, self.lstm.dropout, self.training)
            before = back.new_zeros(len(pairs), self.lstm.hidden_size)
            outputs, *_ = recur(linear(outputs, into, bias_into + bias_back), back, before, before)
        return outputs

    def _run(self, pairs: Any, state: State | None = None) -> tuple[Any, State]:
        """Runs nn.LSTM; without bfloat16 on the processor autocast stays in float32, since oneDNN's product fails."""
        self.lstm.flatten_parameters()  # cuDNN needs contiguous weights; loading and moving break them up
        if state is not None:
            state = state[0].contiguous(), state[1].contiguous()  # cuDNN requires contiguous states
        if torch.is_autocast_enabled("cpu") and not multiplies_bfloat16():
            with torch.autocast("cpu", enabled=False):
                outputs, ends = self.lstm(pairs.float(), state)
        else:
            outputs, ends = self.lstm(pairs, state)
        return outputs, ends

    def _by_cells(self, cells: Cells, pairs: Tensor, state: State, counts: list[int] | None) -> tuple[Tensor, State]:
        """Runs the native cells, row by row if the rows have different numbers of pairs."""
        if counts is None or min(counts) == max(counts):
            return cells.run(pairs, *state)
        outputs, ends = pairs.new_zeros(*pairs.shape[:2], self.lstm.hidden_size), []
        for row, count in enumerate(counts):
            outputs[row : row + 1, :count], end = cells.run(
                pairs[row : row + 1, :count], *(part[:, row : row + 1] for part in state)
            )
            ends.append(end)
        hidden, cell = (torch.cat(parts, 1) for parts in zip(*ends, strict=True))
        return outputs, (hidden, cell)

    def _unroll(self, pairs: Tensor, state: State) -> tuple[Tensor, State]:
        """Computes the LSTM pair by pair, without dropout; on a CPU this avoids packing its weights."""
        outputs, ends = pairs, []
        for (into, back), hidden, cell in zip(self._maps(), *state, strict=True):
            steps = []
            for x in into(outputs).unbind(1):  # [B, 4H]
                gates = x + back(hidden)
                enter, forget, _, leave = gates.sigmoid().chunk(4, 1)
                content = gates.chunk(4, 1)[2].tanh()
                cell = torch.addcmul(forget * cell, enter, content)
                hidden = leave * cell.tanh()
                steps.append(hidden)
            outputs = torch.stack(steps, 1)  # [B, M, H]
            ends.append((hidden, cell))
        hidden, cell = (torch.stack(parts) for parts in zip(*ends, strict=True))
        return outputs, (hidden, cell)

    def _maps(self) -> list[Cell]:
        return [
            (partial(linear, weight=into, bias=bias_into + bias_back), partial(linear, weight=back))
            for into, back, bias_into, bias_back in self.lstm.all_weights
        ]

    def rounded(self, quantization: Quantization) -> FalconNetwork:
        """Returns a quantized copy; the LSTM, the largest part, is quantized where a cycle runs it pair by pair."""
        network = round_layers(self, quantization)
        if self.lstm.hidden_size % 32 == 0:
            network.cells = Cells(
                [
                    (round_linear(into, bias_into + bias_back, quantization), round_linear(back, None, quantization))
                    for into, back, bias_into, bias_back in self.lstm.all_weights
                ]
            )
        return network
