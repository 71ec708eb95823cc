"""Make state-5m: layers of talk-7m, most of them with a Mamba-2 mixer for attention, distilled from it.

Run ``python distill_hybrid.py --base TALK --splits SPLITS --model FOLDER``. Embedding, norms, MLPs and the remaining
attention are talk-7m's; the new mixers start from noise. The loss is KL(talk-7m || hybrid) over windows of its
corpora. With ``--start`` a saved hybrid is trained on, while the rate falls to zero.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from pathlib import Path

import torch
from packing import Mixture, Windows, streams
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, BambaConfig, BambaForCausalLM, LlamaForCausalLM

LAYERS = (0, 2, 4, 6, 8, 10, 12, 13)
"""Those of talk-7m that the hybrid starts from."""
ATTENTION = (3, 7)
"""Those of the hybrid that keep their attention."""
SHARES = {"text": 0.05, "dialogue": 0.45, "maths": 0.22, "code": 0.28}
LENGTH, ROWS = 256, 8
STEPS = (1e-3, 1e-1)
"""Least and largest initial step dt of a head (Mamba-2's reference initialisation)."""


def hybrid(base: LlamaForCausalLM, generator: torch.Generator) -> BambaForCausalLM:
    """Return the hybrid with the weights of talk-7m wherever both have them."""
    old = base.config
    config = BambaConfig(
        vocab_size=old.vocab_size,
        hidden_size=old.hidden_size,
        intermediate_size=old.intermediate_size,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=old.num_attention_heads,
        num_key_value_heads=old.num_key_value_heads,
        attn_layer_indices=list(ATTENTION),
        attn_rotary_emb=old.hidden_size // old.num_attention_heads,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        rms_norm_eps=old.rms_norm_eps,
        mamba_n_heads=6,
        mamba_d_head=64,
        mamba_d_state=64,
        mamba_chunk_size=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        z_loss_coefficient=0.0,
    )
    model = BambaForCausalLM(config)
    low, high = (math.log(step) for step in STEPS)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                step = (low + (high - low) * torch.rand(parameter.shape, generator=generator)).exp()
                parameter.copy_(step + torch.log(-torch.expm1(-step)))  # softplus gives the step again
            elif name.endswith("A_log"):
                parameter.copy_((1 + 15 * torch.rand(parameter.shape, generator=generator)).log())
            elif parameter.dim() == 2:
                parameter.normal_(0.0, 0.005 if name.endswith("mamba.out_proj.weight") else 0.02, generator=generator)
        model.model.embed_tokens.load_state_dict(base.model.embed_tokens.state_dict())
        model.model.final_layernorm.load_state_dict(base.model.norm.state_dict())
        for to, source in zip(model.model.layers, LAYERS, strict=True):
            layer = base.model.layers[source]
            to.input_layernorm.load_state_dict(layer.input_layernorm.state_dict())
            to.pre_ff_layernorm.load_state_dict(layer.post_attention_layernorm.state_dict())
            to.feed_forward.load_state_dict(layer.mlp.state_dict())
            if hasattr(to, "self_attn"):
                to.self_attn.load_state_dict(layer.self_attn.state_dict())
    model.tie_weights()
    return model


def mix(mixer: nn.Module, hidden_states: Tensor, **_: object) -> Tensor:
    """Return a Mamba-2 mixer's output over whole windows, by products of matrices instead of a scan: [B, T, D]."""
    heads, size, state, length = mixer.num_heads, mixer.head_dim, mixer.ssm_state_size, hidden_states.shape[1]
    gate, mixed, dt = mixer.in_proj(hidden_states).split([mixer.intermediate_size, mixer.conv_dim, heads], -1)
    mixed = F.silu(mixer.conv1d(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
    x, b, c = mixed.split([mixer.intermediate_size, state, state], -1)
    dt = F.softplus(dt.float() + mixer.dt_bias)  # [B, T, H]
    decay = (dt * -mixer.A_log.float().exp()).cumsum(1).transpose(1, 2)  # [B, H, T]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -torch.inf).exp()  # [B, H, T, T]
    weights = weights * (c @ b.transpose(1, 2)).float()[:, None] * dt.transpose(1, 2)[:, :, None]
    values = x.unflatten(-1, (heads, size)).transpose(1, 2)  # [B, H, T, P]
    y = weights.to(values.dtype) @ values + mixer.D[:, None, None].to(values.dtype) * values
    return mixer.out_proj(mixer.norm(y.transpose(1, 2).flatten(2), gate))


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the logits of texts [B, T], computed in bfloat16: [B, T, V] in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(input_ids=tokens, use_cache=False).logits.float()


@torch.no_grad()
def held_out(model: nn.Module, data: dict[str, Tensor]) -> dict[str, float]:
    """Return the held-out loss of each kind in nats a token, over the same windows every time."""
    losses = {}
    for kind, tokens in data.items():
        both = Windows(tokens, LENGTH, seed=7).take(16)
        losses[kind] = F.cross_entropy(logits_of(model, both[:, :-1]).flatten(0, 1), both[:, 1:].flatten()).item()
    return {kind: round(loss, 4) for kind, loss in losses.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="talk-7m's folder")
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--model", type=Path, required=True, help="folder to save the hybrid to, every 100 steps")
    parser.add_argument("--start", type=Path, help="a saved hybrid to train on, the rate falling from the first step")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.base)
    base = AutoModelForCausalLM.from_pretrained(options.base, dtype=torch.float32).eval()
    if options.start:
        model = BambaForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    else:
        model = hybrid(base, torch.Generator().manual_seed(options.seed))
    for layer in model.model.layers:
        if hasattr(layer, "mamba"):
            layer.mamba.forward = partial(mix, layer.mamba)
    data = {part: streams(options.splits / part, tokenizer, torch.device("cpu")) for part in ("train", "heldout")}
    mixture = Mixture(data["train"], SHARES, ROWS, LENGTH, options.seed)
    inner = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(inner, lr=options.rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    print("talk-7m, held out", held_out(base, data["heldout"]), flush=True)
    falling = 1.0 if options.start else 0.4  # part of the steps
    start = time.monotonic()
    for step in range(options.steps):
        inputs, _ = mixture.batch()
        with torch.no_grad():
            wanted = logits_of(base, inputs).log_softmax(-1)
        found = logits_of(model, inputs).log_softmax(-1)
        loss = F.kl_div(found.flatten(0, 1), wanted.flatten(0, 1), log_target=True, reduction="batchmean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = options.rate * min(1.0, (step + 1) / 20, (options.steps - step) / (falling * options.steps))
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"{time.monotonic() - start:.0f} s step {step} rate {rate:.1e} KL {loss.item():.4f}", flush=True)
        if (step + 1) % 100 == 0 or step + 1 == options.steps:
            print("held out", held_out(model, data["heldout"]), flush=True)
            model.save_pretrained(options.model)


if __name__ == "__main__":
    main()
