"""A recipe's own parts on a vocabulary small enough to enumerate, and ever smaller versions of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from specframe.certify.compositions.emission import Emission
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.decoding.session import Parts
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.capabilities import Promise, small_form, untrained_form
from specframe.kernel.composition import attach, draft_of
from specframe.kernel.costs import Costs
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import Drafter, Target, TreePolicy, Verifier
from specframe.recipes.build import Part, Plan
from specframe.sampling.grammar import GrammarCompiler, TextGrammar
from specframe.sampling.laws import Sampling
from specframe.sampling.penalties import Penalties

FEWEST = 3
"""Smallest size of a reduced tree: the root, and two nodes that may be siblings or two levels."""
VOCAB = 3
LENGTH = 4
PROMPT = (0, 1, 2, 0, 1)
"""Prompt that repeats itself, so that retrieval drafters find something."""
EOS = 1
GRAMMAR = {"regex": "(c?a){2}|(ac?)*c|a"}
"""The grammar of a continuation, where the recipe has one; the tokens but the end are letters."""
LEAST = 2
"""The least length of a continuation, where the recipe has one."""
COSTS = Costs(((1, 1.0), (2, 1.2), (8, 3.5)), draft=0.1, rows=1)
"""Made-up costs under which only likely nodes pay: the distribution must not depend on a machine's times."""
CHEAP = Costs(((1, 1.0), (256, 1.001)), draft=0.0001, rows=1)
"""Every node pays."""


@dataclass(frozen=True)
class SmallComposition:
    """The recipe's drafter, tree policy and verifier, ready to be built over small targets."""

    drafter: Part
    tree: Part | None
    verifier: Part
    small: bool = False
    """True if drafter and tree policy are in their small forms."""
    length: int = LENGTH
    """Number of tokens whose joint distribution is observed."""
    costs: Costs | None = None
    """Costs that decide how much of a draft pays, where the recipe asks for that."""
    model: Callable[[int, int], Any] | None = None
    """Function from a vocabulary's size and a seed to the model that is the target; None: a table, where it will do."""

    @classmethod
    def of(cls, plan: Plan) -> SmallComposition:
        """The parts of a recipe."""
        costs = COSTS if plan.settings["run"].costs else None
        return cls(plan.parts["drafter"], plan.parts.get("tree"), plan.parts["verifier"], costs=costs)

    @property
    def promise(self) -> Promise:
        """Promise of every draft."""
        return draft_of(self.make_drafter(), self.make_tree())

    def make_drafter(self, vocab: int = VOCAB) -> Drafter:
        """The drafter, not yet bound, for a target of `vocab` tokens."""
        drafter: Drafter = untrained_form(self.drafter.build(), vocab)
        return _smaller(drafter) if self.small else drafter

    def make_tree(self) -> TreePolicy | None:
        """The tree policy, if the recipe has one."""
        tree: TreePolicy | None = self.tree.build() if self.tree is not None else None
        return _smaller(tree) if self.small else tree

    def make_verifier(self, target: Target, vocab: int = VOCAB) -> Verifier:
        """The verifier, bound to a target of `vocab` tokens."""
        verifier: Verifier = untrained_form(self.verifier.build(), vocab)
        attach(verifier, target)
        return verifier

    def emission(
        self,
        name: str,
        sampling: Sampling,
        *,
        seed: int = 0,
        eos: int | None = None,
        vocab: int = VOCAB,
        broken: Callable[[Verifier], Verifier] | None = None,
    ) -> Emission:
        """One thing to enumerate. `broken` wraps the verifier, for negative controls.

        Target and drafter are built once: every batch of branches is a session, which starts afresh.
        """
        target, drafter = self._bound(vocab, seed, eos)

        def parts() -> Parts:
            verifier = self.make_verifier(target, vocab)
            return Parts(target, drafter, self.make_tree(), broken(verifier) if broken else verifier, self.costs)

        ends = frozenset() if eos is None else frozenset({eos})
        return Emission(name, parts, sampling, self.length, tuple(t % vocab for t in PROMPT), ends)

    def _bound(self, vocab: int, seed: int, eos: int | None) -> tuple[Target, Drafter]:
        """The target, by default a table, or a tiny random Llama in float64 where the drafter needs hidden states, and
        the drafter bound to it."""
        if self.model is not None:
            target: Target = HFTarget.from_model(self.model(vocab, seed))
            drafter = self.make_drafter(vocab)
            drafter.bind(target)
            return target, drafter
        target = TableTarget(vocab=vocab, order=2, seed=seed, eos=eos)
        drafter = self.make_drafter(vocab)
        try:
            drafter.bind(target)
        except SpecframeError:
            target, drafter = HFTarget.from_model(tiny_llama(vocab, seed)), self.make_drafter(vocab)
            drafter.bind(target)
        return target, drafter


