"""DFlash: decoding and training are one literal forward pass over a block, for every published variant."""

from __future__ import annotations

import dflash_reference as reference
import dflash_texts as texts
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

import specframe
from specframe import CompositionError, InputError
from specframe.components.drafters.none import NoDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation
from specframe.components.losses.scored import scored
from specframe.components.rollouts.teacher_forced import AllLevels
from specframe.components.targets.hf import HFTarget
from specframe.plugin import Chunks, FeatureDrafter
from specframe.testing import GrowingTree, check_drafter, random_teacher, tiny_target
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark
from specframe_blocks.dflash.plan import published_taps
from specframe_blocks.dflash.rollout import AnchoredBlocks

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
"""Weights are float64, but rotary angles are float32 in transformers."""


@torch.no_grad()
@pytest.mark.parametrize("options", texts.BLOCKS)
def test_decoding_is_the_literal_forward_pass(options: dict[str, object]) -> None:
    drafter = texts.dflash(**options)
    session = texts.session(drafter, 4)

    def compare() -> None:
        frontier = GrowingTree(session.root, texts.VOCAB).frontier([0])
        for _ in range(2):  # asked for again, it is the same
            logits = drafter.expand(frontier).logits
            assert logits.shape[1:] == (1, drafter.promise.depth, texts.VOCAB)
            for row in range(len(session.tokens)):
                states = reference.block(drafter, texts.taps(drafter, session, row), session.root[row])
                torch.testing.assert_close(logits[row, 0], drafter.target.head(states), **CLOSE)

    drafter.open(8, 64)
    drafter.commit(session.admit([5, 1]))
    compare()
    drafter.commit(session.advance([1, 4], padding=1))
    compare()
    drafter.commit(session.admit([3, 9]))  # rows that join others
    compare()
    drafter.commit(session.advance([2, 1, 3, 1]))
    drafter.commit(session.advance([1, 1, 2, 5]))  # without a draft between them
    drafter.keep(session.keep([3, 0, 2]))
    compare()
    drafter.commit(session.advance([2, 2, 1]))
    compare()


@torch.no_grad()
@pytest.mark.parametrize("options", texts.BLOCKS)
@pytest.mark.parametrize("rollout", [AllLevels(), AnchoredBlocks(anchors=3), AnchoredBlocks()])
def test_training_predicts_what_decoding_does(rollout: object, options: dict[str, object]) -> None:
    drafter = texts.dflash(**options)
    drafter.module.train()
    teacher = random_teacher(drafter.target, 2, 9)
    student = rollout(drafter, teacher, 0.0)
    features = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)
    levels, compared = drafter.promise.depth, 0
    assert student.level[: levels + 1].tolist() == [*range(1, levels + 1), 1]
    for row in range(2):
        for place in range(0, student.position.shape[1], levels):
            here = slice(place, place + levels)
            if not student.mask[row, here].any():
                continue
            entry = int(student.position[row, place]) - 1
            states = reference.block(drafter, features[row, : entry + 1], teacher.tokens[row, entry + 1])
            torch.testing.assert_close(student.logits[row, here], drafter.target.head(states), **CLOSE)
            for level, position in enumerate(student.position[row, here].tolist()):
                inside = entry + 1 + level < 9
                assert position == min(entry + 1 + level, 8)
                assert student.mask[row, place + level] == (inside and teacher.mask[row, position])
            compared += 1
    assert compared == (6 if getattr(rollout, "anchors", 64) == 3 else int(teacher.mask[:, 1:].sum())) or isinstance(
        rollout, AllLevels
    )


def test_anchors_are_drawn_anew_and_only_where_something_is_learned() -> None:
    drafter = texts.dflash()
    drafter.module.train()
    teacher = random_teacher(drafter.target, 2, 40)
    drawn = []
    for seed in range(2):
        torch.manual_seed(seed)
        student = AnchoredBlocks(anchors=5)(drafter, teacher, 0.0)
        first = student.position.view(2, 5, -1)[..., 0]
        assert teacher.mask.gather(1, first).all() and (first.diff(dim=1) > 0).all()
        drawn.append(first)
    assert not torch.equal(*drawn)
    drafter.module.eval()
    assert AnchoredBlocks(anchors=5)(drafter, teacher, 0.0).logits.shape[1] == 39 * 3


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_chunks_give_the_same_losses_and_gradients(chunk: int) -> None:
    losses = [CrossEntropy(decay=0.8), Distillation()]
    found = []
    for size in (None, chunk):
        drafter = texts.dflash()
        drafter.module.train()
        teacher = random_teacher(drafter.target, 2, 20)
        torch.manual_seed(3)
        made = AnchoredBlocks(anchors=7, chunk=size)(drafter, teacher, 0.0)
        assert isinstance(made, Chunks) == (size is not None)
        values = scored(losses, made, teacher)
        sum(values).backward()
        found.append([*(value.detach() for value in values), *(w.grad for w in drafter.module.parameters())])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", texts.BLOCKS)
