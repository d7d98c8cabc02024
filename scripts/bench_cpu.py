#!/usr/bin/env python3
"""Times a training step of train_gpt and of PyTorch side by side, and holds their losses together.

  bench_cpu.py --quick                  all cases, a few steps of each
  bench_cpu.py --cases recipe,d12 --matmul fp32 --json FILE

Both start from the same weights, take the same batches and learning rates, and must agree on the
loss of every step. They take turns of some steps; one is stopped while the other runs. "1.5x": as
long as train_gpt, median (and range) over the rounds of the ratio of their medians. The peer is the
fastest of several settings of PyTorch, chosen once for small and once for large models. Exit codes:
1 losses disagree, 2 usage, 3 a program failed. OMP_WAIT_POLICY=passive helps both on a busy one.
"""
import argparse, atexit, ctypes.util, json, math, os, re, shlex, shutil, signal, subprocess, sys
import tempfile, time
from statistics import median

# Flags of train_gpt; steps and rounds in full; the same with --quick.
CASES = {
    "tiny": (["--layers", "2", "--channels", "64"], (122, 3), (42, 2)),    # shows that all works
    "recipe": ([], (2000, 10), (122, 3)),                                  # train_gpt's defaults
    "d12": (["--model", "d12", "--batch_size", "4", "--seq_len", "64"], (26, 4), (10, 2)),
    "d12_long": (["--model", "d12", "--batch_size", "4", "--seq_len", "1024"], (8, 2), (4, 1)),
    "d24": (["--model", "d24", "--batch_size", "4", "--seq_len", "64"], (14, 3), (6, 1)),
}
WARMUP = 2      # steps before the first round, which touch memory for the first time
TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}    # of a loss; autocast is off its own fp32 by 1.2e-2
MALLOC = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:"     # large pages; keep what was freed
          "glibc.malloc.trim_threshold=137438953472:glibc.malloc.top_pad=268435456")
# Sends PyTorch 1.13's fp32 products to oneDNN instead of BLAS; row-major, so A and B change places.
SGEMM_BY_ONEDNN = """
int dnnl_sgemm(char, char, long, long, long, float, float*, long, float*, long, float, float*,long);
void sgemm_(char *ta, char *tb, int *M, int *N, int *K, float *alpha, float *A, int *lda, float *B,
            int *ldb, float *beta, float *C, int *ldc) {
    dnnl_sgemm(*tb, *ta, *N, *M, *K, *alpha, B, *ldb, A, *lda, *beta, C, *ldc);
}
"""

# --- PyTorch: this file starts itself with --worker JSON ------------------------------------------

