#!/usr/bin/env python3
"""What a training step of train_gpt.cu takes on a card: FLOPs, bytes, launches, time, op by op.

  speed_model.py --gpu h200 --model d12 --batch 64 --seq 1024     a row for each op, then the sums
  speed_model.py --gpu h100 --gpus 8 --micro_batches 4 --recompute 1 ...    on one node, ZeRO-1
  speed_model.py --kernels llmc ...         llm.c's set of kernels instead (fused: what we aim at)
  speed_model.py --measured bench.txt ...   with what dev/cuda/bench.cu printed on the card
  speed_model.py --check                    held against figures that are known; exit code 1 if off

An op takes max(FLOPs / rate, bytes / bandwidth). It reads each input once and writes each output
once; caches are not counted. "roofline": the rates of a large product and of a copy. "expected":
the shares of them that --efficiency names. Both from dev/cuda/cards.json, with their sources.
The ops of `ours` are those that sections 8 and 10 of train_gpt.cu call: edit both together.
"""
import argparse, json, math, os, re, subprocess, sys
from dataclasses import dataclass, replace

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = json.load(open(os.path.join(ROOT, "dev/cuda/cards.json")))
CARDS, RATES, KNOWN = TABLE["cards"], TABLE["efficiencies"], TABLE["known"]
SETS = {"ours": "ours", "llmc": "llmc", "fused": "goal"}    # kernels, and their --efficiency
SIZES = {"bf16": 2, "fp32": 4}                              # bytes of a floatX
row = re.compile(r'\{ "([a-z0-9:]+)", (\d+), (\d+), (\d+), (\d+) \}')   # the presets of --model
MODELS = {m[1]: tuple(map(int, m.groups()[1:]))                         # name: L, NH, C, maxT
          for m in row.finditer(open(os.path.join(ROOT, "train_gpt.c")).read())}

@dataclass
class Step:
    """What is trained and how; sizes under the names of train_gpt.cu."""
    L: int; NH: int; C: int; maxT: int; B: int = 64; T: int = 1024; V: int = 50257
    kernels: str = "ours"; precision: str = "bf16"; recompute: int = 0; gpus: int = 1
    micro_batches: int = 1      # of one GPU in one step
    rows: int = 4096            # of logits at a time: HEAD_ROWS in section 1

    def __post_init__(s):
        s.N, s.Vp, s.s = s.B * s.T, (s.V + 127) // 128 * 128, SIZES[s.precision]
        s.x = s.s * s.N * s.C                           # bytes of a (N,C) floatX
        s.ours, s.llmc = s.kernels == "ours", s.kernels == "llmc"
        s.g = 4 if s.ours else s.s                      # bytes of a gradient
        s.rows = min(s.N, s.rows) if s.ours else s.N
        s.first, s.layer = (s.Vp + s.maxT) * s.C, 12 * s.C**2 + 13 * s.C    # parameters
        s.params = s.first + s.L * s.layer + 2 * s.C
        s.runs = s.micro_batches & -s.micro_batches     # 2^levels: summed pairwise, section 10
        s.adds = 1 - s.runs / s.micro_batches if s.ours else 1  # share of dweights added to others
    def flops_per_token(s):     # of a step, as section 14 of train_gpt.c has it
        return 3 * (2 * (12 * s.L * s.C**2 + s.V * s.C) + 2 * s.L * s.C * (s.T + 1))

@dataclass
class Op:
    part: str           # forward, backward, update
    name: str
    calls: int          # in a micro-batch; of an update: in a step
    flops: float        # of a call, as all that follows
    bytes: float
    kind: str           # memory, product, attention
    depth: int = 0      # of a product: the length of its sums; of attention: 0 forward, 1 backward
    own: int = 1        # launches of own kernels, memset included
    useful: float = 0   # those of the FLOPs that flops_per_token counts
    bench: str = ""     # the row of dev/cuda/bench.cu that times it
    one = 1             # to count calls. model() adds roofline_us, expected_us and bound

def memory(part, name, calls, bytes, own=1, bench=""):
    return Op(part, name, calls, 0, bytes, "memory", 0, own, 0, bench)
def product(s, part, name, calls, m, n, k, out, bench, useful=1):   # out: bytes beside operands
    flops, bytes = 2 * m * n * k, s.s * (m * k + k * n) + out
    return Op(part, name, calls, flops, bytes, "product", k, 0, flops * useful, bench)
def attention(s, part, name, products, useful, bytes, bench=""):    # causal
    flops = products * s.N * (s.T + 1) * s.C
    depth, counted = int(products > 2), flops * useful
    return Op(part, name, s.L, flops, bytes, "attention", depth, 1, counted, bench)

