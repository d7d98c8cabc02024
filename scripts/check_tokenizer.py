#!/usr/bin/env python3
"""Holds the tokenizer of train_gpt against tiktoken and tokenizers: ids, vocabularies, speed.

  check_tokenizer.py TEXT... [--mb 10] [--seed 1] [--speed]      the texts: UTF-8, English

The claims, a line each, "ok" or "FAIL": GPT-2's ids of the texts, of --mb megabytes of random
Unicode and of as many random bytes; a vocabulary trained on the texts has the merges of
tokenizers', and its ids. Random bytes are no text, which both libraries want: there the pattern is
the regex package's, bytes that are no UTF-8 stand for themselves, and tiktoken merges each piece.
--speed prints how fast one thread encodes the texts beside tiktoken's encode_ordinary, and how
threads add up. `make tokenize train_bpe` first; packages: tiktoken tokenizers regex (PyPI).
Exit codes: 1 a claim does not hold, 2 usage, or a package is missing.
"""
import argparse, json, os, random, subprocess, sys, tempfile, time, unicodedata

from convert import byte_chars

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PATTERN = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
END = "<|endoftext|>"
CHUNK = 1 << 20             # bytes to a document of random text


def say(is_ok, claim):
    print(("ok   " if is_ok else "FAIL ") + claim, flush=True)
    return is_ok


def run(*command, stdin=b"", threads=2):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    done = subprocess.run(command, input=stdin, capture_output=True, env=env)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {' '.join(command)}: {done.stderr.decode()}")
    return done.stdout


def ours(a, text, vocab=None):
    return list(map(int, run(a.tokenize, "--tokenizer", vocab or a.vocab, "--print_ids",
                             stdin=text).split()))


def first_difference(got, want):
    i = next((i for i, (g, w) in enumerate(zip(got, want)) if g != w), min(len(got), len(want)))
    return f"{len(got)} ids, wanted {len(want)}; from {i} on {got[i:i + 8]}, wanted {want[i:i + 8]}"


# --- GPT-2's vocabulary in both libraries, from the file that we read -----------------------------

def libraries(a):
    import tiktoken, tokenizers
    byte_of = {c: b for b, c in byte_chars().items()}
    with open(a.vocab, encoding="utf-8") as f:
        merges = [tuple(line.split()) for line in f.read().split("\n")[1:] if line]
    order = sorted(range(256), key=lambda b: ord(byte_chars()[b]))
    tokens = [byte_chars()[b] for b in order] + ["".join(m) for m in merges]
    ranks = {bytes(byte_of[c] for c in t): i for i, t in enumerate(tokens)}
    tik = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                            special_tokens={END: len(ranks)})
    hf = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    hf.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tik, hf


def known(text):
    """The text without characters younger than Python's tables: the packages' tables are of several
    versions of Unicode, ours are tiktoken's (scripts/unicode_tables.py)."""
    return "".join(c for c in text if unicodedata.category(c) != "Cn")


def random_unicode(rng, size):
    """Words, spaces, numbers and contractions between characters of all planes."""
    parts, bytes_made = [], 0
    usual = ["'s", "'ll", "'VE", " ", "  ", "\n", "\t", "\r\n", " the", "Token", "12", "\u00a0",
             "x", "\u3000", "\u0301", "\u200d", "\ufeff", "\u0085", "...", END, "\U0001f642",
             "\u00bd"]
    while bytes_made < size:
        if rng.random() < 0.5:
            s = rng.choice(usual)
        else:
            top = rng.choice((0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000))
            s = known(chr(rng.randrange(top))) * rng.choice((1, 1, 1, 2, 9))
            if s and unicodedata.category(s[0]) == "Cs":
                continue
        parts.append(s)
        bytes_made += len(s.encode())
    return "".join(parts)


def random_bytes(rng, size):
    """Half of the stretches are plain bytes; in the others much is nearly UTF-8."""
    out = b""
    while len(out) < size:
        n = rng.randrange(1, 4000)
        out += rng.randbytes(n) if rng.random() < 0.5 else bytes(
            rng.choice((32, 39, 97, 115, 49, 0xc3, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0xa0, 0xed, 0xff))
            for _ in range(n))
    while (text := out.decode("utf-8", "surrogateescape")) != known(text):
        out = known(text).encode("utf-8", "surrogateescape")
    return out


def ids_of_bytes(tik, cut, data):
    text = data.decode("utf-8", "surrogateescape")
    return [i for piece in cut.findall(text)
            for i in tik._encode_single_piece(piece.encode("utf-8", "surrogateescape"))]


def check_ids(a, tik, hf):
    import regex
    good = True

    def same(name, got, want):
        return got == want or say(False, f"{name}: {first_difference(got, want)}")

    texts = [open(path, "rb").read() for path in a.texts]
    for path, text in zip(a.texts, texts):
        got = ours(a, text)
        good &= same(f"{path}, tiktoken", got, tik.encode_ordinary(text.decode()))
        good &= same(f"{path}, tokenizers", got, hf.encode(text.decode()).ids)
    good = good and say(True, f"ids of {sum(map(len, texts))} bytes of text are tiktoken's and "
                        "tokenizers'")
    rng, fine, rounds = random.Random(a.seed), True, max(1, round(a.mb * 1e6 / CHUNK))
    for i in range(rounds):
        text = random_unicode(rng, CHUNK)
        got = ours(a, text.encode())
        fine &= same(f"random Unicode {i}, tiktoken", got, tik.encode_ordinary(text))
        fine &= same(f"random Unicode {i}, tokenizers", got, hf.encode(text).ids)
    fine = fine and say(True, f"ids of {rounds} MiB of random Unicode are tiktoken's and "
                        f"tokenizers' (seed {a.seed})")
    exact, cut = True, regex.compile(PATTERN)
    for i in range(rounds):
        data = random_bytes(rng, CHUNK)
        exact &= same(f"random bytes {i}", ours(a, data), ids_of_bytes(tik, cut, data))
    exact = exact and say(True, f"ids of {rounds} MiB of random bytes are those of the pattern by "
                          "regex and of tiktoken's merges")
    return good and fine and exact


