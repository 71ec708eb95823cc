"""Two benches compared."""

import copy

import pytest

from specframe.engine.bench.comparison import compare, print_comparison
from specframe.kernel.errors import InputError
from tests.bench.synthetic import World, contestant


@pytest.fixture(scope="module")
def pair():
    world = World(10)
    quiet = {"noise": 0.01, "drift": 0.02, "mood": 0.003}
    return world.bench(4, seed=1, **quiet), world.bench(4, seed=2, faster=1.2, **quiet)


def changed(bench, **settings):
    other = copy.deepcopy(bench)
    other["settings"].update(settings)
    return other


def find(comparison, contestant, figure):
    return next(c for c in comparison.changes if (c.contestant, c.figure) == (contestant, figure))


def test_a_faster_drafter_is_significant_and_what_stayed_is_not(pair, capsys):
    found = compare(*pair)
    speed = find(found, "falcon", "speedup")
    assert speed.significant and speed.ratio.value == pytest.approx(1.2, rel=0.05)
    assert speed.ratio.low > 1.1
    assert find(found, "plain", "tau").significant is False
    assert find(found, "hf:generate", "speedup").significant is False
    assert not found.warnings
    print_comparison(found)
    assert "+2" in capsys.readouterr().out


def test_a_bench_has_not_changed_against_itself(pair):
    found = compare(pair[0], pair[0])
    assert found.prompts == 10 and found.changes
    assert not any(change.significant for change in found.changes)
    assert all(change.ratio.value == 1 for change in found.changes)


def test_only_prompts_in_common_count(pair):
    other = copy.deepcopy(pair[1])
    other["prompts"] = other["prompts"][:4]
    other["prompts"][0]["tokens"] = [21]  # another text by the same name
    found = compare(pair[0], other)
    assert found.prompts == 3
    assert any("7 prompts of the old" in warning for warning in found.warnings)
    with pytest.raises(InputError, match="no prompt in common"):
        compare(pair[0], other | {"prompts": []})


@pytest.mark.parametrize("settings", [{"max_new_tokens": 32}, {"temperature": 0.7}, {"batch": 4}, {"turns": 2}])
def test_other_budgets_are_refused(pair, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        compare(pair[0], changed(pair[1], **settings))


def test_another_schema_target_or_cast_is_refused(pair):
    with pytest.raises(InputError, match="schema"):
        compare(pair[0], pair[1] | {"schema": 2})
    elsewhere = [contestant(name, target="another") for name in ("plain", "hf:generate", "falcon")]
    with pytest.raises(InputError, match="another"):
        compare(pair[0], pair[1] | {"contestants": elsewhere})
    failed = [contestant("plain", error="no memory")]
    with pytest.raises(InputError, match="no contestant"):
        compare(pair[0], pair[1] | {"contestants": failed})


def test_another_machine_is_warned_of(pair):
    slower = copy.deepcopy(pair[0])
    slower["provenance"]["hardware"]["cores"] = 64
    for run in slower["runs"]:
        run["seconds"] *= 3
    found = compare(pair[0], slower)
    assert any("cores is 2 and 64" in warning for warning in found.warnings)
    assert any("Plain decoding itself changed" in warning for warning in found.warnings)
    assert find(found, "falcon", "speedup").significant is False  # it is against plain, which slowed down as well


def test_one_repeat_leaves_times_undecided(pair):
    short = World(10).bench(1)
    found = compare(short, pair[0])
    assert find(found, "falcon", "tokens_per_second").significant is None
    assert find(found, "falcon", "tau").significant is not None
    assert any("one repeat" in warning for warning in found.warnings)
