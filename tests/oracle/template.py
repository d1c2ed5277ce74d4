"""Compares the template engine with Python's jinja2, set up as transformers does it.

usage: template.py [TOOL] [--write]    TOOL: the program template_tool of the build (default: $MX_TOOLS/template_tool)
--write records what jinja2 gives in template_cases/, which the unit test then checks without Python.
Prints TAP; the output must be identical, and what fails in one must fail in the other."""

import copy
import datetime as dt
import json
import os
import pathlib
import subprocess
import sys
import warnings

HERE = pathlib.Path(__file__).parent
CASES = HERE / "template_cases"
NOW = 1735787045  # 2025-01-02 03:04:05 UTC, also in template_tool.c


def skip(why):
    print("1..0 # SKIP " + why)
    sys.exit(0)


try:
    import jinja2
except ImportError:
    skip("jinja2 is not installed")


class FixedTime(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


def environment():
    """transformers' own, or the same by hand: a function from source to compiled template."""
    try:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers.utils import chat_template_utils as utils

        utils.datetime = FixedTime
        return utils._compile_jinja_template, "transformers"
    except (ImportError, AttributeError):
        pass
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: FixedTime.now().strftime(fmt)
    return env.from_string, "jinja2 set up by hand"


def read_cases(path):
    name = ctx = None
    parts, mode = {"src": [], "out": []}, None
    for line in path.read_bytes().decode("utf-8").split("\n")[:-1]:
        if line.startswith("@@"):
            if name is not None:
                yield name, ctx, "\n".join(parts["src"])
            name, ctx = line[3:].split(" | ")
            parts, mode = {"src": [], "out": []}, "src"
        elif line[:2] in ("@=", "@!"):
            mode = "out"
        elif mode:
            parts[mode].append(line)
    if name is not None:
        yield name, ctx, "\n".join(parts["src"])


def main():
    os.environ["TZ"] = "UTC"
    warnings.simplefilter("ignore")  # Python warns of odd code in cases that are meant to fail
    tool = ([a for a in sys.argv[1:] if not a.startswith("--")] + [os.path.join(os.environ.get("MX_TOOLS", ""), "template_tool")])[0]
    compile_template, how = environment()
    contexts = json.loads((CASES / "contexts.json").read_text("utf-8"))
    files = sorted(CASES.glob("*.txt"))
    want = {}
    for path in files:
        text = []
        for name, ctx, src in read_cases(path):
            if name in want:
                sys.exit(f"two cases are called {name}")
            try:
                out = compile_template(src).render(**copy.deepcopy(contexts[ctx]))  # a filter may change its input
                out.encode("utf-8")
            except Exception as e:  # a template may raise anything
                want[name] = (None, f"{type(e).__name__}: {e}")
                text.append(f"@@ {name} | {ctx}\n{src}\n@!\n")
            else:
                want[name] = (out, "")
                text.append(f"@@ {name} | {ctx}\n{src}\n@=\n{out}\n")
        if "--write" in sys.argv:
            path.write_bytes("".join(text).encode("utf-8"))
    if "--write" in sys.argv:
        return
    if not os.access(tool, os.X_OK):
        skip(f"there is no program {tool}: build it, or set MX_TOOLS")
    run = subprocess.run(
        [tool, str(CASES / "contexts.json"), *map(str, files)], stdout=subprocess.PIPE, check=True, timeout=60
    )
    got = {r["name"]: r for r in map(json.loads, run.stdout.decode("utf-8").split("\n")[:-1])}
    print(f"# {how}, jinja2 {jinja2.__version__}")
    print(f"1..{len(want)}")
    bad = 0
    for i, (name, (out, error)) in enumerate(want.items(), 1):
        g = got.get(name, {"status": "missing", "text": ""})
        ok = g["status"] != "ok" if out is None else g["status"] == "ok" and g["text"] == out
        bad += not ok
        print(f"{'ok' if ok else 'not ok'} {i} - {name}")
        if not ok or "--verbose" in sys.argv:
            print(f"#   jinja2: {error if out is None else repr(out)}")
            print(f"#   mlxcel: {g['status']}: {g['text']!r}")
    sys.exit(bad > 0)


main()
