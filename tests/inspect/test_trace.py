import json

import pytest
import torch

import specframe
from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.session import Parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.inspect.detokenise import HALF, Wording, probability, visible
from specframe.inspect.recorder import Trace
from specframe.inspect.trace import reading_law, trace
from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw, Proposal, TokenTree

COMPOSITIONS = [
    ["drafter.use=none", "tree=null"],
    ["drafter.use=lookup", "tree=null"],
    ["drafter.block=1"],
    ["drafter.block=3", "tree={use: chain, depth: 4}"],
    ["verifier.use=recursive", "tree={use: fixed, widths: [3, 2, 1], draw: without_replacement}"],
    ["verifier.use=recursive", "tree={use: fixed, widths: [4, 3], draw: iid}"],
]
DRAFTED = COMPOSITIONS[2:]


def check(found: Trace) -> None:
    """Checks that hold for every trace, whatever was composed."""
    assert found.tau == pytest.approx(1 + sum(found.alpha))
    assert sum(cycle.kept for cycle in found.cycles) + 1 == len(found.pieces)
    root = found.pieces[0].token
    for number, cycle in enumerate(found.cycles, 1):
        by_index = {node.index: node for node in cycle.nodes}
        assert cycle.number == number
        assert cycle.nodes[0].token == root and cycle.nodes[0].verdict == "root"
        assert all(node.parent in by_index for node in cycle.nodes[1:])
        walked = [by_index[index] for index in cycle.path]
        assert [node.depth for node in walked] == [*range(1, len(walked) + 1)]
        assert {n.index for n in cycle.nodes if n.verdict == "accepted"} == set(cycle.path)
        assert all(0 <= n.p <= 1 + 1e-9 for n in cycle.nodes[1:])
        pieces = [piece for piece in found.pieces if piece.cycle == number]
        emitted = [*(node.token for node in walked), cycle.bonus.token]
        assert [piece.token for piece in pieces] == emitted[: cycle.kept]
        sources = ["draft"] * len(walked) + ["bonus"]
        assert [piece.source for piece in pieces] == sources[: cycle.kept]
        root = cycle.bonus.token


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("overrides", COMPOSITIONS, ids=" ".join)
def test_a_trace_shows_what_generate_does(recipe, overrides, temperature):
    pipeline = specframe.load(recipe, overrides=[*overrides, f"sampling.temperature={temperature}", "run.batch=2"])
    found = trace(pipeline, "good morning")
    result = pipeline.generate("good morning")
    check(found)
    assert [piece.token for piece in found.pieces] == result.tokens[0]
    assert found.ended == result.ended[0]
    assert (found.tau, list(found.alpha)) == (result.acceptance.tau, result.acceptance.alpha)
    assert json.loads(json.dumps(found.as_dict()))["cycles"][0]["number"] == 1


@pytest.mark.parametrize("sampling", [[], ["sampling.temperature=0.9", "sampling.top_k=20"]], ids=" ".join)
def test_p_is_the_law_of_a_plain_forward(recipe, sampling):
    pipeline = specframe.load(recipe, overrides=[*sampling, "sampling.max_new_tokens=10"])
    found = trace(pipeline, "hello")
    reading, text = reading_law(pipeline.sampling), [*pipeline.encode("hello"), found.pieces[0].token]
    assert found.cycles
    for cycle in found.cycles:
        paths = {0: text}
        for node in cycle.nodes[1:]:
            paths[node.index] = [*paths[node.parent], node.token]
            assert node.p == pytest.approx(plain_law(pipeline, reading, paths[node.parent])[node.token], abs=1e-9)
        end = paths[cycle.path[-1] if cycle.path else 0]
        assert cycle.bonus.p == pytest.approx(plain_law(pipeline, reading, end)[cycle.bonus.token], abs=1e-9)
        text = [*end, cycle.bonus.token]


@torch.inference_mode()
def plain_law(pipeline, reading, tokens):
    logits = pipeline.parts.target.model(torch.tensor([tokens])).logits[:, -1:]
    return reading.law(logits, TokenTree.root_only(torch.tensor([0])))[0, 0].tolist()


