import random as pyrandom
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record
from specframe.components.verifiers.recursive import Recursive, SiblingSlots
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.capabilities import Needs
from specframe.kernel.types import Draw, TokenTree, Verdict
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport
from tests.components.verifiers.references import Row, match_reference, recorded_law, recursive_reference

TOP, IID, WOR = Draw.TOP, Draw.IID, Draw.WITHOUT_REPLACEMENT
SAMPLED = {"draws": frozenset(Draw), "exact": True}
PROMISES = {
    Match: Needs(by_position=True),
    Recursive: Needs(**SAMPLED),
    Traversal: Needs(**SAMPLED),
    Block: Needs(**SAMPLED),
    Transport: Needs(**SAMPLED, fixed_sibling_count=True),
    KSeq: Needs(frozenset({TOP, IID}), exact=True, fixed_sibling_count=True),
}
PAIRS = [(Match(), match_reference), (Recursive(), recursive_reference)]


@pytest.mark.parametrize(("verifier", "needs"), PROMISES.items())
def test_what_each_rule_promises_and_needs(verifier, needs):
    assert verifier.lossless and verifier.needs == needs


# Fast and slow together: equal verdicts for equal random numbers.


class RowCoins:
    """One row's stream of a SeededRandom, for plain numbers; counts what is drawn."""

    def __init__(self, seed, rows, row, cycle):
        random = SeededRandom(seed, rows)
        for _ in range(cycle):
            random.verify.advance()
        self.source = random.verify
        self.source.keep(torch.tensor([row]))
        self.categoricals = self.bernoullis = 0

    def categorical(self, law):
        self.categoricals += 1
        return int(self.source.categorical(torch.tensor([law], dtype=torch.float64)))

    def bernoulli(self, p):
        self.bernoullis += 1
        return bool(self.source.bernoulli(torch.tensor([p], dtype=torch.float64)))


class CountingSource:
    def __init__(self, source):
        self.source, self.categoricals, self.bernoullis = source, 0, 0

    def categorical(self, probs):
        self.categoricals += 1
        return self.source.categorical(probs)

    def bernoulli(self, p):
        self.bernoullis += 1
        return self.source.bernoulli(p)


def random_law(dice, vocab):
    law = [dice.choice([0, 0.01, 0.2, 1, 1, 3]) * dice.random() for _ in range(vocab)]
    if sum(law) == 0 or dice.random() < 0.15:
        law = [0.0] * vocab
        law[dice.randrange(vocab)] = 1.0
    return [mass / sum(law) for mass in law]


def random_batch(dice, batch, vocab=4, rows=4):
    """Trees of any shape with any record at all: verdicts must agree even where records are nonsense."""
    count = dice.randint(1, 12)
    parents, q_rows, draws, valids = [], [], [], []
    for _ in range(batch):
        parent, depth, valid, kind = [-1], [0], [True], dice.choice([TOP, IID, WOR, None, None, None])
        for i in range(1, count):
            shallow = [j for j in range(i) if depth[j] < 4]
            parent.append(dice.choice([dice.choice(shallow), max(parent[-1], 0), i - 1 if depth[-1] < 4 else 0]))
            depth.append(depth[parent[i]] + 1)
            valid.append(valid[parent[i]] and dice.random() < 0.9)
        parents.append(parent)
        valids.append(valid)
        draws.append([kind if kind is not None else dice.choice(list(Draw)) for _ in range(count)])
        q_rows.append([(max(p, 0) + (dice.random() < 0.1)) % rows for p in parent])
    tree = TokenTree(
        tokens=torch.tensor([[dice.randrange(vocab) for _ in range(count)] for _ in range(batch)]),
        parent=torch.tensor(parents),
        valid=torch.tensor(valids),
        draw=torch.tensor(draws, dtype=torch.int64),
        levels=4,
        q=torch.tensor([[random_law(dice, vocab) for _ in range(rows)] for _ in range(batch)]).double(),
        q_row=torch.tensor(q_rows),
    )
    p = [[random_law(dice, vocab) for _ in range(count)] for _ in range(batch)]
    if dice.random() < 0.3:
        p = [[tree.q[b, tree.q_row[b, i]].tolist() for i in range(count)] for b in range(batch)]
    if dice.random() < 0.2:
        tree = TokenTree(tree.tokens, tree.parent, tree.valid, tree.draw * 0, levels=4)
    return tree, torch.tensor(p, dtype=torch.float64)


