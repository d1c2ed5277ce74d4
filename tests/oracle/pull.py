"""Downloads against a local server that behaves, and misbehaves, like the Hugging Face hub. Prints TAP.

Two servers on 127.0.0.1: the hub (API and small files) and a second host that large files are redirected to. What a
model's server does wrong is a field of its Repo. Compiles pull_tool.c, so it needs a C compiler and libcurl's headers;
no package beyond Python's own.
"""

import hashlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_secret"
BIG = 300_000  # bytes of a weight file


def noise(seed, n):
    out = b""
    while len(out) < n:
        out += hashlib.sha512(f"{seed}{len(out)}".encode()).digest()
    return out[:n]


class Repo:
    """A model on the hub. files: path -> bytes; the rest are the ways to be wrong, each with its default."""

    def __init__(self, files, **how):
        self.files = files
        self.commit = how.get("commit", "a" * 40)
        self.cut = how.get("cut", 0)  # close each download's connection after so many bytes
        self.no_range = how.get("no_range", False)  # answer 200 with all bytes
        self.listed_more = how.get("listed_more", 0)  # the listing states so many bytes more than there are
        self.chunked_extra = how.get("chunked_extra", b"")  # sent after the file, with no length stated
        self.corrupt = how.get("corrupt", 0)  # the first n responses of weights have a wrong byte
        self.api_code = how.get("api_code", 200)
        self.error_code = how.get("error_code", "")
        self.file_codes = list(how.get("file_codes", []))  # (code, headers) for the first downloads of weights
        self.need_token = how.get("need_token", False)
        self.next_host = how.get("next_host", "")
        self.loop = how.get("loop", False)
        self.slow = how.get("slow", 0)  # seconds between blocks of 16 KiB
        self.log = []  # (server, method path, Range, Authorization)
        self.lock = threading.Lock()

    def seen(self, path, server=None):
        return [x for x in self.log if path in x[1] and (server is None or x[0] == server)]


REPOS = {}


def listing(repo):
    out = [{"type": "directory", "path": "original", "oid": "0" * 40, "size": 0}]
    for path, data in sorted(repo.files.items()):
        item = {"type": "file", "path": path, "size": len(data) + repo.listed_more,
                "oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
        if len(data) >= 1000:
            item["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": item["size"], "pointerSize": 130}
            item["oid"] = "b" * 40  # of the pointer, not of the file
        out.append(item)
    return out


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, code, body=b"", **headers):
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urlparse(self.path)
        path = unquote(url.path)
        m = re.match(r"/(?:api/models/|cdn/)?([^/]+/[^/]+)/(.*)", path)
        repo = REPOS.get(m.group(1)) if m else None
        if not repo:
            return self.reply(401, b'{"error":"no"}', X_Error_Code="RepoNotFound")
        with repo.lock:
            repo.log.append((self.server.role, path, self.headers.get("Range"), self.headers.get("Authorization")))
        if repo.need_token and self.server.role == "hub" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.reply(401, b"{}", X_Error_Code=repo.error_code)
        if path.startswith("/api/"):
            return self.api(repo, m.group(1), m.group(2), parse_qs(url.query))
        if path.startswith("/cdn/"):
            return self.file(repo, m.group(2))
        kind, commit, name = m.group(2).split("/", 2)
        if kind != "resolve" or commit != repo.commit or name not in repo.files:
            return self.reply(404, b"{}", X_Error_Code="EntryNotFound")
        if repo.loop:
            return self.reply(302, Location=self.path)
        if len(repo.files[name]) >= 1000:  # to another host, as the hub does with large files
            return self.reply(302, b"redirecting", Location=f"{self.server.cdn}/cdn/{m.group(1)}/{name}")
        self.file(repo, name)

    def api(self, repo, name, rest, query):
        if repo.api_code != 200:
            return self.reply(repo.api_code, b'{"error":"x"}', X_Error_Code=repo.error_code)
        if rest.startswith("revision/"):
            if rest[9:] not in ("main", "v1/x", repo.commit):
                return self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
            return self.reply(200, json.dumps({"id": name, "sha": repo.commit}).encode())
        assert rest == f"tree/{repo.commit}" and query["recursive"] == ["true"], rest
        items, at = listing(repo), int(query.get("cursor", ["0"])[0])
        page, headers = items[at:at + 3], {}
        if at + 3 < len(items):
            base = repo.next_host or self.server.url
            headers["Link"] = f'<{base}/api/models/{name}/{rest}?recursive=true&cursor={at + 3}>; rel="next"'
        self.reply(200, json.dumps(page).encode(), **headers)

    def file(self, repo, name):
        data = repo.files[name]
        if len(data) >= 1000:
            with repo.lock:
                odd = repo.file_codes.pop(0) if repo.file_codes else None
                wrong = repo.corrupt > 0
                repo.corrupt -= wrong
            if odd:
                return self.reply(odd[0], b'{"error":"busy"}', **odd[1])
            if wrong:
                data = data[:-1] + bytes([data[-1] ^ 1])
        start = 0
        ask = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if ask and not repo.no_range:
            start = int(ask.group(1))
            if start >= len(data):
                return self.reply(416, Content_Range=f"bytes */{len(data)}")
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        body = data[start:]
        if repo.chunked_extra and len(data) >= 1000:
            body += repo.chunked_extra
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if repo.cut and len(body) > repo.cut:
            body = body[:repo.cut]
            self.close_connection = True
        if repo.chunked_extra:
            self.close_connection = True
        try:
            for at in range(0, len(body), 16384):
                self.wfile.write(body[at:at + 16384])
                if repo.slow:
                    self.wfile.flush()
                    time.sleep(repo.slow)
        except OSError:
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that hangs up is part of the tests
            super().handle_error(request, client_address)