def make_loss(torch, w, L, NH, C, T):
    """GPT-2 in plain PyTorch; w: weights by name, linear ones (out, in)."""
    F, future = torch.nn.functional, torch.full((T, T), -math.inf).triu(1)  # added to the scores

    both = lambda name: (w[name + ".weight"], w[name + ".bias"])
    def attention(qkv):                                                     # (B,T,3C)
        q, k, v = qkv.view(-1, T, 3, NH, C // NH).permute(2, 0, 3, 1, 4)    # each (B,NH,T,HS)
        if hasattr(F, "scaled_dot_product_attention"):                      # PyTorch 2
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q, k, v = (t.reshape(-1, T, C // NH) for t in (q, k, v))
            scores = torch.baddbmm(future, q, k.transpose(1, 2), alpha=(C // NH) ** -0.5)
            y = torch.bmm(scores.softmax(2), v).view(-1, NH, T, C // NH)    # scores (B*NH,T,T)
        return y.transpose(1, 2).reshape(-1, T, C)
    def loss_of(inputs, targets):
        x = F.embedding(inputs, w["wte.weight"]) + w["wpe.weight"][:T]      # (B,T,C)
        for h in (f"h.{l}." for l in range(L)):
            qkv = F.linear(F.layer_norm(x, (C,), *both(h + "ln_1")), *both(h + "attn.c_attn"))
            x = x + F.linear(attention(qkv), *both(h + "attn.c_proj"))
            fc = F.linear(F.layer_norm(x, (C,), *both(h + "ln_2")), *both(h + "mlp.c_fc"))
            x = x + F.linear(F.gelu(fc, approximate="tanh"), *both(h + "mlp.c_proj"))
        logits = F.linear(F.layer_norm(x, (C,), *both("ln_f")), w["wte.weight"])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss_of

def hash64(x):                      # train_gpt.c, section 4
    x = (x + 0x9e3779b97f4a7c15) % 2**64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2**64
    x = (x ^ x >> 27) * 0x94d049bb133111eb % 2**64
    return x ^ x >> 31

def permute(i, count, key):         # section 4
    half = next(h for h in range(1, 33) if h == 32 or 4**h >= count)
    left, right = i >> half, i % 2**half
    for k in range(key, key + 4):
        left, right = right, left ^ hash64(hash64(k % 2**64) ^ right) % 2**half
    i = left << half | right
    return i if i < count else permute(i, count, key)

def batch_at(f, text, step):        # section 11: B windows of T + 1 tokens
    B, T = f["batch_size"], f["seq_len"]
    count = (len(text) - int(len(text) * f["val_fraction"]) - 1) // T
    starts = (permute(sample % count, count, hash64(f["seed"]) + sample // count) * T
              for sample in range(step * B, step * B + B))
    return [list(text[at:at + T + 1]) for at in starts]

def lr_at(f, step):                 # section 10, cosine
    lr, final, warmup = f["lr"], f["lr"] * f["final_lr_fraction"], f["warmup_steps"]
    wave = math.cos(math.pi * (step - warmup) / max(1, f["steps"] - warmup))
    return lr * (step + 1) / warmup if step < warmup else final + (lr - final) * (1 + wave) / 2

def worker(f):
    """Trains as the flags f of train_gpt say, and prints its steps as train_gpt logs them."""
    import reference, torch
    L, C, T, V = f["layers"], f["channels"], f["seq_len"], f["vocab_size"] or 257
    cfg = dict(n_layer=L, n_embd=C, n_positions=f["max_seq_len"] or T, vocab_size=V)
    w = {name: t.requires_grad_() for name, t in reference.init(cfg, "pytorch", f["seed"]).items()}
    groups = [dict(params=[t for t in w.values() if (t.dim() >= 2) == is_matrix],
                   weight_decay=f["weight_decay"] * is_matrix) for is_matrix in (True, False)]
    is_new = [int(n) for n in torch.__version__.split(".")[:2]] >= [2, 4]
    opt = torch.optim.AdamW(groups, betas=(f["beta1"], f["beta2"]), eps=f["eps"],
                            **(dict(fused=True) if is_new else {}))
    text, loss_of = open(f["train"], "rb").read(), make_loss(torch, w, L, f["heads"], C, T)
    if f.get("compile"):
        loss_of = torch.compile(loss_of)
    for step in range(f["steps"]):
        tokens = torch.tensor(batch_at(f, text, step))
        start = time.perf_counter()
        for g in opt.param_groups:
            g["lr"] = lr_at(f, step)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=f.get("matmul") == "bf16"):
            loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), f["grad_clip"])
        opt.step()
        ms = 1e3 * (time.perf_counter() - start)
        print(json.dumps(dict(loss=loss.item(), ms=ms)), flush=True)

# --- programs, of which one runs at a time --------------------------------------------------------

def stop(code, message):
    print(f"bench_cpu.py: {message}", file=sys.stderr)
    sys.exit(code)

def output_of(*command, env=None):
    return subprocess.run(command, capture_output=True, text=True, env=env).stdout

class Program:
    """A process that prints a line for each step, and is stopped but for the calls of steps()."""
    def __init__(self, name, command, env, folder=None):
        self.name, self.losses, self.rounds, self.lines = name, [], [], ["no message"]
        self.process = subprocess.Popen(command, env=env, cwd=folder, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        atexit.register(self.end)
        self.process.send_signal(signal.SIGSTOP)

    def steps(self, count):
        """Runs so many steps and returns the ms of all but the first, in which it was stopped."""
        self.process.send_signal(signal.SIGCONT)
        ms = []
        while len(ms) < count:      # a line of a log, or of llm.c: train loss 5.35 (took 4166.2 ms
            line = self.process.stdout.readline()
            if not line:
                stop(3, f"{self.name} ended with code {self.process.wait()}: {self.lines[-1]}")
            self.lines.append(line.strip())
            found = re.search(r'loss"?:? ?([^ ,]+).*("ms":|took) ?([\d.e+-]+)', line)
            if found:
                self.losses.append(float(found[1].replace("null", "nan")))
                ms.append(float(found[3]))
        self.process.send_signal(signal.SIGSTOP)
        return ms[1:]

    def end(self):
        self.process.kill()
        self.process.wait()

def find_options(folder):
    """What may make PyTorch faster: environment variables by name."""
    options = {"AVX-512 ops": {"ATEN_CPU_CAPABILITY": "avx512"}}
    for file in output_of("sh", "-c", "dpkg -L libopenblas0-openmp").split():
        if file.endswith("/libopenblas.so.0"):
            options["OpenBLAS with OpenMP"] = {"LD_LIBRARY_PATH": os.path.dirname(file)}
    library, dnnl = folder + "/sgemm.so", ctypes.util.find_library("dnnl")
    build = ["sh", "-c", f"cc -O2 -shared -fPIC -x c - -o {library} -l:{dnnl}"]
    subprocess.run(build, input=SGEMM_BY_ONEDNN, text=True, capture_output=True)
    if os.path.exists(library):
        options["sgemm by oneDNN"] = {"LD_PRELOAD": library}
    return options

def choose(start_peer, options, steps):
    """Tries one option after the other, in turns with the best so far; keeps it if it is faster."""
    label, setting, tried = "tuned malloc", {"GLIBC_TUNABLES": MALLOC}, {}
    best = start_peer(label, setting, steps=10**9)
    for name, variables in options.items():
        peer = start_peer(f"{label} + {name}", {**setting, **variables}, steps=10**9)
        turns = [best.steps(1 + steps) + peer.steps(1 + steps) for _ in range(3)][1:]
        old, new = (min(sum((t[i:i + steps] for t in turns), [])) for i in (0, steps))
        tried[peer.name] = dict(ms=new, best_so_far_ms=old)
        print(f"    tried {new:9.1f} ms, best so far {old:9.1f} ms: {peer.name}", flush=True)
        if new < old:
            best, peer, label, setting = peer, best, f"{label} + {name}", {**setting, **variables}
        peer.end()
    best.end()
    return label, setting, tried

# --- one case -------------------------------------------------------------------------------------

def run_case(a, name, matmul, plan, peak_flops):
    flags, (steps, rounds) = CASES[name][0], CASES[name][2 if a.quick else 1]
    steps = a.recipe_steps if a.recipe_steps and name == "recipe" else steps
    print(f"\n{name} {matmul}: {plan['parameters'] / 1e6:.1f}M parameters, {steps} steps")
    command = [a.program, *flags, "--train", a.train, "--steps", str(steps), "--val_every", "0",
               "--keep", "0", "--log", "/dev/stdout", "--out", f"{a.folder}/{name}_{matmul}"]
    command += ["--matmul", matmul] if matmul != "fp32" else []
    ours = Program("train_gpt", command, a.env)
    ours.steps(1)       # for its flags; it starts again when PyTorch's settings are chosen
    ours.end()
    f = (head := json.loads(next(s for s in ours.lines if '"flags":' in s)))["flags"]
    def start_peer(label, setting, **changes):
        worker_command = [a.python, __file__, "--worker", json.dumps({**f, **changes})]
        return Program("PyTorch, " + label, worker_command, {**a.env, **setting})

    key, trials = ("--model" in flags, matmul), 2 if "--model" in flags else 15
    label, setting, tried = a.best[key] = a.best.get(key) or choose(start_peer, a.options, trials)
    ours = Program("train_gpt", command, a.env)
    programs = [ours, start_peer(label, setting)]
    if a.compile:
        programs.append(start_peer(label + " + compile", setting, compile=True))
    if a.llmc and (name, matmul) == ("d12", "fp32"):
        folder = os.path.dirname(a.llmc)        # where its data is too
        programs.append(Program("llm.c", ["stdbuf", "-oL", a.llmc], a.env, folder))
    bounds = [0] + [WARMUP + (steps - WARMUP) * r // rounds for r in range(rounds + 1)]
    for lo, hi in zip(bounds, bounds[1:]):
        for p in programs:
            p.rounds.append(p.steps(hi - lo))
    rows = [row_of(p, ours, f, plan, peak_flops, TOLERANCE[matmul]) for p in programs]
    return dict(case=name, matmul=matmul, command=shlex.join(command), plan=plan, log=head,
                tried=tried, rows=rows)

def row_of(p, ours, f, plan, peak_flops, tolerance):
    """Prints a row of the table, and returns it with all that it comes from."""
    p.end()
    p.rounds.pop(0)     # the warm-up
    ms = median(sum(p.rounds, []))
    tok_per_s = 1e3 * f["batch_size"] * f["seq_len"] / ms
    of_peak = tok_per_s * plan["flops_per_token"] / peak_flops
    ratios = [median(r) / median(o) for r, o in zip(p.rounds, ours.rounds)]
    print(f"  {ms:9.1f} ms {tok_per_s:8.0f} tok/s {100 * of_peak:4.0f}% of peak "
          f"{median(ratios):6.2f}x ({min(ratios):.2f}..{max(ratios):.2f})  {p.name}", flush=True)
    row = dict(program=p.name, ms=ms, tok_per_s=tok_per_s, of_peak=of_peak, ratios=ratios,
               round_ms=p.rounds, losses=p.losses)
    if p.name.startswith("PyTorch"):
        errors = [abs(x - y) for x, y in zip(ours.losses, p.losses)]
        print(f"      losses of {len(errors)} steps within {max(errors):.1e}, allowed {tolerance}")
        row["bad_steps"] = [k + 1 for k, e in enumerate(errors) if not e <= tolerance]  # or NaN
        for k in row["bad_steps"][:1]:
            print(f"      DISAGREE at step {k}: {ours.losses[k - 1]}, PyTorch {p.losses[k - 1]}")
    return row

# --- the command line -----------------------------------------------------------------------------

def parse():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    p = argparse.ArgumentParser(formatter_class=argparse.RawTextHelpFormatter, description=__doc__)
    p.error = lambda message: stop(2, message)
    p.add_argument("--cases", default="recipe,d12,d12_long,d24", help="of " + ",".join(CASES))
    p.add_argument("--matmul", default="fp32,bf16", help="fp32, bf16, or both")
    p.add_argument("--quick", action="store_true", help="a few steps of each")
    p.add_argument("--recipe_steps", type=int, help="steps of the recipe (2000)")
    p.add_argument("--threads", type=int, default=os.cpu_count(), help="of each program")
    p.add_argument("--compile", action="store_true", help="one more row: torch.compile")
    p.add_argument("--llmc", type=os.path.abspath, help="one more row of d12: llm.c's train_gpt2")
    p.add_argument("--json", metavar="FILE", help="write everything there")
    p.add_argument("--train", metavar="TEXT", help="(what data/get.sh prints)")
    p.add_argument("--program", default=root + "/train_gpt", help="(train_gpt)")
    p.add_argument("--python", help="one that has torch (the first one in PATH)")
    a = p.parse_args()
    a.cases, a.matmul = a.cases.split(","), a.matmul.split(",")
    for word in {*a.cases}.difference(CASES) | {*a.matmul}.difference(TOLERANCE):
        stop(2, f"{word} is not known: cases {', '.join(CASES)}; matmul {', '.join(TOLERANCE)}")
    if min(a.threads, (a.recipe_steps or 50) - 49) < 1:
        stop(2, "wanted: --threads 1 or more, --recipe_steps 50 or more")
    a.train = a.train or output_of("sh", root + "/data/get.sh").strip()
    for path in (a.program, a.train, a.llmc or a.train):
        if not os.path.isfile(path):
            stop(2, f"{path or '--train'}: no such file" + "; run make" * (path == a.program))
    found = [sys.executable] + [f"{folder}/python3" for folder in os.get_exec_path()]
    for a.python in [a.python] if a.python else filter(shutil.which, found):
        a.torch = output_of(a.python, "-c", "import torch; print(torch.__version__)").strip()
        if a.torch:
            return a
    stop(2, "no Python with torch found; name one with --python")

def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # so that atexit ends the programs
    a = parse()
    if a.compile and a.torch < "2":
        stop(2, f"--compile needs PyTorch 2; {a.python} has {a.torch}")
    if "bf16" in a.matmul and "--matmul" not in output_of(a.program, "--help"):
        print("bf16 is skipped: train_gpt has no --matmul")
        a.matmul = [m for m in a.matmul if m != "bf16"]
    a.env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    a.env["OMP_NUM_THREADS"] = str(a.threads)
    cpu = re.search("model name.*: (.*)|$", output_of("cat", "/proc/cpuinfo"))[1] or "unknown CPU"
    plans = {name: json.loads(output_of(a.program, "--plan", "--json", *CASES[name][0], env=a.env))
             for name in a.cases}
    peak_flops = max(plan["peak_flops"] for plan in plans.values())
    report = dict(command=shlex.join(sys.argv), date=time.strftime("%Y-%m-%d %H:%M"), cpu=cpu,
                  threads=a.threads, torch=a.torch, peak_flops=peak_flops)
    print(", ".join(f"{key} {value}" for key, value in report.items()), flush=True)
    try:
        a.json = a.json and open(a.json, "w")       # now: after hours it would be too late
    except OSError as e:
        stop(2, f"--json {a.json}: {e.strerror}")
    with tempfile.TemporaryDirectory() as a.folder:
        a.options, a.best = find_options(a.folder), {}
        report["cases"] = [run_case(a, name, matmul, plans[name], peak_flops)
                           for matmul in a.matmul for name in a.cases]
    if a.json:
        json.dump(report, a.json, indent=1)
        a.json.close()
    sys.exit(any(row.get("bad_steps") for c in report["cases"] for row in c["rows"]))

if __name__ == "__main__":
    worker(json.loads(sys.argv[2])) if sys.argv[1:2] == ["--worker"] else main()
