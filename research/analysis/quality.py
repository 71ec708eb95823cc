"""Measures the price of few bits: ``python research/analysis/quality.py MODEL.gguf FOLDER [--grid] [--only PATTERN]``.

The model that every contestant rounds is MODEL's, unpacked, in bfloat16, each weight moved by up to half a step of its
block of 32: weights on the grid of such blocks would be rounded without error (`--grid` leaves them there). FOLDER gets
its files. Contestants are our native passes in float32, bfloat16, int8 and int4, and llama.cpp on files rounded by its
own function: the library is xllamacpp's, its declarations are those of llama-cpp-py-sync 0.11548 (``pip install
--no-deps llama-cpp-py-sync==0.11548 cffi pycparser gguf``). Each reads 20 windows of 512 tokens of Wikipedia and 20 of
assistants' answers (Arena-Hard's, by Claude 2.1) of the folder SPECFRAME_DATA.
Printed are the megabytes, the mean KL(float32 || its own), the perplexity, and the share of positions where the most
likely token is float32's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import lzma
import os
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import xllamacpp
from llama_cpp_py_sync._cffi_bindings import ffi
from torch import Tensor, nn

import specframe
from specframe.components.targets.hf import HFTarget
from specframe.kernel.types import Prompts
from specframe.native.blocks import BLOCK, round_to_blocks
from specframe.native.linear import PackedLinear, QuantizedLinear, logits_of

LIBRARY = str(Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so"))
LLAMA, ROUNDING = ffi.dlopen(LIBRARY), ctypes.CDLL(LIBRARY)
Reader = Callable[[list[int]], Tensor]
"""The logits [T, V] after each of T tokens."""

Form = gguf.GGMLQuantizationType
KINDS = "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K_M"
"""llama.cpp's forms of files."""
REFERENCE = "float32"
PARTS = "attn_q", "attn_v", "ffn_up", "ffn_down"


def texts(folder: Path) -> list[str]:
    """The texts to read: of an encyclopedia, and of answers."""
    with lzma.open(folder / "corpus/wikipedia_en/part01.txt.xz", "rt", encoding="utf-8") as file:
        pages = file.read(200_000)
    with tarfile.open(folder / "instruct/arena_hard_answers.tar.gz") as archive:
        answers = archive.extractfile("data/arena-bench-v1/model_answer/claude-2.1.jsonl")
        assert answers is not None
        rows = [json.loads(line) for line in answers]
    return [pages, "\n\n".join(row["choices"][0]["turns"][0] for row in rows[:120])]


def read_source(model: Path, moved: bool) -> dict[str, Tensor]:
    """The weights of a GGUF file in bfloat16, each moved by up to half a step of its block if `moved`; norms as is."""
    random, found = torch.Generator().manual_seed(0), {}
    for tensor in gguf.GGUFReader(model).tensors:
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        if values.dim() > 1 and moved:
            blocks = values.unflatten(1, (-1, BLOCK))
            low, high = blocks.aminmax(dim=-1, keepdim=True)
            noise = torch.rand(blocks.shape, generator=random) - 0.5
            values = (blocks + (high - low) / 15 * noise).flatten(1)
        found[tensor.name] = values if values.dim() == 1 else values.bfloat16()
    return found


def write(model: Path, file: Path, tensors: Mapping[str, Tensor], kind: str) -> None:
    """Writes tensors, with what else a GGUF file of their model holds, in one of llama.cpp's forms."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(file, family := reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(name, field.contents(), *field.types[:: len(field.types) - 1 or 1])
    for name, values in tensors.items():
        form = form_of(name, values, kind, reader.fields[f"{family}.block_count"].contents())
        data = np.empty(gguf.quant_shape_to_byte_shape(values.shape, form), np.uint8)
        if form == Form.BF16:
            data = values.view(torch.uint8).numpy()
        elif form == Form.F32:
            data = values.float().numpy()
        else:
            rows = values.float().numpy()
            where = ctypes.c_void_p(rows.ctypes.data), ctypes.c_void_p(data.ctypes.data)
            sizes = map(ctypes.c_int64, (0, *values.shape))
            ROUNDING.ggml_quantize_chunk(int(form), *where, *sizes, None)
        writer.add_tensor(name, data, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def form_of(name: str, values: Tensor, kind: str, layers: int) -> gguf.GGMLQuantizationType:
    """The form of a tensor, as llama.cpp's `llama_tensor_get_type` chooses it; Q4_K_M mixes several."""
    if values.dim() == 1:
        return Form.F32
    narrow = values.shape[1] % 256 != 0
    if kind != "BF16" and name in ("token_embd.weight", "output.weight"):
        return Form.Q8_0 if narrow or kind == "Q8_0" else Form.Q6_K
    if kind != "Q4_K_M":
        return Form[kind]
    more = False
    if "attn_v" in name or "ffn_down" in name:
        layer = int(name.split(".")[1])
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return (Form.Q8_0 if narrow else Form.Q6_K) if more else Form.Q5_0 if narrow else Form.Q4_K


