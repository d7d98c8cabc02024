#!/usr/bin/env python3
"""Write the Unicode table of section 12.1 (tokenizer), or check the one in a file.

    python3 scripts/unicode_tables.py                  print the lines for train_gpt.c
    python3 scripts/unicode_tables.py train_gpt.c      exit 1 if the file does not contain them

GPT-2's pattern asks of a character only whether it is a letter (general category L*), a number (N*)
or white space (property White_Space). Unicode 16.0 is what tiktoken 0.14 and tokenizers 0.23 use
(both take it from Rust's regex-syntax 0.8; all 1,112,064 characters compared). Python 3.14 brings
that version; for any other: pip install unicodedata2==16.0.0

Format: for each class one string of numbers, the lengths of the runs of code points that are not
in the class and that are, in turn, from U+0000 on. A number is any count of characters '#' to '>'
(digits of base 28, most significant first) and then one of '@' to '~' (last digit, of base 63):
runs below 63 take one character. '?' is left out, because ??x is a trigraph in C11.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

VERSION, WIDTH = "16.0.0", 100
if unicodedata.unidata_version != VERSION:
    sys.exit(f"Unicode {unicodedata.unidata_version} here, {VERSION} wanted: "
             f"use Python 3.14 or pip install unicodedata2=={VERSION}")


def is_in(code, name):
    category = unicodedata.category(chr(code))
    if name == "space":  # White_Space: the separators, tab to carriage return, next line
        return category[0] == "Z" or 9 <= code <= 13 or code == 0x85
    return category[0] == {"letter": "L", "number": "N"}[name]


def number(n):
    high, text = n // 63, chr(ord("@") + n % 63)
    while high > 0:
        text, high = chr(ord("#") + high % 28) + text, high // 28
    return text


def runs(name):
    text, start, inside = "", 0, False
    for code in range(0x110000):
        if is_in(code, name) != inside:
            text, start, inside = text + number(code - start), code, not inside
    assert not inside
    return text


def lines(name, comma):
    pieces, line = [], ""
    for c in runs(name).replace("\\", "\0"):
        c = "\\\\" if c == "\0" else c
        if 4 + 1 + len(line) + len(c) + 2 > WIDTH:
            pieces, line = pieces + [line], ""
        line += c
    pieces.append(line)
    return [f'    "{p}"{comma if p is pieces[-1] else ""}' for p in pieces]


last = max(c for c in range(0x110000) if any(is_in(c, n) for n in ("letter", "number", "space")))
out = [f"enum {{ TOK_CODE_POINTS = 0x{last + 1:x} }}; "
       "// none beyond is a letter, a number or a space",
       "static const char *const tok_unicode[3] = { "
       f"// Unicode {VERSION}: letters, numbers, spaces"]
out += lines("letter", ",") + lines("number", ",") + lines("space", " };")
if len(sys.argv) == 1:
    print("\n".join(out))
elif "\n".join(out) not in open(sys.argv[1], encoding="utf-8").read():
    sys.exit(f"{sys.argv[1]}: its Unicode table is not the one of {sys.argv[0]}")
