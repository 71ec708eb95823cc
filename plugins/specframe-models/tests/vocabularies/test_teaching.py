"""The target's answers in a drafter's tokens: where they stand, whose probabilities they are, and what is learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import specframe
from specframe import CompositionError, InputError, compose
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.distillation import Distillation
from specframe.components.losses.divergences import ReverseKL
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.targets.tokenizer import TokenizerSource
from specframe.components.trees.fixed import Chain
from specframe.plugin import Promise, Student, Teacher
from specframe.training.online import Online
from specframe_models.vocabularies.hybrid import Hybrid
from specframe_models.vocabularies.intersection import Intersection
from specframe_models.vocabularies.matching import Matching
from specframe_models.vocabularies.ngrams import Ngrams
from specframe_models.vocabularies.strings import Strings
from specframe_models.vocabularies.teaching import LEAST, Translated, Translation
from specframe_models.vocabularies.vocabulary import Vocabulary
from specframe_zoo import smollm2

DRAFTER, TARGET = Vocabulary.of_pieces(["a", "b", "ba"]), Vocabulary.of_pieces(["b", "a", "ab", "c"])
AB = {2: (0, 1)}
PROMPTS = [[1, 2, 3, 0], [0, 1], [2, 2, 0, 1, 3], [3, 1, 0], [1, 0], [0, 3, 2], [2, 0], [1, 1, 3]]


def taught(tokens: list[int], counted: list[int], seed: int = 0) -> Teacher:
    """A teacher of one text with random distributions, of which these count."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(1, len(tokens), dtype=torch.bool)
    mask[0, counted] = True
    logits = torch.randn(1, len(tokens), 4, generator=generator, dtype=torch.float64)
    return Teacher(torch.tensor([tokens]), mask, {}, logits)


def answers(length: int, first: int, last: int | None = None) -> torch.Tensor:
    places = torch.arange(length)[None]
    return (places >= first) & (places <= (length if last is None else last))


def test_probabilities_count_for_the_first_token_that_writes_them() -> None:
    """The text is b | a, ab, b: for the drafter b | a, a, b, b."""
    teacher = taught([0, 1, 2, 0], [0, 1, 2])
    made = Translation(DRAFTER, TARGET, {})(teacher, answers(4, 0), AB)
    assert made.tokens.tolist() == [[0, 1, 0, 0, 1, 1]]  # a filler stands before a prompt of one token
    assert made.mask.tolist() == [[False, True, True, True, True, False]]
    assert made.ngrams.tolist() == [[False, False, False, True, False, False]]
    law = teacher.logits.softmax(-1)[0]
    for place, position in ((1, 0), (2, 1), (4, 2)):
        found = made.log_law[0, place].exp()
        b, a, ab, _ = law[position].tolist()
        assert found.tolist() == pytest.approx([a + ab, b, LEAST])  # c cannot be written: its mass is missing
    assert made.log_law[0, 3].exp().tolist() == pytest.approx([LEAST, 1, LEAST])  # after the a of ab comes b
    assert made.argmax[0, 3] == 1


def test_without_ngrams_their_mass_is_missing() -> None:
    teacher = taught([0, 1, 2, 0], [0, 1])
    made = Translation(DRAFTER, TARGET, {})(teacher, answers(4, 0), {})
    assert not made.ngrams.any()
    b, a, _, _ = teacher.logits.softmax(-1)[0, 1].tolist()
    assert made.log_law[0, 2].exp().tolist() == pytest.approx([a, b, LEAST])


def test_positions_within_a_token_of_the_drafter_are_left_out() -> None:
    """The target's b, a are ba for the drafter: nothing is known between them."""
    teacher = taught([1, 0, 1, 0, 1], [0, 1, 2, 3, 4])
    made = Translation(DRAFTER, TARGET, {})(teacher, answers(5, 0), AB)
    assert made.tokens.tolist() == [[0, 0, 2, 2]] and made.mask.tolist() == [[False, True, True, True]]
    for place, position in ((1, 0), (2, 2), (3, 4)):
        found = made.logits[0, place].exp()
        assert found[0] == pytest.approx(float(teacher.logits.softmax(-1)[0, position, 1:3].sum()))


