"""Texts for comparing tokenizers: made from a fixed seed, as bytes, some of them not UTF-8."""

import random

SCRIPTS = [(0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F),
           (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F),
           (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
           (0x1780, 0x17FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20CF),
           (0x2100, 0x218F), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x257F), (0x2E80, 0x2FDF),
           (0x3000, 0x303F), (0x3040, 0x30FF), (0x3100, 0x312F), (0x3200, 0x33FF), (0x3400, 0x3500), (0x4E00, 0x9FFF),
           (0xA000, 0xA0FF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE20, 0xFE2F),
           (0xFF00, 0xFFEF), (0x10000, 0x100FF), (0x10300, 0x103DF), (0x10400, 0x1044F), (0x1D400, 0x1D7FF),
           (0x1F000, 0x1F0FF), (0x1F100, 0x1F1FF), (0x1F300, 0x1FAFF), (0x20000, 0x200FF), (0x31350, 0x31360),
           (0xE0020, 0xE007F)]
WORDS = """the of and a in that it was for on are with as I his they be at one have this from hot word but what some is you
or had by time if will how said each tell does set three want air well also play small end put home read hand port large
spell add even land here must big high such follow act why ask men change went light kind off need house picture try us
again animal point mother world near build self earth father don't it's we'll I've they're can't DON'T He'S y'all 'tis
def return class import lambda self.__init__ for(int i=0;i<n;++i) printf("%d\\n") </div> &amp; http://example.com/a?b=c#d
user@example.org C++ C# .NET node.js UTF-8 x86_64 naïve façade Straße ÉCOLE Ñandú Über ångström Ελλάδα Привет мир שלום
مرحبا नमस्ते สวัสดี 你好 世界 日本語 한국어 안녕하세요 ภาษาไทย ქართული հայերեն አማርኛ ﬁ ﬀ ½ ²³ ① Ⅳ ㌀ ㎏ ﷺ İstanbul ıſK ß ẞ""".split()
EMOJI = ["🙂", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "☺", "1️⃣", "🫠", "🪿", "🧑🏿‍🚀", "©", "™"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\u00a0", "\u2003", "\u3000", "\u2028", "\x0b",
          "\x0c", "\x85", "\u200b", "\u180e", "        ", "\t\t\t", " \n \n "]
LATE = [0x1C89, 0xA7CB, 0x10D40, 0x10D50, 0x11F04, 0x11F50, 0x16D70, 0x1E030, 0x1E4F0, 0x2EBF0, 0x323AF, 0x1FAE8, 0x1CCF0,
        0x0CF3, 0x1B4E]  # Unicode 15 and 16
BYTES = [b"\xff", b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x99", b"\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xe9"]


def char(r):
    while True:
        lo, hi = r.choice(SCRIPTS) if r.random() < 0.95 else (0, 0x10FFFF)
        c = r.randint(lo, hi)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def script_word(r):
    lo, hi = r.choice(SCRIPTS)
    return "".join(chr(r.randint(lo, hi)) for _ in range(r.randint(1, 8)))


def part(r, specials):
    k = r.randrange(14)
    if k < 4:
        return r.choice(WORDS)
    if k == 4:
        return r.choice(SPACES) * r.choice([1, 1, 1, 2, 3])
    if k == 5:
        return str(r.randint(0, 10 ** r.randint(1, 12)))
    if k == 6:
        return r.choice(EMOJI)
    if k == 7:
        return script_word(r)
    if k == 8:
        return "".join(char(r) for _ in range(r.randint(1, 4)))
    if k == 9:
        return "".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(r.randint(1, 6)))
    if k == 10:
        return r.choice(specials) if specials and r.random() < 0.5 else r.choice(["<|", "|>", "<s>", "</s>", "[INST]", "▁", "<0x0A>"])
    if k == 11:
        return chr(r.randrange(32)) if r.random() < 0.5 else chr(r.choice(LATE))
    if k == 12:
        return r.choice("eaoEA한ᄒ") + chr(r.randint(0x300, 0x36F)) * r.choice([1, 1, 2, 5])
    return r.choice(["ab", "A", "0", " ", "\n", "é", "中", "=", "-", "'", "ä", "🙂", "1234", "aA"]) * r.randint(2, 60)


def text(r, specials):
    out = []
    for _ in range(r.randint(1, 12)):
        out.append(part(r, specials).encode())
        if r.random() < 0.5:
            out.append(b" ")
        if r.random() < 0.03:
            out.append(r.choice(BYTES))
    return b"".join(out)


def texts(n, specials):
    r = random.Random(2024)
    fixed = [b"", b" ", b"\n", b"a", "é한🙂 ok".encode(), b"\xff\xfe", "id50123x ٣٤٥٦ ½7".encode(), b"a" * 3000, b" " * 3000,
             b"\n" * 3000, b"1" * 3000, "한".encode() * 1000, "🙂".encode() * 700, b"abc" * 1000, b"=-" * 1500]
    return fixed + [text(r, specials) for _ in range(n - len(fixed))]


def small_texts():
    """For the small vocabularies: letters they have, letters they have not, and their added tokens."""
    r = random.Random(7)
    alphabet = ["a", "b", "c", "ab", "abc", " ", "  ", "\n", "\t", "x", "é", "e\u0301", "É", "ñ", "½", "中", "文", "🙂", "1", "23", "٣",
                "'s", "-", ".", ",", "_", "<s>", "<pad>", " <pad> ", "[M]", "[m]", " [N] ", "word", "aword", "Word", "▁", "Ω", "한",
                "\u1112\u1161\u11ab", "ﬁ", "İ", "A", "B", "\x00", "\u200b", "\ufffd", "A1b2", "HELLO", "。", "«", "ab.", "</w>"]
    out = ["", " ", "  a", "a  ", "word", "hi\nñ hi", "id50123x ٣٤٥٦ ½7"]
    out += ["".join(r.choice(alphabet) for _ in range(r.randint(1, 12))) for _ in range(600)]
    return [s.encode() for s in out]