# out (N, OC) = in (N, IC) weight: IC, OC in units of C, and what bench.cu has beside the name
MATMULS = {"qkv": (1, 3, ""), "attproj": (1, 1, " + residual"), "fc": (1, 4, " + gelu"),
           "fcproj": (4, 1, " + residual")}

def layers_forward(s, part="forward", useful=1):    # gpt_layer_forward, L times
    ops = [memory(part, "residual + layernorm" if s.llmc else "layernorm", 2 * s.L,
                  (4 if s.llmc else 2) * s.x + 8 * s.N, bench="layernorm")]
    for name, (IC, OC, more) in MATMULS.items():    # beside out: residual, or gelu's argument
        extra = 0 if s.llmc or not more else 4 if name == "fc" else 1
        ops.append(product(s, part, name, s.L, s.N, OC * s.C, IC * s.C, (OC + extra) * s.x,
                           f"matmul {name}{more}", useful))
        if name == "qkv": ops.append(attention(s, part, "attention", 2, useful,
                                               4 * s.x + 4 * s.N * s.NH, "attention"))
        if name == "fc" and s.llmc: ops.append(memory(part, "gelu", s.L, 8 * s.x))
    return ops

def matmul_backward(s, name):
    IC, OC, bench = *MATMULS[name][:2], f"matmul {name} backward"
    dinp = (2 if name == "fcproj" and not s.llmc else 1) * IC * s.x     # with gelu's argument
    dweight = s.g * IC * OC * s.C**2 * (1 + s.adds)     # dbias: an epilogue of it
    ops = [product(s, "backward", f"{name} dinp", s.L, s.N, IC * s.C, OC * s.C, dinp, bench),
           product(s, "backward", f"{name} dweight", s.L, IC * s.C, OC * s.C, s.N, dweight, bench)]
    if s.ours and s.adds:                               # which cannot add
        ops.append(memory("backward", f"{name} dbias added", s.L * s.adds, 12 * OC * s.C, 1, bench))
    return ops

def attention_backward(s):
    heads, bench = 4 * s.N * s.NH, "attention backward"
    if s.ours: return [     # S and dP twice: 7 products for the 4 that flops_per_token counts
        memory("backward", "attention rowsums", s.L, 2 * s.x + 3 * heads, bench=bench),
        attention(s, "backward", "attention dq", 3, 4 / 7, 5 * s.x + 2 * heads, bench),
        attention(s, "backward", "attention dk, dv", 4, 4 / 7, 6 * s.x + 2 * heads, bench)]
    return [attention(s, "backward", bench, 5, 4 / 5, 8 * s.x + heads)]

def layers_backward(s):     # gpt_layer_backward, L times; the last layernorm as well
    ops = layers_forward(s, "backward", 0) if s.recompute == 3 else []
    if s.recompute == 2: ops.append(memory("backward", "layernorm again", 2 * s.L,
                                           2 * s.x + 8 * s.N, bench="layernorm"))
    if s.recompute in (1, 2): ops.append(memory("backward", "gelu again", s.L, 8 * s.x))
    ops += matmul_backward(s, "fcproj") + matmul_backward(s, "fc")
    is_wide = s.ours and s.C > 8 * 32 * 16 // s.s       # layernorm_backward then takes two passes
    slices = min(math.ceil(s.N / 8), 256) * s.C * 16 if s.ours else 0
    norm = (6 if is_wide else 4) * s.x + 8 * s.N + slices
    ops.append(memory("backward", "layernorm backward", 2 * s.L + 1, norm, 2 + is_wide,
                      "layernorm backward"))
    ops += matmul_backward(s, "attproj") + attention_backward(s) + matmul_backward(s, "qkv")
    if s.llmc: ops += [memory("backward", name, s.L, count * s.x) for name, count in
                       (("attention's sums, cast", 6), ("gelu backward", 12), ("dbias, of 4", 9))]
    return ops

def head(s):    # gpt_head, rows of logits at a time
    n, rows, C, Vp, real = math.ceil(s.N / s.rows), s.rows, s.C, s.Vp, s.V / s.Vp
    logits, dweight = s.s * rows * Vp, s.g * Vp * C * (1 + (n - 1 + s.adds) / n)
    dinp, bench = s.s * rows * C, "head backward"
    return [product(s, "forward", "head", n, rows, Vp, C, logits, "head", real),
            memory("forward", "classifier", n, 2 * logits, bench="classifier"),
            product(s, "backward", "head dinp", n, rows, C, Vp, dinp, bench, real),
            product(s, "backward", "head dweight", n, Vp, C, rows, dweight, bench, real)]

