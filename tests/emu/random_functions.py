"""Random C functions of three words, for the differential test: the same text is compiled for the GPU and for the host.

usage: random_functions.py COUNT SEED > random.h
What C leaves open is left out: shifts are masked, divisors odd or not zero, floats are compared after NaN and -0 have been made
one value. Float results come back as bits; conversions to integers are of numbers in range."""
import random
import sys

count, seed = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
INT = ["({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} & {1})", "({0} | {1})", "({0} ^ {1})", "({0} << ({1} & 31))", "({0} >> ({1} & 31))",
       "(u32)((i32){0} >> ({1} & 31))", "({0} < {1} ? {0} : {1})", "(u32)((i32){0} > (i32){1} ? {0} : {1})", "(u32)(((u64){0} * {1}) >> 32)",
       "(u32)(((i64)(i32){0} * (i32){1}) >> 32)", "(u32)(u16){0} * (u16){1}", "(u32)((i32)(i8){0} * (i32)(i16){1})", "(u32)__builtin_popcount({0}) + {1}",
       "((u32)__builtin_clz({0} | 1) ^ {1})", "__builtin_bitreverse32({0}) + {1}", "__builtin_bswap32({0}) - {1}", "(u32)((((u64){0} << 32) | {1}) >> ({0} & 31))",
       "__builtin_rotateleft32({0}, {1} & 31)", "((u32)(u8){0} << 8 | (u8){1})", "({0} == {1} ? {0} + 1 : {1} ^ 5)", "(u32)((i32){0} < 0 ? 0 - {0} : {0}) + {1}",
       "(u32)(u16)((u16){0} + (u16){1})", "(u32)(i32)(i16)((u16){0} * (u16){1})", "bits(small({0}) + small({1}))", "bits(small({0}) * small({1}))",
       "bits(__builtin_fmaf(small({0}), small({1}), 1.5f))", "bits(one_zero(small({0}) - small({1})))", "(small({0}) < small({1}) ? {0} : {1})", "(u32)(i32)(small({0}) * 8.0f) + {1}",
       "bits((f32){0}) ^ {1}", "bits((f32)(i32){0}) + {1}", "half_bits((f16)small({0})) + {1}", "bits((f32)((f16)small({0}) * (f16)small({1})))",
       "bits(__builtin_floorf(small({0}))) - {1}", "bits(small({0}) / (small({1}) * small({1}) + 1.0f))"]
WIDE = ["({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} ^ {1})", "({0} << ({1} & 63))", "({0} >> ({1} & 63))", "(u64)((i64){0} >> ({1} & 63))", "({0} < {1} ? {0} : {1})",
        "(u64)((i64){0} < (i64){1} ? {1} : {0})", "({0} & ~{1})"]
print("/* Made by random_functions.py", count, seed, "*/")
print("""static inline f32 small(u32 v) { return (f32)((i32)v >> 8) * 0x1p-12f; }
static inline f32 one_zero(f32 v) { return v + 0.0f == 0.0f ? 0.0f : v; }
static inline u32 half_bits(f16 v) { return (u32)__builtin_bit_cast(u16, v); }""")
for k in range(count):
    names = ["a", "b", "c"]
    wide = []
    body = []
    for s in range(rng.randint(4, 12)):
        kind = rng.random()
        if kind < 0.7 or not names:
            x, y = rng.choice(names), rng.choice(names)
            if rng.random() < 0.2:
                y = "%du" % rng.choice([1, 3, 7, 31, 255, 4096, 65535, 0x7FFFFFFF, 0x12345678])
            body.append("u32 v%d = %s;" % (s, rng.choice(INT).format(x, y)))
            names.append("v%d" % s)
        elif kind < 0.8 or len(wide) < 2:
            body.append("u64 w%d = (u64)%s << 32 | %s;" % (s, rng.choice(names), rng.choice(names)))
            wide.append("w%d" % s)
        elif kind < 0.95:
            body.append("u64 w%d = %s;" % (s, rng.choice(WIDE).format(rng.choice(wide), rng.choice(wide))))
            wide.append("w%d" % s)
        else: # a loop and a branch that lanes take differently
            x, y = rng.choice(names), rng.choice(names)
            body.append("u32 v%d = %s; for (u32 i = 0; i < (%s & 7); i++) { if (v%d & 1) v%d = v%d * 3 + i; else v%d ^= %s >> i; }" % (s, x, y, s, s, s, s, y))
            names.append("v%d" % s)
    last = names[3:] or names
    result = " ^ ".join("(u64)%s * %d" % (n, 2 * i + 1) for i, n in enumerate(last)) + "".join(" ^ " + w for w in wide)
    print("FUNCTION(r%d) { (void)a, (void)b, (void)c; %s return %s; }" % (k, " ".join(body), result))
print("#define RANDOM_FUNCTIONS", ", ".join("r%d" % k for k in range(count)))
print("#define RANDOM_KERNELS", " ".join("K(%d)" % k for k in range(count)))
