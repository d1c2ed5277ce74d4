"""GGUF against Python's gguf package: the reader's view of files that it writes, and every block format's values.

Compiles src/format/gguf*.c into a shared library, so it needs a C compiler beside gguf and numpy. Prints TAP.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import gguf
    import numpy as np
    from gguf import GGMLQuantizationType as T
    from gguf.quants import dequantize, quantize
except ImportError as e:
    print(f"1..1\nok 1 - gguf # SKIP {e}")
    sys.exit(0)

ROOT = Path(__file__).resolve().parents[2]
# The reference's order of operations is ours for all of these, so the bits must be equal, not just the values.
FORMATS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
N_BLOCK = 500


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("n_dim", ctypes.c_int),
                ("shape", ctypes.c_int64 * 4), ("n_value", ctypes.c_int64), ("data", ctypes.c_void_p),
                ("n_bytes", ctypes.c_uint64)]


def build(folder):
    out = os.path.join(folder, "libgguf-test.so")
    src = [ROOT / "src/format/gguf.c", ROOT / "src/format/gguf_dequant.c"]
    src += [ROOT / f"src/base/{n}.c" for n in ("arena", "err", "file", "str", "utf8")]
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-O2", "-D_GNU_SOURCE", "-ffp-contract=off", "-shared", "-fPIC",
                    f"-I{ROOT}/src", "-o", out, *map(str, src)], check=True)
    lib = ctypes.CDLL(out)
    lib.mx_ggml_name.restype = lib.mx_gguf_summary.restype = ctypes.c_char_p
    lib.mx_gguf_find.restype = ctypes.POINTER(Tensor)
    lib.mx_gguf_int.restype = ctypes.c_int64
    lib.mx_gguf_num.restype = ctypes.c_double
    lib.mx_gguf_n_tensor.restype = ctypes.c_size_t
    return lib


def blocks(kind, rng):
    """Random bytes of this format, with finite scales: the f16 fields of a block are set to ordinary numbers."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    a = rng.integers(0, 256, (N_BLOCK, size), dtype=np.uint8)
    where = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2),
             "Q5_1": (0, 2), "MXFP4": (), "F32": (), "F16": (), "BF16": ()}.get(kind.name, (0,))
    for at in where:
        scale = (rng.standard_normal(N_BLOCK) * 10.0 ** rng.integers(-7, 3, N_BLOCK)).astype(np.float16)
        a[:, at:at + 2] = scale.view(np.uint8).reshape(N_BLOCK, 2)
    if kind.name == "MXFP4":
        a[:, 0] %= 250  # the largest exponents overflow f32
    if kind.name in ("F32", "F16", "BF16"):
        v = (rng.standard_normal(N_BLOCK) * 10.0 ** rng.integers(-8, 4, N_BLOCK)).astype(np.float32)
        v[:4] = [0.0, -0.0, np.inf, -np.inf]
        a = v.astype(np.float16).view(np.uint8) if kind.name == "F16" else quantize(v, kind).view(np.uint8)
        a = a.reshape(N_BLOCK, size)
    return a, block


def test_blocks(lib, name):
    kind, rng = T[name], np.random.default_rng(7)
    a, block = blocks(kind, rng)
    want = dequantize(a.reshape(1, -1) if block > 1 or name == "BF16" else
                      a.reshape(-1).view(np.float32 if name == "F32" else np.float16), kind)
    want = np.ascontiguousarray(want, np.float32).reshape(-1)
    got = np.full(N_BLOCK * block, 123.0, np.float32)
    a = np.ascontiguousarray(a)
    st = lib.mx_gguf_dequant(int(kind), ctypes.c_void_p(a.ctypes.data), ctypes.c_int64(got.size),
                             ctypes.c_void_p(got.ctypes.data), None)
    assert st == 0, "refused"
    assert want.size == got.size and np.isfinite(want).sum() >= got.size - 4
    diff = np.flatnonzero(got.view(np.uint32) != want.view(np.uint32))
    assert diff.size == 0, f"value {diff[0]}: {got[diff[0]]} != {want[diff[0]]} ({diff.size} of {got.size} differ)"


def test_sizes(lib):
    for kind in T:
        if kind.name == "Q8_1":  # the package states 40; ggml's struct, never stored in files, has 36 since 2024
            continue
        want = (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        got = (lib.mx_ggml_name(int(kind)).decode(), lib.mx_ggml_block(int(kind)), lib.mx_ggml_bytes(int(kind)))
        assert got == want, f"{got} != {want}"


def test_file(lib, folder):
    path = os.path.join(folder, "t.gguf")
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint32("llama.block_count", 3)
    w.add_float32("llama.rope.freq_base", 5e5)
    w.add_array("tokenizer.ggml.tokens", ["a", "b", "é"])
    rng = np.random.default_rng(1)
    m = rng.standard_normal((6, 64)).astype(np.float32)
    q = quantize(m, T.Q4_1)
    w.add_tensor("blk.0.w", q, raw_dtype=T.Q4_1)
    w.add_tensor("norm", m[0])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    g, err = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
    assert lib.mx_gguf_open(ctypes.byref(g), path.encode(), err) == 0, err.raw[4:].split(b"\0")[0]
    assert lib.mx_gguf_int(g, b"llama.block_count", ctypes.c_int64(0), None) == 3
    assert lib.mx_gguf_num(g, b"llama.rope.freq_base", ctypes.c_double(0), None) == 5e5
    assert lib.mx_gguf_n_tensor(g) == 2
    t = lib.mx_gguf_find(g, b"blk.0.w").contents
    assert list(t.shape)[:2] == [64, 6] and t.n_bytes == q.nbytes and t.type == int(T.Q4_1)
    assert ctypes.string_at(t.data, t.n_bytes) == q.tobytes()
    t = lib.mx_gguf_find(g, b"norm").contents
    assert ctypes.string_at(t.data, t.n_bytes) == m[0].tobytes()
    buf = ctypes.create_string_buffer(200)
    got = lib.mx_gguf_summary(g, buf, ctypes.c_size_t(200)).decode()
    assert got == "llama, 2 tensors: 1 F32, 1 Q4_1", got
    lib.mx_gguf_free(g)


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        lib = build(folder)
        tests = [(f"blocks of {n}", test_blocks, (lib, n)) for n in FORMATS]
        tests += [("names and sizes", test_sizes, (lib,)), ("a file of the package", test_file, (lib, folder))]
        print(f"1..{len(tests)}")
        for i, (name, fn, args) in enumerate(tests, 1):
            try:
                fn(*args)
                print(f"ok {i} - {name}")
            except AssertionError as e:
                failed += 1
                print(f"not ok {i} - {name}\n# {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
