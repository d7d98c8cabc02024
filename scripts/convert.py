#!/usr/bin/env python3
"""Converts a GPT-2 between Hugging Face's, llm.c's and llama.cpp's (GGUF) formats. Needs numpy.

  convert.py IN OUT [--type f32|bf16|f16] [--tokenizer FOLDER|FILE]

  IN, OUT      a folder, or FILE.safetensors with its config.json beside it (Hugging Face); FILE.bin
               (llm.c, versions 3 and 5: float32 and bfloat16, no tokenizer); FILE.gguf
  --type       of the numbers in OUT; default: as in IN. In GGUF of matrices only, as llama.cpp does
  --tokenizer  where IN has none: a tokenizer.json, vocab.json with merges.txt, vocab.bpe, or a
               folder with one. Default: bytes for 257 tokens; data/vocab.bpe or
               $GPT_DATA/tokenizer/vocab.bpe for 50257

float32 comes back bit by bit from any round trip. Nothing that exists is overwritten.
Exit codes: 1 no numpy, 2 usage, 3 an input that cannot be converted, 4 the output cannot be written
"""
import argparse, json, math, os, struct, sys
try:
    import numpy as np
except ImportError:
    sys.exit("error: no numpy; install python3-numpy, or pip install numpy")

# Of each tensor: Hugging Face's name, GGUF's name, shape as in a PyTorch Linear: (out, in). In the
# order of llm.c's file, where all layers of a tensor lie together.
FIRST = [("wte.weight", "token_embd.weight", "V C"), ("wpe.weight", "position_embd.weight", "T C")]
LAYER = [(f"{hf}.{part}", f"{gguf}.{part}", size if part == "weight" else size.split()[0])
         for hf, gguf, size in (
             ("ln_1", "attn_norm", "C"), ("attn.c_attn", "attn_qkv", "3C C"),
             ("attn.c_proj", "attn_output", "C C"), ("ln_2", "ffn_norm", "C"),
             ("mlp.c_fc", "ffn_up", "4C C"), ("mlp.c_proj", "ffn_down", "C 4C"))
         for part in ("weight", "bias")]
LAST = [("ln_f.weight", "output_norm.weight", "C"), ("ln_f.bias", "output_norm.bias", "C")]
LIMITS = dict(T=1 << 20, V=1 << 24, L=1024, NH=1024, C=65536)   # train_gpt's; the order is llm.c's
HF_KEYS = dict(T="n_positions", V="vocab_size", L="n_layer", NH="n_head", C="n_embd")
GGUF_KEYS = dict(T="context_length", V="tokens", L="block_count", NH="attention.head_count",
                 C="embedding_length")
HEAD = ("lm_head.weight", "output.weight", "V C")               # may be there; equal to wte
ENDS = "bos_token_id", "eos_token_id"                           # config.json's, and GGUF's
END, NORMAL, CONTROL, UNUSED = "<|endoftext|>", 1, 3, 5         # GGUF's types of tokens
# What a tokenizer.json may say, as in train_gpt: other values, or a normalizer, give other ids.
RULES = [("model", "type", "BPE"), ("model", "dropout", None), ("model", "byte_fallback", False),
         ("model", "continuing_subword_prefix", ""), ("model", "end_of_word_suffix", ""),
         ("model", "ignore_merges", False), ("pre_tokenizer", "type", "ByteLevel"),
         ("pre_tokenizer", "use_regex", True), ("pre_tokenizer", "add_prefix_space", False)]
# type: numpy's, safetensors', GGUF's of a tensor, GGUF's of a file, llm.c's version, config.json's.
# numpy has no bfloat16: it is uint16 here, the upper half of a float32.
TYPES = {"f32": ("<f4", "F32", 0, 0, 3, "float32"), "f16": ("<f2", "F16", 1, 1, 0, "float16"),
         "bf16": ("<u2", "BF16", 30, 32, 5, "bfloat16"), "f64": ("<f8", "F64", -1, -1, 0, "")}

