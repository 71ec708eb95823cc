"""Drafts equal a literal forward pass, training predicts what drafts are, and published weights come in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import longspec_texts as texts
import pytest
import torch
from safetensors.torch import save_file

import specframe
from specframe import CompositionError, InputError, WeightsError
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.components.targets.table import TableTarget
from specframe.inspect.doctor_variants import attempts
from specframe.plugin import Cycle
from specframe_self.longspec.drafter import LongSpec
from specframe_self.longspec.network import UNVERIFIED

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [3, 4, 1]]
TREE = {"use": "dynamic", "depth": 3, "width": 2, "nodes": 7}


def pipeline(drafter: LongSpec) -> specframe.Pipeline:
    return specframe.compose(target=texts.target(), drafter=drafter, tree=TREE, verifier="match")


def watched(drafter: LongSpec, prompt: list[int], new: int) -> list[tuple[list[int], list[list[int]], list]]:
    """Each draft of an answer: the text up to the root, and the logits of every node that was expanded, by path."""
    made, seen = pipeline(drafter), []
    expand = drafter.expand

    def watch(frontier):
        proposal = expand(frontier)
        if text == prompt:  # the first root came with the admission, which is no cycle
            text.append(int(frontier.tree.tokens[0, 0]))
        for place, node in enumerate(frontier.nodes[0].tolist()):
            path, at = [], node
            while at > 0:
                path.insert(0, int(frontier.tree.tokens[0, at]))
                at = int(frontier.tree.parent[0, at])
            seen.append((list(text), path, proposal.logits[0, place, 0].clone()))
        return proposal

    text = list(prompt)

    def grow(cycle: Cycle) -> None:
        text.extend(cycle.committed.tokens[0, : int(cycle.committed.count[0])].tolist())

    drafter.expand = watch
    try:
        requests = made.requests([prompt], replace(made.sampling, temperature=0.0, max_new_tokens=new))
        with made.open(requests) as session:
            session.run(requests, grow)
    finally:
        del drafter.expand
    return seen


@pytest.mark.parametrize("window", [512, 5])
def test_drafts_are_the_literal_forward(window: int) -> None:
    """A node of any depth sees the keys of the tokens before the root alone, the newest entries and its own path."""
    drafter = texts.bound(window=window)
    depths = set()
    for text, path, logits in watched(drafter, PROMPTS[0], 8):
        whole = [*text, *path]
        literal = texts.literal(drafter, whole, len(text) - 1, window + len(path))
        torch.testing.assert_close(logits, drafter.logits(literal), rtol=1e-5, atol=1e-5)
        depths.add(len(path))
    assert depths == {0, 1, 2}


def test_training_predicts_what_drafts_do() -> None:
    """Unrolled without hidden keys, an entry has the logits of a draft's root there."""
    drafter = texts.bound()
    text = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
    features = drafter.target.teach(text, torch.ones_like(text).bool()).features[drafter.network.source.tap]
    with torch.no_grad():
        predicted = drafter.unroll(features[:, :-1], text[:, 1:]).hidden[0, :, 0]
    for end in range(2, 10):
        literal = texts.literal(drafter, text[0, :end].tolist(), end - 1, 512)
        torch.testing.assert_close(predicted[end - 2], literal, rtol=1e-5, atol=1e-5)


def test_training_hides_the_keys_of_tokens_that_are_not_verified(monkeypatch) -> None:
    """An entry's prediction does not depend on the features of the tokens just before it, up to three."""
    drafter = texts.bound()
    drafter.module.train()
    text = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
    features = drafter.target.teach(text, torch.ones_like(text).bool()).features[drafter.network.source.tap][:, :-1]
    changed = features.clone()
    changed[:, 4] += 1.0
    for hidden in range(UNVERIFIED):
        monkeypatch.setattr(torch, "randint", lambda *_, hidden=hidden: torch.tensor(hidden))
        with torch.no_grad():
            one, other = (drafter.unroll(each, text[:, 1:]).hidden[0, :, 0] for each in (features, changed))
        differs = [bool((a - b).abs().max() > 1e-9) for a, b in zip(one, other, strict=True)]
        assert differs == [entry >= 4 + hidden for entry in range(8)]


def test_text_is_that_of_plain_decoding_in_batches_and_rows_that_leave() -> None:
    drafter = texts.bound(window=6)
    made = pipeline(drafter)
    plain = made.plain()
    lengths = [40, 13]
    together = made.generate(PROMPTS, max_new_tokens=40).tokens
    for prompt, tokens, length in zip(PROMPTS, together, lengths, strict=True):
        assert tokens == plain.generate([prompt], max_new_tokens=40).tokens[0]
        assert made.generate([prompt], max_new_tokens=length).tokens[0] == tokens[:length]
    queue = [[1 + i, 2 + i, 3] for i in range(5)]
    assert made.generate(queue, max_new_tokens=9).tokens == plain.generate(queue, max_new_tokens=9).tokens