def test_gradients_reach_every_weight_and_nothing_of_the_target(options: dict[str, object]) -> None:
    drafter = texts.dflash(torch.float32, **options)
    teacher = random_teacher(drafter.target, 2, 10)
    CrossEntropy(decay=0.8)(AnchoredBlocks()(drafter, teacher, 0.0), teacher).backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    assert all(weight.grad is None for weight in drafter.target.model.parameters())
    shared = {id(weight) for weight in drafter.target.model.parameters()}
    assert not shared & {id(weight) for weight in drafter.module.parameters()}


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_other_precisions(dtype: torch.dtype, close: float) -> None:
    logits = []
    for precision in (dtype, torch.float64):
        drafter = texts.dflash(precision)
        session = texts.session(texts.dflash(), 2)
        drafter.open(2, 30)
        for committed in (session.admit([5, 3]), session.advance([1, 2])):
            features = {tap: values.to(precision) for tap, values in committed.features.items()}
            drafter.commit(type(committed)(**{**vars(committed), "features": features}))
        logits.append(drafter.expand(GrowingTree(session.root, texts.VOCAB).frontier([0])).logits)
    assert logits[0].dtype == dtype
    assert (logits[0].double() - logits[1]).norm() < close * logits[1].norm()


def test_taps_are_spread_as_published() -> None:
    assert published_taps(36, 5) == (1, 9, 17, 25, 33)  # Qwen3-4B and Qwen3-8B
    assert published_taps(28, 3) == (1, 13, 25) and published_taps(28, 1) == (14,)
    assert published_taps(2, 3) == (1,) and published_taps(1, 2) == (0,)


def test_the_mask_token_is_the_padding_or_the_last() -> None:
    assert texts.dflash().layout.plan.mask == texts.VOCAB - 1
    with pytest.raises(CompositionError, match="mask_token is 11, and the target has tokens 0 to 10"):
        texts.dflash(mask_token=11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 1}, "block_size must be at least 2"),
        ({"block_size": 0, "from_anchor": True}, "block_size must be at least 1"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"taps": [2, 2]}, "taps must be different layers"),
    ],
)
def test_options_that_make_no_drafter_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DFlash(**options)


def test_a_tree_deeper_than_a_block_is_refused() -> None:
    drafter = texts.dflash()
    session = texts.session(drafter, 1)
    drafter.open(1, 64)
    drafter.commit(session.admit([4]))
    tree = GrowingTree(session.root, texts.VOCAB)
    drafter.expand(tree.frontier([0]))
    with pytest.raises(CompositionError, match="make the tree at most 3 deep"):
        drafter.expand(tree.frontier([tree.descend(0, 3)]))


def test_the_rollout_refuses_what_it_cannot_unroll() -> None:
    for options in ({"anchors": 0}, {"chunk": 0}):
        with pytest.raises(InputError, match="must be at least 1"):
            AnchoredBlocks(**options)
    with pytest.raises(CompositionError, match="needs a drafter of blocks"):
        AnchoredBlocks()(NoDrafter(), random_teacher(texts.target(), 1, 4), 0.0)


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"from_anchor": True}])
def test_it_keeps_the_contract_of_drafters(options: dict[str, object]) -> None:
    check_drafter(lambda: DFlash(block_size=3, layers=1, **options))


def test_its_certificate_needs_neither_weights_nor_the_target_s_layers() -> None:
    drafter = DFlash(weights="none/such", taps=[1, 14, 26], mask_token=40)
    assert isinstance(drafter, FeatureDrafter)
    small = drafter.untrained(3)
    small.bind(tiny_target("llama", vocab=3))
    assert small.taps == {"layer.1"} and small.layout.plan.mask == 2
    assert drafter.weights == "none/such" and drafter.reads == [1, 14, 26]


@pytest.mark.parametrize("kind", [DFlash, DSpark])
def test_a_target_that_names_no_key_heads_has_as_many_as_query_heads(kind: type[DFlash]) -> None:
    """GPT-2, whose text stays its own."""
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=8, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).double().eval()
    found = []
    for drafter in (kind(block_size=4, layers=1), "none"):
        tree = None if drafter == "none" else {"use": "chain", "depth": 3}
        pipeline = specframe.compose(target=model, drafter=drafter, tree=tree)
        found.append(pipeline.generate([[5, 6, 7]], max_new_tokens=12).tokens)
    assert found[0] == found[1]


def test_an_lm_head_of_another_width_than_the_layers_is_refused() -> None:
    config = OPTConfig(
        vocab_size=50, hidden_size=16, word_embed_proj_dim=8, num_hidden_layers=8, num_attention_heads=2, ffn_dim=32
    )
    with pytest.raises(CompositionError, match="reads 8 numbers of a token where its layers give 16"):
        DFlash(block_size=4).bind(HFTarget.from_model(OPTForCausalLM(config).eval()))
