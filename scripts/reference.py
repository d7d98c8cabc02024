#!/usr/bin/env python3
"""Reference numbers for train_gpt.c from PyTorch (1.13 or newer; nothing else is needed).

  reference.py --out FILE         initial weights, and what ten AdamW steps do to them: logits,
                                  losses, gradients, gradient norms and final weights in float64,
                                  and the losses of the same steps in float32
  reference.py --check FILE       computes FILE's results again from its weights and tokens
  reference.py --dump-init FILE   only the initial weights that --init pytorch draws from --seed

The file is in the safetensors format, its weights have the names and the layout of Hugging Face's
GPT-2. There, linear weights are (in, out): they are transposed on the way to and from the file.
"""
import argparse, ctypes, json, math, struct, sys
import torch
import torch.nn.functional as F

STEPS = 10              # batch k is used at step k
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
WEIGHT_DECAY = 0.1      # of tensors with at least two dimensions, so of the embeddings too
MAX_NORM = 1.0
PREFIX = "transformer."
DTYPES = {"F64": torch.float64, "F32": torch.float32, "I32": torch.int32}


# --- the model: weights are a dict, names without the prefix, linear weights (out, in) -----------

def shapes(cfg):
    C = cfg["n_embd"]
    s = {"wte.weight": (cfg["vocab_size"], C), "wpe.weight": (cfg["n_positions"], C)}
    for l in range(cfg["n_layer"]):
        for name, shape in (("ln_1", (C,)), ("attn.c_attn", (3 * C, C)), ("attn.c_proj", (C, C)),
                            ("ln_2", (C,)), ("mlp.c_fc", (4 * C, C)), ("mlp.c_proj", (C, 4 * C))):
            s[f"h.{l}.{name}.weight"], s[f"h.{l}.{name}.bias"] = shape, shape[:1]
    s["ln_f.weight"], s["ln_f.bias"] = (C,), (C,)
    return s


def init(cfg, how, seed):
    """pytorch: as GPT-2 starts to train, drawn in exactly this order, which train_gpt.c repeats.
    perturbed: no zero biases, no layernorm weights of one, no uniform attention, so that an error
    in any gradient shows."""
    torch.manual_seed(seed)
    w = {}
    for name, shape in shapes(cfg).items():
        is_bias, is_norm = name.endswith("bias"), "ln_" in name
        if how == "perturbed":
            w[name] = torch.empty(shape).normal_(0, 0.1 if is_bias else 0.2)
            w[name] += 1.0 if is_norm and not is_bias else 0.0
        elif is_bias or is_norm:
            w[name] = torch.full(shape, 0.0 if is_bias else 1.0)
        else:
            is_residual = name.endswith("c_proj.weight")    # adds to the residual stream, 2L times
            std = 0.02 / math.sqrt(2 * cfg["n_layer"]) if is_residual else 0.02
            w[name] = torch.empty(shape).normal_(0, std)
    return w


