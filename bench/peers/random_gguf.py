#!/usr/bin/env python3
"""Write a GGUF of random Q4_0 weights in the shapes of ../random_model.py, for llama-bench: for speed only.

    random_gguf.py SHAPE OUT.gguf [GGUF_PY]      GGUF_PY: a folder with the package gguf, such as llama.cpp's gguf-py
"""
import sys

import numpy as np

SHAPES = {  # architecture, layers, hidden, feed-forward, heads, KV heads, head size, vocabulary, tied, experts, expert width
    "qwen3-0.6b": ("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, True, 0, 0),
    "llama-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 0, 0),
    "qwen3-30b-a3b": ("qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, False, 128, 768),
}
EXPERTS_USED = 8


def main():
    shape, out = sys.argv[1:3]
    sys.path[:0] = sys.argv[3:4]
    from gguf import GGMLQuantizationType, GGUFWriter

    arch, layers, d, ff, heads, kv_heads, hd, vocab, tied, experts, expert_ff = SHAPES[shape]
    w = GGUFWriter(out, arch)
    for add, value in ((w.add_name, shape), (w.add_file_type, 2), (w.add_block_count, layers), (w.add_context_length, 40960),
                       (w.add_embedding_length, d), (w.add_feed_forward_length, ff), (w.add_head_count, heads),
                       (w.add_head_count_kv, kv_heads), (w.add_key_length, hd), (w.add_value_length, hd),
                       (w.add_layer_norm_rms_eps, 1e-6), (w.add_rope_freq_base, 1e6), (w.add_rope_dimension_count, hd),
                       (w.add_vocab_size, vocab), (w.add_tokenizer_model, "no_vocab")):
        add(value)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(EXPERTS_USED)
        w.add_expert_feed_forward_length(expert_ff)
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (4096, 18), dtype=np.uint8)  # a block of 32: its scale in f16, then 16 bytes of codes
    blocks[:, :2] = np.full((4096, 1), 0.004, np.float16).view(np.uint8)

    def linear(name, *dims):
        rows = np.resize(blocks, (int(np.prod(dims)) // 32, 18)).reshape(*dims[:-1], dims[-1] // 32 * 18)
        w.add_tensor(f"{name}.weight", rows, raw_dtype=GGMLQuantizationType.Q4_0)

    def norm(name, n):
        w.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    linear("token_embd", vocab, d)
    if not tied:
        linear("output", vocab, d)
    norm("output_norm", d)
    for i in range(layers):
        p = f"blk.{i}"
        norm(f"{p}.attn_norm", d)
        norm(f"{p}.ffn_norm", d)
        linear(f"{p}.attn_q", heads * hd, d)
        linear(f"{p}.attn_k", kv_heads * hd, d)
        linear(f"{p}.attn_v", kv_heads * hd, d)
        linear(f"{p}.attn_output", d, heads * hd)
        if arch != "llama":
            norm(f"{p}.attn_q_norm", hd)
            norm(f"{p}.attn_k_norm", hd)
        if experts:
            w.add_tensor(f"{p}.ffn_gate_inp.weight", rng.standard_normal((experts, d), dtype=np.float32) * 0.02)
            linear(f"{p}.ffn_gate_exps", experts, expert_ff, d)
            linear(f"{p}.ffn_up_exps", experts, expert_ff, d)
            linear(f"{p}.ffn_down_exps", experts, d, expert_ff)
        else:
            linear(f"{p}.ffn_gate", ff, d)
            linear(f"{p}.ffn_up", ff, d)
            linear(f"{p}.ffn_down", d, ff)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