def update(s):  # gpt_bucket_done, gpt_grad_norm, gpt_update; adamw: what decays and what does not
    P, own = s.params, s.params / s.gpus
    adamw = (s.g + (26 if s.s == 2 else 24)) * own  # m, v and the fp32 weights read and written
    more = [memory("update", "zero gradients", 1, s.g * P)] if s.llmc else \
        [memory("update", "sums of micro-batches", s.runs - 1, 12 * P, s.L + 2)] * (s.runs > 1)
    return [memory("update", "norm", 1, s.g * own, s.L + 2, "norm of a layer"),
            memory("update", "adamw", 1, adamw, 2 * s.L + 2, "adamw of a layer"), *more]

def ops_of(s):
    tables = s.x + 8 * min(s.N, s.V) * s.C + 4 * s.T * s.C if s.ours else 2 * s.first
    return [memory("forward", "embedding", 1, 2 * s.x, bench="embedding"), *layers_forward(s),
        memory("forward", "last layernorm", 1, 2 * s.x + 8 * s.N, bench="layernorm"), *head(s),
        memory("forward", "sum of losses", 1, 4 * s.N),
        memory("backward", "zero dx", 1, 0 if s.kernels == "fused" else s.x), *layers_backward(s),
        memory("backward", "embedding backward", 1, s.x + tables, 4, "embedding backward"),
        *update(s)]
# --- time -----------------------------------------------------------------------------------------
def duration(op, s, card, how):     # us, and what bounds it
    peak = card["product_tflops" if s.s == 2 else "fp32_tflops"]
    rate = peak * next(x for depth, x in how["products"] if op.depth <= depth)
    if op.kind == "attention" and "attention" in how:   # else plain kernels: a guess, not measured
        rate = card["attention_tflops"][op.depth] * how["attention"][op.depth] if s.s == 2 and \
            s.C // s.NH in (64, 128) else 0.1 * card["fp32_tflops"]
    compute, moved = op.flops / rate * 1e-6, op.bytes / (card["copy_gbs"] * how["memory"]) * 1e-3
    us = max(compute, moved, op.own * how["launch_us"])
    return us, "compute" if compute > moved else "memory"

def read_measured(path, s, card):   # row of bench.cu -> share of the roofline that it reached
    text, shares = open(path).read(), {}
    shape = re.search(r"(bf16|fp32): B=(\d+) T=(\d+) C=(\d+) NH=(\d+) V=(\d+) L=(\d+)\n", text)
    if not shape or shape[1] != s.precision:
        sys.exit(f"speed_model.py: {path}: not what bench.cu prints where built for {s.precision}")
    B, T, C, NH, V, L = map(int, shape.groups()[1:])
    timed = Step(L, NH, C, T, B, T, V, precision=s.precision)
    for name, us in re.findall(r"^(\w.{25}) +([\d.]+) +\d+ +\d+ ", text, re.M):
        of_row = [op for op in ops_of(timed) if op.bench == name.strip()]
        if name.startswith("layernorm  "): of_row = of_row[:1]  # layers' and last one: the same
        best = sum(duration(op, timed, card, RATES["roofline"])[0] for op in of_row)
        if "of a layer" in name: best *= 12 * C**2 / timed.params
        if best > 0 and float(us) > 0: shares[name.strip()] = best / float(us)
    return shares

def by(ops, what):      # sums over the calls, of each part and of each kind
    return {key: sum(op.calls * getattr(op, what) for op in ops if key in (op.part, op.kind))
            for key in ("forward", "backward", "update", "memory", "product", "attention")}

def step_time(s, ops, what, gbs, copy_gbs):     # what: roofline_us, expected_us
    us, share = by(ops, what), (s.gpus - 1) / s.gpus    # of gradients scattered, weights gathered
    sums = 12 / copy_gbs if s.ours else 0       # over ranks: NCCL's, or kernels of ours
    scatter = lambda count: count * share * (s.g / gbs + sums) * 1e-3
    gather = s.s * s.params * share / gbs * 1e-3
    # Layers hide behind backward; the embeddings' gradients come last, behind nothing; the weights
    # hide behind adamw, bucket by bucket. llm.c gathers them afterwards.
    beside = 0 if s.llmc else sum(getattr(op, what) for op in ops if op.name == "adamw")
    alone = scatter(s.first) + max(0, scatter(s.params - s.first) - us["backward"]) + \
        max(0, gather - beside)
    step = s.micro_batches * (us["forward"] + us["backward"]) + us["update"] + alone
    rate = s.N * s.micro_batches / step * 1e6   # tokens a second of one GPU
    llmc = 6 * s.params + 6 * s.L * s.C * s.T    # FLOPs of a token, as llm.c counts
    return {"ms": step * 1e-3, "tokens_per_s": rate * s.gpus,
            "flops_per_s": rate * s.flops_per_token(), "llmc_flops_per_s": rate * llmc,
            "exchange_ms": (scatter(s.params) + gather) * 1e-3, "exchange_alone_ms": alone * 1e-3}