def test_the_drafters_memory_is_constant() -> None:
    drafter = texts.bound(window=6)
    made, sizes = pipeline(drafter), []
    for length in (30, 300):
        made.generate([[1, 2, 3]], max_new_tokens=length)
        sizes.append(drafter._session.cache.capacity)
    assert sizes[0] == sizes[1]


def test_it_learns() -> None:
    drafter = texts.bound(dtype=torch.float32)
    drafter.module.train()
    text = torch.randint(0, texts.VOCAB, (4, 24), generator=torch.Generator().manual_seed(1))
    teacher = drafter.target.teach(text, torch.ones_like(text).bool())
    optimizer = torch.optim.Adam(drafter.module.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        student = TeacherForced(noise=0)(drafter, teacher, 0.0)
        labels = text.gather(1, (student.position + 1).clamp(max=23))
        loss = torch.nn.functional.cross_entropy(student.logits[:, :-1].flatten(0, 1), labels[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(part.grad is not None for part in drafter.module.parameters())


def publish(folder: Path, prefix: str = "", **change: torch.Tensor) -> dict[str, torch.Tensor]:
    """Made-up weights under the published names: its cross-attention has maps for keys and values that are not used."""
    own = texts.bound(dtype=torch.float32).module.state_dict()
    chance = torch.Generator().manual_seed(5)
    tensors = {name: torch.randn(part.shape, generator=chance).half() for name, part in own.items()}
    for name in ("k_proj", "v_proj"):
        for kind in ("weight", "bias"):
            shape = own[f"self_attn.{name}.{kind}"].shape
            tensors[f"cross_attn.{name}.{kind}"] = torch.randn(shape, generator=chance).half()
    folder.mkdir(exist_ok=True)
    save_file({prefix + name: part for name, part in (tensors | change).items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaGlide"], "hidden_size": texts.SIZE}))
    return tensors


PUBLISHED = {
    *(f"self_attn.{name}_proj.{kind}" for name in "qkv" for kind in ("weight", "bias")),
    *(f"cross_attn.{name}_proj.{kind}" for name in "qkv" for kind in ("weight", "bias")),
    *(f"{part}_attn.o_proj.weight" for part in ("self", "cross")),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *(f"{name}_layernorm.weight" for name in ("input", "post_self_attention", "post_cross_attention")),
}


@pytest.mark.parametrize("prefix", ["", "model.layers.0."])
def test_published_weights_come_in_and_ours_go_out_and_in(prefix: str, tmp_path: Path) -> None:
    tensors = publish(tmp_path / "theirs", prefix)
    assert tensors.keys() == PUBLISHED
    drafter = LongSpec(weights=str(tmp_path / "theirs"))
    drafter.bind(texts.target(dtype=torch.float32))
    state = drafter.module.state_dict()
    assert state.keys() == PUBLISHED - {f"cross_attn.{n}_proj.{k}" for n in "kv" for k in ("weight", "bias")}
    for name, part in state.items():
        assert torch.equal(part, tensors[name].float()), name
    drafter.save(tmp_path / "ours")
    again = LongSpec(weights=str(tmp_path / "ours"))
    again.bind(texts.target(dtype=torch.float32))
    for name, part in again.module.state_dict().items():
        torch.testing.assert_close(part, state[name], rtol=1e-2, atol=1e-2)  # stored in bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"self_attn.q_proj.weight": torch.ones(4, 8)}, "self_attn.q_proj.weight: has shape"),
        ({"norm.weight": torch.ones(8)}, "norm.weight: unexpected"),
        ({"mlp.up_proj.weight": torch.full((16, 8), torch.nan)}, "mlp.up_proj.weight"),
    ],
)
def test_published_weights_that_do_not_fit_are_refused(change, message: str, tmp_path: Path) -> None:
    publish(tmp_path, **change)
    with pytest.raises(WeightsError, match=message):
        LongSpec(weights=str(tmp_path)).bind(texts.target(dtype=torch.float32))


def test_bad_input_is_refused_in_a_line() -> None:
    with pytest.raises(InputError, match="longspec: window must be at least 1"):
        LongSpec(window=0)
    with pytest.raises(specframe.SpecframeError, match="a window of 3 tokens, and the tree is 3 deep"):
        pipeline(LongSpec(window=3))
    drafter = texts.bound()
    with pytest.raises(CompositionError, match="trained along single texts"):
        drafter.unroll(torch.zeros(1, 4, texts.SIZE), torch.ones(1, 4).long(), mask=torch.ones(1, 1, 4, 4).bool())


def test_a_target_that_shows_no_keys_is_refused() -> None:
    with pytest.raises(CompositionError, match="this target shows none: use the target hf"):
        LongSpec().bind(TableTarget(vocab=5))


def test_the_doctor_reads_a_drafter_without_features():
    drafter = LongSpec(window=8)
    drafter.bind(texts.target())
    assert next(attempts(drafter, 3)).reading.name == "as it is"
