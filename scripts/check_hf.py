#!/usr/bin/env python3
"""Holds checkpoints of train_gpt against transformers, tokenizers and llama.cpp as published.

  check_hf.py CHECKPOINT... --text FILE       checkpoints: folders like out/step_00002000

Of each checkpoint: GPT2LMHeadModel and AutoTokenizer load it unchanged; the mean loss on the text,
the ids of many strings and greedy continuations are those of train_gpt; the same holds after
scripts/convert.py has been through GGUF and llm.c's format; --init reads what save_pretrained
makes of it, in shards; and llama.cpp continues its GGUF with the same tokens. A line each: "ok",
"FAIL" or "skip". train_gpt and data/tokenize must be built.

  python3 -m venv --system-site-packages build/venv     # with Debian's python3-torch, or leave out
  build/venv/bin/pip install "transformers<4.48" xllamacpp        # that flag and install torch too

transformers 4.48 and later need torch 2; xllamacpp is llama.cpp with its server, compiled.
Exit codes: 1 a claim does not hold, 2 usage, or a package is missing.
"""
import argparse, json, math, os, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = ["First Citizen:", "It was the", "\n\nThe  king's 12 men,", "\u00e9"]
STRINGS = ["", "   ", "\n", "\t\t a", " Hello  world ", "I'm you're we'VE it's'd don't DON'T",
           "1234 5,678.90 \u00bd \u0663", "a\u00a0b\u3000c\u0085d\ufeffe", "na\u00efve \u00dcber",
           "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4", "\U0001f642\U0001f469\u200d\U0001f467 ok",
           "ab\r\ncd\n\n\n  ef", "!!!??...---", "x" * 300, "\x00\x01\x7f", "  \n  x",
           "A\u0301 \u200d", "__init__(self, *args)", "https://a.b/c?d=e&f"]
TOLERANCE = 1e-4        # of a mean loss
MIN_KINDS = 5           # of tokens in what a model says
LLAMA_TOLERANCE = 2e-3  # of a log-probability: llama.cpp looks GELU up in a table of 16-bit numbers


def say(is_ok, claim):
    print(("ok   " if is_ok else "FAIL ") + claim, flush=True)
    return is_ok


def ours(*command, stdin=b""):
    done = subprocess.run(command, input=stdin, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} of {' '.join(command)}: {done.stderr.decode()}")
    return done.stdout


def byte_tables(tokenizer):
    """id -> bytes. Not decode(): it replaces what is not UTF-8, as single tokens often are not."""
    sys.path.insert(0, HERE)
    from convert import byte_chars
    byte_of = {c: b for b, c in byte_chars().items()}
    return [bytes(byte_of[c] for c in t) if all(c in byte_of for c in t) else t.encode()
            for t in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]


# --- the claims -----------------------------------------------------------------------------------

def check_ids(a, folder, tokenizer, text):
    """<|endoftext|> in a text is left out: it is plain text for us, special to Hugging Face."""
    strings = STRINGS + [text]
    vectors = os.path.join(os.environ.get("GPT_DATA", ""), "tokenizer", "gpt2_vectors.jsonl")
    if os.path.isfile(vectors) and len(tokenizer) == 50257:
        with open(vectors, encoding="utf-8") as f:
            strings += [json.loads(line)["text"] for line in f][::25]
    good, strings = True, [s for s in strings if "<|endoftext|>" not in s]
    for s in strings:
        ids = tokenizer(s, verbose=False)["input_ids"]
        mine = [int(i) for i in ours(a.tokenize, "--tokenizer", folder, "--print_ids",
                                     stdin=s.encode()).split()]
        if mine != ids:
            good = say(False, f"ids of {s[:40]!r}: {mine[:12]}, tokenizers has {ids[:12]}")
        if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != s:
            good = say(False, f"decode does not give back {s[:40]!r}")
    return good and say(True, f"ids equal data/tokenize's on {len(strings)} strings, and decode")


def evaluated(a, init, tokenizer, T):
    return json.loads(ours(a.train_gpt, "--eval", "--val", a.text, "--init", init, "--tokenizer",
                           tokenizer, "--seq_len", str(T), "--batch_size", "4", "--out", "none"))