def check_training(a, at):
    """Ours and tokenizers' trainer on the same text; compared on text that neither has seen."""
    import tokenizers
    text = "".join(open(path, encoding="utf-8", newline="").read() for path in a.texts)
    cut = int(0.9 * len(text))
    seen, held_out = os.path.join(at, "seen.txt"), text[cut:]
    with open(seen, "w", encoding="utf-8", newline="") as f:
        f.write(text[:cut])
    start = time.monotonic()
    run(a.train_bpe, "--vocab_size", str(a.vocab_size), "--out", os.path.join(at, "v"), seen)
    seconds = time.monotonic() - start
    hf = tokenizers.Tokenizer(tokenizers.models.BPE())
    hf.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    start = time.monotonic()
    hf.train_from_iterator([text[:cut]], tokenizers.trainers.BpeTrainer(
        vocab_size=a.vocab_size - 1, min_frequency=2, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    theirs = time.monotonic() - start
    merges = [m if isinstance(m, str) else " ".join(m)
              for m in json.loads(hf.to_str())["model"]["merges"]]
    with open(os.path.join(at, "v", "merges.txt"), encoding="utf-8") as f:
        mine = f.read().split("\n")[1:-1]
    good = say(mine == merges, f"{len(mine)} merges from {cut} characters are tokenizers' trainer's"
               f" ({seconds:.1f} s, tokenizers {theirs:.1f} s)" if mine == merges else
               f"merges: {first_difference(mine, merges)}")
    loaded = tokenizers.Tokenizer.from_file(os.path.join(at, "v", "tokenizer.json"))
    want, got = loaded.encode(held_out).ids, ours(a, held_out.encode(), os.path.join(at, "v"))
    good &= say(loaded.decode(want) == held_out, "tokenizers loads it, and decodes what it encodes")
    return good & say(got == want, f"and gives our {len(got)} ids of the held-out tenth"
                      if got == want else first_difference(got, want))


def check_speed(a, tik, at):
    """Ours is a whole program, which reads and writes files: timed with all that, best of five."""
    texts = [open(path, encoding="utf-8", newline="").read() for path in a.texts]
    texts *= 1 + int(2e7) // sum(map(len, texts))   # 20 MB and more
    size = sum(len(t.encode()) for t in texts)
    lines = os.path.join(at, "documents.jsonl")     # of some 3 kB
    with open(lines, "w", encoding="utf-8") as f:
        for t in texts:
            for i in range(0, len(t), 3000):
                f.write(json.dumps({"text": t[i:i + 3000]}) + "\n")
    best = dict.fromkeys(("tiktoken", 1, 2), float("inf"))
    for _ in range(5):      # interleaved: a busy moment meets all of them
        for who in best:
            start = time.monotonic()
            if who == "tiktoken":
                for t in texts: tik.encode_ordinary(t)
            else:
                run(a.tokenize, "--tokenizer", a.vocab, "--out", os.path.join(at, "s"), lines,
                    threads=who)
            best[who] = min(best[who], time.monotonic() - start)
            for name in os.listdir(at):
                if name.startswith("s_"): os.remove(os.path.join(at, name))
    mb = {who: size / 1e6 / s for who, s in best.items()}
    print(f"speed {size / 1e6:.1f} MB: tiktoken {mb['tiktoken']:.1f} MB/s; ours, one thread"
          f" {mb[1]:.1f} MB/s, {mb[1] / mb['tiktoken']:.2f} times that; two {mb[2]:.1f} MB/s")
    return mb[1] >= 2 * mb["tiktoken"]


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("texts", metavar="TEXT", nargs="+")
    p.add_argument("--vocab", default=ROOT + "/data/vocab.bpe", metavar="FILE",
                   help="GPT-2's vocab.bpe (data/get.sh gpt2)")
    p.add_argument("--mb", type=float, default=10, help="of random text, of each kind (10)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--vocab_size", type=int, default=8192, help="of the trained vocabulary (8192)")
    p.add_argument("--speed", action="store_true")
    p.add_argument("--tokenize", default=ROOT + "/data/tokenize", metavar="PROGRAM")
    p.add_argument("--train_bpe", default=ROOT + "/data/train_bpe", metavar="PROGRAM")
    a = p.parse_args()
    try:
        import regex, tiktoken, tokenizers
    except ImportError as e:
        print(f"error: {e}; see --help for what to install", file=sys.stderr)
        return 2
    print(f"tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}, regex "
          f"{regex.__version__}")
    tik, hf = libraries(a)
    with tempfile.TemporaryDirectory() as at:
        good = check_ids(a, tik, hf)
        good &= check_training(a, at)
        return 0 if good and (not a.speed or check_speed(a, tik, at)) else 1


if __name__ == "__main__":
    sys.exit(main())
