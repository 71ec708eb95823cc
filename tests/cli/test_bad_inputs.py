"""Bad input: one clear line on what to do, exit status 2, no traceback."""

import json
import os
import subprocess
import sys
from importlib.metadata import Distribution, entry_points

import pytest

from specframe import __version__
from specframe.cli.main import main
from specframe.recipes import discovery

RECIPE = """specframe: 1
target: {use: table, vocab: 16}
drafter: {use: lookup}
verifier: match
sampling: {max_new_tokens: 4}
run: {prompts: [], repeats: 0}
"""
FILES = {
    "r.yaml": RECIPE,
    "grows.yaml": RECIPE.replace("{use: lookup}", "{use: model, model: zoo://talk-7m}")
    + "tree: {use: chain, depth: 2}\n",
    "small.yaml": """specframe: 1
target: {use: hf, model: zoo://talk-7m}
drafter: {use: self, kv_selection: {use: window}}
tree: {use: chain, depth: 4}
verifier: match
""",
    "fails.yaml": RECIPE.replace("match", "{use: './rules.py:Fails'}"),
    "empty-verdict.yaml": RECIPE.replace("match", "{use: './rules.py:Empty'}"),
    "list.yaml": "- specframe\n",
    "circle.yaml": "extends: circle.yaml\n",
    "loop.yaml": "specframe: 1\ntarget: &a {use: table, vocab: *a}\n",
    "torn.yaml": "specframe: 1\ntarget: {use: table\n",
    "twice.yaml": "specframe: 1\nspecframe: 1\n",
    "empty.yaml": "",
    "empty.txt": "\n \n",
    "object.json": '{"prompt": "a"}',
    "numbers.json": "[1, 2]",
    "torn.jsonl": '{"prompt": ',
    "other.jsonl": '{"answer": "a"}\n',
    "accept.py": "def one(x):\n    return 1\nnumber = 3\ndef fails(paths, p, q):\n    return paths.gone\n",
    "rules.py": "from specframe.plugin import Needs\n\n\nclass Base:\n    lossless, needs = True, Needs()\n\n\n"
    "class Fails(Base):\n    def verify(self, tree, laws, random):\n        raise RuntimeError('boom')\n\n\n"
    "class Empty(Base):\n    def verify(self, tree, laws, random):\n        return None\n\n\n"
    "class Earlier(Base):\n    def verify(self, tree, p, random):\n        return None\n\n\n"
    "class Unbuilt(Base):\n    def __init__(self):\n        raise ValueError('not today')\n",
    "afile": "",
}
VALIDATE = [
    ("gone.yaml", "no such recipe"),
    ("list.yaml", "mapping"),
    ("empty.yaml", "empty"),
    ("circle.yaml", "extends itself"),
    ("loop.yaml", "an alias stands for something that it is a part of"),
    ("torn.yaml", "torn.yaml:"),
    ("twice.yaml", "specframe"),
    ("afile", "empty"),
]
OVERRIDES = [
    ("specframe=2", "reads recipes of version 1"),
    ("nonsense=1", "unknown section"),
    ("temperature=1", "did you mean 'sampling.temperature'?"),
    ("run.temperature=1", "did you mean 'sampling.temperature'?"),
    ("target.batch=2", "did you mean 'run.batch'?"),
    ("target=null", "missing section 'target'"),
    ("target.use=tabel", "did you mean 'table'"),
    ("target.vocab=many", "expected integer"),
    ("target.vocabulary=3", "unknown option"),
    ("target={use: hf}", "missing: target 'hf' needs it"),
    ("target={use: hf, model: 'zoo://gone'}", "no model named 'gone'"),
    ("target={use: hf, model: 'zoo://talk-7m-falcon'}", "is a drafter's weights, not a model"),
    ("target=3", "expected {use: NAME"),
    ("drafter.use=nothing", "nothing"),
    ("drafter.length=0", "length"),
    ("drafter.length=[1]", "expected integer"),
    ("drafter={use: falcon, block: 0}", "block must be at least 1"),
    ("drafter={use: falcon, dropout: 2}", "dropout"),
    ("drafter={use: medusa, heads: 0}", "heads"),
    ("drafter={use: chimera, ngram: 0}", "ngram"),
    ("drafter={use: parallelspec, masks: 0}", "masks"),
    ("drafter={use: falcon, head: {use: trimmed}}", "trimmed: give either keep"),
    ("drafter={use: falcon, head: {use: router, groups: 2, active: 3}}", "router: active must be between"),
    ("drafter={use: falcon}", "add `tree: {use: dynamic}`"),
    ("drafter={use: suffix, cap: -1}", "cap"),
    ("drafter={use: recycling, nodes: 0}", "nodes"),
    ("drafter={use: lookahead, ngram: 1}", "ngram"),
    ("drafter={use: retrieval}", "needs it"),
    ("drafter={use: fused, first: {use: lookup}, second: {use: falcon}}", "must build its own tree"),
    ("drafter={use: online}", "needs it"),
    ("drafter={use: online, drafter: {use: lookup}}", "trains a drafter with weights"),
    ("drafter={use: online, drafter: {use: falcon}}", "give a `rollout`"),
    ("drafter={use: online, drafter: {use: model, model: zoo://talk-7m}, every: 0}", "every must be at least 1"),
    ("drafter={use: online, drafter: {use: model, model: zoo://talk-7m}, lr: -1}", "lr must be above 0"),
    ("drafter={use: online, drafter: {use: model, model: zoo://talk-7m}, loss: text}", "text"),
    ("drafter={use: './gone.py:Mine'}", "no such Python file"),
    ("tree={use: chain}", "builds its own tree: remove the tree section"),
    ("verifier=matsch", "did you mean 'match'"),
    ("verifier={use: kseq, steps: -1}", "0 or more steps"),
    ("verifier=null", "missing section 'verifier'"),
    ("verifier={use: './rules.py:Unbuilt'}", "cannot be built: ValueError: not today"),
    ("verifier={use: './rules.py:Earlier'}", "is written for release 0.2: `verify` takes (tree, laws, random)"),
    ("sampling.temperature=-1", "temperature"),
    ("sampling.temperature=.nan", "temperature"),
    ("sampling.temperature=.inf", "temperature"),
    ("sampling.temperature=warm", "expected number"),
    ("sampling.top_k=-2", "top_k"),
    ("sampling.top_p=0", "top_p"),
    ("sampling.top_p=.nan", "top_p"),
    ("sampling.min_p=1", "min_p"),
    ("sampling.max_new_tokens=0", "max_new_tokens"),
    ("sampling.max_new_tokens=2.5", "expected integer"),
    ("sampling.stop=['']", "empty stop text"),
    ("sampling.stop=3", "sampling.stop"),
    ("sampling.temprature=1", "did you mean 'temperature'"),
    ("run.batch=0", "batch 0"),
    ("run.repeats=-1", "repeats -1"),
    ("run.seed=x", "expected integer"),
    ("run.prompts=3", "run.prompts"),
    ("loss=[{use: distillation, weight: -1}]", "weighs at least 0"),
    ("loss=[{use: distillation, weight: .nan}]", "weighs at least 0"),
    ("loss=[{use: distilation}]", "did you mean 'distillation'"),
    ("train={data: [a], rollout: teacher-forced, out: o, steps: -1}", "steps"),
    ("train={data: [a], rollout: teacher-forced, out: o, lr: -1}", "lr"),
    ("train={data: 3, rollout: teacher-forced, out: o}", "train.data"),
    ("extends=gone.yaml", "by its file alone"),
    ("run.prompts", "not of the form key=value"),
    ("=3", "not of the form key=value"),
    ("run.prompts.7.x=1", "does not exist"),
    ("run.seed=[", "is no YAML"),
    ("drafter={use:lookup}", "put a space after each colon, as in {use: none}"),
    ("drafter={use:lookup,ngram:[3]}", "put a space after each colon, as in {use: none}"),
    ("run.seed=${oc.env:HOME}", "--allow-env"),
    ("run.seed=${run.seed}", "run.seed"),
]
TREES = [
    ("tree.depth=0", "at least 1"),
    ("tree.depth=100000", "nodes or more"),
    ("tree={use: fixed}", "exactly one of `paths` and `widths`"),
    ("tree={use: fixed, widths: [200, 200, 200]}", "nodes or more"),
    ("tree={use: fixed, paths: ['1.x']}", "is no path"),
    ("tree={use: fixed, paths: ['0.0']}", "has no parent"),
    ("tree={use: dynamic, width: 0}", "at least 1"),
    ("tree={use: beam, width: 0}", "at least 1"),
    ("tree={use: threshold, threshold: 2}", "a threshold is a probability"),
    ("tree={use: sequoia, acceptance: gone.json}", "gone.json"),
    ("tree={use: adaptive, costs: [1.0]}", "costs"),
    ("tree={use: chain, draw: random}", "draw"),
    ("tree=null", "add `tree: {use: dynamic}`"),
]
LONG = [
    ("drafter.kv_selection.recent=0", "window: sinks is at least 0 and recent at least 1, not 4 and 0"),
    ("drafter.kv_selection={use: chunks, budget: 16}", "a budget of 16 is less than recent + 2 * chunk + every = 96"),
    ("drafter.kv_selection={use: verified, budget: 16}", "a budget of 16 is less than recent + 2 * chunk = 80"),
    ("drafter.kv_selection={use: snapkv, budget: 32}", "a budget of 32 does not exceed the window of 32"),
    ("drafter.kv_selection={use: speckv, budget: 32}", "a budget of 32 does not exceed the window of 32"),
    (
        "drafter.kv_selection={use: speckv, drafter: {use: lookup}}",
        "a small model drafts the likely answer, and Lookup has",
    ),
    ("drafter.kv_selection=null", "needs `exit`, `skip`, `kv_selection` or `quantize`"),
    ("target.keep={use: speckv, budget: 32}", "a budget of 32 does not exceed the window of 32"),
    ("target.keep={use: speckv, drafter: {use: lookup}}", "a small model drafts the likely answer, and Lookup has"),
    ("target.prompt={use: specpc, tokens: 64}", "a budget of 64 tokens does not exceed the window of 64"),
    ("target.prompt={use: specpc, drafter: {use: lookup}}", "reads the attention of a small model, and Lookup is none"),
    ("target.cache=int3", "expected one of 'bfloat16', 'int8'"),
    ("drafter={use: eagle, window: 4}", "the tree is 4 deep: make the window 5 or more"),
    ("drafter={use: longspec, window: 4}", "the tree is 4 deep: make the window 5 or more"),
    ("drafter={use: excerpt, tokens: 32, drafter: {use: lookup}}", "more tokens than the question's"),
    ("drafter={use: excerpt, tokens: 64, select: {use: specpc}, drafter: {use: lookup}}", "exceed the window of 64"),
]
CASCADES = [
    ("drafter={use: cascade, ask: 7, tokens: 6}", "at most its tokens, got 7 of 6"),
    ("drafter.review={use: falcon}", "reads several nodes of a path in one forward pass, as `model` and `self` do"),
    ("drafter.review={use: suffix}", "grows a tree policy, such as `model`"),
    ("drafter.draft={use: recycling}", "Recycling builds trees below the root"),
    ("drafter.draft={use: medusa}", "drafts no deeper than 4 levels"),
    ("tree={use: dynamic}", "builds its own tree"),
]
AFTER_WEIGHTS = [
    ("drafter.kv_selection.recent=9000", "a KV selection of 9004 tokens is longer than the target's context of"),
    (
        "drafter.kv_selection={use: verified, budget: 9000}",
        "a KV selection of 9000 tokens is longer than the target's context of",
    ),
    ("target={use: table, vocab: 16}", "takes layers from a target that is a transformers model"),
    (
        "target={use: table, vocab: 16} & drafter={use: longspec, window: 8}",
        "reads the keys and values of the target's last layer, and this target shows none",
    ),
    ("drafter.kv_selection={use: upper}", "add `cache: int8` to the target"),
    ("target.prompt={use: specpc}", "needs a small model to read the prompt"),
    (
        "drafter={use: excerpt, tokens: 9000, drafter: {use: model, model: zoo://talk-7m}}",
        "an excerpt of 9000 tokens leaves no room in the drafter's context of",
    ),
]
COMMANDS = [
    ("run r.yaml", "there is nothing to decode"),
    ("run r.yaml --limit 3", "--limit counts the prompts of a file"),
    ("run r.yaml --prompt a --prompts other.jsonl", "choose one"),
    ("run r.yaml --prompts gone.txt", "gone.txt"),
    ("run r.yaml --prompts empty.txt", "there is no prompt in it"),
    ("run r.yaml --prompts torn.jsonl", "not valid JSON"),
    ("run r.yaml --prompts other.jsonl", "no prompt in it"),
    ("run r.yaml --prompts object.json", "holds a list"),
    ("run r.yaml --prompts numbers.json", "no prompt in it"),
    ("run r.yaml --prompts other.jsonl --limit 0", "at least 1"),
    ("run r.yaml --out afile --prompt a", "afile is not a folder; give another --out"),
    ("explain falcon --kind tree", "it is a drafter"),
    ("explain falcom", "did you mean 'falcon'"),
    ("new plugin falcon", "specframe-falcon"),
    ("new plugin Falcon!", "cannot be a plugin's name"),
    ("new thing x", "there is no template"),
    ("certify", "give a recipe, --against"),
    ("certify --against accept.py", "path.py:function"),
    ("certify --against accept.py:one", "(paths, p, q)"),
    ("certify --against accept.py:number", "is not a function"),
    ("certify --against gone.py:one", "no such Python file"),
    ("certify --against accept.py:fails", "the function failed at accept.py:5: AttributeError"),
    ("certify r.yaml --against accept.py:fails", "either a recipe or --against"),
    ("certify --against accept.py:fails --samples 100", "the function failed at accept.py:5: AttributeError"),
    ("certify r.yaml --samples 100", "--samples is for functions and servers"),
    ("certify --against accept.py:fails --text hello", "--text is for servers"),
    ("certify --against http://localhost:1/v1 --body 3", "--body is a JSON object"),
    ("certify --against http://localhost:1/v1 --html x.html", "--html is for recipes"),
    ("certify --against http:///v1", "http:///v1 cannot be reached"),
    ("certify fails.yaml", "at rules.py:10: RuntimeError: boom"),
    ("certify empty-verdict.yaml", "NoneType"),
    ("certify r.yaml --budget 0", "0 is not in the range x>=1"),
    ("validate falcom", "did you mean 'falcon'"),
    ("validate eagle falcon", "'falcon' is not of the form key=value"),
    (
        "validate eagle-parallelspec",
        "there are 2 recipes of that name; write compositions/eagle-parallelspec or small/compositions/",
    ),
    ("recipes falcom", "did you mean 'falcon'"),
    ("recipes --out afile", "name it"),
    ("recipes falcon --out afile", "exists already"),
    ("profile falcon --depth 0", "at least 1"),
    ("profile falcon --json --precisions", "leave --check and --precisions out"),
    ("bench falcom", "neither a recipe"),
    ("bench plain", "at least one recipe"),
    ("show r.yaml", "nothing"),
    ("profile r.yaml", "nothing to decode"),
]