class Bad(Exception): pass

def check(condition, where, text):
    if not condition:
        raise Bad(f"{where}: {text}")

def tensors(cfg, head=()):
    """Hugging Face's name, GGUF's name, shape of every tensor, layer by layer."""
    layers = [(f"h.{l}.{hf}", f"blk.{l}.{g}", s) for l in range(cfg["L"]) for hf, g, s in LAYER]
    size = lambda s: tuple(int(d[:-1] or 1) * cfg[d[-1]] for d in s.split())
    return [(hf, g, size(s)) for hf, g, s in FIRST + layers + LAST + list(head)]

def check_config(where, cfg, names, have, want):
    """have, want: further keys that must have the one value computed here, or be absent."""
    for k, limit in LIMITS.items():
        check(type(cfg.get(k)) is int and 1 <= cfg[k] <= limit, where,
              f"{names[k]} is {cfg.get(k)}, want 1 to {limit}")
    check(cfg["C"] % cfg["NH"] == 0, where, f"{names['C']} is {cfg['C']}, not a multiple of "
          f"{names['NH']}, {cfg['NH']}")
    for k, v in want.items():
        x = v if have.get(k) is None else have[k]
        check((round(x, 9) if isinstance(x, float) else x) == v, where, f"{k} is {x}, want {v}")

def collect(path, data, entries, wanted):
    """entries: name -> (numpy type, shape, begin, end). Arrays by name, after all was checked."""
    out = {}
    for name, shape in wanted.items():
        check(name in entries, path, f"no tensor {name}")
        dtype, have, begin, end = entries[name]
        size = math.prod(shape) * np.dtype(dtype).itemsize
        check(tuple(have) == shape, path, f"{name} has shape {list(have)}, want {list(shape)}")
        check(type(begin) is int and 0 <= begin <= len(data) - size and end == begin + size, path,
              f"{name} is bytes {begin} to {end}, want {size} of {len(data)}: cut short?")
        out[name] = data[begin:end].view(dtype).reshape(shape)
    for name in entries:
        check(name in out or name.endswith((".attn.bias", ".attn.masked_bias")), path,
              f"tensor {name} is not part of a GPT-2")        # but for the masks of old files
    return out

def without_head(path, w):
    head = w.pop("lm_head.weight", None)
    check(head is None or head.tobytes() == w["wte.weight"].tobytes(), path, "the head differs "
          "from the token embedding: only a tied one can be converted")
    return w

