"""Scans over trees against one node at a time, and the fast way against transformers' own function along the paths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.bamba import modeling_bamba as bamba
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from specframe.components.targets.forward import scans
from specframe.components.targets.forward.recurrence import DELTA, REFERENCES
from specframe.native.visibility import Causal, Tree
from specframe.neural.recurrent import RecurrentStates
from tests.neural.test_recurrent import parents, path_of, tree_of

HEADS, WIDE, GROUPS, SIZE = 4, 3, 2, 5
CLOSE = {"atol": 2e-5, "rtol": 1e-4}  # transformers computes in float32


def mamba_inputs(batch: int, count: int) -> dict[str, object]:
    return {
        "hidden_states": torch.randn(batch, count, HEADS, WIDE),
        "dt": torch.randn(batch, count, HEADS),
        "A": -torch.rand(HEADS) - 0.1,
        "B": torch.randn(batch, count, GROUPS, SIZE),
        "C": torch.randn(batch, count, GROUPS, SIZE),
        "chunk_size": 4,
        "D": torch.randn(HEADS),
        "z": None,
        "dt_bias": torch.randn(HEADS),
        "dt_softplus": True,
        "dt_limit": (0.0, float("inf")),
        "return_final_states": True,
    }


def delta_inputs(batch: int, count: int, wide_gate: bool = False) -> dict[str, object]:
    gate = (batch, count, HEADS, SIZE) if wide_gate else (batch, count, HEADS)
    return {
        "query": torch.randn(batch, count, HEADS, SIZE),
        "key": torch.randn(batch, count, HEADS, SIZE),
        "value": torch.randn(batch, count, HEADS, SIZE),
        "g": -torch.rand(gate),
        "beta": torch.rand(batch, count, HEADS),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }


KINDS = {
    "mamba2": (mamba_inputs, lambda: scans.AncestorScan()),
    "mamba2 by paths": (mamba_inputs, lambda: REFERENCES["mamba2_chunk_scan"](bamba.mamba2_chunk_scan)),
    "delta rule": (delta_inputs, lambda: scans.PathScan(qwen.torch_chunk_gated_delta_rule, DELTA, "initial_state")),
    "kimi": (
        lambda batch, count: delta_inputs(batch, count, wide_gate=True),
        lambda: scans.PathScan(kimi.chunk_kimi_delta_attention, DELTA, "initial_state"),
    ),
}


def part(inputs: dict[str, object], batch: int, count: int, row: int, nodes: list[int]) -> dict[str, object]:
    """The inputs of some nodes of one row."""

    def cut(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dim() > 2 and value.shape[:2] == (batch, count):
            return value[row : row + 1, nodes]
        return value

    return {name: cut(value) for name, value in inputs.items()}


def read(scan: scans.Scan, inputs: dict[str, object], lengths: list[int], states: RecurrentStates, start: int = 0):
    states.aim(Causal(start, lengths), 0)
    y, state = scan(states, 0, inputs)
    states.put(0, state)
    return y


def after(scan: scans.Scan, texts: list[dict[str, object]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs at the end of texts read one after the other by a row alone, and the state there."""
    states = RecurrentStates(1)
    for place, text in enumerate(texts):
        y = read(
            scan, text, [next(v.shape[1] for v in text.values() if torch.is_tensor(v) and v.dim() > 2)], states, place
        )
    assert states.layer(0).state is not None
    return y[0, -1], states.layer(0).state[0]


@pytest.mark.parametrize("kind", KINDS)
@given(parents(), st.data())
def test_a_tree_is_scanned_and_committed_as_its_paths_are(kind, parent, data):
    torch.manual_seed(data.draw(st.integers(0, 99)))
    make, build = KINDS[kind]
    scan, batch, nodes = build(), len(parent), len(parent[0])
    lengths = [data.draw(st.integers(1, 6)) for _ in parent]
    prompt, draft = make(batch, max(lengths)), make(batch, nodes)
    draft |= {name: prompt[name] for name in ("A", "D", "dt_bias") if name in prompt}
    states = RecurrentStates(batch)
    read(scan, prompt, lengths, states)
    tree = tree_of(parent)
    states.aim(Tree(tree.ancestors, torch.tensor(lengths), max(lengths)), 0)
    y, _ = scan(states, 0, draft)
    assert y.is_contiguous() and y.shape[:2] == (batch, nodes)
    taken = [path_of(row, data.draw(st.integers(0, nodes - 1))) for row in parent]
    states.commit(taken)
    for row, above in enumerate(parent):
        text = part(prompt, batch, max(lengths), row, list(range(lengths[row])))
        for node in range(nodes):
            alone, _ = after(scan, [text, part(draft, batch, nodes, row, path_of(above, node))])
            torch.testing.assert_close(y[row, node], alone, **CLOSE)
        _, state = after(scan, [text, part(draft, batch, nodes, row, taken[row])])
        assert states.layer(0).state is not None
        torch.testing.assert_close(states.layer(0).state[row], state, **CLOSE)


@pytest.mark.parametrize("lengths", [[1], [64], [65], [130, 3, 64]])
def test_texts_in_chunks_are_what_transformers_reads(lengths):
    torch.manual_seed(0)
    inputs = mamba_inputs(len(lengths), max(lengths))
    fast, slow = RecurrentStates(len(lengths)), RecurrentStates(len(lengths))
    found = read(scans.AncestorScan(), inputs, lengths, fast)
    wanted = read(KINDS["mamba2 by paths"][1](), inputs, lengths, slow)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], wanted[row, :length], **CLOSE)
    torch.testing.assert_close(fast.layer(0).state, slow.layer(0).state, **CLOSE)


def test_padding_that_does_not_leave_the_state_alone_is_found(monkeypatch):
    """Control: a scan that reads the positions after a row's end as if they were tokens."""
    torch.manual_seed(0)
    inputs = mamba_inputs(2, 6)
    monkeypatch.setattr(scans.ScanInputs, "ended", lambda self, lengths: self)
    states = RecurrentStates(2)
    read(scans.AncestorScan(), inputs, [6, 2], states)
    _, alone = after(scans.AncestorScan(), [part(inputs, 2, 6, 1, [0, 1])])
    assert states.layer(0).state is not None
    assert (states.layer(0).state[1] - alone).abs().max() > 1e-2


@given(parents(), st.integers(2, 4))
def test_a_convolution_reads_along_the_paths(parent, width):
    torch.manual_seed(0)
    tree = tree_of(parent)
    batch, nodes = tree.tokens.shape
    inputs, weight, bias = torch.randn(batch, 3, width - 1 + nodes), torch.randn(3, width), torch.randn(3)
    paths = scans.Ancestry(tree.ancestors)
    found = scans.convolve(paths, inputs, weight, bias, "silu")
    for row, above in enumerate(parent):
        for node in range(nodes):
            places = [*range(width - 1), *(width - 1 + on for on in path_of(above, node))]
            wanted = bamba.causal_conv1d_fn(inputs[row : row + 1, :, places], weight, bias, activation="silu")[0, :, -1]
            torch.testing.assert_close(found[row, :, node], wanted)
