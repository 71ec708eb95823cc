"""Foreign acceptance functions, written in the styles in which one meets them."""

import random
from random import random as bare_random

import numpy as np
import pytest
import torch

from specframe.certify.function import compare_function, load_function
from specframe.kernel.errors import InputError, PluginError


def norm(excess):
    return excess.clamp(min=0) / excess.clamp(min=0).sum()


def scalar(candidates, p, q):
    for i, token in enumerate(candidates[0].tolist()):
        if random.random() > p[0, i, token] / q[0, i, token]:
            return i, torch.multinomial(norm(p[0, i] - q[0, i]), 1).item()
    return candidates.shape[1], torch.multinomial(p[0, -1], num_samples=1).item()


def vectorised(candidates, p, q):
    count = candidates.shape[1]
    at = torch.arange(count)
    ratio = p[0, at, candidates[0]] / q[0, at, candidates[0]]
    accepted = int((torch.rand(count) < ratio).cumprod(0).sum())
    left = p[0, count] if accepted == count else (p[0, accepted] - q[0, accepted]).clamp(min=0)
    return accepted, torch.distributions.Categorical(probs=left).sample()


def in_numpy(candidates, p, q):
    candidates, p, q = candidates[0].numpy(), p[0].numpy(), q[0].numpy()
    for i, token in enumerate(candidates):
        if q[i, token] * np.random.rand() >= p[i, token]:
            left = np.maximum(p[i] - q[i], 0)
            return i, np.random.choice(len(left), p=left / left.sum())
    return len(candidates), np.random.choice(p.shape[1], p=p[-1])


def by_name(candidates, p, q):
    token = int(candidates[0, 0])
    if p[0, 0, token] / q[0, 0, token] >= bare_random():
        return 1, random.choices(range(3), weights=p[0, 1].tolist())[0]
    return 0, int(norm(p[0, 0] - q[0, 0]).multinomial(1))


def siblings(candidates, p, q):
    left = p[0, 0]
    for path, token in enumerate(candidates[:, 0].tolist()):
        if torch.rand_like(left)[0] <= left[token] / q[path, 0, token]:
            return path, 1, int(torch.multinomial(p[path, 1], 1))
        left = norm(left - q[path, 0])
    return 0, 0, int(torch.multinomial(left, 1))


def top_tree(candidates, p, q):
    token_drawn = int(torch.multinomial(p[0, 0], 1))
    for path, token in enumerate(candidates[:, 0].tolist()):
        if token == token_drawn:
            return path, 1, int(torch.multinomial(p[path, 1], 1))
    return 0, 0, token_drawn


def races(candidates, p, q):
    """vLLM's way: probabilities over exponential numbers that an empty tensor was filled with."""
    count = candidates.shape[1]
    uniform = torch.empty(count).uniform_()
    for i, token in enumerate(candidates[0].tolist()):
        if not p[0, i, token] / q[0, i, token] >= uniform[i]:
            noise = torch.empty_like(p[0, i])
            noise.exponential_()
            return i, (p[0, i] - q[0, i]).clamp(min=0).div_(noise).argmax(dim=-1)
    noise = torch.empty_like(p[0, -1]).exponential_()
    return count, (noise / p[0, -1]).argmin(-1, keepdim=True)


def gumbel(candidates, p, q):
    for i, token in enumerate(candidates[0].tolist()):
        if random.random() > p[0, i, token] / q[0, i, token]:
            return i, (norm(p[0, i] - q[0, i]).log() - (-torch.rand(3).log()).log()).argmax()
    return candidates.shape[1], torch.argmax(p[0, -1].log() - torch.log(-torch.log(torch.rand(3))))


def numpy_generator(candidates, p, q):
    generator = np.random.default_rng(7)
    candidates, p, q = candidates[0].numpy(), p[0].numpy(), q[0].numpy()
    for i, token in enumerate(candidates):
        if q[i, token] * generator.random() >= p[i, token]:
            return i, np.argmax(np.maximum(p[i] - q[i], 0) / generator.exponential(size=3))
    return len(candidates), np.argmax(np.log(p[-1]) + generator.gumbel(size=3))


by_name.widths = [1]
siblings.widths, siblings.draw = [2], "without_replacement"
top_tree.widths, top_tree.draw = [2], "top"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "accept", [scalar, vectorised, in_numpy, by_name, siblings, top_tree, races, gumbel, numpy_generator]
)
def test_right_code_is_certified(accept):
    comparison = compare_function(accept)
    assert comparison.enumeration.exhausted
    assert comparison.tv < 1e-12


def unwarped_bonus(candidates, p, q):
    """The bonus row misses the temperature, as in HASS and Spec-Bench."""
    accepted, token = scalar(candidates, p, q)
    if accepted == candidates.shape[1]:
        token = torch.multinomial(norm(p[0, -1] ** 0.5), 1).item()
    return accepted, token


def no_residual(candidates, p, q):
    accepted, token = scalar(candidates, p, q)
    return accepted, token if accepted == candidates.shape[1] else torch.multinomial(p[0, accepted], 1).item()