def test_every_answer_is_a_text_of_its_own() -> None:
    teacher = taught([0, 1, 1, 0, 0], [0, 3])
    given = answers(5, 0, 0) | answers(5, 3)
    made = Translation(DRAFTER, TARGET, {})(teacher, given, {})
    assert made.tokens.tolist() == [[0, 1, 0, 0], [2, 0, 1, 1]]  # the second answer's prompt is the whole text
    assert made.mask.nonzero().tolist() == [[0, 1], [1, 2]]
    nothing = Translation(DRAFTER, TARGET, {})(teacher, torch.zeros_like(given), {})
    assert nothing.tokens.shape == (1, 2) and not nothing.mask.any()


@pytest.mark.skipif(
    not smollm2.folder.is_dir(), reason="SmolLM2 is not cached: `specframe run recipes/lookup.yaml` fetches it"
)
def test_real_tokenizers_end_together() -> None:
    """A distribution stands where both texts are the same so far, and so does nearly every one."""
    talk = Vocabulary.of(TokenizerSource(specframe.model_folder("talk-7m")).get(), 4096)
    smol = Vocabulary.of(TokenizerSource(str(smollm2.folder)).get(), 49152)
    tokens = smol.encode("Photosynthesis, naïve 日本 🙂: def f(x):\n\n    return 12345  # Wachstumsgeschwindigkeit")[0]
    teacher = Teacher(
        torch.tensor([tokens]), torch.ones(1, len(tokens), dtype=torch.bool), {}, torch.randn(1, len(tokens), 49152)
    )
    translation = Translation(talk, smol, {})
    read = translation._read(tokens, [True] * len(tokens), (0, len(tokens) - 1), {})
    prompt = smol.write(tokens[:1])
    assert len(read.answers) > 0.8 * len(tokens)
    for place, position in read.answers.items():
        assert talk.write(read.tokens[: place + 1]).endswith(smol.write(tokens[1 : position + 1]))
        assert talk.write(read.tokens[: place + 1]).count(prompt) == 1
    assert translation(teacher, teacher.mask, {}).mask.sum() == len(read.answers)


def student(teacher: Teacher, seed: int = 1) -> Student:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*teacher.tokens.shape, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    position = torch.arange(teacher.tokens.shape[1]).expand_as(teacher.tokens)
    return Student(logits, position, teacher.mask, torch.ones_like(position[0]))


def translated() -> Translated:
    return Translation(DRAFTER, TARGET, {})(taught([0, 1, 2, 0], [0, 1, 2]), answers(4, 0), AB)


def test_hybrid_is_distillation_where_both_terms_weigh_the_same() -> None:
    teacher = translated()
    made, alone = student(teacher), Distillation(alpha=1.0)
    with torch.no_grad():
        assert float(Hybrid(loss=alone)(made, teacher)) == pytest.approx(float(alone(made, teacher)), abs=1e-5)


def test_hybrid_adds_up_its_terms() -> None:
    teacher = translated()
    made = student(teacher)
    inside = teacher.ngrams[0].nonzero()[:, 0].tolist()
    apart = [place for place in teacher.mask[0].nonzero()[:, 0].tolist() if place not in inside]
    assert inside and apart
    q, p = made.log_law[0].detach(), teacher.log_law[0]
    divergence = ReverseKL().measure(p, q)
    surprise = -q.gather(-1, teacher.argmax[0][:, None])[:, 0]
    wanted = (divergence[apart].sum() + 0.5 * surprise[inside].sum()) / (len(apart) + len(inside))
    with torch.no_grad():
        found = Hybrid(loss=ReverseKL(), ngrams=0.5)(made, teacher)
    assert float(found) == pytest.approx(float(wanted))
    own = taught([0, 1], [0, 1])
    plain = Student(torch.randn(1, 2, 4), torch.tensor([[0, 1]]), own.mask, torch.ones(2))
    assert float(Hybrid(loss=ReverseKL())(plain, own)) == float(ReverseKL()(plain, own))


def test_hybrids_gradient() -> None:
    teacher = translated()
    made = student(teacher)
    loss = Hybrid(loss=ReverseKL(), ngrams=0.7)

    def value(logits: torch.Tensor) -> torch.Tensor:
        return loss(Student(logits, made.position, made.mask, made.level), teacher)

    assert torch.autograd.gradcheck(value, (made.logits,))


