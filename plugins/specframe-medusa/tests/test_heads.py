"""Decoding and training give what the published modules give, in float64 and from their checkpoints."""

from __future__ import annotations

from pathlib import Path

import medusa_fakes as fakes
import pytest
import torch
from medusa_reference import PublishedHydra, published_medusa
from safetensors.torch import load_file, save_file

from specframe import CompositionError
from specframe.components.heads import FullHead
from specframe.neural import checkpoint
from specframe.testing import GivenSession, GrowingTree, check_proposals
from specframe_medusa.hydra import Hydra
from specframe_medusa.medusa import Medusa

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # norms and rotary angles are float32 in transformers
HYDRAS = [(1, False), (3, False), (1, True), (3, True)]


def write(module: torch.nn.Module, folder: Path, file: str) -> None:
    """A checkpoint as published: half precision, repeated blocks stored as often as they are used."""
    folder.mkdir()
    tensors = {name: t.detach().half().clone() for name, t in module.state_dict(keep_vars=False).items()}
    save_file(tensors, folder / file)
    (folder / "config.json").write_text('{"medusa_num_heads": 2}')  # wrong, as in Medusa's v1.3


def medusa(tmp_path: Path, heads: int = 3, layers: int = 2):
    reference = published_medusa(fakes.SIZE, fakes.VOCAB, heads, layers)
    fakes.shake(reference)
    write(reference, tmp_path / "published", "medusa_lm_head.safetensors")
    drafter = Medusa(heads=heads, layers=layers, weights=str(tmp_path / "published"))
    drafter.bind(fakes.target())
    return drafter, reference


def hydra(tmp_path: Path, layers: int, prefix: bool, heads: int = 3):
    target = fakes.target()
    # the target's embedding is made of half precision, too, so that the copies in the file are exact
    target._embedding = target._embedding.half().double()
    embedding = target.embed(torch.arange(fakes.VOCAB))
    reference = PublishedHydra(target.config, heads, layers, prefix, embedding)
    frozen = {id(reference.input_embed_fn.weight)}
    if prefix:
        frozen.add(id(reference.prefix_embeding_layer.embed_tokens.weight))
    fakes.shake(torch.nn.ParameterList(p for p in reference.parameters() if id(p) not in frozen))
    write(reference, tmp_path / "published", "hydra_lm_head.safetensors")
    drafter = Hydra(heads=heads, layers=layers, prefix=prefix, weights=str(tmp_path / "published"))
    drafter.bind(target)
    return drafter, reference


@torch.no_grad()
def test_medusa_proposes_all_levels_from_the_last_true_feature(tmp_path):
    drafter, reference = medusa(tmp_path)
    session = fakes.session(3)
    drafter.open(8, 64)
    drafter.commit(session.admit([4, 1, 6]))
    for counts, padding in (([1, 3, 2], 0), ([4, 1, 1], 2)):
        drafter.commit(session.advance(counts, padding=padding))
        found = drafter.expand(GrowingTree(session.root, fakes.VOCAB).frontier([0])).logits
        assert found.shape == (len(counts), 1, 3, fakes.VOCAB)
        for row, features in enumerate(session.features):
            wanted = torch.stack([head(features[-1]) for head in reference])
            torch.testing.assert_close(found[row, 0], wanted, rtol=0, atol=1e-12)
    drafter.keep(session.keep([2, 0]))
    found = drafter.expand(GrowingTree(session.root, fakes.VOCAB).frontier([0])).logits
    torch.testing.assert_close(found[0, 0, 1], reference[1](session.features[0][-1]), rtol=0, atol=1e-12)