def forward(w, cfg, inputs):
    """Token ids (B,T) -> logits (B,T,V)."""
    (B, T), C, NH = inputs.shape, cfg["n_embd"], cfg["n_head"]

    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def attention(x, h):
        qkv = linear(x, h + "attn.c_attn").view(B, T, 3, NH, C // NH)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                            # each (B,NH,T,HS)
        scores = q @ k.transpose(2, 3) / math.sqrt(C // NH)             # (B,NH,T,T)
        is_future = torch.ones(T, T, dtype=torch.bool).triu(1)
        y = scores.masked_fill(is_future, -math.inf).softmax(3) @ v     # (B,NH,T,HS)
        return linear(y.transpose(1, 2).reshape(B, T, C), h + "attn.c_proj")

    def mlp(x, h):
        return linear(F.gelu(linear(x, h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")

    x = w["wte.weight"][inputs] + w["wpe.weight"][:T]                   # (B,T,C)
    for l in range(cfg["n_layer"]):
        x = x + attention(norm(x, f"h.{l}.ln_1"), f"h.{l}.")
        x = x + mlp(norm(x, f"h.{l}.ln_2"), f"h.{l}.")
    return norm(x, "ln_f") @ w["wte.weight"].T


# --- the numbers ----------------------------------------------------------------------------------

def train(w, cfg, inputs, targets, dtype):
    """STEPS steps computed in dtype. Returns the results under their names in the file."""
    w = {name: t.to(dtype, copy=True).requires_grad_() for name, t in w.items()}
    decayed = [t for t in w.values() if t.dim() >= 2]
    others = [t for t in w.values() if t.dim() < 2]
    groups = dict(params=decayed, weight_decay=WEIGHT_DECAY), dict(params=others, weight_decay=0)
    opt = torch.optim.AdamW(groups, **ADAMW)
    r, losses, norms = {}, [], []
    for k in range(STEPS):
        logits = forward(w, cfg, inputs[k].long())
        loss = F.cross_entropy(logits.flatten(0, 1), targets[k].long().flatten())
        opt.zero_grad()
        loss.backward()
        if k == 0:
            r["logits"] = logits.detach()
            r.update(("grad." + PREFIX + name, t.grad.clone()) for name, t in w.items())
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), MAX_NORM))
        losses.append(loss.detach())
        opt.step()
    r.update(losses=torch.stack(losses), grad_norms=torch.stack(norms))
    r.update(("final." + PREFIX + name, t.detach()) for name, t in w.items())
    return r


def results(w, cfg, inputs, targets):
    losses_f32 = train(w, cfg, inputs, targets, torch.float32)["losses"]
    return dict(train(w, cfg, inputs, targets, torch.float64), losses_f32=losses_f32)


# --- safetensors: u64 length of the header, header in JSON padded with spaces to 8, data ----------

def transposed_if_linear(name, t):
    is_linear = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    return (t.T if is_linear else t).contiguous()


def save(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name in sorted(tensors, key=lambda n: -tensors[n].element_size()):  # keeps all aligned
        t = transposed_if_linear(name, tensors[name])
        raw = ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())
        dtype = next(d for d in DTYPES if DTYPES[d] == t.dtype)
        header[name] = dict(dtype=dtype, shape=list(t.shape),
                            data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    print(f"{path}: {len(tensors)} tensors, {8 + len(text) + len(data)} bytes")


def load(path):
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    start = 8 + struct.unpack_from("<Q", raw)[0]
    header, tensors = json.loads(raw[8:start]), {}
    metadata = header.pop("__metadata__")
    for name, h in header.items():
        offset, count = start + h["data_offsets"][0], math.prod(h["shape"])
        t = torch.frombuffer(raw, dtype=DTYPES[h["dtype"]], count=count, offset=offset)
        tensors[name] = transposed_if_linear(name, t.view(h["shape"]))
    return tensors, metadata


# --- the command line -----------------------------------------------------------------------------

def check(path, seed):
    t, metadata = load(path)
    w = {name[len(PREFIX):]: t[name] for name in t if name.startswith(PREFIX)}
    if "inputs" not in t:       # only initial weights
        for name, ours in init(json.loads(metadata["config"]), "pytorch", seed).items():
            if not (ours - w[name]).abs().max().item() <= 2e-7:
                sys.exit(f"{path}: {name} is not what seed {seed} gives")
        return print(f"{path}: equal to torch {torch.__version__}")
    r = results(w, json.loads(metadata["config"]), t["inputs"], t["targets"])
    for name, ours in r.items():
        # The gradient of the key biases is zero but for rounding (softmax does not see them), and
        # AdamW divides that by little more than eps: their final values are uncertain by 1e-11.
        tolerance = 1e-5 if "_f32" in name else 1e-10 if "final." in name else 1e-12
        if name not in t or t[name].shape != ours.shape:
            sys.exit(f"{path}: {name} is missing or not of shape {list(ours.shape)}")
        error = (ours - t[name]).abs().max().item() / max(ours.abs().max().item(), 1e-3)
        if not error <= tolerance:      # written so that NaN does not pass
            sys.exit(f"{path}: {name} differs by {error:.2g} of its largest, allowed {tolerance:g}")
    print(f"{path}: {len(r)} results agree with torch {torch.__version__}")


def main():
    plain = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    mode = p.add_mutually_exclusive_group(required=True)
    for flag in ("--out", "--check", "--dump-init"):
        mode.add_argument(flag, metavar="FILE")
    for flag, default in dict(layers=2, heads=2, channels=20, vocab=66, positions=9,
                              batch=3, seq=7, seed=1337).items():
        p.add_argument("--" + flag, type=int, default=default, metavar="N", help=f"({default})")
    p.add_argument("--init", choices=("pytorch", "perturbed"), default="perturbed")
    a = p.parse_args()
    if a.check:
        return check(a.check, a.seed)
    if a.channels % a.heads or a.seq > a.positions:
        p.error("--channels must be a multiple of --heads, and --seq at most --positions")
    cfg = dict(n_layer=a.layers, n_head=a.heads, n_embd=a.channels, n_positions=a.positions,
               vocab_size=a.vocab)
    w = init(cfg, "pytorch" if a.dump_init else a.init, a.seed)
    file = {PREFIX + name: w[name] for name in w}
    if a.out:
        tokens = torch.randint(a.vocab, (STEPS, a.batch, a.seq + 1), dtype=torch.int32)
        file.update(inputs=tokens[:, :, :-1].contiguous(), targets=tokens[:, :, 1:].contiguous())
        file.update(results(w, cfg, file["inputs"], file["targets"]))
    meta = dict(format="pt", torch=torch.__version__, config=json.dumps(cfg))
    save(a.out or a.dump_init, file, meta)


if __name__ == "__main__":
    main()
