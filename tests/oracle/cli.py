"""The program as its users meet it: flags, help, errors, pipes, full disks, JSON, and a conversation at a terminal.

Needs Python's standard library only. The program is $MLXCEL, else build/src/cli/mlxcel."""
import csv, fcntl, json, os, pty, re, select, shutil, signal, stat, struct, subprocess, sys, tempfile, termios, time

ROOT = os.environ.get("MX_SOURCE_ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.abspath(os.environ.get("MLXCEL") or os.path.join(ROOT, "build/src/cli/mlxcel"))
DEMO = os.path.join(ROOT, "models/demo")
TMP = tempfile.mkdtemp(prefix="mlxcel-cli-")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL", "LLAMA_ARG_", "HF_", "XDG_"))}
ENV.update(HOME=TMP, TERM="xterm", LC_ALL="C.UTF-8", MLXCEL_CACHE_DIR=os.path.join(TMP, "cache"), NO_COLOR="1",
           MLXCEL_THREADS="1")  # steady when other programs run beside
QUESTION = "What is 17 + 25?"
results = []


def check(name, ok, detail=""):
    results.append(bool(ok))
    print(("ok" if ok else "not ok"), len(results), "-", name, flush=True)
    if not ok:
        print("\n".join("# " + line for line in str(detail)[-1500:].splitlines()), flush=True)


def run(*args, stdin=None, env=None, **kw):
    kw.setdefault("stdout", subprocess.PIPE)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    if data is None and "stdin_file" not in kw:
        kw["stdin"] = subprocess.DEVNULL
    else:
        kw["input"] = data
    p = subprocess.run([PROGRAM, *args], stderr=subprocess.PIPE, env={**ENV, **(env or {})}, timeout=60, cwd=TMP, **kw)
    p.out = (p.stdout or b"").decode("utf-8", "replace")
    p.err = p.stderr.decode("utf-8", "replace")
    p.all = f"{args}: rc {p.returncode}\nstdout: {p.out}\nstderr: {p.err}"
    return p


def one_sentence(p):
    return p.err.startswith("mlxcel: ") and p.err.count("\n") == 1 and p.err.endswith("\n") and p.out == ""


def fails(name, rc, part, *args, **kw):
    p = run(*args, **kw)
    check(name, p.returncode == rc and part in p.err and one_sentence(p), p.all)


# ---- commands and flags ------------------------------------------------------------------------------------
COMMANDS = ["run", "generate", "tokenize", "inspect", "list", "pull", "rm", "convert", "verify", "bench", "devices"]


def test_help():
    p = run("--help")
    check("--help lists every command", p.returncode == 0 and all(f"\n  {c}" in p.out for c in COMMANDS), p.all)
    for c in COMMANDS:
        p, q = run(c, "--help"), run("help", c)
        lines = p.out.splitlines()
        check(f"{c} --help fits a screen", p.returncode == 0 and p.err == "" and p.out == q.out and
              3 <= len(lines) <= 50 and max(map(len, lines)) <= 100, f"{len(lines)} lines\n{p.all}")
    p = run("help", "env")
    check("help env names the variables", "MLXCEL_THREADS" in p.out and "LLAMA_ARG_CTX_SIZE" in p.out, p.all)
    p = run("--version")
    check("--version", p.returncode == 0 and re.fullmatch(r"mlxcel \d+\.\d+\.\d+ \(\S+\)\n", p.out), p.all)
    p = run()
    check("no command: help, and a code that is not 0", p.returncode == 64 and "Usage:" in p.out, p.all)


def test_wrong_use():
    cases = [
        ("did you mean run?", "rnu"), ("did you mean inspect?", "insepct", DEMO), ("unknown command serve", "serve"),
        ("the command comes first", "--model", DEMO), ("did you mean --temp?", "run", DEMO, "--tmep", "1"),
        ("did you mean --max-tokens?", "run", DEMO, "--max-tokns=5"), ("unknown flag --temp", "list", "--temp", "1"),
        ("--temp needs a value", "run", DEMO, "--temp"), ("-n needs a value", "generate", DEMO, "-n", "--temp", "1"),
        ("-n takes a whole number", "run", DEMO, "-n", "ten"), ("from 0 to 1", "run", DEMO, "--top-p", "1.5"),
        ("given twice", "run", DEMO, "--seed", "1", "--seed", "2"), ("auto, bf16, f16 or f32", "run", DEMO, "--kv", "q4"),
        ("no model is named", "run"), ("no model is named", "inspect"), ("too many", "inspect", DEMO, DEMO),
        ("one argument too many", "run", DEMO, "two", "words"), ("both -p and", "run", DEMO, "-p", "a", "b"),
        ("the prompt is empty", "run", DEMO, "-p", ""), ("--reference FILE is missing", "verify", DEMO),
        ("exclude each other", "verify", DEMO, "--reference", "a", "--write", "b", "--against", "c"),
        ("nothing to measure", "bench", DEMO, "-p", "0", "-n", "0"), ("two csv files", "bench", "--compare", "a"),
        ("-o DIR is missing", "convert", DEMO), ("need -q", "convert", DEMO, "-o", "x", "--q-bits", "4"),
        ("use --yes", "rm", "a/b"), ("takes no argument", "list", "x"), ("takes no argument", "devices", "x"),
        ("leaves no place", "run", DEMO, "--no-chat-template", "-sys", "x", "-p", "y"),
        ("stdin can be read once", "run", DEMO, "-p", "-", "-f", "-"),
    ]
    for part, *args in cases:
        fails("wrong use: " + " ".join(a.replace(DEMO, "DEMO") for a in args), 64, part, *args)
    fails("wrong environment", 64, "MLXCEL_THREADS", "run", DEMO, "-p", "x", env={"MLXCEL_THREADS": "many"})
    fails("an escape sequence in a name is not printed", 64, "unknown command ?[31mx", "\x1b[31mx")
    for bad, part in (("{", "--chat-template-kwargs"), ("[1]", "takes a JSON object"), ("1", "takes a JSON object")):
        fails(f"--chat-template-kwargs {bad}", 1, part, "run", DEMO, "-p", "x", "--chat-template-kwargs", bad)
    fails("--logit-bias without a bias", 1, "--logit-bias", "generate", DEMO, "-p", "x", "--logit-bias", "5")
    fails("--logit-bias of an unknown token", 1, "no token", "generate", DEMO, "-p", "x", "-l", "nosuchtoken+1")
    fails("an unknown device is not replaced", 1, "device", "run", DEMO, "-p", "x", "--device", "abacus")
    fails("a prompt file that is missing", 1, "nosuch.txt", "run", DEMO, "-f", "nosuch.txt")
    fails("a prompt file that is a folder", 1, TMP, "run", DEMO, "-f", TMP)
    fails("a template that is missing", 1, "nosuch.jinja", "run", DEMO, "-p", "x", "--chat-template-file", "nosuch.jinja")


# ---- broken models -----------------------------------------------------------------------------------------
def broken(name, change):
    d = os.path.join(TMP, "broken", name)
    shutil.copytree(DEMO, d)
    change(d)
    return d


def test_broken_models():
    def write(file, text):
        return lambda d: open(os.path.join(d, file), "w").write(text)

    def config(**kw):
        def change(d):
            path = os.path.join(d, "config.json")
            c = json.load(open(path))
            c.update(kw)
            json.dump(c, open(path, "w"))
        return change

    def cut(d):
        os.truncate(os.path.join(d, "model.safetensors"), 100000)

    empty = os.path.join(TMP, "empty")
    os.mkdir(empty)
    folders = {
        "an empty folder": empty,
        "a folder that does not exist": os.path.join(TMP, "nowhere"),
        "a file": os.path.join(DEMO, "config.json"),
        "a config that is no JSON": broken("json", write("config.json", "{")),
        "a config that is a list": broken("list", write("config.json", "[]")),
        "a family that is unknown": broken("family", config(model_type="nosuch")),
        "sizes that are absurd": broken("size", config(hidden_size=1 << 40)),
        "a size of zero": broken("zero", config(num_attention_heads=0)),
        "weights cut off": broken("cut", cut),
        "no weights": broken("weights", lambda d: os.remove(os.path.join(d, "model.safetensors"))),
        "no tokenizer": broken("tok", lambda d: os.remove(os.path.join(d, "tokenizer.json"))),
        "a broken tokenizer": broken("tok2", write("tokenizer.json", '{"model": 5}')),
        "a GGUF file": os.path.join(TMP, "a.gguf"),
        "a name nobody has": "nobody/nothing",
        "an empty name": "",
    }
    open(os.path.join(TMP, "a.gguf"), "wb").write(b"GGUF\3\0\0\0")
    for name, ref in folders.items():
        p = run("run", ref, "-p", "x")
        check(f"run, {name}: one sentence", p.returncode == 1 and one_sentence(p), p.all)
    for cmd in ("inspect", "tokenize", "bench", "generate", "convert"):
        extra = {"tokenize": ["x"], "generate": ["-p", "x"], "convert": ["-o", os.path.join(TMP, "o")]}.get(cmd, [])
        p = run(cmd, empty, *extra)
        check(f"{cmd}, an empty folder: one sentence", p.returncode == 1 and one_sentence(p), p.all)
    p = run("verify", empty, "--reference", os.path.join(DEMO, "reference_fp32.json"))
    check("verify, an empty folder: code 3", p.returncode == 3 and one_sentence(p), p.all)


# ---- answers -----------------------------------------------------------------------------------------------
def test_run():
    p = run("run", DEMO, "-p", QUESTION)
    answer = p.out
    check("the demo knows 17 + 25", p.returncode == 0 and "42" in answer and p.err == "", p.all)
    check("a pipe gets the answer and a newline", answer.endswith("\n") and not answer.endswith("\n\n") and
          "\x1b" not in answer and "<|" not in answer, repr(answer))
    same = {
        "the prompt as an argument": dict(args=[DEMO, QUESTION]),
        "the prompt from a pipe": dict(args=[DEMO], stdin=QUESTION + "\n"),
        "-p - reads stdin": dict(args=[DEMO, "-p", "-"], stdin=QUESTION),
        "-m instead of a positional": dict(args=["-m", DEMO, "-p", QUESTION]),
        "the model from the environment": dict(args=["-p", QUESTION], env={"MLXCEL_MODEL": DEMO}),
        "--exact": dict(args=[DEMO, "-p", QUESTION, "--exact"]),
        "prompt chunks of 3": dict(args=[DEMO, "-p", QUESTION, "--chunk", "3"]),
        "two threads": dict(args=[DEMO, "-p", QUESTION, "-t", "2"]),
        "f32 cache": dict(args=[DEMO, "-p", QUESTION, "--cache-type", "f32"]),
    }
    for name, kw in same.items():
        p = run("run", *kw.pop("args"), **kw)
        check(f"same answer: {name}", p.returncode == 0 and p.out == answer and p.err == "", p.all)
    p = run("chat", DEMO, "-p", QUESTION)
    check("chat is run", p.out == answer, p.all)
    open(os.path.join(TMP, "q.txt"), "w").write("is 17 + 25?\n")
    p = run("run", DEMO, "-f", "q.txt")
    check("-f FILE is a prompt", p.returncode == 0 and len(p.out) > 1, p.all)
    template = os.path.join(TMP, "t.jinja")
    open(template, "w").write("{% if enable_thinking is defined and not enable_thinking %}{{ raise_exception('no thinking') }}"
                              "{% endif %}<|im_start|>user\n{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n")
    p = run("run", DEMO, "-p", QUESTION, "--chat-template-file", template)
    check("--chat-template-file", p.out.strip() == answer.strip(), p.all)  # Jinja drops the template's last newline
    fails("--reasoning off reaches the template", 1, "no thinking", "run", DEMO, "-p", "x", "--chat-template-file", template,
          "--reasoning", "off")
    fails("--chat-template-kwargs reaches the template", 1, "no thinking", "run", DEMO, "-p", "x", "--chat-template-file",
          template, "--reasoning", "on", "--chat-template-kwargs", '{"enable_thinking": false}')
    open(template, "w").write("{{ messages[0].role }} {% if %}")
    fails("a broken template names its line", 1, "line 1", "run", DEMO, "-p", "x", "--chat-template-file", template)
    p = run("run", DEMO, "-p", QUESTION, "--stats")
    check("--stats: tokens, speed, memory on stderr", p.out == answer and
          re.search(r"prompt \d+ tokens.*tok/s; answer \d+ tokens.*tok/s.*peak memory [\d.]+ MiB", p.err), p.all)
    fails("a prompt beyond the context", 1, "64", "run", DEMO, "-c", "64", "-p", "word " * 300)
    p = run("run", DEMO, "-c", "64", "--context-shift", "-p", "word " * 300, "-n", "8")
    check("--context-shift takes it", p.returncode == 0, p.all)
    p = run("run", DEMO, "-p", b"\xff\xfe bad \xc3 utf-8", "-n", "4")
    check("a prompt that is no UTF-8", p.returncode == 0, p.all)
    p = run("run", DEMO, "-n", "4", stdin=b"zero \0 byte")
    check("a prompt with a zero byte", p.returncode == 0, p.all)
    p = run("run", DEMO, "-n", "0", "-p", "x")
    check("-n 0 gives an empty line or less", p.returncode == 0 and p.out.strip() == "", p.all)


def generate(*args, rc=0):
    p = run("generate", DEMO, "--json", *args)
    if p.returncode != rc:
        raise AssertionError(p.all)
    return json.loads(p.out)


def test_generate():
    text = "<|im_start|>user\n" + QUESTION + "<|im_end|>\n<|im_start|>assistant\n"
    plain = run("gen", DEMO, "-p", text)
    full = generate("-p", text, "--logprobs", "3")
    check("generate prints what --json holds", plain.out == full["text"].rstrip("\n") + "\n" and "42" in full["text"], plain.all)
    places, ids = full["logprobs"], full["ids"]
    check("--logprobs: one place a token", len(places) == len(ids) == full["usage"]["completion_tokens"], full)
    check("--logprobs: greedy takes the best of 3",
          all(p["id"] == i == p["top"][0]["id"] and len(p["top"]) == 3 and p["logprob"] <= 0 and
              p["top"][0]["logprob"] >= p["top"][1]["logprob"] >= p["top"][2]["logprob"] and
              abs(p["logprob"] - p["top"][0]["logprob"]) < 1e-6 for p, i in zip(places, ids)), full)
    check("timings and reason", full["finish_reason"] == "stop" and full["timings"]["peak_memory_bytes"] > 1 << 20 and
          full["usage"]["total_tokens"] == full["usage"]["prompt_tokens"] + len(ids), full)
    lines = run("generate", DEMO, "-p", text, "--logprobs", "0").out.splitlines()
    check("--logprobs without --json: a line a token", sum(bool(re.match(r" +-\d+\.\d{4} +\d+ \"", x)) for x in lines)
          == len(ids), "\n".join(lines))
    few = generate("-p", text, "-n", "3", "--ignore-eos")
    check("-n 3 --ignore-eos: 3 tokens, length", len(few["ids"]) == 3 and few["finish_reason"] == "length", few)
    stop = generate("-p", text, "--stop", "2")
    check("--stop ends before the text", "2" not in stop["text"] and stop["finish_reason"] == "stop" and stop["stop"] == "2", stop)
    ban = generate("-p", text, "-l", f"{ids[0]}-inf", "-n", "2")
    check("--logit-bias -inf bans a token", ids[0] not in ban["ids"], ban)
    force = generate("-p", text, "--logit-bias", "7+100", "-n", "2", "--ignore-eos")
    check("--logit-bias +100 forces one", force["ids"] == [7, 7], force)
    hot = ["-p", text, "--temp", "3", "-n", "20", "--ignore-eos"]
    a, b, c = (generate(*hot, "--seed", s) for s in ("5", "5", "6"))
    check("the same seed gives the same text", a["ids"] == b["ids"] != c["ids"] and a["seed"] == 5, (a, b, c))
    r = generate(*hot)
    check("a random seed is said and can be repeated", generate(*hot, "--seed", str(r["seed"]))["ids"] == r["ids"], r)
    cold = generate("-p", text, "--top-k", "1", "--temp", "5")
    check("--top-k 1 is greedy at any temperature", cold["ids"] == ids, cold)
    p = run("generate", DEMO, "-p", "x", "--top-k", "5", "--min-p", "0.1", "--typical", "0.9", "--top-n-sigma", "1",
            "--xtc-probability", "0.5", "--dry-multiplier", "0.8", "--dry-sequence-breaker", "\\n", "--repeat-penalty", "1.1",
            "--presence-penalty", "0.1", "--frequency-penalty", "0.1", "--temp", "0.8", "--seed", "1", "-n", "10")
    check("all samplers together", p.returncode == 0 and p.err == "", p.all)


def test_tokenize():
    for text in (QUESTION, "naïve 日本 🙂\n\ttabs  and  spaces ", "<|im_start|>user\n"):
        ids = run("tokenize", DEMO, text).out.split()
        back = run("tokenize", DEMO, "--ids", stdin=" ".join(ids))
        check(f"tokenize and back: {text!r}", back.out == text and all(i.isdigit() for i in ids), back.all)
    j = json.loads(run("tokenize", DEMO, "--json", "--pieces", "-p", QUESTION).out)
    check("tokenize --json", len(j["ids"]) == len(j["pieces"]) == j["count"] > 3, j)
    p = run("tokenize", DEMO, "--pieces", QUESTION)
    check("tokenize --pieces: a line a token", len(p.out.splitlines()) == j["count"], p.all)
    check("decode --json", json.loads(run("tokenize", DEMO, "--ids", "--json", stdin=str(j["ids"])).out)["text"] == QUESTION)
    for bad in ("x", "-1", "1.5", "99999999999"):
        p = run("tokenize", DEMO, "--ids", "--", bad)
        check(f"decode {bad}: one sentence", p.returncode == 1 and one_sentence(p), p.all)


def test_describe():
    p = run("inspect", DEMO)
    check("inspect", p.returncode == 0 and all(w in p.out for w in ("qwen3", "4-bit", "context", "memory", "tools")), p.all)
    j = json.loads(run("inspect", DEMO, "--json", "-c", "1000", "--batch", "2").out)
    m = j["memory"]
    check("inspect --json", j["family"] == "qwen3" and j["layers"] == 6 and m["context"] == 1000 and m["fits"] is True and
          m["total_bytes"] == sum(m[k + "_bytes"] for k in ("weights", "kv", "state", "scratch")), j)
    check("inspect: the modules' bytes are in the weights", 0 < sum(x["bytes"] for x in j["modules"]) <= m["weights_bytes"], j)
    p = run("inspect", DEMO, "--memory")
    check("inspect --memory", p.out.startswith("memory") and "fits" in p.out, p.all)
    p = run("inspect", DEMO, "--modules")
    check("inspect --modules", "q_proj" in p.out, p.all)
    d = json.loads(run("devices", "--json").out)
    check("devices --json has a usable cpu", any(x["name"] == "cpu" and x["usable"] for x in d), d)
    check("devices", run("devices").out.startswith("cpu"))
    ports = json.loads(run("devices", "--ports", "--json").out)
    check("devices --ports has the CPU's table",
          any(p["backend"] == "cpu" and p["op"] == "token_log_prob" and p["how"] == "composed" and p["shapes"] for p in ports), ports)
    check("devices --ports, for people", "token_log_prob" in run("devices", "--ports").out)


def test_store():
    own = os.path.join(ENV["MLXCEL_CACHE_DIR"], "models/someone/demo")
    check("list of nothing", run("list", "--json").out.strip() == "[]")
    shutil.copytree(DEMO, own)
    check("ls -q", run("ls", "-q").out == "someone/demo\n", run("ls", "-q").all)
    e = json.loads(run("list", "--json").out)
    check("list --json", len(e) == 1 and e[0]["repo_id"] == "someone/demo" and e[0]["path"] == own and
          e[0]["size_bytes"] > 1 << 20, e)
    check("list -v names the path", own in run("list", "-v").out)
    for ref in ("someone/demo", "demo"):
        p = run("run", ref, "-p", QUESTION)
        check(f"run {ref}", "42" in p.out, p.all)
    fails("a name that is nearly there is not found", 1, "pull", "run", "someone/dmeo", "-p", "x")
    fails("rm of what is not there", 1, "nobody/x", "rm", "--yes", "nobody/x")
    p = run("rm", "--yes", "someone/demo")
    check("rm --yes", p.returncode == 0 and not os.path.exists(own), p.all)


def test_verify():
    ref = os.path.join(DEMO, "reference_fp32.json")
    docs = json.load(open(ref))[:2]
    small, wrong, mine = (os.path.join(TMP, n) for n in ("small.json", "wrong.json", "mine.json"))
    json.dump(docs, open(small, "w"))
    p = run("verify", DEMO, "--reference", small)
    check("verify passes", p.returncode == 0 and "pass" in p.out, p.all)
    j = json.loads(run("verify", DEMO, "--reference", small, "--json", "--width", "1", "--max-positions", "90").out)
    check("verify --json, one token at a time", j["verdict"] == "pass" and j["decided"] >= 50 and j["differ_decided"] == 0, j)
    p = run("verify", DEMO, "--reference", small, "--min-decided", "100000")
    check("too few decided positions: code 2", p.returncode == 2 and "inconclusive" in p.out, p.all)
    for d in docs:
        for t in d["top"]:
            t[0], t[1] = t[1], t[0]
    json.dump(docs, open(wrong, "w"))
    p = run("verify", DEMO, "--reference", wrong)
    check("a wrong reference fails: code 1", p.returncode == 1 and "fail" in p.out, p.all)
    p = run("verify", DEMO, "--reference", small, "--write", mine)
    q = run("verify", "--reference", small, "--against", mine)
    check("--write and --against", p.returncode == 0 and q.returncode == 0 and "pass" in q.out, p.all + q.all)
    q = run("verify", "--reference", wrong, "--against", mine)
    check("--against a wrong one fails", q.returncode == 1, q.all)
    fails("a reference that is missing: code 3", 3, "nosuch.json", "verify", DEMO, "--reference", "nosuch.json")
    noise = os.path.join(TMP, "noise.json")
    open(noise, "w").write("x = 1")
    fails("a reference that is no JSON: code 3", 3, "noise.json", "verify", DEMO, "--reference", noise)


def test_bench():
    args = ["bench", DEMO, "-p", "16", "-n", "4", "-r", "2", "-d", "0,8", "-pg", "8,4"]
    want = ["pp16", "tg4", "pp8+tg4", "pp16 @ d8", "tg4 @ d8", "pp8+tg4 @ d8"]
    p = run(*args, "-o", "csv")
    a = os.path.join(TMP, "a.csv")
    open(a, "w").write(p.out)
    rows = list(csv.DictReader(p.out.splitlines()))
    check("bench -o csv", p.returncode == 0 and [r["test"] for r in rows] == want and
          all(float(r["avg_ts"]) > 0 and r["host"] and r["cpu_info"] and r["backend"] == "cpu" and r["build_commit"] and
              int(r["n_threads"]) > 0 and r["quantization"] and int(r["peak_memory"]) > 1 << 20 for r in rows), p.all)
    j = json.loads(run(*args, "-o", "json").out)
    check("bench -o json", [r["test"] for r in j] == want and all(len(r["samples_ts"]) == 2 for r in j), j)
    lines = run("bench", DEMO, "-p", "8,16", "-n", "0", "-r", "1", "-o", "jsonl", "-t", "1,2").out.splitlines()
    lines = [json.loads(x) for x in lines]
    check("bench -o jsonl, lists of sizes and threads", [(r["n_threads"], r["n_prompt"]) for r in lines] ==
          [(1, 8), (1, 16), (2, 8), (2, 16)], lines)
    p = run("bench", DEMO, "-p", "8", "-n", "0", "-r", "1", "--no-warmup")
    check("bench table", p.returncode == 0 and p.out.startswith("| model") and "pp8" in p.out and "±" in p.out, p.all)
    b = os.path.join(TMP, "b.csv")
    for r in rows:
        r.update(host="elsewhere", backend="rocm", avg_ts=2 * float(r["avg_ts"]))
    with open(b, "w", newline="") as f:
        w = csv.DictWriter(f, rows[0].keys())
        w.writeheader()
        w.writerows(rows[:4])
    p = run("bench", "--compare", a, b)
    check("bench --compare: ratios by row", p.returncode == 0 and p.out.count(" 2.000 |") == 4 and "elsewhere rocm" in p.out and
          "2 rows" in p.err, p.all)
    open(b, "w").write("a,b\n1,2\n")
    fails("--compare of another csv", 1, "no column", "bench", "--compare", a, b)
    open(b, "w").write(open(a).read() + "short,line\n")
    fails("--compare of a damaged csv", 1, "line 8", "bench", "--compare", a, b)
    fails("--compare of nothing", 1, "nosuch", "bench", "--compare", a, "nosuch")
    fails("--compare of a binary file", 1, "", "bench", "--compare", a, os.path.join(DEMO, "model.safetensors"))


def test_convert():
    out = os.path.join(TMP, "plain")
    p = run("convert", DEMO, "-o", out, "-d", "--quiet")
    check("convert -d", p.returncode == 0 and p.out == out + "\n" and os.path.isfile(out + "/config.json"), p.all)
    p = run("run", out, "-p", QUESTION)
    check("what was converted answers", "42" in p.out, p.all)
    fails("convert does not overwrite", 1, "plain", "convert", DEMO, "-o", out, "-d")
    fails("convert of nothing", 1, "nowhere", "convert", os.path.join(TMP, "nowhere"), "-o", os.path.join(TMP, "x"))


# ---- pipes, disks, signals ---------------------------------------------------------------------------------
def test_output_that_fails():
    cases = {"--version": ["--version"], "--help": ["--help"], "run": ["run", DEMO, "-p", QUESTION],
             "generate --json": ["generate", DEMO, "-p", "x", "-n", "2", "--json"], "tokenize": ["tokenize", DEMO, "x"],
             "inspect": ["inspect", DEMO], "devices": ["devices"],
             "bench": ["bench", DEMO, "-p", "8", "-n", "0", "-r", "1", "-o", "csv"]}
    for name, args in cases.items():
        with open("/dev/full", "w") as full:
            p = run(*args, stdout=full)
        check(f"{name} on a full disk: one sentence", p.returncode == 1 and "disk is full" in p.err and one_sentence(p), p.all)
    p = subprocess.run(["sh", "-c", f"exec '{PROGRAM}' --version >&-"], stderr=subprocess.PIPE, env=ENV)
    check("no stdout: an error", p.returncode == 1 and b"could not be written" in p.stderr, p)
    p = subprocess.run(["sh", "-c", f"exec '{PROGRAM}' run '{DEMO}' -p x -n 2 <&- 2>&-"], stdout=subprocess.PIPE, env=ENV)
    check("no stdin and no stderr: no matter", p.returncode == 0, p)
    for args in (["generate", DEMO, "-p", "x", "-n", "3000", "--ignore-eos"], ["--help"]):
        p = subprocess.Popen([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
        p.stdout.read(1)
        p.stdout.close()
        err = p.stderr.read()
        rc = p.wait(30)
        check(f"{args[0]}: a reader that leaves ends it quietly", rc in (-signal.SIGPIPE, 141, 0) and err == b"", (rc, err))
    p = subprocess.Popen([PROGRAM, "generate", DEMO, "-p", "x", "--ignore-eos"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    p.stdout.read(5)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    check("Ctrl-C in an answer: code 130 and a whole line", p.returncode == 130 and out.endswith(b"\n") and err == b"", (p.returncode, err))


# ---- at a terminal -----------------------------------------------------------------------------------------
class Terminal:
    def __init__(self, *args, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [PROGRAM, *args], {**ENV, **(env or {})})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.seen = ""
        self.last = ""

    def read(self, seconds):
        """More output into self.seen; False when there is none in time or the program has ended."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self, what, seconds=15):
        """Read until `what` (a regular expression) has come; what lies in front of it and with it is returned and consumed."""
        end = time.monotonic() + seconds
        while True:
            m = re.search(what, self.seen)
            if m:
                self.last, self.seen = self.seen[:m.end()], self.seen[m.end():]
                return True
            left = end - time.monotonic()
            if left <= 0 or not self.read(left):
                self.last = self.seen
                return False

    def send(self, text):
        os.write(self.fd, text.encode())

    def end(self, seconds=10):
        """The exit code; None if the program had to be killed."""
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            self.read(0.05)
            pid, st = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(st)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None


PROMPT = r">>> (\x1b\[[0-9;]*[A-Za-z])*$"


def test_conversation():
    t = Terminal("run", DEMO)
    check("REPL: a prompt", t.wait(PROMPT) and "/help" in t.last, repr(t.last))

    def ask(text, what, name, seconds=15):
        t.send(text + "\n")
        ok = t.wait(what, seconds)
        seen = t.last
        check("REPL: " + name, ok and (t.wait(PROMPT) or re.search(PROMPT, seen)), repr(seen + t.last))
        return seen + t.last

    ask(QUESTION, r"42[^>]*tok/s", "a first answer, with figures behind it")
    ask("What is 2 + 2?", r"\(\d+ cached\)", "the second turn reuses the first")
    ask("/hlep", "did you mean /help", "an unknown command names the near one")
    ask("/help", "/retry", "/help")
    ask("/set temp 0.5", "temp", "/set")
    ask("/show", r"temp +0\.5", "/show shows it")
    ask("/set temp warm", "takes a number", "/set with a wrong value")
    ask("/set ctx-size 5", "cannot be changed", "/set of what is fixed")
    ask("/set temp 0", "temp", "/set back")
    ask("/set ignore-eos on", "ignore", "/set ignore-eos")
    t.send("Tell me a story.\n")
    t.wait(r"story\.\r\n")
    started = t.wait(r"\S{3}", 10)
    t.send("\x03")
    check("REPL: Ctrl-C stops the answer and not the program", started and t.wait(r"interrupted") and t.wait(PROMPT),
          repr(t.last[-300:]))
    ask("/set ignore-eos off", "ignore", "and goes on")
    t.send("half a line")
    echoed = t.wait("half a line")
    t.send("\x03")
    check("REPL: Ctrl-C forgets a line", echoed and t.wait(PROMPT), repr(t.last))
    ask('"""What is\n17 + 25?\n"""', r"tok/s", "a block of lines")
    ask("What is 17 \\\n+ 25?", r"tok/s", "a backslash continues")
    ask("/system Be brief.", "is set", "/system")
    saved = os.path.join(TMP, "talk.json")
    ask("/save " + saved, "Saved", "/save")
    turns = json.load(open(saved))
    check("REPL: the conversation was kept", [x["role"] for x in turns] == ["system"] + ["user", "assistant"] * 5 and
          turns[0]["content"] == "Be brief." and turns[1]["content"] == QUESTION and "42" in turns[2]["content"] and
          turns[7]["content"] == "What is\n17 + 25?" and turns[9]["content"] == "What is 17 \n+ 25?", turns)
    ask("/clear", "forgotten", "/clear")
    ask("/system -", "removed", "/system - removes it")
    ask("/retry", "no answer yet", "/retry with nothing to retry")
    ask(QUESTION, "42", "an answer after /clear")
    ask("/retry", "42", "/retry")
    ask("/load " + saved, "Loaded 11", "/load")
    ask("/load /nowhere/x", "mlxcel: /nowhere/x", "/load of nothing")
    t.send("\x04")
    check("REPL: Ctrl-D ends", t.end() == 0, repr(t.seen))
    history = os.path.join(TMP, ".local/state/mlxcel/history")
    check("REPL: history is kept, for its owner only", os.path.exists(history) and
          stat.S_IMODE(os.stat(history).st_mode) == 0o600, history)
    t = Terminal("run", DEMO, "--quiet")
    t.wait(PROMPT)
    t.send("/exit\n")
    check("REPL: /exit ends", t.end() == 0, repr(t.seen))
    t = Terminal("run", DEMO)
    t.wait(PROMPT)
    t.send("\x1b[A\x1b[A")  # up: /exit, then the last line of the first session
    check("REPL: the up key brings an earlier session's line", t.wait("load /nowhere/x"), repr(t.last))
    t.send("\x15\x04")
    check("REPL: and Ctrl-D on the cleared line ends", t.end() == 0, repr(t.seen))


def test_terminal_output():
    ids = run("tokenize", DEMO, "\x1b[31mred\x07\u009b31m").out.strip()
    t = Terminal("tokenize", DEMO, "--ids", ids.replace(" ", ","))
    t.wait("31m[\\s\\S]*31m", 10)
    out = t.last
    check("control characters do not reach a terminal", t.end() == 0 and "[31mred31m" in out and "\x1b" not in out and
          "\u009b" not in out and "\x07" not in out, repr(out))
    p = run("tokenize", DEMO, "--ids", ids)
    check("but a pipe", p.out == "\x1b[31mred\x07\u009b31m", repr(p.out))
    t = Terminal("run", DEMO, "-p", QUESTION)
    check("run -p at a terminal: answer and figures", t.wait(r"42[\s\S]*peak memory"), repr(t.last))
    t.end()
    t = Terminal("run", DEMO, "-p", QUESTION, "--quiet")
    code = t.end()
    check("--quiet: no figures", code == 0 and "42" in t.seen and "tok/s" not in t.seen, repr(t.seen))


def main():
    if not os.access(PROGRAM, os.X_OK):
        print("1..1\nok 1 - the program # SKIP not built:", PROGRAM)
        return 0
    words = sys.argv[1:]
    for name, fn in list(globals().items()):
        if name.startswith("test_") and (not words or any(w in name for w in words)):
            start = time.monotonic()
            try:
                fn()
            except Exception as e:
                check(f"{name} runs to its end", False, f"{type(e).__name__}: {e}")
            print(f"# {name}: {time.monotonic() - start:.1f} s", flush=True)
    shutil.rmtree(TMP, ignore_errors=True)
    print(f"1..{len(results)}")
    return 0 if results and all(results) else 1


sys.exit(main())