class Listening:
    """A verifier that keeps the trees it was given."""

    lossless, needs = True, Recursive.needs

    def __init__(self):
        self.trees = []

    def verify(self, tree, laws, random):
        self.trees.append(tree)
        return Recursive().verify(tree, laws, random)


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("tree", ["{use: fixed, widths: [4, 3, 2], draw: iid}", "{use: chain, depth: 4, draw: iid}"])
def test_q_is_the_recorded_law(recipe, block, tree):
    overrides = ["verifier.use=recursive", f"drafter.block={block}", f"tree={tree}", "sampling.temperature=1.1"]
    verifier = Listening()
    found = trace(specframe.load(recipe, overrides=overrides).with_parts(verifier=verifier), "hello")
    assert len(found.cycles) > 1
    for cycle, seen in zip(found.cycles, verifier.trees[1:], strict=True):
        recorded = seen.q[0][seen.q_row[0], seen.tokens[0]].tolist()
        assert [node.q for node in cycle.nodes[1:]] == pytest.approx(recorded[1:])
        assert {node.draw for node in cycle.nodes[1:]} == {"iid"}


@pytest.mark.parametrize("overrides", DRAFTED, ids=" ".join)
def test_drafted_nodes_have_a_q_at_temperature_0_too(recipe, overrides):
    for cycle in trace(specframe.load(recipe, overrides=overrides), "hello").cycles:
        assert cycle.nodes[0].q is None
        assert all(0 < node.q < 1 for node in cycle.nodes[1:])


def test_copies_have_no_q_and_a_root_only_tree_has_no_drafts(recipe):
    copied = trace(specframe.load(recipe, overrides=COMPOSITIONS[1]), "the cat and the cat and the")
    assert any(len(cycle.nodes) > 1 for cycle in copied.cycles)
    assert all(node.q is None for cycle in copied.cycles for node in cycle.nodes)
    plain = trace(specframe.load(recipe, overrides=COMPOSITIONS[0]), "hello")
    assert {len(cycle.nodes) for cycle in plain.cycles} == {1}
    assert {piece.source for piece in plain.pieces} == {"bonus"}
    assert plain.tau == 1 and plain.alpha == ()


def test_padding_is_left_out_and_duplicates_stay(recipe):
    one = ["verifier.use=recursive", "sampling.temperature=1", "sampling.top_k=1"]
    without = trace(
        specframe.load(recipe, overrides=[*one, "tree={use: fixed, widths: [3, 2], draw: without_replacement}"]),
        "hello",
    )
    assert {len(cycle.nodes) for cycle in without.cycles} == {3}  # the law has one token: one real child each
    check(without)
    again = trace(specframe.load(recipe, overrides=[*one, "tree={use: fixed, widths: [3, 2], draw: iid}"]), "hello")
    assert {len(cycle.nodes) for cycle in again.cycles} == {10}
    assert {node.q for cycle in again.cycles for node in cycle.nodes[1:]} == {1}
    check(again)


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_a_text_may_end_within_a_cycle(recipe, budget):
    # Copies of a repetition: greedy decoding of a random model soon repeats itself, so paths get long.
    pipeline = specframe.load(recipe, overrides=["drafter.use=lookup", "tree=null", "sampling.max_new_tokens=60"])
    whole = trace(pipeline, "hello")
    long = next(cycle for cycle in whole.cycles if len(cycle.path) > 3)
    before = sum(piece.cycle < long.number for piece in whole.pieces)
    cut = trace(
        specframe.load(
            recipe, overrides=["drafter.use=lookup", "tree=null", f"sampling.max_new_tokens={before + budget}"]
        ),
        "hello",
    )
    check(cut)
    assert cut.cycles[-1].kept == budget
    assert cut.cycles[-1].cut == len(long.path) + 1 - budget > 0
    assert sum(cycle.cut for cycle in cut.cycles[:-1]) == 0
    assert cut.cycles[-1].path == long.path
    assert cut.ended == "length"


def test_one_token_needs_no_cycle(recipe):
    found = trace(specframe.load(recipe, overrides=["sampling.max_new_tokens=1"]), "hello")
    assert found.cycles == () and [piece.source for piece in found.pieces] == ["bonus"]