def one_row(tree, b):
    return TokenTree(
        tokens=tree.tokens[b : b + 1],
        parent=tree.parent[b : b + 1],
        valid=tree.valid[b : b + 1],
        draw=tree.draw[b : b + 1],
        levels=tree.levels,
        q=None if tree.q is None else tree.q[b : b + 1],
        q_row=None if tree.q_row is None else tree.q_row[b : b + 1],
    )


@pytest.mark.parametrize(("verifier", "reference"), PAIRS)
def test_fast_and_slow_agree_draw_for_draw(verifier, reference):
    dice = pyrandom.Random(0)
    lengths = []
    for seed in range(250):
        batch, cycle = dice.randint(1, 6), dice.randint(0, 9)
        tree, p = random_batch(dice, batch)
        random = SeededRandom(seed, batch)
        for _ in range(cycle):
            random.verify.advance()
        verdict = verifier.verify(tree, AllLaws(p), random.verify)
        assert verdict.path.shape == (batch, tree.levels)
        for b in range(batch):
            coins = RowCoins(seed, batch, b, cycle)
            path, bonus = reference(Row.of(tree, b), p[b].tolist(), coins)
            length = int(verdict.length[b])
            assert verdict.path[b].tolist() == path + [-1] * (tree.levels - len(path))
            assert (length, int(verdict.bonus[b])) == (len(path), bonus)
            lengths.append(length)
            single = SeededRandom(seed, batch)
            for _ in range(cycle):
                single.verify.advance()
            single.keep(torch.tensor([b]))
            counting = CountingSource(single.verify)
            alone = verifier.verify(one_row(tree, b), AllLaws(p[b : b + 1]), counting)
            assert torch.equal(alone.path[0], verdict.path[b])
            assert alone.bonus[0] == verdict.bonus[b]
            if (p[b].amax(-1) < 1).any():  # one-hot laws need no draws
                assert (counting.categoricals, counting.bernoullis) == (coins.categoricals, coins.bernoullis)
    assert set(lengths) == {0, 1, 2, 3, 4}


def test_following_sure_laws_is_matching_them():
    dice = pyrandom.Random(5)
    lengths = set()
    for seed in range(60):
        batch = dice.randint(1, 4)
        tree, p = random_batch(dice, batch)
        argmax = torch.randint(p.shape[-1], p.shape[:2], generator=torch.Generator().manual_seed(seed))
        verdict = follow_argmax(tree, argmax)
        law = torch.nn.functional.one_hot(argmax, p.shape[-1]).double()
        for b in range(batch):
            path, bonus = match_reference(Row.of(tree, b), law[b].tolist(), RowCoins(seed, batch, b, 0))
            assert verdict.path[b].tolist() == path + [-1] * (tree.levels - len(path))
            assert (int(verdict.length[b]), int(verdict.bonus[b])) == (len(path), bonus)
            lengths.add(len(path))
        bare = Verdict(verdict.path, verdict.length, verdict.bonus)
        assert verdict.to_host(tree) == bare.to_host(tree), "the host copy equals the tensors"
        assert torch.equal(verdict.emitted(tree), bare.emitted(tree))
        assert verdict.to_host(tree).paths == [[n for n in row if n >= 0] for row in verdict.path.tolist()]
    assert lengths >= {0, 1, 2}


def test_a_changed_verdict_drops_its_host_copy():
    tree = TokenTree.root_only(torch.tensor([1, 1]))
    verdict = follow_argmax(tree, torch.tensor([[2], [0]]))
    assert verdict.to_host(tree).tokens == [[2], [0]]
    changed = replace(verdict, bonus=torch.tensor([3, 3]))
    assert changed.to_host(tree).tokens == [[3], [3]] and changed.emitted(tree).tolist() == [[3], [3]]