def memory_bytes(s):    # of a GPU: section 7.3's buffers, without the scratch of the ops
    kept, r, c = (lambda is_kept: s.L if is_kept else 1), s.recompute, s.s * s.C
    acts = (s.L + 8) * c + 12 + kept(r < 3) * (9 * c + 16 + 4 * s.NH) + kept(r < 2) * 2 * c + \
        kept(r < 1) * 4 * c     # of a token
    buffers = s.runs.bit_length() if s.ours else 1  # levels + 1
    return {"weights": s.s * s.params, "gradients": s.g * s.params * buffers,
            "m, v, master": (12 if s.s == 2 else 8) * s.params / s.gpus,
            "inbox": 4 * max(s.first, s.layer) * (s.gpus - 1) / s.gpus if s.ours else 0,
            "activations": acts * s.N + s.s * s.rows * s.Vp}

def model(s, card, how, measured={}):
    ops, deeper = ops_of(s), ops_of(replace(s, L=s.L + 1))
    for op in ops:
        op.roofline_us, op.bound = duration(op, s, card, RATES["roofline"])
        op.expected_us = op.roofline_us / measured[op.bench] if op.bench in measured else \
            duration(op, s, card, how)[0]
    names = "flops useful bytes own one roofline_us expected_us".split()
    own = [by(of, "own")["forward"] + by(of, "own")["backward"] for of in (ops, deeper)]
    return ops, {"sums": {name: by(ops, name) for name in names}, "own_a_layer": own[1] - own[0],
        "roofline": step_time(s, ops, "roofline_us", card["link_gbs"], card["copy_gbs"]),
        "expected": step_time(s, ops, "expected_us", card["link_reached_gbs"], card["copy_gbs"]),
        "memory": memory_bytes(s)}
# --- what is printed ------------------------------------------------------------------------------
def show(s, card, ops, t, source):
    names = ("GFLOP", "MB", "roofline us", "expected us", "all calls ms")
    print(f"{'part':9}{'op':22}{'calls':>6}{''.join(f'{x:>13}' for x in names)}  bound by")
    for o in ops:
        values = (o.flops * 1e-9, o.bytes * 1e-6, o.roofline_us, o.expected_us,
                  o.expected_us * o.calls * 1e-3)
        print(f"{o.part:9}{o.name:22}{o.calls:6}{''.join(f'{x:13.2f}' for x in values)}  {o.bound}")
    sums, GB = t["sums"], lambda bytes: f"{bytes * 1e-9:.1f} GB"
    flops, useful, moved, own = (sums[what]["forward"] + sums[what]["backward"]
                                 for what in ("flops", "useful", "bytes", "own"))
    slow = sum(op.calls * op.bytes for op in ops if (op.kind, op.bound) == ("product", "memory"))
    print(f"flops     {flops*1e-12:.2f} TFLOP a micro-batch, {useful*1e-12:.2f} the model's\n"
          f"bytes     {GB(moved)} a micro-batch, {GB(sums['bytes']['update'])} an update; of both "
          f"{GB(sums['bytes']['memory'])} by memory-bound kernels\n          (goal at d12, B = 64: "
          f"33), and {GB(slow)} by products that memory bounds\n"
          f"launches  {t['own_a_layer']} own kernels a layer (goal: 12), {own} a micro-batch, "
          f"{sums['own']['update']} an update; {sums['one']['product']} products a micro-batch\n"
          f"logits    {s.s*s.rows*s.Vp*1e-6:.1f} MB at a time; L2 has {card['l2_mb']} MB")
    peak = 1e12 * card["bf16_tflops" if s.s == 2 else "fp32_tflops"]
    for name in "roofline", "expected":
        r, ms = t[name], {kind: us * 1e-3 for kind, us in sums[name + "_us"].items()}
        print(f"{name:9} {r['ms']:.1f} ms a step, {r['tokens_per_s']:.0f} tok/s, MFU "
              f"{r['flops_per_s']/peak:.1%} ({r['llmc_flops_per_s']/peak:.1%} as llm.c counts)\n"
              f"          a micro-batch and an update: products {ms['product']:.1f} ms, attention "
              f"{ms['attention']:.1f}, memory-bound {ms['memory']:.1f}; exchange in a step "
              f"{r['exchange_ms']:.2f}, {r['exchange_alone_ms']:.2f} of it beside nothing")
    print(f"memory    {GB(sum(t['memory'].values()))} of {card['memory_gb']}: " +
          ", ".join(f"{what} {GB(size)}" for what, size in t["memory"].items()))
    print(f"rates     {source}\ncard      {' '.join(card['source'])}")