@pytest.mark.parametrize("prompt", ["", "  ", "a" * 200])
def test_prompts_that_cannot_be_decoded(recipe, prompt):
    with pytest.raises(InputError):
        trace(specframe.load(recipe), prompt)


class Guess:
    """Builds a tree of its own: one child from a recorded law, and a copy next to it."""

    taps, promise = frozenset(), Promise(frozenset({Draw.TOP, Draw.IID}), 3)

    def bind(self, target): ...

    def propose(self, root, tree, context):
        law = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64)
        tokens = torch.stack([root, context.random.categorical(law), root], 1)
        return TokenTree(
            tokens=tokens,
            parent=torch.tensor([[-1, 0, 0]]),
            valid=tokens >= 0,
            draw=torch.tensor([[Draw.TOP, Draw.IID, Draw.TOP]]),
            levels=1,
            q=law[:, None],
            q_row=torch.zeros_like(tokens),
        )

    def open(self, slots, room): ...

    def commit(self, committed): ...

    def keep(self, rows): ...


def pipeline_of(drafter, tree=None) -> Pipeline:
    return Pipeline(
        parts=Parts(TableTarget(), drafter, tree, Recursive()),
        sampling=SamplingSettings(temperature=1.0, max_new_tokens=30),
        run=RunSettings(seed=3),
        tokenizer=None,
        ends=frozenset(),
        lossless=True,
    )


def test_a_drafter_with_a_tree_of_its_own_and_no_tokenizer():
    found = trace(pipeline_of(Guess()), [1, 2])
    check(found)
    assert found.prompt == "1 2" and found.recipe == "" and found.parts == {}
    for cycle in found.cycles:
        drawn, copied = cycle.nodes[1:]
        assert drawn.q == [0.5, 0.25, 0.25, 0.0][drawn.token] and copied.q is None
        assert drawn.text == str(drawn.token)
    assert "".join(piece.text for piece in found.pieces).split() == [str(piece.token) for piece in found.pieces]


class Sometimes(Guess):
    """Grows the recipe's tree in its first cycle only."""

    def __init__(self):
        self.asked = 0

    def propose(self, root, tree, context):
        self.asked += 1
        if self.asked == 1:
            return tree.grow(self.expand, root, context)
        return super().propose(root, tree, context)

    def expand(self, frontier):
        return Proposal(torch.tensor([0.0, -1e9, -1e9, -1e9]).expand(1, frontier.nodes.shape[1], 1, 4).double())


def test_laws_of_an_earlier_cycle_are_forgotten():
    found = trace(pipeline_of(Sometimes(), Chain(depth=2)), [1, 2])
    assert [node.q for node in found.cycles[0].nodes[1:]] == [1, 1]
    assert all(cycle.nodes[2].q is None and cycle.nodes[1].q < 1 for cycle in found.cycles[1:])


def byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("text", ["plain text", "é", "naïve 世界 \U0001f600!", "a\n\tb"])
def test_pieces_put_characters_together_again(text):
    tokenizer = byte_tokenizer()
    tokens = tokenizer(text)["input_ids"]
    pieces = Wording(tokenizer).pieces([], tokens)
    assert "".join(pieces) == text
    assert len(pieces) == len(tokens)
    continued = Wording(tokenizer).pieces(tokens[:3], tokens[3:])
    assert tokenizer.decode(tokens[:3]).removesuffix(HALF) + "".join(continued) == text


def test_a_token_after_its_context():
    tokenizer = byte_tokenizer()
    first, second = tokenizer("é")["input_ids"]
    wording = Wording(tokenizer)
    space = tokenizer(" ")["input_ids"][0]
    assert wording.after([], first) == HALF
    assert wording.after([space, first], second) == "é"
    assert wording.after([first, second], space) == " "
    assert wording.pieces([], [first]) == [HALF]


def test_what_is_visible():
    assert visible(" a\tb\n", 7) == "␣a⇥b↵"
    assert visible("", 7) == "#7"
    assert visible("\x1b[31m\u202e\x00", 7) == r"\u001b[31m\u202e\u0000"
    assert [probability(value) for value in (0.0, 0.004, 0.25, 0.996, 1.0)] == ["0", "<.01", ".25", ">.99", "1"]