@torch.no_grad()
def test_medusa_unrolls_what_it_proposes(tmp_path):
    drafter, reference = medusa(tmp_path)
    features = torch.randn(2, 5, fakes.SIZE, dtype=torch.float64)
    found = drafter.read(drafter.unroll(features, torch.zeros(2, 7, dtype=torch.int64)))
    assert found.shape == (2, 5, 3, fakes.VOCAB)
    for k, head in enumerate(reference):
        torch.testing.assert_close(found[:, :, k], head(features), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layers", "prefix"), HYDRAS)
def test_hydra_is_the_published_modules(layers, prefix, tmp_path):
    drafter, reference = hydra(tmp_path, layers, prefix)

    def wanted(session: GivenSession, row: int, path: torch.Tensor) -> torch.Tensor:
        return reference(session.features[row], torch.cat([session.root[row, None], path]))[None]

    check_proposals(drafter, fakes.session, wanted, expansions=3, close=CLOSE["atol"])


@torch.no_grad()
@pytest.mark.parametrize(("layers", "prefix"), HYDRAS)
def test_hydra_unrolls_with_the_tokens_of_the_path(layers, prefix, tmp_path):
    drafter, reference = hydra(tmp_path, layers, prefix)
    features = torch.randn(2, 6, fakes.SIZE, dtype=torch.float64)
    tokens = torch.randint(fakes.VOCAB, (2, 8))
    found = drafter.read(drafter.unroll(features, tokens))
    assert found.shape == (2, 6, 3, fakes.VOCAB)
    for b in range(2):
        for i in range(6):
            for level in (1, 2, 3):
                wanted = reference(features[b, : i + 1], tokens[b, i : i + level])
                torch.testing.assert_close(found[b, i, level - 1], wanted, **CLOSE)


@pytest.mark.parametrize("make", [Medusa, lambda **o: Hydra(**o, layers=2, prefix=True)])
def test_heads_start_as_the_targets_and_the_same_in_every_run(make):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    drafters = [make(heads=2), make(heads=2)]
    for drafter in drafters:
        drafter.bind(fakes.target())
    assert torch.equal(state, torch.get_rng_state())
    one, two = (drafter.module.state_dict() for drafter in drafters)
    assert all(torch.equal(one[name], two[name]) for name in one)
    output = fakes.target()._head
    heads = [w for name, w in one.items() if w.shape == output.shape]
    assert len(heads) == 2 and all(torch.equal(head, output) for head in heads)
    assert all(not w.any() for name, w in one.items() if name.endswith("linear.weight"))


@pytest.mark.parametrize("make", [Medusa, Hydra, lambda **o: Hydra(**o, layers=2, prefix=True)])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_reach_every_weight_of_the_module_and_nothing_else(make, shared):
    drafter, target = make(heads=2, head=FullHead() if shared else None), fakes.target()
    drafter.bind(target)
    fakes.shake(drafter.module)
    target._head.requires_grad_(False)
    logits = drafter.read(drafter.unroll(torch.randn(2, 4, fakes.SIZE).double(), torch.randint(fakes.VOCAB, (2, 5))))
    logits.logsumexp(-1).sum().backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    sizes = {weight.shape for weight in drafter.module.parameters()}
    assert (target._head.shape in sizes) is not shared, "a shared head is not the drafter's to train"


def test_a_shared_head_is_the_targets(tmp_path):
    drafter = Medusa(heads=2, head=FullHead())
    drafter.bind(fakes.target())
    fakes.shake(drafter.module)
    features = torch.randn(2, 3, fakes.SIZE).double()
    hidden = torch.stack([block(features) for block in drafter.module], 2)
    wanted = fakes.target().head(hidden)
    torch.testing.assert_close(drafter.read(drafter.unroll(features, torch.zeros(2, 4).long())), wanted)
    drafter.save(tmp_path)
    again = Medusa(heads=2, head=FullHead(), weights=str(tmp_path))
    again.bind(fakes.target())
    assert set(again.module.state_dict()) == {f"{k}.0.linear.{part}" for k in (0, 1) for part in ("weight", "bias")}


def test_dropout_works_in_training_only():
    drafter = Hydra(heads=2, dropout=0.5)
    drafter.bind(fakes.target())
    pairs = torch.randn(1, 4, fakes.SIZE).double(), torch.randint(fakes.VOCAB, (1, 5))

    def logits():
        return drafter.read(drafter.unroll(*pairs))

    assert torch.equal(logits(), logits())
    drafter.module.train()
    assert not torch.equal(logits(), logits())


@pytest.mark.parametrize("make", [Medusa, Hydra])
def test_a_tree_deeper_than_the_heads_is_refused(make):
    drafter, session = make(heads=1), fakes.session(1)
    drafter.bind(fakes.target())
    tree = GrowingTree(torch.zeros(1, dtype=torch.int64), fakes.VOCAB)
    with pytest.raises(CompositionError, match="before anything was committed"):
        drafter.expand(tree.frontier([0]))
    drafter.open(8, 64)
    drafter.commit(session.admit([3]))
    tree.add(0)
    with pytest.raises(CompositionError, match=r"1 heads.*at most 1 deep"):
        drafter.expand(tree.frontier([1]))
    with pytest.raises(CompositionError, match="tree policy"):
        drafter.propose(session.root, None, None)


def test_hydra_refuses_a_deep_node_next_to_a_shallow_one():
    drafter, session = Hydra(heads=1), fakes.session(1)
    drafter.bind(fakes.target())
    drafter.open(8, 64)
    drafter.commit(session.admit([3]))
    tree = GrowingTree(session.root, fakes.VOCAB)
    tree.add(0)
    with pytest.raises(CompositionError, match="at most 1 deep"):
        drafter.expand(tree.frontier([0, 1]))


@pytest.mark.parametrize(("layers", "prefix"), HYDRAS)
def test_a_published_hydra_is_written_again_bit_by_bit(layers, prefix, tmp_path):
    drafter, _ = hydra(tmp_path, layers, prefix)
    drafter.publish(tmp_path / "again", base="someone-else/target")
    compare_files(tmp_path, "hydra_lm_head.safetensors")
    config = checkpoint.read_config(tmp_path / "again")
    assert config["hydra_head_arch"] == ("prefix-mlp" if prefix else "mlp") and config["hydra_num_layers"] == layers


def test_a_published_medusa_is_written_again_bit_by_bit(tmp_path):
    drafter, _ = medusa(tmp_path)
    drafter.publish(tmp_path / "again", base="someone-else/target")
    compare_files(tmp_path, "medusa_lm_head.safetensors")
    config = checkpoint.read_config(tmp_path / "again")
    assert config == {"base_model_name_or_path": "someone-else/target", "medusa_num_heads": 3, "medusa_num_layers": 2}


def compare_files(tmp_path: Path, file: str) -> None:
    wanted, found = load_file(tmp_path / "published" / file), load_file(tmp_path / "again" / file)
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert wanted[name].dtype == found[name].dtype == torch.float16
        assert torch.equal(wanted[name].view(torch.int16), found[name].view(torch.int16)), name


@pytest.mark.parametrize("make", [Medusa, Hydra, lambda **o: Hydra(**o, layers=2, prefix=True)])
def test_what_is_saved_comes_back_bit_by_bit(make, tmp_path):
    drafter = make(heads=2)
    drafter.bind(fakes.target())
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(torch.randn(weight.shape).bfloat16())
    drafter.save(tmp_path)
    again = make(heads=2, weights=str(tmp_path))
    again.bind(fakes.target())
    wanted, found = drafter.module.state_dict(), again.module.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