def as_type(a, kind, name):
    """As numbers of another type, rounded to the nearest, ties to even. The same type: same bits"""
    if a.dtype == np.dtype(TYPES[kind][0]):
        return a
    if a.dtype == np.uint16:
        a = (a.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        a, was = np.ascontiguousarray(a, "<f2" if kind == "f16" else "<f4"), a
    i = np.argmax(np.isinf(a) & np.isfinite(was))       # the first that became infinite, or 0
    check(not np.isinf(a.flat[i]) or np.isinf(was.flat[i]), name, f"holds {was.flat[i]:g}, but "
          f"{kind} ends at {np.finfo(a.dtype).max:g}")
    if kind != "bf16":
        return a
    bits = a.view(np.uint32)
    rounded = bits + (0x7fff + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(a), bits >> 16 | 0x40, rounded).astype("<u2")

def read_json(path, data=None):
    try:
        value = json.loads(open(path, "rb").read() if data is None else data)
    except (OSError, ValueError, RecursionError) as e:
        raise Bad(f"{path}: {getattr(e, 'strerror', None) or f'not JSON: {e}'}")
    check(isinstance(value, dict), path, "not a JSON object")
    return value

# --- tokenizers: tokens and merges "left right" as Hugging Face and GGUF write them ---------------

def byte_chars():
    """Of each byte: a printable one is shown as itself, the others as U+0100 and so on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}

def tokenizer_of(path, ids, merges, special):
    tokens = sorted(ids, key=ids.get)
    check([ids[t] for t in tokens] == list(range(len(ids))), path, "ids of tokens are not 0, 1, ..")
    return dict(tokens=tokens, merges=merges,
                types=[CONTROL if t in special else NORMAL for t in tokens])

def read_merges(file):
    check(os.path.isfile(file), file, "not there, but vocab.json needs it")
    lines = open(file, encoding="utf-8").read().split("\n")
    merges = [m for m in lines[lines[0].startswith("#version"):] if m]
    check(all(m.count(" ") == 1 for m in merges), file, "a merge is not two tokens")
    return merges

def read_tokenizer(path, cfg, is_asked=False):
    """From a folder or a file; None where there is none and none was asked for."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    gpt_data = os.environ.get("GPT_DATA", os.path.join(root, "../shared/data"))
    names = ("tokenizer.json", "vocab.json", "vocab.bpe", "")
    files = [os.path.join(path, n) if n else path for n in names if os.path.isdir(path) or is_asked]
    if cfg["V"] == 50257 and not is_asked:
        files += [root + "/data/vocab.bpe", gpt_data + "/tokenizer/vocab.bpe"]
    file = next((f for f in files if os.path.isfile(f)), None)
    check(file or not is_asked, path, "no tokenizer.json, vocab.json or vocab.bpe")
    if file is None:
        bytes_only = {c: b for b, c in sorted(byte_chars().items())} | {END: 256}
        return tokenizer_of("bytes", bytes_only, [], {END}) if cfg["V"] == 257 else None
    try:
        if file.endswith(".json"):
            j = read_json(file)
            if not isinstance(j.get("model"), dict):            # a vocab.json
                merges = read_merges(os.path.join(os.path.dirname(file), "merges.txt"))
                made = {m.replace(" ", "") for m in merges}
                return tokenizer_of(file, j, merges, {t for t in j if len(t) > 1 and t not in made})
            for part, key, want in RULES:
                have = j[part].get(key)
                check(have in (None, want), file, f"{part}: {key} is {have}, want {want}")
            check(not j.get("normalizer"), file, "a normalizer: not supported")
            model, added = j["model"], {t["content"]: t for t in j["added_tokens"]}
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            check(all(t["special"] for t in added.values()), file,
                  "an added token that is not special: to find it in texts is not supported")
            return tokenizer_of(file, model["vocab"] | {t: added[t]["id"] for t in added}, merges,
                                set(added))
        merges = read_merges(file)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise Bad(f"{file}: not a tokenizer of byte-level BPE: {e!r}")
    tokens = [*byte_chars().values(), *(m.replace(" ", "") for m in merges), END]
    return tokenizer_of(file, {t: i for i, t in enumerate(tokens)}, merges, {END})

def ends_of(cfg, tok, other=None):
    """Ids of bos and eos: as the input says, else that of <|endoftext|>, or of the token other."""
    tokens = tok["tokens"] if tok else range(cfg["V"])
    end = next((tokens.index(t) for t in (END, other) if t in tokens), None)
    have = {k: cfg.get(k) for k in ENDS}
    ends = {k: v if type(v) is int and 0 <= v < len(tokens) else end for k, v in have.items()}
    return {k: v for k, v in ends.items() if v is not None}

# --- Hugging Face: u64 length of the header, header in JSON padded with spaces to 8, data ---------

def hf_shape(name, shape):      # linear weights are (in, out) there
    return shape[::-1] if name.startswith("h.") else shape

def read_hf(path):
    folder, file = os.path.split(path) if os.path.isfile(path) else (path, "model.safetensors")
    config, file = os.path.join(folder, "config.json"), os.path.join(folder, file)
    j = read_json(config)
    cfg = {k: j.get(name) for k, name in HF_KEYS.items()} | {k: j.get(k) for k in ENDS}
    check_config(config, cfg, HF_KEYS, j, dict(model_type="gpt2", activation_function="gelu_new",
                 layer_norm_epsilon=1e-5, n_inner=4 * (cfg["C"] or 0), scale_attn_weights=True,
                 scale_attn_by_inverse_layer_idx=False, add_cross_attention=False))
    raw = map_file(file)
    start = 8 + int(raw[:8].view("<u8")[0])
    check(start <= len(raw), file, f"a header of {start - 8} bytes, the file has {len(raw)}")
    header, types = read_json(file, raw[8:start].tobytes()), {t[1]: t[0] for t in TYPES.values()}
    header.pop("__metadata__", None)
    try:
        entries = {n[12:] if n.startswith("transformer.") else n:
                   (types[h["dtype"]], h["shape"], *h["data_offsets"]) for n, h in header.items()}
        w = collect(file, raw[start:], entries, {hf: hf_shape(hf, s) for hf, _, s in tensors(
            cfg, [HEAD] if HEAD[0] in entries else [])})
    except (KeyError, TypeError) as e:
        raise Bad(f"{file}: not a header, or a type not of {' '.join(types)}: {e!r}")
    w = {hf: a.T if hf.startswith("h.") else a for hf, a in without_head(file, w).items()}
    tok = read_tokenizer(folder or ".", cfg)
    return cfg, w, tok, str(j.get("_name_or_path") or stem(path))

def write_hf(path, cfg, w, tok, name, kind):
    folder, file = os.path.split(path) if path.endswith(".safetensors") else (path, "")
    if not os.path.isdir(folder or "."):
        os.makedirs(folder)
        undo.append((os.rmdir, folder))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for hf, _, shape in tensors(cfg):
        end = at + math.prod(shape) * np.dtype(TYPES[kind][0]).itemsize
        header["transformer." + hf] = dict(dtype=TYPES[kind][1], shape=hf_shape(hf, shape),
                                           data_offsets=[at, end])
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    config = dict(_name_or_path=name, architectures=["GPT2LMHeadModel"], model_type="gpt2",
                  activation_function="gelu_new", layer_norm_epsilon=1e-5, resid_pdrop=0.0,
                  **{HF_KEYS[k]: cfg[k] for k in HF_KEYS}, n_ctx=cfg["T"], embd_pdrop=0.0,
                  attn_pdrop=0.0, tie_word_embeddings=True, torch_dtype=TYPES[kind][5],
                  **ends_of(cfg, tok))
    files = {"config.json": config}
    if tok:
        level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
        ids = {t: i for i, t in enumerate(tok["tokens"])}
        added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False,
                      normalized=False, special=True)
                 for t, i in ids.items() if tok["types"][i] != NORMAL]
        model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="",
                     end_of_word_suffix="", fuse_unk=False, byte_fallback=False, vocab=ids,
                     merges=tok["merges"])
        ends = {k: END for k in ("bos_token", "eos_token", "unk_token") if END in ids}
        files["tokenizer.json"] = dict(
            version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
            pre_tokenizer=level, post_processor=level, decoder=level, model=model)
        files["tokenizer_config.json"] = dict(tokenizer_class="GPT2Tokenizer", **ends,
                                              add_prefix_space=False, model_max_length=cfg["T"])
    for f, value in files.items():
        write(os.path.join(folder, f), [json.dumps(value, indent=1).encode()])
    write(os.path.join(folder, file or "model.safetensors"),
          [struct.pack("<Q", len(text)), text], (
              as_type(w[hf].T if hf.startswith("h.") else w[hf], kind, hf) for hf in w))