def check():
    bad = []
    def hold(what, got, wanted, within=1e-12):
        if abs(got / wanted - 1) > within: bad.append(what)
        if within > 1e-12: print(f"{what}: {got:.6g}, wanted {wanted:.6g} within {within:.1%}")
    for k in KNOWN:
        s = Step(*MODELS[k["model"]], **k["step"])
        t = model(s, CARDS[k["card"]], RATES[k["efficiency"]])[1]
        hold(k["of"], t["expected"]["ms"], k["is"], k["within"])
    total = lambda ops, what: sum(op.calls * getattr(op, what) for op in ops)
    for case in ((kernels, r) for kernels in SETS for r in range(4)):
        s = Step(3, 12, 768, 1024, kernels=case[0], recompute=case[1], micro_batches=2)
        of = [ops_of(replace(s, L=L)) for L in (1, 2, 3)]
        hold(f"{case}: FLOPs of the model", total(of[2], "useful"), s.N * s.flops_per_token())
        for what in "flops", "bytes", "own", "one":     # linear in L
            a, b, c = (total(ops, what) for ops in of)
            hold(f"{case}: {what} of 3 layers", c, 2 * b - a)
        hold(f"{case}: rows of 3 layers", len(of[2]), len(of[0]))
    # EMU_PROFILE=1 counts 52 kernels in this step; 2 memsets come on top
    hold("launches", total(ops_of(Step(3, 2, 128, 64, 10, 64, 257)), "own"), 54)
    program = os.path.join(ROOT, "train_gpt")
    if not os.path.exists(program): print("train_gpt is not built: its --plan is left out")
    else:
        flags = "--plan --json --model d12 --batch_size 64 --seq_len 1024 --recompute 1"
        plan = json.loads(subprocess.check_output([program, *flags.split()]))
        s = Step(*MODELS["d12"], precision="fp32", recompute=1, rows=512)   # a CPU's
        hold("--plan: FLOPs of a token", s.flops_per_token(), plan["flops_per_token"])
        for what in "gradients", "activations":         # but for padding
            hold(f"--plan: bytes of {what}", memory_bytes(s)[what], plan["buffers"][what], 1e-3)
    sys.exit("speed_model.py: off: " + "; ".join(bad) if bad else 0)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options = {"gpu": ("h200", CARDS), "model": ("d12", MODELS), "batch": (64, None),
               "seq": (1024, None), "recompute": (0, range(4)), "gpus": (1, None),
               "micro_batches": (1, None), "head_rows": (4096, None), "precision": ("bf16", SIZES),
               "kernels": ("ours", SETS), "efficiency": ("", RATES), "measured": ("", None)}
    for name, (value, choices) in options.items():
        p.add_argument("--" + name, type=type(value), default=value, choices=choices)
    for name in "json", "check": p.add_argument("--" + name, action="store_true")
    a = p.parse_args()
    if a.check: check()
    if min(a.batch, a.seq, a.gpus, a.micro_batches, a.head_rows) < 1 or a.seq > MODELS[a.model][3]:
        p.error(f"a count is below 1, or --seq above the {MODELS[a.model][3]} of {a.model}")
    if a.kernels != "ours" and (a.precision, a.measured) != ("bf16", ""):
        p.error(f"--kernels {a.kernels} goes without --precision fp32 and --measured")
    s = Step(*MODELS[a.model], a.batch, a.seq, 50257, a.kernels, a.precision, a.recompute, a.gpus,
             a.micro_batches, a.head_rows)
    card, how = CARDS[a.gpu], RATES[a.efficiency or SETS[a.kernels]]
    measured = read_measured(a.measured, s, card) if a.measured else {}
    source = f"{len(measured)} rows of {a.measured}, else " * bool(measured)
    ops, t = model(s, card, how, measured)
    if a.json: print(json.dumps({"arguments": vars(a), "ops": [vars(op) for op in ops], **t}))
    else: show(s, card, ops, t, source + " ".join(how["source"]))

if __name__ == "__main__": main()