def online(kind: str, **options) -> Online:
    inner = ModelDrafter.from_model(random_model(vocab=3, layers=1, seed=4))
    pair = DRAFTER, TARGET
    wrapped = {
        "tli": lambda: Intersection.given(inner, pair),
        "slem": lambda: Matching.given(inner, pair, Chain(depth=3)),
        "slrs": lambda: Strings.given(inner, pair, reach=2),
        "omnidraft": lambda: Ngrams.given(inner, pair, reach=2),
        "shared": lambda: Ngrams.given(inner, pair, reach=2, shared=True),
    }[kind]()
    return Online(drafter=wrapped, every=1, held=2, **options)


def pipeline(drafter: Online, batch: int = 1) -> specframe.Pipeline:
    return compose(
        target=HFTarget.from_model(random_model(vocab=4, layers=2, seed=3)),
        drafter=drafter,
        tree=None if isinstance(drafter.drafter, Matching) else Chain(depth=3),
        verifier="match",
        sampling={"temperature": 0.0, "max_new_tokens": 12},
        run={"batch": batch},
    )


@pytest.mark.parametrize(
    ("kind", "batch"), [("tli", 1), ("slem", 1), ("slrs", 3), ("omnidraft", 1), ("omnidraft", 3), ("shared", 3)]
)
def test_it_learns_while_it_decodes_and_the_text_stays(kind: str, batch: int) -> None:
    learning = online(kind, steps=6, lr=2e-2)
    composed = pipeline(learning, batch)
    weights = [p.clone() for p in learning.drafter.drafter.module.parameters()]
    plain = composed.plain().generate(PROMPTS)
    for _ in range(2):
        assert composed.generate(PROMPTS).tokens == plain.tokens
    assert learning.learner is not None
    history = learning.learner.run_state.history
    assert any(not torch.equal(one, two) for one, two in zip(weights, learning.learner.parameters, strict=True))
    assert max(entry["held_after"] for entry in history if entry["kept"]) > history[0]["held_before"] + 0.1


@pytest.mark.parametrize("shared", [True, False])
def test_shared_ngrams_serve_rows_that_have_not_held_them(shared: bool) -> None:
    """Of two rows the prompt of one holds ab; in a later session nothing of it is left."""
    seen: list[float] = []

    class Watching(Chain):
        def grow(self, expand, root, context):
            def watched(frontier):
                found = expand(frontier)
                seen.append(float(found.logits[-1, 0, 0, 2]))
                return found

            return super().grow(watched, root, context)

    target = HFTarget.from_model(random_model(vocab=4, layers=2, seed=3))
    drafter = Ngrams.given(ModelDrafter.from_model(random_model(vocab=3, seed=4)), (DRAFTER, TARGET), shared=shared)
    composed = compose(target=target, drafter=drafter, tree=Watching(depth=1), verifier="match", run={"batch": 2})
    for prompts, known in (([[2, 1], [1, 3]], shared), ([[1, 0], [1, 3]], False)):
        seen.clear()
        found = composed.generate(prompts, max_new_tokens=2)
        assert 2 not in found.tokens[1][:1] and 2 not in found.tokens[0][:1]
        assert (seen[0] > -torch.inf) == known


def test_what_it_has_learnt_is_kept_as_the_drafters_weights(tmp_path: Path) -> None:
    learning = online("omnidraft", lr=1e-2, out=tmp_path)
    pipeline(learning).generate(PROMPTS)
    saved = ModelDrafter(weights=str(tmp_path), dtype="float64").module.state_dict()
    known = learning.drafter.drafter.module.state_dict()
    assert all(torch.equal(saved[name], known[name]) for name in known)


def test_one_without_weights_is_refused() -> None:
    class Weightless:
        taps: frozenset[str] = frozenset()
        promise = Promise()

        def rewind(self, count: torch.Tensor) -> None:
            """A wrapper's request."""

    with pytest.raises(
        CompositionError, match="a drafter with weights, such as `model` or `eagle`; Weightless has none"
    ):
        Online(drafter=Intersection(drafter=Weightless()))
    with pytest.raises(InputError, match="ngrams must not be negative"):
        Hybrid(loss=ReverseKL(), ngrams=-1)
    with pytest.raises(InputError, match="leave out shared"):
        Ngrams(drafter=ModelDrafter.from_model(random_model(vocab=3)), cache="all", shared=True)
