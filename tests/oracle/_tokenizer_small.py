"""Small tokenizer.json files that between them use every part of the format: for tests/oracle/tokenizer.py."""

def alphabet():
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in keep] + [chr(256 + i) for i in range(68)]


def bpe(**more):
    letters = ["<unk>", "a", "b", "c", "x", " ", "▁", "é", "1", "2", "A", "h", "i", "w", "o", "r", "d", "e", "'", "s", "\u0301"]
    vocab = {t: i for i, t in enumerate(letters)}
    for t in ["ab", "abc", "▁a", "▁ab", "wo", "wor", "word", "▁word", "a ", "a b", "hi", "▁h", "▁hi", "e\u0301", "'s", "aa", "aaaa"]:
        vocab[t] = len(vocab)
    merges = [["a", "b"], ["ab", "c"], ["▁", "a"], ["▁", "ab"], ["w", "o"], ["wo", "r"], ["wor", "d"], ["▁", "word"], ["a", " "],
              ["a ", "b"], ["h", "i"], ["▁", "h"], ["▁h", "i"], ["e", "\u0301"], ["'", "s"], ["a", "a"], ["aa", "aa"]]
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **more}


def byte_bpe(**more):
    vocab = {c: i for i, c in enumerate(alphabet())}
    merges = []
    for a, b in [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("Ġ", "ab"), ("Ã", "©"), ("w", "o"), ("wo", "r"), ("wor", "d"), ("Ġ", "word"),
                 ("1", "2"), ("12", "3")]:
        vocab[a + b] = len(vocab)
        merges.append([a, b])
    return {"type": "BPE", "unk_token": None, "vocab": vocab, "merges": merges, **more}


def fallback(**more):
    model = bpe(byte_fallback=True, **more)
    model["vocab"] |= {f"<0x{b:02X}>": len(model["vocab"]) + b for b in range(256)}
    return model


def added(content, i, **flags):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **flags}


TOKENS = [added("<s>", 1000, special=True), added("<pad>", 1001, special=True, lstrip=True, rstrip=True),
          added("[M]", 1002, normalized=True), added("[N]", 1003, lstrip=True), added("word", 1004, single_word=True)]


def doc(model=None, normalizer=None, pre=None, post=None, decoder=None, tokens=None):
    """Added tokens get the ids after the vocabulary, as tokenizers gives them."""
    model = model or bpe()
    first = max(model["vocab"].values()) + 1
    fixed, n = [], 0
    for t in tokens if tokens is not None else TOKENS[:4]:
        known = model["vocab"].get(t["content"])
        fixed.append({**t, "id": first + n if known is None else known})
        n += known is None
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": fixed, "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model}


def seq(kind, key, *items):
    return {"type": kind, key: list(items)}