def rounding_errors(folder: Path) -> dict[str, float]:
    """By form, the root mean square error of rounded weights over that of the weights: 20 matrices, 512 rows each."""
    files = {kind: {each.name: each for each in gguf.GGUFReader(folder / f"{kind}.gguf").tensors} for kind in KINDS}
    sums: dict[str, float] = defaultdict(float)
    for name in (f"blk.{layer}.{part}.weight" for layer in (0, 7, 15, 22, 29) for part in PARTS):
        read = {kind: gguf.dequantize(file[name].data[:512], file[name].tensor_type) for kind, file in files.items()}
        weights = torch.from_numpy(read["BF16"].astype(np.float32))
        rounded = {kind: torch.from_numpy(np.ascontiguousarray(values)) for kind, values in read.items()}
        rounded |= {"int8": round_to_blocks(weights, 8).values(), "int4": round_to_blocks(weights, 4).values()}
        for kind, values in rounded.items():
            sums[kind] += float((values - weights).square().sum())
        sums["weights"] += float(weights.square().sum())
    return {kind: (found / sums["weights"]) ** 0.5 for kind, found in sums.items() if kind != "weights"}


def ours(source: Path, **options: Any) -> HFTarget:
    """Our target of a GGUF file by native passes."""
    target = HFTarget(model=str(source), native=True, **options)
    target.request(frozenset({"last"}))
    return target


def reader_of(target: HFTarget) -> Reader:
    """Reads a text as a prompt, and applies the LM head to all of its states."""

    def read(tokens: list[int]) -> Tensor:
        target.open(1, len(tokens) + 1)
        _, scores = target.admit(Prompts(torch.tensor([tokens]), torch.tensor([len(tokens)])))
        assert scores.features is not None, "`ours` asks for them"
        return logits_of(target.forward.head, scores.features["last"][0]).float()

    return read


def size_of(target: HFTarget) -> float:
    """The megabytes of a target's packed matrices, LM head included."""
    modules = {id(module): module for module in [*target.forward._modules.modules(), target.forward.head]}
    packed = [module.packed for module in modules.values() if isinstance(module, PackedLinear | QuantizedLinear)]
    tensors = [part.packed if isinstance(part, QuantizedLinear) else part for part in packed]
    return sum(tensor.nbytes for tensor in tensors) / 1e6


class Llama:
    """llama.cpp's model of a GGUF file, which reads texts of at most `window` tokens."""

    def __init__(self, file: Path, window: int) -> None:
        options = LLAMA.llama_model_default_params()
        self.model = LLAMA.llama_model_load_from_file(str(file).encode(), options)
        settings = LLAMA.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = window
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        self.context = LLAMA.llama_init_from_model(self.model, settings)
        self.vocabulary = LLAMA.llama_vocab_n_tokens(LLAMA.llama_model_get_vocab(self.model))

    def read(self, tokens: list[int]) -> Tensor:
        """The logits [T, V] after each of T tokens."""
        LLAMA.llama_memory_clear(LLAMA.llama_get_memory(self.context), True)
        batch = LLAMA.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        if LLAMA.llama_decode(self.context, batch):
            raise SystemExit("llama.cpp did not read a text")
        size = 4 * len(tokens) * self.vocabulary
        logits = torch.frombuffer(ffi.buffer(LLAMA.llama_get_logits(self.context), size), dtype=torch.float32)
        LLAMA.llama_batch_free(batch)
        return logits.view(len(tokens), -1).clone()