def test_recorded_laws_agree_slot_for_slot():
    dice = pyrandom.Random(2)
    seen = 0
    for _ in range(60):
        tree, _ = random_batch(dice, 2)
        if tree.q is None:
            continue
        slots = SiblingSlots(tree, Record(tree, 4, torch.float64))
        for node in range(1, tree.tokens.shape[1]):
            parent, last = tree.parent[:, node], torch.tensor([node - 1] * 2)
            slot, earlier = slots.after(parent, last)
            token, law = slots.law(slot, earlier)
            for b in range(2):
                if tree.valid[b, node]:
                    expected = torch.tensor(recorded_law(Row.of(tree, b), node, 4), dtype=torch.float64)
                    assert slot[b] == node
                    assert token[b] == tree.tokens[b, node]
                    assert torch.allclose(law[b], expected, rtol=0, atol=1e-14)
                    seen += 1
    assert seen > 200


@pytest.mark.parametrize(("verifier", "reference"), PAIRS)
def test_float32_gives_valid_verdicts(verifier, reference):
    dice = pyrandom.Random(1)
    for seed in range(60):
        tree, p = random_batch(dice, 4)
        verdict = verifier.verify(tree, AllLaws(p.float()), SeededRandom(seed, 4).verify)
        for b in range(4):
            node = 0
            for child in verdict.path[b, : verdict.length[b]].tolist():
                assert tree.valid[b, child]
                assert tree.parent[b, child] == node
                node = child
            assert p[b, node, verdict.bonus[b]] > 0


@pytest.mark.parametrize(("verifier", "reference"), PAIRS)
def test_a_root_only_tree_is_plain_sampling(verifier, reference):
    law = torch.tensor([[[0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]]])
    verdict = verifier.verify(TokenTree.root_only(torch.tensor([1, 1])), AllLaws(law), SeededRandom(0, 2).verify)
    assert verdict.path.shape == (2, 0)
    assert verdict.length.tolist() == [0, 0]
    assert verdict.bonus.tolist() == [2, 0]
    assert verdict.emitted(TokenTree.root_only(torch.tensor([1, 1]))).tolist() == [[2], [0]]


# One cycle, exactly: every random branch of drafting and verifying, weighed.


class Replay:
    """A RandomSource for one row that takes one branch; `laws` replays until all have been taken."""

    def __init__(self):
        self.taken, self.place, self.weight = [], 0, Fraction(1)

    def choose(self, law):
        total = Fraction(1) * sum(law)
        options = [(i, mass / total) for i, mass in enumerate(law) if mass > 1e-13]
        if self.place == len(self.taken):
            self.taken.append([0, len(options)])
        cursor, size = self.taken[self.place]
        assert size == len(options), "hidden randomness"
        self.place += 1
        self.weight = self.weight * options[cursor][1]
        return options[cursor][0]

    def categorical(self, probs):
        if isinstance(probs, torch.Tensor):
            flat = probs.reshape(-1, probs.shape[-1]).tolist()
            return torch.tensor([self.choose(law) for law in flat]).view(probs.shape[:-1])
        return self.choose(probs)

    def bernoulli(self, p):
        if isinstance(p, torch.Tensor):
            return torch.tensor([bool(self.choose([1 - x, x])) for x in p.tolist()])
        return bool(self.choose([1 - p, p]))


def enumerate_law(program):
    """{outcome: probability} of program(source), over every branch."""
    law, taken = {}, []
    while True:
        source = Replay()
        source.taken = taken
        outcome = program(source)
        assert source.place == len(taken), "hidden randomness"
        law[outcome] = law.get(outcome, 0) + source.weight
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return law
        taken[-1][0] += 1


def law_after(context, vocab, salt):
    """A rational law with a history of its own: full, with zeros, one-hot."""
    dice = pyrandom.Random(f"{salt} {context}")
    kind = dice.choice(["full", "full", "zeros", "one-hot"])
    weights = [dice.randint(1, 9) for _ in range(vocab)]
    for token in dice.sample(range(vocab), {"full": 0, "zeros": 1, "one-hot": vocab - 1}[kind]):
        weights[token] = 0
    return [Fraction(weight, sum(weights)) for weight in weights]


