"""quantize and expand against MLX: the same bytes, the same values. Prints TAP.

Compiles src/quant into a shared library, so it needs a C compiler beside mlx (0.32.4) and numpy. Groups for which
docs/provenance.md declares another result than MLX's are left out of the comparison and checked on their own.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import mlx.core as mx
    import numpy as np
except ImportError as e:
    print(f"1..1\nok 1 - quantize # SKIP {e}")
    sys.exit(0)

ROOT = Path(__file__).resolve().parents[2]
mx.set_default_device(mx.cpu)
DTYPES = {"float32": (0, mx.float32), "float16": (1, mx.float16), "bfloat16": (2, mx.bfloat16)}
MODES = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
MODES += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
KIND = {"affine": 1, "mxfp4": 2, "mxfp8": 3, "nvfp4": 4}


class QMat(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in ("kind", "bits", "group", "type", "n_stack", "n_out", "n_in")]
    _fields_ += [(n, ctypes.c_void_p) for n in ("codes", "scales", "biases")]


def build(folder):
    lib = os.path.join(folder, "libquant.so")
    src = sorted((ROOT / "src/quant").glob("*.c")) + [ROOT / "src/base/err.c", ROOT / "src/base/utf8.c"]
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-O2", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-math-errno",
                    "-shared", "-fPIC", f"-I{ROOT}/src", "-o", lib, *map(str, src), "-lm"], check=True)
    return ctypes.CDLL(lib)


def ptr(a):
    return ctypes.c_void_p(a.ctypes.data)


def store(a, name):
    """f32 array -> the array of this dtype (bf16 as uint16), by MLX's rounding."""
    a = mx.array(a).astype(DTYPES[name][1])
    return np.array(a.view(mx.uint16)) if name == "bfloat16" else np.array(a)


def scale_bytes(a, mode):
    return np.array(a) if mode != "affine" else np.array(a.view(mx.uint32 if a.dtype == mx.float32 else mx.uint16))