def shared_number(candidates, p, q):
    token, number = int(candidates[0, 0]), torch.rand(1)
    if number < p[0, 0, token] / q[0, 0, token]:
        return 1, torch.multinomial(p[0, 1], 1)
    left = norm(p[0, 0] - q[0, 0]).cumsum(0)
    return 0, int((left[:-1] <= number).sum())


def raced_with_p(candidates, p, q):
    accepted, token = races(candidates, p, q)
    if accepted < candidates.shape[1]:
        token = (p[0, accepted] / torch.empty(3).exponential_()).argmax()
    return accepted, token


def independent_siblings(candidates, p, q):
    return siblings(candidates, p, q.where(torch.arange(2)[:, None, None] == 0, q[0]))


shared_number.widths = no_residual.widths = raced_with_p.widths = [1]
independent_siblings.widths, independent_siblings.draw = [2], "without_replacement"


@pytest.mark.parametrize(
    ("accept", "least", "first"),
    [
        (unwarped_bonus, 0.03, 0.0),
        (no_residual, 0.03, 0.01),
        (raced_with_p, 0.03, 0.01),
        (shared_number, 0.02, 0.01),
        (independent_siblings, 0.005, 0.001),
    ],
)
def test_wrong_code_is_measured(accept, least, first):
    comparison = compare_function(accept, seed=1)
    assert comparison.enumeration.exhausted
    assert comparison.tv > least
    assert (comparison.first_tv > first) if first else comparison.first_tv < 1e-12
    assert comparison.prefix and abs(comparison.got - comparison.wanted) > 1e-3


def looks(candidates, p, q):
    return 0, int(torch.rand(1) * 3)


def two_races(candidates, p, q):
    noise = torch.empty(3).exponential_()
    return (p[0, 0] / noise).argmax() % 2, (p[0, 1] / noise).argmax()


def loser(candidates, p, q):
    return 0, (p[0, 0] / torch.empty(3).exponential_()).argmin()


def looks_in_place(candidates, p, q):
    noise = torch.empty(3)
    noise.uniform_()
    return 0, int(noise.sum())


def normal(candidates, p, q):
    return 0, int(np.random.default_rng().normal(size=3).argmax())


def compares_two(candidates, p, q):
    return 0, int(torch.rand(1) < torch.rand(1))


@pytest.mark.parametrize("accept", [looks, two_races, loser, looks_in_place, normal, compares_two])
def test_what_cannot_be_enumerated_is_reported_with_what_to_do(accept):
    with pytest.raises(InputError, match=r"torch\.multinomial"):
        compare_function(accept)


def no_law(candidates, p, q):
    return 0, torch.multinomial(p[0, 0] * 0, 1)


def nonsense(candidates, p, q):
    return 7, 0


def nothing(candidates, p, q):
    return None


def raises(candidates, p, q):
    raise RuntimeError("boom")


def leaves(candidates, p, q):
    raise SystemExit(0)


def never_ends(candidates, p, q):
    while torch.rand(1) < 2 / 3:
        pass
    return 0, 0


@pytest.mark.parametrize(
    ("accept", "message"),
    [
        (no_law, "no distribution"),
        (nonsense, "7 accepted"),
        (nothing, "gave back None"),
        (raises, r"failed at test_against.py:\d+: RuntimeError: boom"),
        (leaves, r"failed at test_against.py:\d+: SystemExit: 0"),
        (never_ends, "one branch drew 256 times"),
    ],
)
def test_bad_answers_are_explained(accept, message):
    with pytest.raises(InputError, match=message):
        compare_function(accept)


@pytest.mark.parametrize("widths", ["x", [], [0], [1.5], [True], None, [50, 50, 50]])
def test_widths_that_are_none_are_explained(widths):
    def accept(candidates, p, q):
        return 0, 0

    accept.widths = widths
    with pytest.raises(InputError, match="`widths` is"):
        compare_function(accept)


def test_everything_is_put_back():
    before = torch.rand, torch.multinomial, random.random, np.random.rand, torch.Tensor.multinomial, bare_random
    with pytest.raises(InputError):
        compare_function(looks)
    compare_function(by_name)
    after = torch.rand, torch.multinomial, random.random, np.random.rand, torch.Tensor.multinomial, bare_random
    assert all(a is b or a == b for a, b in zip(before, after, strict=True))
    assert torch.rand(3).shape == (3,) and 0 <= bare_random() < 1


def test_a_function_comes_from_a_file(tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text(
        "import torch\ndef accept(c, p, q):\n    return 0, torch.multinomial(p[0, 0], 1)\naccept.widths = [1]\nx = 1\n"
    )
    assert compare_function(load_function(f"{path}:accept")).tv < 1e-12
    for where in ("accept", f"{path}:x"):
        with pytest.raises(InputError):
            load_function(where)
    with pytest.raises(PluginError):
        load_function(f"{path}:missing")