# --- llm.c: 256 int32 (magic, version, T, V, L, NH, C, Vp), tensors; Vp is V padded to 128 --------

def llmc_layout(cfg, itemsize):
    """name -> (shape in the file, begin, end) in the file's order; where it ends."""
    shapes = {hf: s for hf, _, s in tensors(dict(cfg, V=-(-cfg["V"] // 128) * 128))}
    out, at = {}, 1024
    layers = [f"h.{l}.{hf}" for hf, _, _ in LAYER for l in range(cfg["L"])]
    for hf in [t[0] for t in FIRST] + layers + [t[0] for t in LAST]:
        out[hf] = (shapes[hf], at, at + math.prod(shapes[hf]) * itemsize)
        at = out[hf][2]
    return out, at

def read_llmc(path):
    raw = map_file(path, 1024)
    _, version, *values, padded = (int(v) for v in raw[:32].view("<i4"))
    kind, cfg = {3: "f32", 5: "bf16"}.get(version), dict(zip(LIMITS, values))
    check(kind, path, f"version {version}, want 3 (float32) or 5 (bfloat16)")
    check_config(path, cfg, {k: k for k in LIMITS}, {"padded V": padded},
                 {"padded V": -(-cfg["V"] // 128) * 128})
    dtype = np.dtype(TYPES[kind][0])
    layout, total = llmc_layout(cfg, dtype.itemsize)
    check(len(raw) == total, path, f"{len(raw)} bytes, its header makes {total}: cut short?")
    w = collect(path, raw, {n: (dtype, *at) for n, at in layout.items()},
                {n: at[0] for n, at in layout.items()})
    w["wte.weight"] = w["wte.weight"][:cfg["V"]]
    return cfg, {hf: w[hf] for hf, _, _ in tensors(cfg)}, read_tokenizer("", cfg), stem(path)

def write_llmc(path, cfg, w, tok, name, kind):
    check(TYPES[kind][4], path, f"llm.c's format has no {kind}: give --type f32 or bf16")
    layout = llmc_layout(cfg, 0)[0]
    padded = layout["wte.weight"][0][0]
    head = struct.pack("<256i", 20240326, TYPES[kind][4], *(cfg[k] for k in LIMITS), padded,
                       *[0] * 248)
    wte = np.pad(as_type(w["wte.weight"], kind, "wte.weight"), ((0, padded - cfg["V"]), (0, 0)))
    write(path, [head, wte], (as_type(w[hf], kind, hf) for hf in list(layout)[1:]))

# --- GGUF v3: counts, keys, names and places of tensors, data aligned to 32; shapes reversed ------

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}

class Cursor:
    def __init__(self, path, raw):
        self.path, self.raw, self.at = path, raw, 4

    def number(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def take(self, size):
        check(size <= len(self.raw) - self.at, self.path, f"{size} bytes at {self.at}, but the "
              f"file has {len(self.raw)}: cut short")
        self.at += size
        return self.raw[self.at - size:self.at].tobytes()

    def value(self, kind, is_item=False):
        if kind == ARRAY and not is_item:
            kind, count = self.number("I"), self.number("Q")
            return [self.value(kind, True) for _ in range(count)]   # at the latest the file ends
        check(kind == STRING or kind in NUMBERS, self.path, f"type {kind} of a value at {self.at}")
        return self.number(NUMBERS[kind]) if kind in NUMBERS else (
            self.take(self.number("Q")).decode())

def read_gguf(path):
    raw = map_file(path)
    c, keys, entries, types = Cursor(path, raw), {}, {}, {t[2]: t[0] for t in TYPES.values()}
    version, num_tensors, num_keys = c.number("I"), c.number("Q"), c.number("Q")
    check(version == 3, path, f"GGUF version {version}, want 3")
    try:
        for _ in range(num_keys):
            key = c.value(STRING)
            keys[key] = c.value(c.number("I"))
        for _ in range(num_tensors):
            name = c.value(STRING)
            shape = [c.number("Q") for _ in range(c.number("I"))][::-1]
            entries[name] = (c.number("I"), shape, c.number("Q"))
    except UnicodeDecodeError:
        raise Bad(f"{path}: the string that ends at byte {c.at} is not UTF-8")
    tok = {k: keys.get("tokenizer.ggml." + name) for k, name in
           dict(tokens="tokens", types="token_type", merges="merges").items()}
    check(all(isinstance(v, list) for v in tok.values()) and len(tok["tokens"]) ==
          len(tok["types"]), path, "tokenizer.ggml: tokens, token_type or merges missing or short")
    cfg = {k: keys.get("gpt2." + name) for k, name in GGUF_KEYS.items()} | {"V": len(tok["tokens"])}
    cfg.update({k: keys.get("tokenizer.ggml." + k) for k in ENDS})
    align = keys.get("general.alignment", 32)
    check_config(path, cfg, {k: "gpt2." + v for k, v in GGUF_KEYS.items()}, keys, {
        "general.architecture": "gpt2", "gpt2.feed_forward_length": 4 * (cfg["C"] or 0),
        "gpt2.attention.layer_norm_epsilon": 1e-5, "general.alignment": 32,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"})
    while tok["types"][-1:] == [UNUSED]:                        # rows without a token
        tok["tokens"].pop(), tok["types"].pop()
    start = -(-c.at // align) * align
    for g, (kind, shape, at) in entries.items():
        check(kind in types, path, f"{g} has type {kind}, want 0 (f32), 1 (f16) or 30 (bf16)")
        size = math.prod(shape) * np.dtype(types[kind]).itemsize
        entries[g] = (types[kind], shape, start + at, start + at + size)
    names = tensors(cfg, [HEAD] if HEAD[1] in entries else [])
    w = collect(path, raw, entries, {g: s for _, g, s in names})
    w = without_head(path, {hf: w[g] for hf, g, _ in names})
    return cfg, w, tok, str(keys.get("general.name", ""))

def write_gguf(path, cfg, w, tok, name, kind):
    check(tok, path, f"no tokenizer for {cfg['V']} tokens, which GGUF holds: give --tokenizer")
    extra = range(len(tok["tokens"]), cfg["V"])                 # rows without a token
    string = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()
    pack = {U32: lambda v: struct.pack("<I", v), F32: lambda v: struct.pack("<f", v),
            I32: lambda v: struct.pack("<i", v), BOOL: lambda v: struct.pack("<?", v),
            STRING: string, ARRAY: lambda v: struct.pack("<IQ", v[0], len(v[1])) +
            b"".join(map(pack[v[0]], v[1]))}
    # Where none is named llama.cpp takes 11, a comma. Byte 255 is in no UTF-8: never made.
    ends = ends_of(cfg, tok, byte_chars()[255])
    keys = [("general.architecture", STRING, "gpt2"), ("general.name", STRING, name)] + [
        ("gpt2." + k, U32, v) for k, v in (
            ("block_count", cfg["L"]), ("context_length", cfg["T"]), ("embedding_length", cfg["C"]),
            ("feed_forward_length", 4 * cfg["C"]), ("attention.head_count", cfg["NH"]))] + [
        ("gpt2.attention.layer_norm_epsilon", F32, 1e-5), ("general.file_type", U32, TYPES[kind][3])
        ] + [("tokenizer.ggml." + k, t, v) for k, t, v in [
            ("model", STRING, "gpt2"), ("pre", STRING, "gpt-2"),
            ("tokens", ARRAY, (STRING, tok["tokens"] + [f"[PAD{i}]" for i in extra])),
            ("token_type", ARRAY, (I32, tok["types"] + [UNUSED for _ in extra])),
            ("merges", ARRAY, (STRING, tok["merges"])),
            *((k, U32, e) for k, e in ends.items()),
            ("add_bos_token", BOOL, False)]]
    # llama.cpp's own converter keeps vectors and positions in float32. Not every version of
    # llama.cpp knows a tied head: it is written.
    table = tensors(cfg, [HEAD])
    table = table[:2] + table[-3:-1] + table[2:-3] + table[-1:]
    kinds = ["f32" if len(s) == 1 or hf == "wpe.weight" else kind for hf, _, s in table]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(keys))
    head += b"".join(string(k) + struct.pack("<I", t) + pack[t](v) for k, t, v in keys)
    at, padded = 0, lambda data: data + b"\0" * (-len(data) % 32)
    for (_, g, shape), k in zip(table, kinds):
        head += string(g) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1],
                                        TYPES[k][2], at)
        at += -(-math.prod(shape) * np.dtype(TYPES[k][0]).itemsize // 32) * 32
    w = dict(w, **{HEAD[0]: w["wte.weight"]})
    write(path, [padded(head)], (padded(as_type(w[hf], k, hf).tobytes())
                                 for (hf, _, _), k in zip(table, kinds)))

# --- the command line -----------------------------------------------------------------------------

def stem(path):
    return os.path.basename(os.path.abspath(path)).split(".")[0]

def map_file(path, least=24):
    check(os.path.isfile(path) and os.path.getsize(path) >= least, path,
          f"no file, or below {least} bytes: cut short?")
    return np.memmap(path, np.uint8, "r")

undo = []       # what to call, and with which path, if all that was written is to be removed again

def write(path, *parts):
    if os.path.lexists(path):
        raise FileExistsError(17, "exists; remove it or choose another name", path)
    try:
        with open(path + ".tmp", "wb") as f:
            for part in (p for ps in parts for p in ps):
                f.write(np.ascontiguousarray(part).data if hasattr(part, "dtype") else part)
        os.rename(path + ".tmp", path)
        undo.append((os.remove, path))
    finally:
        if os.path.lexists(path + ".tmp"):
            os.remove(path + ".tmp")

def reader_of(path):
    """By content, whatever the name."""
    if os.path.isdir(path):
        return read_hf
    start = map_file(path)[:9].tobytes()
    reader = {b"GGUF": read_gguf, struct.pack("<i", 20240326): read_llmc}.get(start[:4])
    check(reader or start[8:] == b"{", path, f"begins with {start[:4]!r}: neither safetensors nor "
          "GGUF nor a model of llm.c")
    return reader or read_hf

def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("input", metavar="IN")
    p.add_argument("output", metavar="OUT")
    p.add_argument("--type", choices=("f32", "bf16", "f16"))
    p.add_argument("--tokenizer", metavar="FOLDER|FILE")
    a = p.parse_args()
    extension = os.path.splitext(a.output)[1]
    try:
        cfg, w, tok, name = reader_of(a.input)(a.input)
        tok = read_tokenizer(a.tokenizer, cfg, True) if a.tokenizer else tok
        check(not tok or len(tok["tokens"]) <= cfg["V"], a.tokenizer or a.input,
              f"{len(tok['tokens']) if tok else 0} tokens, the model has {cfg['V']}")
        kind = {"<f4": "f32", "<u2": "bf16", "<f2": "f16"}.get(w["wte.weight"].dtype.str, "f32")
        writer = {".gguf": write_gguf, ".bin": write_llmc}.get(extension, write_hf)
        writer(a.output, cfg, w, tok, name, a.type or kind)
        undo.clear()
    except (Bad, OSError) as e:
        print(f"error: {e}" if isinstance(e, Bad) else
              f"error: {e.filename or a.output}: {e.strerror}", file=sys.stderr)
        return 3 if isinstance(e, Bad) else 4
    finally:
        for remove, path in reversed(undo):
            remove(path)
    print(f"{a.output}: {len(w)} tensors of {a.input}, {a.type or kind}, " + (
        f"{len(tok['tokens'])} tokens" if tok and extension != ".bin" else "no tokenizer"))
    return 0

if __name__ == "__main__":
    sys.exit(main())