def check_loss(a, folder, model, ids):
    import torch
    T = model.config.n_positions
    windows = (len(ids) - 1) // T           # train_gpt's: neighbours share one token
    if windows == 0:
        sys.exit(f"--text has {len(ids)} tokens, wanted more than {T}")
    got = evaluated(a, folder, folder, T)
    if got["tokens"] != windows * T:
        return say(False, f"--eval counted {got['tokens']} tokens, wanted {windows * T}")
    x = torch.tensor(ids[:windows * T]).view(windows, T)
    y = torch.tensor(ids[1:windows * T + 1]).view(windows, T)
    with torch.no_grad():
        loss = sum(torch.nn.functional.cross_entropy(model(i[None]).logits[0].double(), t).item()
                   for i, t in zip(x, y)) / windows
    error = abs(loss - got["val_loss"])
    return say(error <= TOLERANCE, f"mean loss of {windows * T} tokens {got['val_loss']:.8f}, "
               f"transformers {loss:.8f}, error {error:.1e}, allowed {TOLERANCE:g}")


def greedy(model, ids, wanted):
    """(ids of the continuation without the end of text, log-probabilities of the first step, the
    least lead of a token over the second likeliest). Not generate(): Debian's torch lacks a part"""
    import torch
    out, leads, first = list(ids), [], None
    with torch.no_grad():
        while len(out) < len(ids) + wanted:
            logits = model(torch.tensor([out])).logits[0, -1]
            first = logits.log_softmax(0) if first is None else first
            top = logits.topk(2)
            leads.append((top.values[0] - top.values[1]).item())
            if top.indices[0] == model.config.eos_token_id:
                break
            out.append(top.indices[0].item())
    return out[len(ids):], first, min(leads)


def check_greedy(a, folder, tokenizer, model, token_bytes, continuations):
    good = True
    for prompt, (new, _, lead) in continuations.items():
        wanted = prompt.encode() + b"".join(token_bytes[i] for i in new) + b"\n"
        got = ours(a.train_gpt, "--sample", prompt, "--init", folder, "--tokenizer", folder,
                   "--temperature", "0", "--sample_tokens", str(a.tokens), "--seq_len",
                   str(model.config.n_positions), "--out", "none")
        if got != wanted:
            good = say(False, f"greedy after {prompt!r}: {got!r}, transformers {wanted!r} "
                       f"(least lead of a token {lead:.2g})")
    least = min(lead for _, _, lead in continuations.values())
    kinds = len({i for new, _, _ in continuations.values() for i in new})
    good &= kinds >= MIN_KINDS or say(False, f"greedy continuations have {kinds} different tokens, "
                                      f"want {MIN_KINDS}: a model that repeats itself shows little")
    return good and say(True, f"greedy continuations equal transformers', {len(continuations)} of "
                        f"{a.tokens} tokens, {kinds} different ones; the least lead of a token is "
                        f"{least:.2g}")


def check_convert(folder, at, tokenizer, model, text):
    """Hugging Face -> GGUF -> llm.c -> Hugging Face."""
    import torch
    from transformers import AutoTokenizer, GPT2LMHeadModel
    files = [os.path.join(at, name) for name in ("model.gguf", "model.bin", "back")]
    for source, target in zip([folder] + files, files):
        ours(sys.executable, os.path.join(HERE, "convert.py"), source, target,
             "--tokenizer", folder)
    again = GPT2LMHeadModel.from_pretrained(files[2]).eval()
    ids = tokenizer(text, verbose=False)["input_ids"][:model.config.n_positions]
    with torch.no_grad():
        is_same = torch.equal(*(m(torch.tensor([ids])).logits for m in (model, again)))
    other = AutoTokenizer.from_pretrained(files[2])
    is_same &= all(tokenizer(s)["input_ids"] == other(s)["input_ids"] for s in STRINGS)
    return say(is_same, "through GGUF and llm.c's format and back: the same logits to the bit, ids")


def check_shards(a, folder, at):
    """What save_pretrained writes, in several files and in every type, is read by --init."""
    import torch
    from transformers import GPT2LMHeadModel
    good, T = True, GPT2LMHeadModel.from_pretrained(folder).config.n_positions
    want = evaluated(a, folder, folder, T)["val_loss"]
    for name in ("float32", "float16", "bfloat16"):
        to, kind = os.path.join(at, name), getattr(torch, name)
        model = GPT2LMHeadModel.from_pretrained(folder, torch_dtype=kind)
        model.save_pretrained(to, max_shard_size="20KB")
        shards = sum(f.endswith(".safetensors") for f in os.listdir(to))
        got = evaluated(a, to, folder, T)["val_loss"]
        rounded = os.path.join(at, name + "_rounded")   # the same weights, in one file of fp32
        GPT2LMHeadModel.from_pretrained(to, torch_dtype=torch.float32).save_pretrained(rounded)
        wanted = evaluated(a, rounded, folder, T)["val_loss"]
        if shards < 2 or got != wanted or (got == want) != (name == "float32"):
            good = say(False, f"{name} in {shards} shards: mean loss {got}, in one file {wanted}")
    return good and say(True, f"--init reads transformers' shards of fp32, fp16 and bf16")


