#!/usr/bin/env python3
"""Write a model of random weights in a real model's shape, as MLX stores it: for speed only.

    random_model.py SHAPE OUT_DIR [--bits 4] [--group 64]      SHAPE: qwen3-0.6b llama-8b qwen3-30b-a3b

Codes are random bits; scales and biases keep activations of order one. Needs numpy. No tokenizer is written: `mlxcel bench` needs none.
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np

SHAPES = {
    "qwen3-0.6b": dict(model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True),
    "llama-8b": dict(model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8, head_dim=128, vocab_size=128256, tie_word_embeddings=False),
    "qwen3-30b-a3b": dict(model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
                          num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936, tie_word_embeddings=False,
                          num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
                          decoder_sparse_step=1, mlp_only_layers=[]),
}


def bf16(x):
    return (np.asarray(x, "<f4").view("<u4") >> 16).astype("<u2")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("out", type=Path)
    ap.add_argument("--bits", type=int, default=4)
    ap.add_argument("--group", type=int, default=64)
    a = ap.parse_args()
    c = dict(SHAPES[a.shape], max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1e6,
             quantization=dict(group_size=a.group, bits=a.bits))
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 2**32, 1 << 22, dtype=np.uint32)
    plan, writers = {}, []

    def linear(name, *shape):
        *lead, n_out, n_in = shape
        codes, scales = [*lead, n_out, n_in * a.bits // 32], [*lead, n_out, n_in // a.group]
        step = 1.7 / np.sqrt(n_in) / 2 ** a.bits * 2
        middle = -step * (2 ** a.bits - 1) / 2
        for suffix, dtype, dims, make in (
            ("weight", "U32", codes, lambda n: np.resize(noise, n)),
            ("scales", "BF16", scales, lambda n: np.full(n, bf16(step)[()])),
            ("biases", "BF16", scales, lambda n: np.full(n, bf16(middle)[()])),
        ):
            plan[f"{name}.{suffix}"] = (dtype, dims)
            writers.append((int(np.prod(dims)), make))

    def norm(name, n):
        plan[f"{name}.weight"] = ("BF16", [n])
        writers.append((n, lambda k: np.full(k, bf16(1.0)[()])))

    d, h, kv, hd = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    linear("model.embed_tokens", c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        norm(f"{p}.input_layernorm", d)
        norm(f"{p}.post_attention_layernorm", d)
        linear(f"{p}.self_attn.q_proj", h * hd, d)
        linear(f"{p}.self_attn.k_proj", kv * hd, d)
        linear(f"{p}.self_attn.v_proj", kv * hd, d)
        linear(f"{p}.self_attn.o_proj", d, h * hd)
        if c["model_type"].startswith("qwen3"):
            norm(f"{p}.self_attn.q_norm", hd)
            norm(f"{p}.self_attn.k_norm", hd)
        if "num_experts" in c:
            n, f = c["num_experts"], c["moe_intermediate_size"]
            linear(f"{p}.mlp.gate", n, d)
            shapes = {"gate_proj": (n, f, d), "up_proj": (n, f, d), "down_proj": (n, d, f)}
            for name, shape in shapes.items():
                linear(f"{p}.mlp.switch_mlp.{name}", *shape)
        else:
            f = c["intermediate_size"]
            for name, shape in {"gate_proj": (f, d), "up_proj": (f, d), "down_proj": (d, f)}.items():
                linear(f"{p}.mlp.{name}", *shape)
    norm("model.norm", d)
    if not c["tie_word_embeddings"]:
        linear("lm_head", c["vocab_size"], d)
    head, at = {}, 0
    for name, (dtype, dims) in plan.items():
        n = int(np.prod(dims)) * (4 if dtype == "U32" else 2)
        head[name] = dict(dtype=dtype, shape=dims, data_offsets=[at, at + n])
        at += n
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "config.json").write_text(json.dumps(c, indent=1))
    with open(a.out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for n, make in writers:
            make(n).tofile(f)
    print(f"{a.out}: {at / 1e9:.2f} GB")


main()
