"""Models with recurrent layers as targets: trees, ragged batches, rows that leave, prompts read ahead, and controls."""

from __future__ import annotations

import pytest
import torch
from transformers import BambaConfig, BambaForCausalLM

from specframe.components.targets import probe
from specframe.components.targets.forward import recurrence, scans
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Drafts, TokenTree, Verdict
from specframe.neural.recurrent import Ancestry, RecurrentStates
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, VOCABULARY, batch
from tests.components.targets.registry import walk

COUNT = 22
ERROR = {"atol": 1e-5, "rtol": 1e-4}  # transformers computes norms of recurrences in float32


def hybrid(layers: int = 2, **changes: object) -> BambaForCausalLM:
    """A random hybrid: a layer of Mamba-2, and one of attention."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 16}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    config = BambaConfig(
        num_hidden_layers=layers,
        attn_layer_indices=list(range(1, layers, 2)),
        max_position_embeddings=256,
        **{"vocab_size": VOCABULARY, **sizes, **mamba, **ends, **changes},
    )
    model = BambaForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("A_log"):
                parameter.normal_(0, 0.25)
    return model


@pytest.mark.parametrize("nodes", [1, 2, 16])
def test_trees_equal_generate_in_a_ragged_batch(nodes, continuation, decode):
    model = hybrid(4)
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    seen = []
    found = decode(HFTarget.from_model(model), PROMPTS, expected, nodes=nodes, seen=seen)
    assert [row[:COUNT] for row in found] == expected
    if nodes == 16:
        counts = {tuple(committed.count.tolist()) for _, committed in seen[1:]}
        assert any(len(set(row)) > 1 for row in counts), "no two rows accepted unlike lengths"


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "falcon_h1"])
def test_rows_leave_and_change_places_midway(name, continuation, decode):
    model = walk.build(name)
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    found = decode(HFTarget.from_model(model), PROMPTS, expected, drop={0: [2, 0, 1], 3: [0, 2], 6: [1]})
    assert found[1][:COUNT] == expected[1]
    assert all(row == expected[place][: len(row)] for place, row in enumerate(found) if place != 1)


@pytest.mark.parametrize("name", ["bamba", "lfm2", "kimi_linear"])
def test_a_prompt_read_ahead_is_admitted_as_if_read_at_once(name):
    whole, pieces = (HFTarget.from_model(walk.build(name)) for _ in range(2))
    prompt = PROMPTS[2] * 3
    for target in (whole, pieces):
        target.open(3, 64)
    first = batch(PROMPTS[:1])
    for target in (whole, pieces):
        tree, _ = target.admit(first)
        target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(1).long(), torch.tensor([3])))
    assert [pieces.read_ahead(prompt, 6) for _ in range(2)] == [6, 12]
    drafted = TokenTree.root_only(torch.tensor([3]))
    for target in (whole, pieces):  # the session goes on in between
        target.score(drafted)
        target.commit(drafted, Verdict(drafted.tokens[:, :0], torch.zeros(1).long(), torch.tensor([4])))
    assert pieces.read_ahead(prompt, 100) == len(prompt) - 1
    (_, wanted), (tree, found) = (target.admit(batch([prompt])) for target in (whole, pieces))
    torch.testing.assert_close(found.logits, wanted.logits, **ERROR)
    both = TokenTree.root_only(torch.tensor([4, 9]))
    for target in (whole, pieces):
        target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(1).long(), torch.tensor([9])))
    torch.testing.assert_close(pieces.score(both).logits, whole.score(both).logits, **ERROR)


def test_a_second_session_knows_nothing_of_the_first():
    target = HFTarget.from_model(hybrid())
    _, first = admitted(target, batch(PROMPTS), 8)
    _, again = admitted(target, batch(PROMPTS), 8)
    assert torch.equal(first.logits, again.logits)


def test_the_model_and_its_modules_stay_as_they_are():
    model = hybrid()
    before = {name: module.__dict__.get("forward") for name, module in model.named_modules()}
    text = torch.tensor([PROMPTS[2]])
    wanted = model(text).logits
    target = HFTarget.from_model(model)
    admitted(target, batch(PROMPTS), 8)
    assert {name: module.__dict__.get("forward") for name, module in model.named_modules()} == before
    assert torch.equal(model(text).logits, wanted)
    torch.testing.assert_close(target.teach(text, torch.ones_like(text, dtype=torch.bool)).logits, wanted)


def test_memory_of_the_recurrent_layers_does_not_grow():
    target = HFTarget.from_model(hybrid())

    def kept(room: int) -> int:
        target.open(1, room)
        target.admit(batch([PROMPTS[2] * (room // 10)]))
        return sum(tensor.numel() for tensor in target._running().cache.states.layer(0).tensors)

    assert kept(20) == kept(200)


def test_the_fast_scan_and_the_paths_agree_on_a_model(monkeypatch):
    logits = {}
    for name, rules in (("fast", recurrence.SCANS), ("paths", recurrence.REFERENCES)):
        model = hybrid(4)
        monkeypatch.setattr(recurrence.with_scans, "__defaults__", (rules,))
        target = HFTarget.from_model(model)
        tree, _ = admitted(target, batch(PROMPTS), 40)
        target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(3).long(), torch.tensor([1, 2, 3])))
        parent = torch.tensor([[-1, 0, 0, 1, 3, 2]]).expand(3, -1)
        nodes = TokenTree(parent + 7, parent, parent > -2, parent * 0, levels=3)
        logits[name] = target.score(nodes).logits
        target.commit(
            nodes, Verdict(torch.tensor([[1, 3, 4], [2, 5, -1], [-1] * 3]), torch.tensor([3, 2, 0]), parent[:, 1])
        )
        logits[name] = torch.cat([logits[name], target.score(nodes).logits])
    torch.testing.assert_close(logits["fast"], logits["paths"], **ERROR)


def takes_in_a_rejected_node(monkeypatch):
    commit = RecurrentStates.commit

    def spoiled(self, accepted):
        last = self.paths.sees.shape[-1] - 1
        commit(self, [[*path, last] for path in accepted] if last else accepted)

    monkeypatch.setattr(RecurrentStates, "commit", spoiled)


def reads_the_neighbours_inputs(monkeypatch):
    def spoiled(self, width):
        places = torch.arange(self.sees.shape[1])[:, None] + torch.arange(width)
        return places.expand(len(self.sees), -1, -1)

    monkeypatch.setattr(Ancestry, "windows", spoiled)


def lets_padding_change_the_state(monkeypatch):
    monkeypatch.setattr(scans.ScanInputs, "ended", lambda self, lengths: self)


def lets_padding_change_the_window(monkeypatch):
    widen = RecurrentStates.widen

    def spoiled(self, index, inputs, width, which=0):
        if self.paths is None:
            self.aim(type(self.visibility)(self.visibility.start, [inputs.shape[2]] * len(inputs)), self.row)
        return widen(self, index, inputs, width, which)

    monkeypatch.setattr(RecurrentStates, "widen", spoiled)


@pytest.mark.parametrize(
    "spoil",
    [
        takes_in_a_rejected_node,
        reads_the_neighbours_inputs,
        lets_padding_change_the_state,
        lets_padding_change_the_window,
    ],
)
def test_controls_are_found_by_the_self_test(spoil, monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "cache_folder", lambda: tmp_path)
    HFTarget.from_model(hybrid())
    for note in tmp_path.rglob("*"):
        if note.is_file():
            note.unlink()
    spoil(monkeypatch)
    with pytest.raises(CompositionError, match="cannot be a target"):
        HFTarget.from_model(hybrid())


def test_what_needs_to_drop_tokens_is_refused_in_one_sentence(tmp_path):
    model = hybrid()
    target = HFTarget.from_model(model)
    text = torch.tensor([PROMPTS[0]])
    drafts = Drafts(text[:, :1, None], torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, 1, dtype=torch.bool))
    with pytest.raises(CompositionError, match=r"bamba cannot read texts that end in drafts: its recurrent layers"):
        target.teach(text, torch.ones_like(text, dtype=torch.bool), drafts)
    model.save_pretrained(tmp_path)
    with pytest.raises(CompositionError, match="bamba cannot be compiled: its recurrent layers keep one state"):
        HFTarget(model=str(tmp_path), compile=True)


def test_models_without_recurrent_layers_run_as_they_are(build):
    model = build("llama")
    assert not recurrence.mixers_of(model) and recurrence.unknown_of(model) is None
    assert HFTarget.from_model(model).parts.eager.model is model