def check_llama(a, at, tokenizer, continuations):
    try:
        import xllamacpp
    except ImportError:
        print("skip llama.cpp: install xllamacpp")
        return True
    worker = subprocess.run([sys.executable, __file__, "--worker", os.path.join(at, "model.gguf"),
                             str(a.tokens)], input=json.dumps(list(continuations)).encode(),
                            capture_output=True, timeout=300)
    if worker.returncode != 0:
        return say(False, f"llama.cpp: exit code {worker.returncode}: "
                   f"{worker.stderr.decode()[-800:]}")
    good, largest = True, 0.0
    for (prompt, (new, logp, lead)), r in zip(continuations.items(), json.loads(worker.stdout)):
        count = len(tokenizer(prompt)["input_ids"])
        steps = r["choices"][0]["logprobs"]["content"]
        if r["usage"]["prompt_tokens"] != count:
            good = say(False, f"llama.cpp: {r['usage']['prompt_tokens']} tokens in {prompt!r}, "
                       f"want {count}")
        got = [s["id"] for s in steps]
        if tokenizer.eos_token_id in got:
            got = got[:got.index(tokenizer.eos_token_id)]
        if got != new:
            good = say(False, f"llama.cpp after {prompt!r}: {got}, transformers {new} (least lead "
                       f"of a token {lead:.2g})")
        largest = max([largest] + [abs(t["logprob"] - logp[t["id"]].item())
                                   for t in steps[0]["top_logprobs"]])
    return good and say(largest <= LLAMA_TOLERANCE, "llama.cpp's greedy tokens are the same after "
                        f"{len(continuations)} prompts; log-probabilities of the 20 likeliest "
                        f"differ by {largest:.1e}, allowed {LLAMA_TOLERANCE:g}")


def worker(path, wanted):
    """llama.cpp in a process of its own: it logs to stderr, and a fault in it ends only this."""
    import xllamacpp as x
    p = x.CommonParams()
    p.model.path, p.n_parallel, p.warmup = path, 1, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32     # the default, f16, loses digits
    p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = x.Server(p)
    request = dict(n_predict=int(wanted), temperature=0, logprobs=20, cache_prompt=False)
    print(json.dumps([server.handle_completions(dict(request, prompt=prompt))
                      for prompt in json.load(sys.stdin)]))


# --- the command line -----------------------------------------------------------------------------

def check_folder(a, folder):
    from transformers import AutoTokenizer, GPT2LMHeadModel
    print(f"{folder}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    model.eval()
    wrong = {k: v for k, v in info.items() if v}        # missing keys and the like
    good = say(not wrong, f"GPT2LMHeadModel and AutoTokenizer ({type(tokenizer).__name__}, "
               f"{len(tokenizer)} tokens) load it unchanged" + (f", but {wrong}" if wrong else ""))
    with open(a.text, encoding="utf-8", newline="") as f:
        text = f.read()
    good &= check_ids(a, folder, tokenizer, text)
    good &= check_loss(a, folder, model, tokenizer(text, verbose=False)["input_ids"])
    continuations = {p: greedy(model, tokenizer(p)["input_ids"], a.tokens) for p in PROMPTS}
    good &= check_greedy(a, folder, tokenizer, model, byte_tables(tokenizer), continuations)
    with tempfile.TemporaryDirectory() as at:
        good &= check_convert(folder, at, tokenizer, model, text)
        good &= check_shards(a, folder, at)
        good &= check_llama(a, at, tokenizer, continuations)
    return good


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*sys.argv[2:])
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", metavar="CHECKPOINT", nargs="+")
    p.add_argument("--text", metavar="FILE", required=True, help="UTF-8; some kB are enough")
    p.add_argument("--tokens", type=int, default=24, help="length of the continuations (24)")
    p.add_argument("--train_gpt", default=os.path.join(HERE, "..", "train_gpt"), metavar="PROGRAM")
    p.add_argument("--tokenize", default=os.path.join(HERE, "..", "data", "tokenize"),
                   metavar="PROGRAM")
    a = p.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    try:
        import torch, tokenizers, transformers
    except ImportError as e:
        print(f"error: {e}; see --help for what to install", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, tokenizers "
          f"{tokenizers.__version__}")
    return 0 if all([check_folder(a, f) for f in a.folders]) else 1


if __name__ == "__main__":
    sys.exit(main())