def draft(source, kinds, vocab, q_of, arrange=lambda slots: slots):
    """One tree: level d has the slots kinds[d] under every node of level d - 1. Returns a Row and contexts.

    A slot that comes after the mass of q is used up is filled with token 0, as a `top` draw.
    """
    tokens, parent, draw, q, contexts = [0], [-1], [TOP], [], [()]
    level = [0]
    for slots in kinds:
        below = []
        for node in level:
            law = q_of(contexts[node])
            q.append(law)
            left, drawn = list(law), []
            for kind in slots:
                if kind == WOR and sum(left) == 0:
                    kind = TOP
                token = 0 if kind == TOP else source.choose(left if kind == WOR else law)
                if kind == WOR:
                    left[token] = Fraction(0)
                drawn.append((token, kind))
            for token, kind in arrange(drawn):
                below.append(len(tokens))
                tokens.append(token)
                parent.append(node)
                draw.append(kind)
                contexts.append((*contexts[node], token))
        level = below
    sources = sorted(set(parent[1:]))  # the order in which rows of q were added
    q_row = [0] + [sources.index(node) for node in parent[1:]]
    return Row(tokens, parent, [True] * len(tokens), draw, q, q_row), contexts


def as_tree(row, levels):
    return TokenTree(
        tokens=torch.tensor([row.tokens]),
        parent=torch.tensor([row.parent]),
        valid=torch.tensor([row.valid]),
        draw=torch.tensor([row.draw], dtype=torch.int64),
        levels=levels,
        q=torch.tensor([[[float(mass) for mass in law] for law in row.q]], dtype=torch.float64),
        q_row=torch.tensor([row.q_row]),
    )


def emitted_law(rule, kinds, vocab, salt, equal=False, exact=False, record=None, **options):
    """The law of the first depth + 1 tokens: one cycle, completed from the target where it ended early."""

    def p_of(context):
        return law_after(context, vocab, f"p{salt}")

    def q_of(context):
        return p_of(context) if equal else law_after(context, vocab, f"q{salt}")

    def program(source):
        row, contexts = draft(source, kinds, vocab, q_of, **options)
        if record:
            row = record(row)
        p = [p_of(context) for context in contexts]
        if exact:
            path, bonus = rule(row, p, source)
        else:
            tree = as_tree(row, len(kinds))
            laws = torch.tensor([[[float(mass) for mass in law] for law in p]], dtype=torch.float64)
            verdict = rule.verify(tree, AllLaws(laws), source)
            path, bonus = verdict.path[0, : verdict.length[0]].tolist(), int(verdict.bonus)
        done = (*contexts[path[-1] if path else 0], bonus)
        while len(done) <= len(kinds):
            done = (*done, source.choose(p_of(done)))
        return done

    return enumerate_law(program), p_of


def distance(law, p_of):
    """The total variation between a law of texts and the target's own."""
    length = len(next(iter(law)))
    wanted = {(): Fraction(1)}
    for _ in range(length):
        wanted = {
            (*text, token): mass * share
            for text, mass in wanted.items()
            for token, share in enumerate(p_of(text))
            if share
        }
    return sum(abs(law.get(text, 0) - wanted.get(text, 0)) for text in law.keys() | wanted.keys()) / 2


FLAT = {
    "chain": [[IID]],
    "top": [[TOP]],
    "two iid": [[IID, IID]],
    "three iid": [[IID, IID, IID]],
    "two without replacement": [[WOR, WOR]],
    "all without replacement, then a filler": [[WOR, WOR, WOR, WOR]],
    "mixed": [[IID, TOP, WOR, WOR]],
    "mixed otherwise": [[WOR, IID, WOR, TOP]],
}
DEEP = {
    "chain of two": [[IID], [IID]],
    "iid below without replacement": [[WOR, WOR], [IID]],
    "without replacement below top": [[TOP], [WOR, WOR]],
    "fused": [[WOR, TOP], [IID, TOP]],
}