def serve(role):
    s = Server(("127.0.0.1", 0), Handler)
    s.role, s.url = role, f"http://127.0.0.1:{s.server_address[1]}"
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s


def model(**more):
    """The files of a plausible model, with many that must not be fetched."""
    files = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": noise("t", 5000), "merges.txt": b"a b\n",
             "chat_template.jinja": b"{{ 1 }}", "additional_chat_templates/tool use.jinja": b"{{ 2 }}",
             "model-00001-of-00002.safetensors": noise(1, BIG), "model-00002-of-00002.safetensors": noise(2, BIG // 2),
             "README.md": b"# no", "run.py": b"import os", "pytorch_model.bin": noise(3, 2000),
             "original/model.safetensors": noise(4, 2000), "consolidated.safetensors": noise(5, 2000),
             ".gitattributes": b"x", "empty.txt": b""}
    files.update(more)
    return files


WANTED = {"config.json", "tokenizer.json", "merges.txt", "chat_template.jinja",
          "additional_chat_templates/tool use.jinja", "model-00001-of-00002.safetensors",
          "model-00002-of-00002.safetensors", "empty.txt"}


class Case:
    """One test: its own store, the tool, the two servers."""

    def __init__(self, tool, hub, folder):
        self.tool, self.hub, self.cache = tool, hub, Path(folder)
        self.env = {"PATH": os.environ["PATH"], "HOME": folder, "MLXCEL_CACHE_DIR": folder, "HF_ENDPOINT": hub.url + "/"}
        self.env.update({k: v for k, v in os.environ.items() if k in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LD_LIBRARY_PATH")})

    def start(self, *args, **env):
        return subprocess.Popen([self.tool, *args], env={**self.env, **env}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def pull(self, *args, **env):
        p = self.start(*args, **env)
        out, err = p.communicate(timeout=25)
        return p.returncode, out, err

    def ok(self, *args, **env):
        code, out, err = self.pull(*args, **env)
        assert code == 0, f"exit {code}: {err}"
        return Path(out.splitlines()[0])

    def fails(self, word, part, *args, **env):
        code, out, err = self.pull(*args, **env)
        assert code != 0 and err.startswith(word + ":") and part in err, f"exit {code}: {err!r} lacks {word}: ... {part}"
        assert err.count("\n") == 1, err
        assert not self.visible(), f"left {self.visible()}"
        return err

    def visible(self):
        """Model folders in the store (downloads under way start with a dot)."""
        return [str(p) for p in self.cache.glob("models/*/*") if not p.name.startswith(".")]

    def parts(self):
        return list(self.cache.glob("models/*/.*.download/*.incomplete"))


def check_tree(d, repo, wanted=WANTED):
    got = {str(p.relative_to(d)) for p in d.rglob("*") if p.is_file()} - {".mlxcel.json"}
    assert got == wanted, f"{got ^ wanted}"
    for name in wanted:
        assert (d / name).read_bytes() == repo.files[name], name
    left = [p.name for p in d.parent.iterdir() if p != d]
    assert not left, f"beside the model lies {left}"


def add(name, files=None, **how):
    REPOS[name] = Repo(files or model(), **how)
    return REPOS[name]


# ---- the tests ---------------------------------------------------------------------------------------------------------


def test_plain(c):
    r = add("org/plain", need_token=True)
    d = c.ok("org/plain", HF_TOKEN=TOKEN)
    assert d == c.cache / "models/org/plain"
    check_tree(d, r)
    assert all(x[3] == f"Bearer {TOKEN}" for x in r.log if x[0] == "hub")
    cdn = [x for x in r.log if x[0] == "cdn"]
    assert len(cdn) == 3 and not any(x[3] for x in cdn), f"the token went along a redirect: {cdn}"
    assert not r.seen("run.py") and not r.seen("pytorch_model") and len(r.seen("/tree/")) == 5


def test_again(c):
    r = add("org/again")
    d = c.ok("org/again")
    before = len(r.seen("resolve"))
    assert c.ok("https://huggingface.co/org/again") == d and len(r.seen("resolve")) == before, "fetched again"
    (d / "config.json").unlink()  # what was lost comes back, and only that
    c.ok("org/again")
    check_tree(d, r)
    assert len(r.seen("resolve")) == before + 1
    r.commit = "c" * 40
    r.files["model-00002-of-00002.safetensors"] = noise("new", 4000)
    r.files["new.json"] = b"{}"
    del r.files["merges.txt"]
    r.log.clear()
    c.ok("org/again")
    check_tree(d, r, WANTED - {"merges.txt"} | {"new.json"})
    assert len(r.seen("resolve")) == 2, "unchanged files were fetched again"


def test_revision(c):
    add("org/rev")
    c.ok("org/rev", "v1/x")
    code, _, err = c.pull("org/rev", "nope")
    assert code and "no such revision" in err and err.startswith("not_found"), err


def test_token_file(c):
    add("org/file", need_token=True)
    (c.cache / "hf").mkdir()
    (c.cache / "hf/token").write_text(f"  {TOKEN}\n")
    c.ok("org/file", HF_HOME=str(c.cache / "hf"))


def test_cut(c):
    r = add("org/cut", cut=70_000)
    check_tree(c.ok("org/cut"), r)
    ranges = [x[2] for x in r.seen("00001-of", "cdn")]
    assert ranges == [None, "bytes=70000-", "bytes=140000-", "bytes=210000-", "bytes=280000-"], ranges


def test_no_range(c):
    r = add("org/norange", slow=0.01, no_range=True)
    p = c.start("org/norange")
    interrupt(c, p)
    check_tree(c.ok("org/norange"), r)
    assert any(x[2] for x in r.log), "no part was continued"


def test_wrong_size(c):
    add("org/size", listed_more=7)
    c.fails("io", "the hub lists", "org/size")


def test_too_many_bytes(c):
    add("org/more", chunked_extra=b"extra")
    c.fails("io", "sends more bytes than the hub lists", "org/more")


def test_wrong_hash(c):
    r = add("org/hash", corrupt=99)
    c.fails("io", "other bytes than the hub's hash says", "org/hash")
    assert max(len(r.seen(n, "cdn")) for n in ("00001-of", "00002-of", "tokenizer.json")) == 2


def test_hash_once(c):
    r = add("org/once", corrupt=1)
    check_tree(c.ok("org/once"), r)


def test_damaged_part(c):
    r = add("org/part", slow=0.01)
    p = c.start("org/part")
    part = interrupt(c, p)
    with open(part, "r+b") as f:
        f.write(b"damage")
    r.slow = 0
    check_tree(c.ok("org/part"), r)


def test_small_file_hash(c):
    r = add("org/blob")
    real = hashlib.sha1
    d = c.ok("org/blob")
    data = (d / "config.json").read_bytes()
    record = json.loads((d / ".mlxcel.json").read_text())
    assert record["files"]["config.json"] == real(b"blob %d\0" % len(data) + data).hexdigest()
    assert record["commit"] == r.commit


def test_unknown(c):
    c.fails("not_found", "no such model, or it is private: check the name, or set HF_TOKEN", "org/absent")
    c.fails("not_found", "this token may not see it", "org/absent", HF_TOKEN="hf_other")
    add("org/gone", api_code=404, error_code="RepoNotFound")
    c.fails("not_found", "check the name (HTTP 404)", "org/gone")
    c.fails("invalid", "owner/name", "gpt2")
    c.fails("invalid", "owner/name", "../../etc")
    c.fails("invalid", "owner/name", "a/b/c")


def test_gated(c):
    add("org/gated", file_codes=[(403, {"X-Error-Code": "GatedRepo"})] * 20)
    c.fails("io", "accept the model's terms at", "org/gated")
    add("org/gated2", api_code=401, error_code="GatedRepo")
    err = c.fails("io", "set HF_TOKEN", "org/gated2")
    assert "org/gated2, then set HF_TOKEN" in err
    add("org/gated3", api_code=403, error_code="GatedRepo")
    c.fails("io", "a token of that account", "org/gated3", HF_TOKEN=TOKEN)


def test_busy(c):
    r = add("org/busy", file_codes=[(429, {"Retry-After": "1"})])
    t = time.monotonic()
    check_tree(c.ok("org/busy"), r)
    assert time.monotonic() - t >= 1, "Retry-After was not waited for"
    add("org/busy2", file_codes=[(429, {"Retry-After": "7200"})] * 9)
    t = time.monotonic()
    c2 = Case(c.tool, c.hub, tempfile.mkdtemp(dir=c.cache))  # a store without the model above
    c2.fails("io", "no more requests for 7200 s", "org/busy2")
    assert time.monotonic() - t < 5, "waited for two hours' sake"


def test_busy_api(c):
    r = add("org/busyapi", api_code=429)
    c.fails("io", "HTTP 429", "org/busyapi")
    assert len(r.log) == 5


def test_server_errors(c):
    r = add("org/5xx", file_codes=[(500, {}), (502, {}), (503, {"Retry-After": "1"})])
    check_tree(c.ok("org/5xx"), r)


def test_odd_names(c):
    for i, bad in enumerate(["../x.json", "/etc/x.json", "a/../../x.json", "a//x.json", "./x.json", "a\\x.json", "a\nb.json"]):
        add(f"org/odd{i}", model(**{bad: b"x"}))
        c.fails("invalid", "leaves the model's folder", f"org/odd{i}")
    assert not list(c.cache.glob("**/x.json"))


def test_other_host(c):
    r = add("org/host", next_host="http://localhost:1")
    c.fails("io", "another host", "org/host", HF_TOKEN=TOKEN)
    assert not r.seen("resolve")


def test_nothing_to_run(c):
    add("org/gguf", {"m.gguf": b"GGUF", "config.json": b"{}"})
    c.fails("unsupported", "mlxcel convert", "org/gguf")
    add("org/bin", {"pytorch_model.bin": b"x", "config.json": b"{}"})
    c.fails("unsupported", "PyTorch", "org/bin")
    add("org/noconf", {"model.safetensors": b"x"})
    c.fails("unsupported", "config.json", "org/noconf")


def test_only_consolidated(c):
    r = add("org/cons", {"config.json": b"{}", "consolidated.safetensors": noise(1, 3000)})
    check_tree(c.ok("org/cons"), r, {"config.json", "consolidated.safetensors"})


def test_same_content(c):
    r = add("org/same", {"config.json": b"{}", "a.json": b"{}", "model.safetensors": noise(1, 3000)})
    check_tree(c.ok("org/same"), r, {"config.json", "a.json", "model.safetensors"})


def interrupt(c, p):
    """Wait for a part with some bytes of the large file, Ctrl-C, and return the part."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        parts = [x for x in c.parts() if "00001-of" in x.name and x.stat().st_size > 30_000]
        if parts:
            break
        time.sleep(0.01)
    t = time.monotonic()
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=10)
    assert p.returncode and err.startswith("cancelled:") and "continue" in err, (p.returncode, err)
    assert time.monotonic() - t < 2, "slow to stop"
    assert not c.visible()
    return parts[0]


def test_cancel(c):
    r = add("org/cancel", slow=0.02)
    part = interrupt(c, c.start("org/cancel"))
    have = part.stat().st_size
    assert 30_000 < have < BIG
    r.slow, seen = 0, len(r.log)
    check_tree(c.ok("org/cancel"), r)
    again = [x[2] for x in r.log[seen:] if "00001-of" in x[1] and x[0] == "cdn"]
    assert again == [f"bytes={have}-"], again


def test_two_at_once(c):
    r = add("org/two", slow=0.01)
    ps = [c.start("org/two") for _ in range(3)]
    for p in ps:
        _, err = p.communicate(timeout=20)
        assert p.returncode == 0, err
    check_tree(c.cache / "models/org/two", r)
    assert len(r.seen("00001-of", "cdn")) == 1, "fetched by both"


def test_disk_full(c):
    add("org/full")
    c.fails("io", "ulimit", "org/full", MX_TEST_FSIZE="100000")
    assert all(p.stat().st_size <= 100_000 for p in c.parts())
    c.ok("org/full")


def test_no_server(c):
    c.fails("io", "pull again to continue", "org/x", HF_ENDPOINT="http://127.0.0.1:9")
    c.fails("invalid", "HF_ENDPOINT", "org/x", HF_ENDPOINT="ftp://x")
    c.fails("unsupported", "HF_HUB_OFFLINE", "org/x", HF_HUB_OFFLINE="1")
    c.fails("invalid", "HF_TOKEN", "org/x", HF_TOKEN="a\x01b")


def test_redirect_loop(c):
    add("org/loop", loop=True)
    c.fails("io", "redirect", "org/loop")


def test_bar(c):
    add("org/bar", slow=0.01)
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(c.tool, [c.tool, "org/bar"], c.env)
    text = b""
    while True:
        if not select.select([fd], [], [], 20)[0]:
            break
        try:
            block = os.read(fd, 4096)
        except OSError:  # the child has closed the terminal
            break
        if not block:
            break
        text += block
    assert os.waitpid(pid, 0)[1] == 0, text
    os.close(fd)
    shown = text.decode()
    assert "org/bar" in shown and "MB/s" in shown and "left" in shown and "100%" in shown and "8/8 files" in shown, shown


def build(folder):
    tool = os.path.join(folder, "pull_tool")
    src = [ROOT / "tests/oracle/pull_tool.c", *(ROOT / f"src/format/{n}.c" for n in
           "hub pull pull_bar pull_get pull_hash store".split()), *sorted((ROOT / "src/base").glob("*.c"))]
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-O1", "-g", "-D_GNU_SOURCE", '-DMX_VERSION="test"',
                    *os.environ.get("CFLAGS", "").split(), f"-I{ROOT}/src", "-o", tool, *map(str, src), "-lcurl",
                    "-lpthread", "-lm"], check=True)
    return tool


def main():
    tests = [(n[5:], f) for n, f in globals().items() if n.startswith("test_") and (len(sys.argv) < 2 or sys.argv[1] in n)]
    hub, cdn = serve("hub"), serve("cdn")
    hub.cdn = cdn.url
    with tempfile.TemporaryDirectory() as folder:
        tool = build(folder)

        def run(item):
            i, (name, fn) = item
            os.mkdir(f"{folder}/{name}")
            try:
                fn(Case(tool, hub, f"{folder}/{name}"))
                return f"ok {i} - {name}"
            except (AssertionError, OSError, subprocess.TimeoutExpired, IndexError) as e:
                lines = f"{type(e).__name__}: {e}".replace("\n", "\n# ")
                return f"not ok {i} - {name}\n# {lines}"

        print(f"1..{len(tests)}")
        bad = 0
        # most tests wait, so several run at a time; test_bar forks and is alone
        alone = [t for t in enumerate(tests, 1) if t[1][0] == "bar"]
        with ThreadPoolExecutor(6) as pool:
            lines = list(pool.map(run, [t for t in enumerate(tests, 1) if t not in alone]))
        for line in lines + [run(t) for t in alone]:
            bad += line.startswith("not")
            print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
