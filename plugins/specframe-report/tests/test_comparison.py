"""Two benches compared."""

import copy
from datetime import UTC, datetime, timedelta

import pytest

from specframe.kernel.errors import InputError
from specframe_report.comparison import compare, print_comparison
from specframe_report.grid import Axes, Grid
from specframe_report.price import price
from specframe_report.summary import summarise
from tests.bench.synthetic import World, contestant


@pytest.fixture(scope="module")
def pair():
    world = World(10)
    quiet = {"noise": 0.01, "drift": 0.02, "load": 0.003}
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


def reprice(bench, part, factor, nodes=1.0):
    """The bench, had a part of falcon's time taken that much of what it took, over drafts of so many more nodes."""
    other = copy.deepcopy(bench)
    for run in other["runs"]:
        if run["contestant"] == "falcon":
            more = run[f"{part}_seconds"] * (factor - 1)
            run[f"{part}_seconds"] += more
            run["phases"]["score" if part == "target" else "draft"] += more
            run["seconds"] += more
            run["drafted"] *= nodes
    return other


def test_a_change_that_is_the_targets_forward_alone_may_be_the_machine(pair, capsys):
    found = compare(pair[0], reprice(pair[0], "target", 0.7))
    speed = find(found, "falcon", "speedup")
    assert speed.ratio.low > 1 and speed.significant is None
    assert speed.forward == pytest.approx(speed.ratio.value, rel=0.03)
    reason, hint = found.reasons
    assert reason.startswith("falcon: tau is what it was; a cycle costs 1.30 plain tokens (was 1.61): ")
    assert "cannot separate them" in hint
    print_comparison(found)
    shown = capsys.readouterr().out
    assert "unknown" in shown and "cannot separate" in " ".join(shown.split())


def test_a_cheaper_drafter_is_significant_whatever_the_forward_did(pair):
    for machine in (0.9, 1.0, 1.02):
        found = compare(pair[0], reprice(reprice(pair[0], "drafter", 0.3), "target", machine))
        assert find(found, "falcon", "speedup").significant
        assert len(found.reasons) == 1 and "the drafter's" in found.reasons[0]


def test_a_forward_over_larger_drafts_has_another_price_by_right(pair):
    found = compare(pair[0], reprice(pair[0], "target", 1.4, nodes=2.0))
    speed = find(found, "falcon", "speedup")
    assert speed.forward == 1 and speed.significant and speed.ratio.high < 1


def test_the_parts_of_a_cycles_price_are_its_cost_in_plain_tokens():
    bench = World(6).bench(3, noise=0, drift=0.3, load=0, hiccups=0)
    axes = Axes.of(bench["runs"], [prompt["id"] for prompt in bench["prompts"]])
    ours, plain = (Grid([r for r in bench["runs"] if r["contestant"] == n], axes) for n in ("falcon", "plain"))
    found = price(ours, plain)
    assert found.target / found.drafter == pytest.approx(7 / 3)
    assert found.rest / found.cycle == pytest.approx(1 - 0.9 / 0.98)  # of run()'s seconds: forwards, cycles
    assert found.nodes == 4
    falcon = summarise(bench)["contestants"][2]["overall"]
    assert falcon["tau"]["value"] / found.cycle == pytest.approx(falcon["speedup"]["value"], rel=0.1)
    assert price(plain, ours).drafter == 0 and price(Grid([], axes), plain) is None


def test_the_further_apart_the_less_is_significant(pair):
    near, far = (dated(pair, seconds) for seconds in (60, 86400))
    ratios = [find(compare(*benches), "falcon", "speedup").ratio for benches in (near, far)]
    assert ratios[0].value == ratios[1].value and ratios[0].low > ratios[1].low
    assert [find(compare(*benches), "falcon", "tau").ratio for benches in (near, far)][1].low > 1  # a count
    assert compare(*far).apart[0] == pytest.approx(86400, rel=0.01)


def dated(pair, apart):
    """The benches at a distance, as older results have it: by when they were made."""
    found = copy.deepcopy(pair)
    for bench, seconds in zip(found, (0, apart), strict=True):
        bench["provenance"]["made"] = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).isoformat()
    return found


def test_one_repeat_leaves_times_undecided(pair):
    short = World(10).bench(1)
    found = compare(short, pair[0])
    assert find(found, "falcon", "tokens_per_second").significant is None
    assert find(found, "falcon", "tau").significant is not None
    assert any("one repeat" in warning for warning in found.warnings)