ARGUMENTS = [
    ("runn falcon", "specframe: there is no command 'runn'; did you mean 'run'?"),
    ("xyzzy", "specframe: there is no command 'xyzzy' ("),
    ("--halp", "specframe: No such option '--halp'. Did you mean '--help'?"),
    ("run falcon --promt a", "specframe run: No such option '--promt'. (Did you mean one of: "),
    ("run falcon --warm-start", "specframe run: No such option '--warm-start'."),
    (
        "serve falcon --prot 1",
        "specframe serve: No such option '--prot'. (Did you mean one of: '--host', '--port', '--slots'?)",
    ),
    ("recipes --copy falcon", "specframe recipes: No such option '--copy'."),
    ("plugins falcon", "specframe plugins: Got unexpected extra argument (falcon)"),
    ("run", "specframe run: Missing argument 'RECIPE'."),
    ("explain", "Missing argument 'NAME'."),
    ("chat falcon --system", "Option '--system' requires an argument."),
    ("certify falcon --budget many", "Invalid value for '--budget': 'many' is not a valid integer range."),
    ("run falcon --limit 2.5", "Invalid value for '--limit': '2.5' is not a valid integer."),
    ("export falcon --out e", "Missing option '--to'."),
    (
        "profile falcon --draw chance",
        "Invalid value for '--draw': 'chance' is not one of 'top', 'iid', 'without_replacement'.",
    ),
    ("profile falcon --sizes 1,x", "Invalid value for '--sizes': '1,x' is no list of numbers such as 1,4,8"),
    ("completion tcsh", "Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'."),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(arguments, capsys):
    """The one line that the command printed."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in printed.err
    return lines[0]


@pytest.mark.parametrize(("file", "words"), VALIDATE)
def test_a_broken_file_is_refused(folder, capsys, file, words):
    assert words in refused(["validate", file], capsys)


@pytest.mark.parametrize(("override", "words"), OVERRIDES)
def test_a_wrong_value_is_refused(folder, capsys, override, words):
    assert words in refused(["validate", "r.yaml", override], capsys)


@pytest.mark.parametrize(("override", "words"), TREES)
def test_a_wrong_tree_is_refused(folder, capsys, override, words):
    assert words in refused(["validate", "grows.yaml", override], capsys)


@pytest.mark.parametrize(("override", "words"), LONG)
def test_a_wrong_choice_of_tokens_is_refused(folder, capsys, override, words):
    assert words in refused(["validate", "small.yaml", override], capsys)


@pytest.mark.parametrize(("override", "words"), CASCADES)
def test_a_wrong_cascade_is_refused(folder, capsys, override, words):
    cascade = "drafter={use: cascade, draft: {use: suffix}, review: {use: self, kv_selection: {use: window}}}"
    assert words in refused(["validate", "small.yaml", "tree=null", cascade, override], capsys)


@pytest.mark.parametrize(("override", "words"), AFTER_WEIGHTS)
def test_a_choice_of_tokens_that_does_not_fit_the_model_is_refused(folder, capsys, override, words):
    assert words in refused(["run", "small.yaml", *override.split(" & "), "--prompt", "a"], capsys)


@pytest.mark.parametrize(("command", "words"), COMMANDS)
def test_a_wrong_command_is_refused(folder, capsys, command, words):
    assert words in refused(command.split(), capsys)


@pytest.mark.parametrize(("command", "words"), ARGUMENTS)
def test_wrong_arguments_are_refused(folder, capsys, command, words):
    line = refused(command.split(), capsys)
    assert words in line and line.endswith("--help` lists all)")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ("100000", "a tree of 100000 nodes is too large for this target: time at most "),
        ("1,4,100000", "a tree of 100000 nodes is too large"),
        ("0", "a tree has a node at least: --sizes 0"),
        ("-3", "a tree has a node at least: --sizes -3"),
    ],
)
def test_trees_that_cannot_be_timed_are_refused(recipe, capsys, sizes, words):
    assert words in refused(["profile", str(recipe), "--sizes", sizes], capsys)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("specframe-bush", "pip install -U specframe-bush"),
        ("specframe-dflash", "its components are in specframe-blocks now: pip uninstall specframe-dflash"),
    ],
)
def test_a_plugin_of_another_release_is_refused(folder, capsys, monkeypatch, package, words):
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\nRequires-Dist: specframe<0.2\n"
    (folder / "METADATA").write_text(metadata)
    (folder / "entry_points.txt").write_text("[specframe]\nbush = specframe_bush\n")
    points = [*entry_points(group="specframe"), *Distribution.at(folder).entry_points]
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)
    line = refused(["validate", "r.yaml", "drafter.use=bush"], capsys)
    assert f"{package} is broken: needs specframe <0.2, this is {__version__}: {words}" in line


def test_a_plugin_with_a_name_that_is_gone_is_refused(folder, capsys, monkeypatch):
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: specframe-bush\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text("[specframe]\nbush = earlier_bush\n")
    (folder / "earlier_bush.py").write_text("from specframe.plugin import GreedyVerifier\n")
    monkeypatch.syspath_prepend(folder)
    points = [*entry_points(group="specframe"), *Distribution.at(folder).entry_points]
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)
    line = refused(["validate", "r.yaml", "drafter.use=bush"], capsys)
    assert "cannot import name 'GreedyVerifier'" in line
    assert f"; it was written for another release than {__version__}: pip install -U specframe-bush" in line


@pytest.mark.full
def test_a_renamed_option_works_once_more_with_one_line(folder):
    """The option itself: tests/recipes/test_deprecation.py."""
    (folder / "old.yaml").write_text(RECIPE.replace("{use: table, vocab: 16}", "{use: hf, model: a/b, kernels: true}"))
    command = [sys.executable, "-m", "specframe", "validate", "old.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    line = "old.yaml:2: target.kernels is now called 'native'; the old name will be gone in 0.4"
    assert done.stderr.splitlines()[:1] == [line]


def test_overrides_are_blamed_on_the_command_line(folder, capsys):
    assert refused(["validate", "grows.yaml", "tree.depth=0"], capsys).startswith("command line: tree.depth: ")


def test_prompts_come_from_a_json_list_too(folder, capsys):
    (folder / "some.json").write_text(json.dumps(["a", {"prompt": "b"}], indent=1))
    from specframe.files.prompts import read_prompts

    assert read_prompts(folder / "some.json") == ["a", "b"]


def test_there_are_many():
    assert len(VALIDATE) + len(OVERRIDES) + len(TREES) + len(COMMANDS) >= 80
