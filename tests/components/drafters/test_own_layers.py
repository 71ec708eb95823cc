"""The target as its own drafter."""

import copy
from dataclasses import replace

import pytest
import torch

import specframe
from specframe import CompositionError, InputError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.costs import Costs, DraftRecord
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import Context, Draw, Prompts, TokenTree, Verdict
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from specframe.testing import check_drafter
from tests.components.targets.registry.walk import build

KINDS = ["llama", "qwen3", "mistral"]


def model(kind="llama", layers=3):
    return random_model(kind, vocab=11, layers=layers, seed=1)


def opened(target, prompts=((1, 2, 3), (4,), (5, 6, 7, 8))):
    """The target in a session of these prompts; the roots, [B]."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
    target.open(len(prompts), 32)
    root, scores = target.admit(Prompts(tokens, torch.tensor([len(prompt) for prompt in prompts])))
    bonus = scores.logits[:, 0].argmax(-1)
    target.commit(root, Verdict(root.tokens[:, :0], torch.zeros(len(prompts), dtype=torch.int64), bonus))
    return bonus


def grown(root, *levels, vocab=11):
    """The tree with these parents level by level, and tokens that differ."""
    parents = [-1, *(parent for level in levels for parent in level)]
    parent = torch.tensor(parents).expand(len(root), -1)
    tokens = (torch.arange(parent.shape[1]) * 7 + torch.arange(len(root))[:, None]) % vocab
    tokens[:, 0] = root
    return TokenTree(tokens, parent, torch.ones_like(parent, dtype=torch.bool), torch.zeros_like(parent), len(levels))


def draft(target, chosen, root, *levels):
    """Runs the chosen layers level by level over all nodes but the deepest, as a drafter does; the whole tree."""
    start = 0
    for depth in range(len(levels)):
        tree = grown(root, *levels[:depth])
        count = tree.tokens.shape[1]
        target.run_layers(chosen, tree, torch.arange(start, count).expand(len(root), -1))
        start = count
    return grown(root, *levels)


LEVELS = ([0, 0], [1, 2, 2], [3, 5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chosen", [LayerChoice.first(2, 4), LayerChoice.without(4, [2], [2]), LayerChoice.without(4, [], [1])]
)
@torch.no_grad()
def test_a_verification_above_the_draft_s_layers_is_a_fresh_one(kind, chosen):
    target = HFTarget.from_model(model(kind, layers=4).double())
    target.request(frozenset({"last", "layer.0", "layer.3"}))
    fresh = HFTarget.from_model(target.model)
    fresh.request(frozenset({"last", "layer.0", "layer.3"}))
    root = opened(target)
    tree = draft(target, chosen, root, *LEVELS)
    runs = count_runs(target)
    scores = target.score(tree)
    assert runs.pop(0) == 2 and runs.pop() == 8, "layer 0 runs over the leaves alone, and the last one over all nodes"
    opened(fresh)
    wanted = fresh.score(tree)
    torch.testing.assert_close(scores.logits, wanted.logits)
    assert scores.features.keys() == wanted.features.keys()
    for tap, values in wanted.features.items():
        torch.testing.assert_close(scores.features[tap], values)
    path = Verdict(torch.tensor([[2, 5], [1, -1], [-1, -1]]), torch.tensor([2, 1, 0]), root)
    for one in (target, fresh):
        one.commit(tree, path)
    torch.testing.assert_close(target.score(grown(root, [0])).logits, fresh.score(grown(root, [0])).logits)


def count_runs(target):
    """For every layer, how many nodes a row has that it runs over from now on, in a list that fills."""
    counts = []
    for layer in target.model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, inputs, named: counts.append((module.layer_idx, named["hidden_states"].shape[1])),
            with_kwargs=True,
        )

    class Runs:
        def pop(self, layer=-1):
            layer %= len(target.model.model.layers)
            return sum(count for index, count in counts if index == layer)

    return Runs()


@torch.no_grad()
def test_a_draft_that_was_pruned_and_reordered_is_known_by_its_paths():
    target, fresh = (HFTarget.from_model(model(layers=4).double()) for _ in range(2))
    root = opened(target)
    whole = draft(target, LayerChoice.first(2, 4), root, *LEVELS)
    kept = torch.tensor([0, 2, 4, 1])  # a leaf's parent, its parent, and a sibling that follows them now
    parent = torch.tensor([[-1, 0, 1, 0]]).expand(3, -1)
    pruned = TokenTree(whole.tokens[:, kept], parent, whole.valid[:, kept], whole.draw[:, kept], 2)
    runs = count_runs(target)
    scores = target.score(pruned)
    assert runs.pop(0) == 0, "all of them were drafted from"
    opened(fresh)
    torch.testing.assert_close(scores.logits, fresh.score(pruned).logits)
    path = Verdict(torch.tensor([[1, 2]]).expand(3, -1), torch.full((3,), 2), root)
    for each in (target, fresh):  # what was accepted has its keys and values where the next cycle reads them
        each.commit(pruned, path)
    following = grown(root, *LEVELS)
    torch.testing.assert_close(target.score(following).logits, fresh.score(following).logits)
    other = replace(pruned, tokens=(pruned.tokens + 1) % 11)
    torch.testing.assert_close(target.score(other).logits, fresh.score(other).logits)


@pytest.mark.parametrize("other", [LayerChoice.without(4, [0], [0]), LayerChoice.first(4, 4)])
@torch.no_grad()
def test_layers_that_leave_nothing_to_start_from_take_back_what_others_drafted(other):
    target, fresh = (HFTarget.from_model(model(layers=4).double()) for _ in range(2))
    root = opened(target)
    for chosen in (LayerChoice.first(2, 4), other):
        tree = draft(target, chosen, root, *LEVELS)
    opened(fresh)
    for following in (tree, grown(root, [0])):
        torch.testing.assert_close(target.score(following).logits, fresh.score(following).logits)
        none = Verdict(tree.tokens[:, :0], torch.zeros(3, dtype=torch.int64), root)
        for each in (target, fresh):
            each.commit(following, none)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_skipped_parts_pass_their_input_on(kind):
    whole = model(kind)
    literal = copy.deepcopy(whole)
    for layer in literal.model.layers[1:]:
        layer.self_attn.o_proj.weight.zero_()
    literal.model.layers[0].mlp.down_proj.weight.zero_()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    target, other = HFTarget.from_model(whole), HFTarget.from_model(literal)
    other.request(frozenset({"last"}))
    root = opened(target, [(7,)])
    opened(other, [(7,)])
    found = target.run_layers(LayerChoice.without(3, [1, 2], [0]), grown(root), torch.zeros(1, 1, dtype=torch.int64))
    torch.testing.assert_close(found["last"], other.score(grown(root)).features["last"])
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())
    assert whole.config.num_hidden_layers == 3 and len(whole.model.layers) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"exit": 1},
        {"exit": 2},
        {"skip": [1]},
        {"skip": [0, 2]},
        {"skip": {"attention": [1]}},
        {"skip": {"mlp": [0, 2]}},
    ],
)
def test_greedy_output_is_the_targets(options):
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8]]
    sampling = {"temperature": 0.0, "max_new_tokens": 12}
    texts = []
    for drafter in (OwnLayers(**options), "none"):
        tree = None if drafter == "none" else {"use": "fixed", "widths": [2, 2]}
        parts = specframe.compose(
            target=HFTarget.from_model(model()), drafter=drafter, tree=tree, sampling=sampling, run={"batch": 2}
        )
        texts.append(parts.generate(prompts).tokens)
    assert texts[0] == texts[1]


SKIPS = [[1], {"attention": [1]}, {"mlp": [1]}, {"attention": [0], "mlp": [2]}]
"""The skipped parts of three layers."""


@pytest.mark.parametrize("options", [{"exit": 2}, {"skip": [2]}, *({"skip": skip} for skip in SKIPS)], ids=str)
def test_greedy_output_of_four_rows_is_the_targets(options):
    """Rows are admitted while others draft, and leave at different times."""
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 9], [2, 4, 6], [8]]
    sampling = {"temperature": 0.0, "max_new_tokens": 14}
    texts = []
    for drafter in (OwnLayers(**options), "none"):
        tree = None if drafter == "none" else {"use": "dynamic", "depth": 3, "width": 2, "nodes": 6}
        target = HFTarget.from_model(random_model(vocab=11, layers=3, seed=1, eos=3))
        parts = specframe.compose(target=target, drafter=drafter, tree=tree, sampling=sampling, run={"batch": 4})
        found = parts.generate(prompts)
        texts.append(found.tokens)
    assert texts[0] == texts[1]
    assert len(set(map(len, texts[0]))) > 1
    assert found.acceptance.cycles > 0


@pytest.mark.sampled
@pytest.mark.parametrize(("second", "nodes"), [(1.2, 4), (1.4, 1)])
@pytest.mark.parametrize("after", [False, True])
def test_nothing_is_drafted_where_a_sure_token_would_cost_one(after, second, nodes):
    """After a long text a pass takes longer, and a draft that sees a part of it a smaller share."""
    costs = replace(Costs.of({1: 1.0, 2: second}, draft=0.7), context=128, longer=((1024, ((1, 10.0), (2, 12.0))),))
    drafter, target = OwnLayers(exit=1), HFTarget.from_model(model())
    drafter.bind(target)
    root = opened(target)
    lengths = [2000 if after else 10] * len(root)
    context = Context(Sampling(), SeededRandom(0, len(root)).draft, costs.together(lengths, DraftRecord()))
    tree = drafter.propose(root, Chain(depth=3), context)
    assert tree.tokens.shape[1] == (4 if after else nodes)


@pytest.mark.parametrize("skip", SKIPS, ids=str)
@pytest.mark.parametrize(
    ("verifier", "tree"),
    [
        (Recursive, lambda: Chain(depth=2, draw=Draw.IID)),
        (Recursive, lambda: Fixed(widths=[2], draw=Draw.WITHOUT_REPLACEMENT)),
        (Match, lambda: Dynamic(depth=2, width=2, nodes=4)),
    ],
    ids=["recursive-chain", "recursive-fixed", "match"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_skip_sets_are_certified(skip, verifier, tree, temperature):
    """Every text of four tokens has the probability that the target gives it."""
    target = HFTarget.from_model(random_model(vocab=3, layers=3, seed=5))
    drafter = OwnLayers(skip=skip)
    drafter.bind(target)
    emission = Emission(
        "", lambda: Parts(target, drafter, tree(), verifier()), Sampling(temperature=temperature), 3, (0, 1, 2)
    )
    comparison = emission.compare(budget=30_000)
    assert comparison.enumeration.exhausted and comparison.bound < 1e-9


@pytest.mark.parametrize(
    ("skip", "small"),
    [
        ([3, 4], {"attention": [0], "mlp": [0]}),
        ({"attention": [7, 9], "mlp": [3]}, {"attention": [0], "mlp": [1]}),
        ({"attention": [7]}, {"attention": [1], "mlp": []}),
        ({"mlp": [0, 1]}, {"attention": [], "mlp": [1]}),
    ],
)
def test_a_certificate_skips_what_the_recipe_skips(skip, small):
    drafter = OwnLayers(skip=skip).untrained(3)
    assert drafter.skip == small and drafter.exit is None
    drafter.bind(HFTarget.from_model(random_model(vocab=3, layers=2)))
    assert OwnLayers(exit=9).untrained(3).exit == 1


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"exit": 1}, {"skip": [0]}, {"skip": {"attention": [1]}}], ids=str)
def test_it_keeps_the_contract_of_drafters(options):
    check_drafter(
        lambda: OwnLayers(**options), target=lambda: HFTarget.from_model(random_model(vocab=3, layers=2, seed=3))
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs `exit`, `skip`, `kv_selection` or `quantize`"),
        ({"exit": 1, "skip": [0]}, "not both"),
        ({"exit": 0}, "at least 1 layer"),
        ({"skip": []}, "each once"),
        ({"skip": [1, 1]}, "each once"),
        ({"skip": {"attention": []}}, "at least one"),
        ({"skip": {"layers": [1]}}, "attention and mlp, not layers"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        OwnLayers(**options)


@pytest.mark.parametrize(
    ("options", "words"), [({"exit": 3}, "leave before the last"), ({"skip": [3]}, "layers 0 .. 2")]
)
def test_layers_that_the_target_does_not_have_are_refused(options, words):
    with pytest.raises(CompositionError, match=words):
        OwnLayers(**options).bind(HFTarget.from_model(model()))


def test_a_target_without_layers_is_refused():
    with pytest.raises(CompositionError, match="such as `hf`"):
        OwnLayers(exit=1).bind(TableTarget(vocab=3))


@pytest.mark.parametrize("options", [{"exit": 2}, {"skip": {"mlp": [1]}}])
def test_an_architecture_whose_layers_cannot_be_left_out_is_refused(options):
    target = HFTarget.from_model(build("gemma3n_text", torch.float64))
    with pytest.raises(
        CompositionError, match=r"gemma3n_text cannot draft with its own layers: its forward pass fails"
    ):
        OwnLayers(**options).bind(target)