def ours(lib, mode, bits, group, name, w):
    rows, cols = w.shape
    codes = np.zeros((rows, cols * bits // 32), np.uint32)
    dt = np.uint8 if mode != "affine" else np.uint32 if name == "float32" else np.uint16
    scales, biases = np.zeros((rows, cols // group), dt), np.zeros((rows, cols // group), dt)
    err = ctypes.create_string_buffer(1024)
    w = np.ascontiguousarray(w, np.float32)
    st = lib.mx_quantize(KIND[mode], bits, group, DTYPES[name][0], ptr(w), rows, cols, ptr(codes), ptr(scales),
                         ptr(biases), err)
    assert st == 0, err.raw[4:].split(b"\0")[0]
    return codes, scales, biases


def inputs():
    """name -> f32 [rows, 256]; a row of every kind of trouble."""
    r = np.random.default_rng(7)
    n = lambda k, s=1.0: (r.standard_normal((k, 256)) * s).astype(np.float32)
    grid = np.array([0, .25, .5, .75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6], np.float32)
    ties = r.choice(np.concatenate([grid, -grid]), (256, 256)).astype(np.float32)
    out = {
        "normal": n(512, 0.05),
        "heavy tails": (n(256) ** 5 * 0.01).astype(np.float32),
        "every magnitude": np.concatenate([n(1, 2.0**e) for e in range(-30, 14)]),
        "within a group": (n(256) * 2.0 ** r.integers(-12, 6, (256, 256))).astype(np.float32),
        "one sign": np.abs(n(64, 0.1)) + np.float32(0.3),
        "other sign": -np.abs(n(64, 0.1)) - np.float32(0.3),
        "ties": ties,
        "scaled ties": (ties * 2.0 ** r.integers(-20, 8, (256, 1))).astype(np.float32),
        "integers": r.integers(-8, 8, (128, 256)).astype(np.float32),
        "few values": r.choice(np.array([-1, 0, 0, 0, 0, 1e-3, 448, 449, 6.1], np.float32), (128, 256)),
        "constant": np.repeat(n(64), 256, 1)[:, :256].copy(),
        "zeros": np.stack([np.zeros(256), -np.zeros(256), np.where(np.arange(256) % 2, 0.0, -0.0)]).astype(np.float32),
        "nearly zero": n(16, 1e-9),
        "f16 subnormal": n(64, 3e-7),
        "large": n(64, 2e4).clip(-65504, 65504),
        "beyond nvfp4": n(64, 1e5),
        "huge": n(64, 1e37),
        "extreme": n(64, 3e38).clip(-3.3e38, 3.3e38),
        "f32 subnormal": n(16, 1e-39),
        "tiny": n(32, 1e-36),
    }
    one = np.zeros((64, 256), np.float32)
    one[np.arange(64), r.integers(0, 256, 64)] = r.standard_normal(64)
    out["one value"] = one
    return out


def exempt(mode, name, w, group):
    """Groups for which we deliberately differ from MLX, [rows, groups]."""
    g = w.reshape(w.shape[0], -1, group).astype(np.float64)
    top = np.abs(g).max(-1)
    if mode in ("mxfp4", "mxfp8"):  # a scale below the normal numbers of f32 wraps around in MLX
        return (top > 0) & (top / (6 if mode == "mxfp4" else 448) < 2.0**-126) & (name != "float16")
    return np.zeros(top.shape, bool)


def compare(lib, mode, bits, group, name, w):
    d = mx.array(w).astype(DTYPES[name][1])
    seen = np.array(d.astype(mx.float32))
    bad_group = ~np.isfinite(seen).reshape(w.shape[0], -1, group).all(-1)  # f16: values that do not fit
    skip = exempt(mode, name, seen, group) | bad_group
    want = mx.quantize(d, group_size=group, bits=bits, mode=mode)
    got = ours(lib, mode, bits, group, name, w)
    per = group * bits // 8
    wc = np.array(want[0]).view(np.uint8).reshape(w.shape[0], -1, per)
    gc = got[0].view(np.uint8).reshape(w.shape[0], -1, per)
    diff = (wc != gc).any(-1)
    for a, b in zip(want[1:], got[1:]):
        diff |= scale_bytes(a, mode) != b
    diff &= ~skip
    msg = ""
    if diff.any():
        i, j = np.argwhere(diff)[0]
        msg = (f"{diff.sum()} of {diff.size} groups; first {seen[i, j * group:(j + 1) * group].tolist()} "
               f"mlx {wc[i, j].tolist()} {[scale_bytes(a, mode)[i, j] for a in want[1:]]} "
               f"ours {gc[i, j].tolist()} {[a[i, j] for a in got[1:]]}")
    return msg


def expand(lib, mode, bits, group, name, w):
    """Our f32 expansion of MLX's own quantization, and MLX's dequantization in f32."""
    q = mx.quantize(mx.array(w).astype(DTYPES[name][1]), group_size=group, bits=bits, mode=mode)
    f = [q[0], *(a.astype(mx.float32) for a in q[1:])] if mode == "affine" else q
    want = np.array(mx.dequantize(*f, group_size=group, bits=bits, mode=mode, dtype=mx.float32))
    keep = [np.array(q[0])] + [scale_bytes(a, mode) for a in q[1:]] + [None]
    m = QMat(KIND[mode], bits, group, DTYPES[name][0], 1, *w.shape, *(a.ctypes.data if a is not None else None for a in keep[:3]))
    got = np.zeros(w.shape, np.float32)
    if lib.mx_qmat_expand(ctypes.byref(m), 0, w.shape[0], ptr(got), None):
        return "refused"
    same = (got.view(np.uint32) == want.view(np.uint32)) | ((got == 0) & (want == 0))
    # MLX expands the E8M0 byte 255 to infinity; by the OCP specification it is NaN
    same |= ~np.isfinite(want)
    return "" if same.all() else f"{(~same).sum()} values, first {want[~same][0]} ours {got[~same][0]}"


def never_finite(lib, mode, bits, group, name):
    """A group with NaN or infinity in it must not expand to finite values."""
    for v in (np.nan, np.inf, -np.inf):
        w = np.ones((1, 256), np.float32)
        w[0, 130] = v
        c, s, b = ours(lib, mode, bits, group, name, w)
        m = QMat(KIND[mode], bits, group, DTYPES[name][0], 1, 1, 256, c.ctypes.data, s.ctypes.data, b.ctypes.data)
        got = np.zeros((1, 256), np.float32)
        lib.mx_qmat_expand(ctypes.byref(m), 0, 1, ptr(got), None)
        hit = np.zeros(256, bool)
        hit[130 // group * group:][:group] = True
        if np.isfinite(got[0, hit]).any() or not np.isfinite(got[0, ~hit]).all():
            return f"{v}: {got[0, 120:140]}"
    return ""


def numbers(lib):
    lib.mx_e4m3_to_f32.restype = lib.mx_f16_to_f32.restype = lib.mx_e8m0_to_f32.restype = ctypes.c_float
    lib.mx_f32_to_f16.restype = lib.mx_f32_to_bf16.restype = ctypes.c_uint16
    lib.mx_f32_to_e4m3.restype = ctypes.c_uint8
    for n in ("mx_f32_to_f16", "mx_f32_to_bf16", "mx_f32_to_e4m3"):
        getattr(lib, n).argtypes = [ctypes.c_float]
    h = np.arange(65536, dtype=np.uint16)
    want = h.view(np.float16).astype(np.float32)
    got = np.zeros(65536, np.float32)
    lib.mx_to_f32(ptr(got), ptr(h), 1, ctypes.c_size_t(65536))
    ok = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    yield "f16 to f32, all numbers", "" if ok.all() else str(h[~ok][:5])
    r = np.random.default_rng(3)
    f = r.integers(0, 2**32, 400000, dtype=np.uint32)
    half = np.arange(0, 65536, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    f = np.concatenate([f, half, half + 0x1000, half + 0xFFF, half + 0x1001, np.arange(0x33000000, 0x38900000, 0x777, np.uint32)])
    x = f.view(np.float32)
    for code, name, dt in ((1, "f16", np.float16), (2, "bf16", None)):
        got = np.zeros(len(x), np.uint16)
        lib.mx_from_f32(ptr(got), code, ptr(x), ctypes.c_size_t(len(x)))
        want = store(x, "bfloat16" if dt is None else "float16").view(np.uint16)
        nan = np.isnan(x)
        top = 0x7F80 if dt is None else 0x7C00
        ok = np.where(nan, (got & 0x7FFF) > top, got == want)
        yield f"f32 to {name}", "" if ok.all() else str([(v, a, b) for v, a, b in zip(x[~ok], got[~ok], want[~ok])][:5])
    want = np.array(mx.from_fp8(mx.array(np.arange(256, dtype=np.uint8)), mx.float32))
    got = np.array([lib.mx_e4m3_to_f32(i) for i in range(256)], np.float32)
    ok = got == want
    ok[[127, 255]] = np.isnan(got[[127, 255]])  # MLX reads them as 480
    yield "e4m3 to f32", "" if ok.all() else str(np.argwhere(~ok).ravel())
    x = x[np.isfinite(x)][::7].copy()
    want = np.array(mx.to_fp8(mx.array(x)))
    got = np.array([lib.mx_f32_to_e4m3(float(v)) for v in x], np.uint8)
    yield "f32 to e4m3", "" if (got == want).all() else str(x[got != want][:5])


def main():
    results = []
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        lib = build(folder)
        results += numbers(lib)
        data = inputs()
        for mode, bits, group in MODES:
            for name in DTYPES:
                what = f"{mode} {bits} bits, group {group}, {name}"
                fails = [f"{k}: {m}" for k, w in data.items() if (m := compare(lib, mode, bits, group, name, w))]
                results.append((f"quantize {what}", "; ".join(fails[:4])))
                bad = [f"{k}: {m}" for k in ("normal", "every magnitude", "ties") if (m := expand(lib, mode, bits, group, name, data[k]))]
                results.append((f"expand {what}", "; ".join(bad)))
                results.append((f"NaN and infinity stay, {what}", never_finite(lib, mode, bits, group, name)))
    print(f"1..{len(results)}")
    for i, (name, msg) in enumerate(results, 1):
        print(f"{'not ok' if msg else 'ok'} {i} - {name}" + (f"\n# {msg[:1500]}" if msg else ""))
    sys.exit(any(m for _, m in results))


main()