def _smaller(part: Any) -> Any:
    """The part's small form; the part itself where it has none, or inherits one that gives the class it extends."""
    small = small_form(part)
    return small if type(small) is type(part) or "smaller" in vars(type(part)) else part


def small_sampling(settings: SamplingSettings, vocab: int = VOCAB) -> Sampling:
    """The recipe's sampling, with top_k lowered so that it still cuts something off.

    Biases, bad words and suppressed tokens are those of the tokens' remainders, and one token at least stays allowed.
    N-grams have three tokens at least, since the text soon has every pair. A least length ends among the tokens that
    are compared. A grammar is another one, over letters, since the recipe's cannot be written with so few tokens.
    Repetition counts the continuation alone, since the prompt has every token of the small vocabulary.
    """
    biases: dict[str, float] = {}
    for token, value in settings.biases.items():
        biases[str(token % vocab)] = biases.get(str(token % vocab), 0.0) + value
    small = replace(
        settings,
        top_k=min(settings.top_k, vocab - 1),
        logit_bias=biases,
        no_repeat_ngram_size=settings.no_repeat_ngram_size and max(settings.no_repeat_ngram_size, 3),
        bad_words_ids=[[token % vocab for token in word] for word in settings.bad_words_ids[: vocab - 1]],
        suppress_tokens=sorted({token % vocab for token in settings.suppress_tokens})[: vocab - 1],
        begin_suppress_tokens=sorted({token % vocab for token in settings.begin_suppress_tokens})[: vocab - 1],
        min_new_tokens=min(settings.min_new_tokens, LEAST),
    )
    sampling = small.law(len(PROMPT), {EOS}, small_grammar(vocab) if settings.grammar is not None else None)
    processors = (
        replace(each, prompt=len(PROMPT), ignored=len(PROMPT)) if isinstance(each, Penalties) else each
        for each in sampling.processors
    )
    return replace(sampling, processors=tuple(processors))


def small_grammar(vocab: int = VOCAB) -> TextGrammar:
    """A grammar whose tokens are single letters, the end aside. Raises InputError where llguidance is missing."""
    letters = [bytes([ord("a") + token]) for token in range(vocab)]
    return GrammarCompiler.spelled(letters, frozenset({EOS})).compile(GRAMMAR)


def smaller_versions(own: SmallComposition) -> list[SmallComposition]:
    """The recipe's own composition first, then with smaller and smaller trees, at last with fewer tokens watched.

    Three tokens are watched as long as possible: the third is the first that depends on how long the first cycle was.
    """
    found = [own, replace(own, small=True, length=LENGTH - 1)]
    while (simpler := _simpler(found[-1])) is not None:
        found.append(simpler)
    return [*found, replace(found[-1], length=LENGTH - 2)]


def reduced(own: SmallComposition, version: SmallComposition) -> tuple[str, ...]:
    """Describes the reductions from the recipe; empty if only the vocabulary is smaller."""
    whole, small = own.promise, version.promise
    pairs = ((name, getattr(whole, name), getattr(small, name)) for name in ("depth", "nodes"))
    return tuple(f"{name} {before} -> {now}" for name, before, now in pairs if before != now)


def _simpler(small: SmallComposition) -> SmallComposition | None:
    """The composition with the next smaller tree that one changed option can give; None where none can."""
    if small.tree is None:
        return None
    limit, found, most = _nodes(small, small.tree), None, FEWEST - 1
    for part in _variants(small.tree):
        if most < (nodes := _nodes(small, part)) < limit:
            found, most = part, nodes
    return None if found is None else replace(small, tree=found)


def _nodes(small: SmallComposition, tree: Part) -> int:
    """Returns the number of nodes of the policy's trees; 0 where its options do not fit together."""
    try:
        policy = replace(small, tree=tree).make_tree()
    except SpecframeError:
        return 0
    return (policy.promise.nodes or 0) if policy is not None else 0


def _variants(part: Part) -> Iterator[Part]:
    """The component with one of its numbers decreased, or fewer entries in one of its lists."""
    for name, value in part.options.items():
        for less in _decreased(value):
            yield replace(part, options=part.options | {name: less})


def _decreased(value: Any) -> Iterator[Any]:
    if isinstance(value, Part):
        yield from _variants(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield from {less for less in (value - 1, 2, 1) if 0 < less < value}
    elif isinstance(value, list | tuple):
        kind = type(value)
        for place in reversed(range(len(value))):
            for less in _decreased(value[place]):
                yield kind([*value[:place], less, *value[place + 1 :]])
        yield from (kind(value[:count]) for count in {len(value) - 1, 2, 1} if 0 < count < len(value))