@pytest.mark.parametrize("kinds", (FLAT | DEEP).values(), ids=(FLAT | DEEP).keys())
@pytest.mark.parametrize("verifier", [Match(), Recursive()], ids=["match", "recursive"])
def test_verifiers_emit_the_targets_law(verifier, kinds):
    flat = len(kinds) == 1
    for salt in range(6 if flat else 2):
        for equal in (False, True) if flat else (False,):
            law, p_of = emitted_law(verifier, kinds, 3, salt, equal=equal)
            assert distance(law, p_of) < 1e-12


@pytest.mark.parametrize("kinds", (FLAT | DEEP).values(), ids=(FLAT | DEEP).keys())
@pytest.mark.parametrize("reference", [match_reference, recursive_reference])
def test_references_emit_exactly_the_targets_law(reference, kinds):
    for salt in range(6):
        law, p_of = emitted_law(reference, kinds, 4 if len(kinds) == 1 else 3, salt, exact=True)
        assert distance(law, p_of) == 0


def test_recursive_accepts_more_than_match_on_sampled_siblings():
    dice_law = {}
    for name, rule in [("match", match_reference), ("recursive", recursive_reference)]:

        def program(source, rule=rule):
            row, contexts = draft(source, [[WOR, WOR]], 4, lambda context: [Fraction(n, 10) for n in (4, 3, 2, 1)])
            path, _ = rule(row, [[Fraction(n, 10) for n in (1, 2, 3, 4)]] * len(contexts), source)
            return len(path)

        dice_law[name] = enumerate_law(program)
    assert dice_law["recursive"][1] > dice_law["match"][1] + Fraction(1, 10)


def test_a_recorded_law_of_zero_for_the_token_is_taken_as_given():
    def underflown(row):
        return Row(
            row.tokens,
            row.parent,
            row.valid,
            row.draw,
            [[mass if mass > Fraction(1, 5) else Fraction(0) for mass in law] for law in row.q],
            row.q_row,
        )

    for salt in range(8):
        for rule, exact in [(recursive_reference, True), (Recursive(), False)]:
            law, p_of = emitted_law(rule, [[IID]], 4, salt, exact=exact, record=underflown)
            assert distance(law, p_of) < 1e-12


@pytest.mark.parametrize("exact", [True, False])
def test_sorting_sampled_siblings_is_found_out(exact):
    def sort(slots):
        return sorted(slots)

    rule = recursive_reference if exact else Recursive()
    law, p_of = emitted_law(rule, [[WOR, WOR]], 4, salt=1, exact=exact, arrange=sort)
    assert distance(law, p_of) > 0.01
    safe, p_of = emitted_law(Match(), [[WOR, WOR]], 4, salt=1, arrange=sort)
    assert distance(safe, p_of) < 1e-12


@pytest.mark.parametrize("verifier", [Match(), Recursive()], ids=["match", "recursive"])
def test_temperature_0_takes_no_branch_and_follows_the_argmax(verifier):
    row = Row(
        tokens=[0, 1, 2, 2, 0],
        parent=[-1, 0, 0, 1, 2],
        valid=[True] * 5,
        draw=[TOP, IID, TOP, IID, WOR],
        q=[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
        q_row=[0, 0, 0, 1, 2],
    )
    best = [2, 0, 0, 1, 1]
    p = torch.eye(3, dtype=torch.float64)[best][None]

    def program(source):
        verdict = verifier.verify(as_tree(row, 2), AllLaws(p), source)
        return (*verdict.path[0].tolist(), int(verdict.bonus))

    assert enumerate_law(program) == {(2, 4, 1): 1}


def test_residual_lost_to_rounding_falls_back_to_the_law():
    class Rejecting:
        """Refuses whatever is sure to be accepted."""

        def bernoulli(self, p):
            return torch.zeros_like(p).bool()

        def categorical(self, probs):
            assert torch.isfinite(probs).all()
            return probs.argmax(-1)

    law = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    row, contexts = draft(Replay(), [[WOR, WOR, WOR]], 3, lambda context: law)
    tree = as_tree(row, 1)
    p = torch.tensor([[[float(mass) for mass in law]] * len(contexts)], dtype=torch.float64)
    verdict = Recursive().verify(tree, AllLaws(p), Rejecting())
    assert verdict.length.tolist() == [0]
    assert 0 <= int(verdict.bonus) < 3
