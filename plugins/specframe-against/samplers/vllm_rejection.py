"""vLLM's rejection sampler, whose kernels are compiled, so that it is sampled: in an environment that has vLLM,

specframe certify --against vllm_rejection.py:kernels --samples 100000
specframe certify --against vllm_rejection.py:sampler --samples 100000
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import vllm._custom_ops  # noqa: F401 - registers the CPU's operators
from torch import Tensor
from vllm.platforms import current_platform

current_platform.import_kernels()
current_platform.register_triton_kernel_overrides()

from vllm.v1.sample import rejection_sampler as rejection  # noqa: E402 - takes the kernels that were registered
from vllm.v1.sample.logits_processor import LogitsProcessors  # noqa: E402
from vllm.v1.sample.metadata import SamplingMetadata  # noqa: E402
from vllm.v1.sample.sampler import Sampler  # noqa: E402
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata  # noqa: E402


def kernels(candidates: Tensor, p: Tensor, q: Tensor) -> tuple[int, int]:
    """The function over all kernels, `rejection_sample`; the bonus token is drawn before it is known to be needed."""
    drafted = candidates[0].to(torch.int32)
    bonus = torch.multinomial(p[0, -1], 1)[None]
    ends = torch.tensor([len(drafted)], dtype=torch.int32)
    drafts, logits = q[0].float().contiguous(), p[0, :-1].float().log().contiguous()
    out = rejection.rejection_sample(
        drafted, [len(drafted)], len(drafted), ends, drafts, logits, bonus.to(torch.int32), _metadata()
    )
    return _read(out)


def sampler(candidates: Tensor, p: Tensor, q: Tensor) -> tuple[int, int]:
    """The module `RejectionSampler`, with its temperatures, which draws the bonus token itself."""
    count = candidates.shape[1]
    draft = SpecDecodeMetadata.make_dummy([candidates[0].tolist()], torch.device("cpu"))
    module = rejection.RejectionSampler(Sampler())
    out = module(draft, q[0].float().contiguous(), p[0].float().log().reshape(count + 1, -1), _metadata())
    return _read(out.sampled_token_ids)


def _read(out: Tensor) -> tuple[int, int]:
    emitted = out[0][out[0] >= 0].tolist()
    return len(emitted) - 1, emitted[-1]


def _metadata() -> Any:
    """One row at temperature 1, without anything else."""
    given = {
        "temperature": torch.ones(1),
        "all_greedy": False,
        "all_random": True,
        "generators": {},
        "no_penalties": True,
        "frequency_penalties": torch.zeros(1),
        "presence_penalties": torch.zeros(1),
        "repetition_penalties": torch.ones(1),
        "output_token_ids": [[]],
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
        "spec_token_ids": [[]],
    }
    fields = inspect.signature(SamplingMetadata).parameters
    return SamplingMetadata(**{name: given.get(name) for name in fields if name in given or _needed(fields[name])})


def _needed(field: inspect.Parameter) -> bool:
    return field.default is inspect.Parameter.empty