def contestants(folder: Path, window: int) -> dict[str, Callable[[], tuple[float, Reader]]]:
    """By name, what makes the megabytes and the reader of each."""
    source = folder / "BF16.gguf"

    def own(target: HFTarget) -> tuple[float, Reader]:
        return size_of(target), reader_of(target)

    def theirs(kind: str) -> tuple[float, Reader]:
        file = folder / f"{kind}.gguf"
        return file.stat().st_size / 1e6, Llama(file, window).read

    return {
        REFERENCE: lambda: own(ours(source, dtype="float32")),
        "bfloat16": lambda: own(ours(source, dtype="bfloat16")),
        "int8": lambda: own(ours(source, dtype="bfloat16", quantize="int8")),
        "int4": lambda: own(ours(source, dtype="bfloat16", quantize="int4")),
        "int8, states in float32": lambda: own(ours(source, dtype="float32", quantize="int8")),
        "int4, states in float32": lambda: own(ours(source, dtype="float32", quantize="int4")),
        **{f"llama.cpp {kind}": partial(theirs, kind) for kind in KINDS},
    }


def show(megabytes: Mapping[str, float], sums: Mapping[str, np.ndarray[Any, Any]], positions: int) -> None:
    """Prints the table of the positions read until now: a run that is stopped has one."""
    print(f"\nspecframe {specframe.__version__}, xllamacpp {version('xllamacpp')}, {positions} positions")
    print("| | MB | KL, thousandths of a nat | perplexity | likeliest token |\n|---|---|---|---|---|")
    for name, (kl, square, loss, agreed) in sums.items():
        mean, share = kl / positions, agreed / positions
        error = ((square / positions - mean**2) / positions) ** 0.5
        print(
            f"| {name} | {megabytes[name]:.0f} | {1000 * mean:.2f} ± {1000 * error:.2f} "
            f"| {np.exp(loss / positions):.3f} | {share:.1%} |",
            flush=True,
        )


@torch.inference_mode()
def main() -> None:
    """Prints a row for each contestant, after each pair of windows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="where the forms of the model are written, once")
    parser.add_argument("--windows", type=int, default=20, help="of each text")
    parser.add_argument("--window", type=int, default=512, help="tokens")
    parser.add_argument("--grid", action="store_true", help="leave weights as the file has them")
    parser.add_argument("--only", default="", help="a pattern of the contestants' names")
    parser.add_argument("--rounding", action="store_true", help="print the errors of rounded weights alone")
    asked = parser.parse_args()
    missing = [kind for kind in KINDS if not (asked.folder / f"{kind}.gguf").exists()]
    tensors = read_source(asked.model, not asked.grid) if missing else {}
    for kind in missing:
        write(asked.model, asked.folder / f"{kind}.gguf", tensors, kind)
    if asked.rounding:
        print(rounding_errors(asked.folder))
        return
    makers = contestants(asked.folder, asked.window)
    made = {name: make() for name, make in makers.items() if name == REFERENCE or re.search(asked.only, name)}
    tokenizer = HFTarget(model=str(asked.folder / "BF16.gguf"), native=True).tokenizer
    both = [tokenizer.encode(text, add_special_tokens=False) for text in texts(Path(os.environ["SPECFRAME_DATA"]))]
    sums, positions = {name: np.zeros(4) for name in made}, 0
    for begin in range(0, asked.windows * asked.window, asked.window):
        for tokens in both:
            piece = tokens[begin : begin + asked.window]
            logs = made[REFERENCE][1](piece)[:-1].log_softmax(-1)
            for name, (_, read) in made.items():
                own = logs if name == REFERENCE else read(piece)[:-1].log_softmax(-1)
                kl = nn.functional.kl_div(own, logs, log_target=True, reduction="none").sum(-1).double()
                loss = -own.gather(1, torch.tensor(piece[1:])[:, None]).double().sum()
                agreed = (own.argmax(-1) == logs.argmax(-1)).double().sum()
                sums[name] += np.array([float(kl.sum()), float(kl.square().sum()), float(loss), float(agreed)])
            positions += len(piece) - 1
        show({name: size for name, (size, _) in made.items()}, sums, positions)


if __name__ == "__main__":
    main()
