#!/usr/bin/env python3
"""Write tests/data/families.json: reference logits of a small random model of every family.

    families.py [--check]      --check: compare with the stored file instead of writing it

Each model's weights come from a hash of the tensor's name and index, so the file stores none: the unit test
`families` makes the same weights, writes them as a checkpoint, runs it and compares with the logits that transformers
computes here in float32. Sizes are odd on purpose. Needs PyTorch and transformers.
"""
import json
import math
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "data" / "families.json"
BASE = dict(vocab_size=61, hidden_size=96, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1)
LINEAR = dict(BASE, model_type="llama", max_position_embeddings=2048, head_dim=24)

CASES = {
    "llama, llama3 rope, odd head size, biases": (140, dict(
        BASE, model_type="llama", head_dim=40, attention_bias=True, mlp_bias=True, rope_theta=5000.0,
        rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=64))),
    "llama without head_dim, tied": (20, dict(BASE, model_type="llama", tie_word_embeddings=True)),
    "llama, linear rope (rope_scaling.type)": (910, dict(LINEAR, rope_theta=500000.0, rope_scaling=dict(type="linear", factor=4.0))),
    "llama, linear rope (rope_scaling.rope_type)": (910, dict(LINEAR, rope_theta=500000.0,
                                                              rope_scaling=dict(rope_type="linear", factor=4.0))),
    "llama, linear rope (rope_parameters)": (910, dict(LINEAR, rope_parameters=dict(rope_type="linear", factor=4.0,
                                                                                    rope_theta=500000.0))),
    "llama, yarn": (200, dict(BASE, model_type="llama", rope_theta=10000.0, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0))),
    "mistral, window, one kv head": (70, dict(BASE, model_type="mistral", num_key_value_heads=1, sliding_window=16, head_dim=24)),
    "qwen2, biases, later layers slide": (70, dict(BASE, model_type="qwen2", tie_word_embeddings=True, use_sliding_window=True,
                                                   sliding_window=16, max_window_layers=1)),
    "qwen3, window declared but not used": (70, dict(BASE, model_type="qwen3", head_dim=32, sliding_window=16)),
    "qwen3, layer types": (70, dict(BASE, model_type="qwen3", head_dim=32, sliding_window=16, use_sliding_window=True,
                                    layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    "qwen3_moe, weights not renormalized": (40, dict(
        BASE, model_type="qwen3_moe", head_dim=24, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40,
        norm_topk_prob=False, mlp_only_layers=[1], decoder_sparse_step=1)),
    "qwen3_moe, weights renormalized": (40, dict(
        BASE, model_type="qwen3_moe", head_dim=24, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40,
        norm_topk_prob=True, decoder_sparse_step=1)),
    "mixtral": (40, dict(BASE, model_type="mixtral", num_local_experts=5, num_experts_per_tok=2)),
    "gemma3_text, windows, two rope bases": (90, dict(
        BASE, model_type="gemma3_text", num_hidden_layers=4, head_dim=32, query_pre_attn_scalar=24, sliding_window=16,
        sliding_window_pattern=3, rope_theta=1000000.0, rope_local_base_freq=10000.0, tie_word_embeddings=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=30.0, rms_norm_eps=1e-6)),
    "qwen3_5_text": (90, dict(
        BASE, model_type="qwen3_5_text", num_hidden_layers=4, head_dim=32, linear_conv_kernel_dim=4, linear_key_head_dim=16,
        linear_value_head_dim=24, linear_num_key_heads=2, linear_num_value_heads=4,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))),
}


