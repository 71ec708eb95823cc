"""Refusals of what vLLM has no place for, each a sentence; without vLLM, whose modules are made up."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from engine_standin import StandInModel, target_of
from safetensors.torch import load_file, save_file

from specframe import CompositionError, InputError
from specframe_vllm import Proposer, hooks
from specframe_vllm.checks import PROPOSER, Drafting, require_same_model


@pytest.fixture
def drafting():
    return "drafter: {use: eagle3, taps: [0, 1, 2]}\ntree: {use: dynamic, depth: 3, width: 2, nodes: 6}\n"


@pytest.fixture
def read(recipe):
    def read_with(*overrides, length=3):
        return Drafting.read({"specframe": {"recipe": str(recipe), "overrides": overrides}}, length)

    return read_with


@pytest.fixture
def vllm(monkeypatch):
    """Modules that stand in for vLLM 0.32.0 on a CPU."""

    class GPUModelRunner:
        def propose_draft_token_ids(
            self,
            scheduler_output,
            sampled_token_ids,
            sampling_metadata,
            hidden_states,
            sample_hidden_states,
            aux_hidden_states,
            spec_decode_metadata,
            common_attn_metadata,
            slot_mappings,
        ):
            return "theirs"

        def _setup_eagle3_aux_hidden_state_outputs(self):
            self.layers = "theirs"

    class EngineArgs(SimpleNamespace):
        def create_engine_config(self, usage_context=None, headless=False):
            return self

    class SamplingParams(SimpleNamespace):
        def _validate_spec_decode(self, speculative_config):
            pass

    modules = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.sampling_params": {"SamplingParams": SamplingParams},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(
        module=sys.modules["vllm"], runner=GPUModelRunner, arguments=EngineArgs, sampling=SamplingParams
    )


def arguments_of(vllm, recipe, **others):
    given = {
        "speculative_config": {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": 3},
        "additional_config": {"specframe": {"recipe": str(recipe)}},
        "pipeline_parallel_size": 1,
        "enable_prefix_caching": None,
    }
    return vllm.arguments(**given | others)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["drafter={use: recycling}", "tree=null"], "the trees that drafter recycling builds may branch"),
        (["verifier.use=recursive"], "set verifier.use=match in place of recursive"),
        (["drafter={use: medusa, heads: 2}", "tree.depth=2"], "no deeper than 2 levels: num_speculative_tokens is 3"),
    ],
)
def test_parts_that_do_not_fit_are_refused(read, overrides, sentence):
    with pytest.raises(CompositionError, match=sentence):
        read(*overrides)


@pytest.mark.parametrize("given", [None, {}, {"specframe": {}}, {"specframe": {"recipe": 3}}, {"specframe": "a.yaml"}])
def test_a_recipe_must_be_named(given):
    with pytest.raises(InputError, match=r'needs additional_config=\{"specframe": \{"recipe": FILE\}\}'):
        Drafting.read(given, 3)


def test_another_key_is_refused(recipe):
    with pytest.raises(InputError, match="has recipe and overrides, and no recipes"):
        Drafting.read({"specframe": {"recipe": str(recipe), "recipes": []}}, 3)


def test_a_tree_that_branches_becomes_a_chain_with_a_warning(read, caplog):
    drafting = read()
    drafting.report_chain()
    assert drafting.tree.depth == 3
    assert "drafts a chain of 3 in place of the recipe's tree, dynamic" in caplog.text
    caplog.clear()
    read("tree={use: chain, depth: 2}").report_chain()
    read("drafter={use: suffix}", "tree=null").report_chain()
    assert not caplog.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"pipeline": 2, "prefix_caching": False}, "which pipeline parallelism leaves on other devices"),
        ({"pipeline": 1, "prefix_caching": True}, "set enable_prefix_caching=False"),
    ],
)
def test_features_that_vllm_does_not_have_are_refused(read, arguments, sentence):
    with pytest.raises(CompositionError, match=sentence):
        read().require_features(**arguments)
    read("drafter={use: suffix}", "tree=null").require_features(**arguments)


@pytest.mark.parametrize(("inner", "given"), [(True, "last and layer.0 to layer.2"), (False, "last alone")])
def test_a_tap_that_vllm_does_not_give_is_refused(model_folder, inner, given):
    target = target_of(StandInModel(model_folder), model_folder, inner=inner)
    target.request(frozenset({"last"}))
    with pytest.raises(CompositionError, match=f"reads layer.7 of the target, and of this model vLLM gives {given}"):
        target.request(frozenset({"layer.7"}))


def test_a_drafter_that_runs_the_target_is_refused(model_folder, read):
    drafting = read("drafter={use: self, exit: 1}")
    with pytest.raises(CompositionError):
        drafting.drafter.bind(target_of(StandInModel(model_folder), model_folder))


class EngineModel(torch.nn.Module):
    """Norms by the names that a checkpoint has for them."""

    def __init__(self, folder):
        super().__init__()
        self.stored = load_file(folder / "model.safetensors")

    def named_parameters(self):
        return ((name, tensor) for name, tensor in self.stored.items())


def test_the_recipes_target_must_be_vllms_model(model_folder, tmp_path):
    model = EngineModel(model_folder)
    require_same_model(None, "owner/name", model)
    require_same_model("owner/name", "owner/name", model)
    require_same_model(str(model_folder), f"{model_folder}/", model)
    require_same_model(str(model_folder), "owner/name", model)
    tensors = dict(model.stored)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    for other in (str(tmp_path), str(tmp_path / "missing")):
        with pytest.raises(CompositionError, match="vLLM's model owner/name is another one"):
            require_same_model(other, "owner/name", model)


def test_the_target_reads_a_part_of_the_lm_head(model_folder):
    target, features = target_of(StandInModel(model_folder), model_folder), torch.randn(2, 3, 32, dtype=torch.float64)
    tokens = torch.tensor([3, 5, 60])
    torch.testing.assert_close(target.head_for(tokens)(features), target.head(features)[..., tokens])
    assert target.head_for(tokens, "int8")(features.float()).shape == (2, 3, 3)
    target._model.lm_head = None
    with pytest.raises(CompositionError, match="use the head full"):
        target.head_for(tokens)


@pytest.mark.parametrize("version", ["0.31.4", "0.33.0"])
def test_another_vllm_is_refused_and_left_as_it_is(vllm, version):
    vllm.module.__version__ = version
    theirs = vllm.runner.propose_draft_token_ids
    hooks.register()
    assert vllm.runner.propose_draft_token_ids is theirs
    with pytest.raises(CompositionError, match=f"runs within vLLM 0.32.*, and this is {version}"):
        Proposer(SimpleNamespace())


def test_a_method_of_another_signature_is_refused(vllm):
    vllm.runner._setup_eagle3_aux_hidden_state_outputs = lambda self, layers: None
    with pytest.raises(CompositionError, match="_setup_eagle3_aux_hidden_state_outputs is another"):
        Proposer(SimpleNamespace())


def test_methods_are_wrapped_once_and_other_proposers_see_none_of_it(vllm, recipe):
    hooks.register()
    wrapped = vllm.runner.propose_draft_token_ids
    hooks.register()
    assert vllm.runner.propose_draft_token_ids is wrapped
    runner = vllm.runner()
    for runner.speculative_config in (None, SimpleNamespace(model="ngram")):
        assert runner.propose_draft_token_ids(*range(9)) == "theirs"
        runner._setup_eagle3_aux_hidden_state_outputs()
        assert runner.layers == "theirs"
    arguments = vllm.arguments(speculative_config={"method": "ngram"}, enable_prefix_caching=None)
    assert arguments.create_engine_config().enable_prefix_caching is None
    vllm.sampling(temperature=0.7)._validate_spec_decode(SimpleNamespace(model="ngram"))


def test_prefix_caching_is_off_unless_it_is_asked_for(vllm, recipe):
    hooks.register()
    assert arguments_of(vllm, recipe).create_engine_config().enable_prefix_caching is False
    with pytest.raises(CompositionError, match="set enable_prefix_caching=False"):
        arguments_of(vllm, recipe, enable_prefix_caching=True).create_engine_config()
    given = {"recipe": str(recipe), "overrides": ["drafter={use: suffix}", "tree=null"]}
    plain = arguments_of(vllm, recipe, enable_prefix_caching=True, additional_config={"specframe": given})
    assert plain.create_engine_config().enable_prefix_caching is True


def test_temperatures_are_refused_on_a_cpu(vllm):
    hooks.register()
    speculative = SimpleNamespace(model=PROPOSER)
    vllm.sampling(temperature=0.0)._validate_spec_decode(speculative)
    with pytest.raises(ValueError, match="set temperature=0"):
        vllm.sampling(temperature=0.7)._validate_spec_decode(speculative)
    sys.modules["vllm.platforms"].current_platform.is_cpu = lambda: False
    vllm.sampling(temperature=0.7)._validate_spec_decode(speculative)


def test_a_proposer_without_the_hooks_names_the_plugin(vllm, recipe):
    config = SimpleNamespace(
        additional_config={"specframe": {"recipe": str(recipe)}},
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        cache_config=SimpleNamespace(enable_prefix_caching=False),
    )
    with pytest.raises(RuntimeError, match="VLLM_PLUGINS"):
        Proposer(config).propose([], None, None)