META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA = seq("Sequence", "decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
LLAMA_NORM = seq("Sequence", "normalizers", {"type": "Prepend", "prepend": "▁"},
                 {"type": "Replace", "pattern": {"String": " "}, "content": "▁"})


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


CASES = [("model alone", doc()), ("fuse_unk", doc(bpe(fuse_unk=True))), ("no unk_token", doc(bpe(unk_token=None))),
         ("merges as strings", doc(bpe(merges=["a b", "ab c", "w o", "wo r"]))), ("ignore_merges", doc(bpe(ignore_merges=True))),
         ("byte_fallback", doc(fallback())), ("byte_fallback, fuse_unk", doc(fallback(fuse_unk=True))),
         ("llama 2", doc(fallback(), LLAMA_NORM, None, None, LLAMA)),
         ("gemma", doc(fallback(), LLAMA_NORM["normalizers"][1], split(" ", "MergedWithPrevious", kind="String"), None,
                       seq("Sequence", "decoders", *LLAMA["decoders"][:3]))),
         ("added tokens", doc(tokens=TOKENS)), ("added tokens, lower case", doc(normalizer={"type": "Lowercase"}, tokens=TOKENS)),
         ("added tokens, prepend", doc(fallback(), LLAMA_NORM, None, None, LLAMA, TOKENS)),
         ("no decoder, bytes", doc(byte_bpe(), None, BL))]

CASES += [(f"normalizer {n}", doc(normalizer={"type": n}, decoder={"type": "Fuse"}))
          for n in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"]]
CASES += [(f"normalizer {n}, bytes", doc(byte_bpe(), {"type": n}, BL, None, BL)) for n in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]]
CASES += [(f"normalizer Strip {a} {b}", doc(byte_bpe(), {"type": "Strip", "strip_left": a, "strip_right": b}, BL, None, BL))
          for a in (True, False) for b in (True, False)]
CASES += [("normalizer Prepend", doc(normalizer={"type": "Prepend", "prepend": "ab"})),
          ("normalizer Replace string", doc(normalizer={"type": "Replace", "pattern": {"String": "ab"}, "content": "x."})),
          ("normalizer Replace pattern", doc(normalizer={"type": "Replace", "pattern": {"Regex": "[ab]+\\s?"}, "content": "c"})),
          ("normalizer Replace spaces", doc(byte_bpe(), {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, BL, None, BL)),
          ("normalizer Sequence", doc(byte_bpe(), seq("Sequence", "normalizers", {"type": "NFD"}, {"type": "StripAccents"},
                                                      {"type": "Lowercase"}), BL, None, BL)),
          ("normalizer BertNormalizer", doc(byte_bpe(), {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                                         "strip_accents": None, "lowercase": True}, BL, None, BL)),
          ("normalizer BertNormalizer, case kept", doc(byte_bpe(), {"type": "BertNormalizer", "clean_text": False,
                                                                    "handle_chinese_chars": True, "strip_accents": None,
                                                                    "lowercase": False}, BL, None, BL))]

CASES += [(f"pre-tokenizer ByteLevel {a} {b}", doc(byte_bpe(), None, {**BL, "add_prefix_space": a, "use_regex": b}, None, BL))
          for a in (True, False) for b in (True, False)]
CASES += [(f"pre-tokenizer Metaspace {s} {p}", doc(fallback(), None, {**META, "prepend_scheme": s, "split": p}, None,
                                                   {**META, "prepend_scheme": s, "split": p}))
          for s in ("always", "first", "never") for p in (True, False)]
CASES += [("pre-tokenizer Metaspace, strip", doc(fallback(), {"type": "Strip", "strip_left": True, "strip_right": False},
                                                 {**META, "prepend_scheme": "first"}, None, META)),
          ("pre-tokenizer Metaspace legacy", doc(fallback(), None, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
                                                 None, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}))]
CASES += [(f"pre-tokenizer Split {b} {i}", doc(byte_bpe(), None, seq("Sequence", "pretokenizers", split("[ab]|\\s+", b, i),
                                                                     {**BL, "use_regex": False}), None, BL))
          for b in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext") for i in (False, True)]
CASES += [(f"pre-tokenizer Split {b}, string", doc(byte_bpe(), None, seq("Sequence", "pretokenizers", split("ab", b, False, "String"),
                                                                         {**BL, "use_regex": False}), None, BL))
          for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext")]
PATTERNS = ["\\p{N}{1,3}", "\\p{N}", "\\p{N}{1,2}+", "\\w+", "\\W+", "[^\\s\\w]+", "\\S+", "[^\\S\\n]+", "\\d+|\\D", "\\h+", "[[:punct:]]+",
            "[\\p{L}&&[^a-c]]+", "[^a&&[a-c]]", "(?i:ab|'S)", "\\p{Han}+|\\p{Latin}+", "[一-龥ぁ-ゟ]+", "(?=b)|c", "b*", "(?<=a)b", "^a|b$",
            "[a\\]\\-]+", "\\P{L}+", "[\\P{L}a]+", "(?m:a.b)", "a{,2}", "(ab){1,2}+c", "\\u0061+", "\\x{e9}|\\.", "[]a]+", "\\p{^L}+",
            "[a[bc]]+", "\\p{Lu}\\p{Ll}*|\\p{Lo}+", "(?>a|ab)c", "a++|b", "\\s+(?!\\S)|\\s+", "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"]
CASES += [(f"pattern {p}", doc(byte_bpe(), None, seq("Sequence", "pretokenizers", split(p), {**BL, "use_regex": False}), None, BL))
          for p in PATTERNS]
CASES += [(f"pre-tokenizer {p['type']}", doc(byte_bpe(), None, seq("Sequence", "pretokenizers", p, {**BL, "use_regex": False}), None, BL))
          for p in [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"},
                    {"type": "CharDelimiterSplit", "delimiter": "a"}, {"type": "FixedLength", "length": 3}]]
CASES += [(f"pre-tokenizer Digits {d}", doc(byte_bpe(), None, seq("Sequence", "pretokenizers", {"type": "Digits", "individual_digits": d},
                                                                  {**BL, "use_regex": False}), None, BL)) for d in (True, False)]
CASES += [(f"pre-tokenizer Punctuation {b}", doc(byte_bpe(), None, seq("Sequence", "pretokenizers", {"type": "Punctuation", "behavior": b},
                                                                       {**BL, "use_regex": False}), None, BL))
          for b in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")]

A = {"Sequence": {"id": "A", "type_id": 0}}
S = {"SpecialToken": {"id": "<s>", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [S, A], "pair": [A, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1, 2], "tokens": ["a", "b"]}}}
CASES += [("post-processor TemplateProcessing", doc(post=TEMPLATE)),
          ("post-processor TemplateProcessing, around", doc(post={**TEMPLATE, "single": [S, A, S]})),
          ("post-processor ByteLevel", doc(byte_bpe(), None, BL, BL, BL)),
          ("post-processor Sequence", doc(byte_bpe(), None, BL, seq("Sequence", "processors", BL, TEMPLATE), BL)),
          ("post-processor RobertaProcessing", doc(post={"type": "RobertaProcessing", "sep": ["b", 2], "cls": ["a", 1],
                                                         "trim_offsets": True, "add_prefix_space": True})),
          ("post-processor BertProcessing", doc(post={"type": "BertProcessing", "sep": ["b", 2], "cls": ["a", 1]}))]

DECODERS = [{"type": "Fuse"}, {"type": "ByteFallback"}, {"type": "Strip", "content": "a", "start": 1, "stop": 0},
            {"type": "Replace", "pattern": {"String": "a"}, "content": "+"}, {"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": "+"},
            META, {**META, "prepend_scheme": "never"}, {"type": "BPEDecoder", "suffix": "b"}, BL,
            seq("Sequence", "decoders", {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "abab"}, "content": "-"}),
            seq("Sequence", "decoders", {"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "a+b"}, "content": "-"}),
            seq("Sequence", "decoders", {"type": "ByteFallback"}, {"type": "Fuse"}, META),
            seq("Sequence", "decoders", {"type": "ByteFallback"}, META, {"type": "Fuse"}),
            seq("Sequence", "decoders", {"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 2, "stop": 0}, {"type": "ByteFallback"}),
            seq("Sequence", "decoders", BL, {"type": "Replace", "pattern": {"String": "a"}, "content": "é"}),
            seq("Sequence", "decoders", {"type": "Fuse"}, BL)]
CASES += [(f"decoder {i}", doc(fallback(), None, None, None, d)) for i, d in enumerate(DECODERS)]
CASES += [("end_of_word_suffix", doc(bpe(end_of_word_suffix="</w>", vocab={"<unk>": 0, "a": 1, "b": 2, "b</w>": 3, "ab</w>": 4, "a</w>": 5},
                                         merges=["a b</w>"]), None, {"type": "WhitespaceSplit"}, None, {"type": "BPEDecoder", "suffix": "</w>"})),
          ("continuing_subword_prefix", doc(bpe(continuing_subword_prefix="##", vocab={"<unk>": 0, "a": 1, "##b": 2, "ab": 3, "##c": 4,
                                                                                       "abc": 5}, merges=["a ##b", "ab ##c"])))]