def hashed(name, n):
    """n numbers in [-1, 1): splitmix64 of the FNV-1a hash of the name plus the index (as the unit test computes them)."""
    import numpy as np

    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(h) + (np.arange(1, n + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1).astype(np.float32)


def plan(name, shape, family):
    """offset and scale of a tensor, so that activations stay of order one."""
    if name.endswith("A_log"):
        return 0.5, 0.5
    if "norm" in name:
        plus_one = family in ("gemma3_text", "qwen3_5_text") and not name.endswith("linear_attn.norm.weight")
        return (0.0, 0.2) if plus_one else (1.0, 0.2)
    if name.endswith("bias") or len(shape) == 1:
        return 0.0, 0.2
    if "embed_tokens" in name:
        return 0.0, 0.3 if family == "gemma3_text" else 1.0
    if "conv1d" in name:
        return 0.0, 0.8
    if "lm_head" in name:
        return 0.0, 6.0 / math.sqrt(shape[-1])
    return 0.0, 2.0 / math.sqrt(shape[-1])


def on_disk(state, family):
    """The state as a checkpoint on the hub names it: experts one by one."""
    out = {}
    for name, t in state.items():
        if "experts.gate_up_proj" in name or "experts.down_proj" in name:
            names = {"mixtral": ("w1", "w3", "w2")}.get(family, ("gate_proj", "up_proj", "down_proj"))
            base = name.rsplit(".", 1)[0]
            if family == "mixtral":
                base = base.replace(".mlp.", ".block_sparse_moe.")
            for e in range(t.shape[0]):
                if "gate_up" in name:
                    half = t.shape[1] // 2
                    out[f"{base}.{e}.{names[0]}.weight"] = (half, t.shape[2]), (name, e, slice(0, half))
                    out[f"{base}.{e}.{names[1]}.weight"] = (half, t.shape[2]), (name, e, slice(half, None))
                else:
                    out[f"{base}.{e}.{names[2]}.weight"] = tuple(t.shape[1:]), (name, e, slice(None))
        else:
            disk = name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if family == "mixtral" else name
            out[disk] = tuple(t.shape), (name, None, None)
    return out


def run(title, length, fields):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    family = fields["model_type"]
    config = AutoConfig.for_model(**{k: (dict(v) if isinstance(v, dict) else v) for k, v in fields.items()})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    state = {k: v for k, v in model.state_dict().items()}
    if fields["tie_word_embeddings"]:
        state.pop("lm_head.weight", None)
    tensors = []
    with torch.no_grad():
        for disk, (shape, (name, e, rows)) in sorted(on_disk(state, family).items()):
            offset, scale = plan(disk, shape, family)
            n = math.prod(shape)
            values = torch.from_numpy((hashed(disk, n) * scale + offset).astype("float32")).reshape(shape)
            if e is None:
                state[name].copy_(values)
            else:
                state[name][e, rows].copy_(values)
            tensors.append([disk, list(shape), offset, scale])
        model.tie_weights()
        ids = [(i * i * 7 + i * 3 + 5) % fields["vocab_size"] for i in range(length)]
        logits = model(torch.tensor([ids])).logits[0]
    wanted = sorted({0, 1, 7, 8, 17, 33, length // 2, length - 2, length - 1} & set(range(length)))
    if length > 900:
        wanted = [8, 900]
    rows = [[float(f"{x:.7g}") for x in logits[i].tolist()] for i in wanted]
    fields = dict(fields, architectures=[model.__class__.__name__])
    print(f"{title}: range {logits.max() - logits.min():.1f}", file=sys.stderr)
    return dict(title=title, config=fields, tensors=tensors, length=length, positions=wanted, logits=rows)


def main():
    cases = [run(title, *case) for title, case in CASES.items()]
    if "--check" in sys.argv:
        stored = {c["title"]: c for c in json.loads(OUT.read_text())}
        print(f"1..{len(cases)}")
        bad = 0
        for i, c in enumerate(cases, 1):
            worst = max(abs(a - b) for r, s in zip(c["logits"], stored[c["title"]]["logits"]) for a, b in zip(r, s))
            ok = worst < 1e-3 and c["tensors"] == stored[c["title"]]["tensors"]
            bad += not ok
            print(f"{'ok' if ok else 'not ok'} {i} - {c['title']}: stored logits differ by {worst:.2g}")
        sys.exit(bad > 0)
    text = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    OUT.write_text("[\n" + text + "\n]\n")


if __name__ == "__main__":
    main()
