#!/usr/bin/env python3
"""Loss curves of one or more runs as a picture (matplotlib).

  plot.py LOG... [--out loss.png] [--x step|tokens] [--smooth N]

A LOG is train_gpt's log.jsonl, a folder with one, or llm.c's main.log. Thin lines: training loss, a
mean over N steps (default: a hundredth of the run); thick ones: loss on held-out data. A run that
was resumed repeats steps: the later record counts.
"""
import argparse, json, math, os, re, sys


def add(records, step, values):
    records.setdefault(step, {}).update(values)


def read_jsonl(path, lines):
    """step -> its numbers. A line with flags starts a run, or goes on from its step: what an
    earlier run has written of later steps is void."""
    records = {}
    for number, line in enumerate(lines, 1):
        try:
            r = json.loads(line)
            step = r.pop("step")
        except (ValueError, KeyError, TypeError, AttributeError):
            print(f"{path}: line {number} passed over: not an object with a step", file=sys.stderr)
            continue
        if "flags" in r:
            records = {s: v for s, v in records.items() if s <= step}
        else:
            add(records, step, {k: v for k, v in r.items() if isinstance(v, (int, float))})
    return records


def read_llmc(path, lines):
    """Lines "s:10 tel:9.5" and "s:10 trl:9.6 lr:0.0006 norm:3.1"; eval is HellaSwag."""
    names = dict(trl="loss", tel="val_loss", lr="lr", norm="grad_norm", eval="hellaswag")
    records = {}
    for line in lines:
        pairs = re.findall(r"(\w+):(\S+)", line)
        try:
            if pairs and pairs[0][0] == "s":
                add(records, int(pairs[0][1]), {names[k]: float(v) for k, v in pairs if k in names})
        except ValueError:
            print(f"{path}: passed over, not numbers: {line.strip()}", file=sys.stderr)
    return records


def read_log(path):
    if os.path.isdir(path):
        path = os.path.join(path, "log.jsonl")
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            lines = [line for line in f if line.strip()]
    except OSError as e:
        sys.exit(f"error: {path}: {e.strerror}")
    is_llmc = bool(lines) and re.match(r"s:\d+ ", lines[0]) is not None
    records = (read_llmc if is_llmc else read_jsonl)(path, lines)
    if not any("loss" in r or "val_loss" in r for r in records.values()):
        sys.exit(f"error: {path}: no loss in {len(lines)} lines; want log.jsonl of train_gpt or "
                 "main.log of llm.c")
    return records


def curve(records, name, x):
    """Lists x, y. The tokens of a step stand in the record of its training loss."""
    points = [(step if x == "step" else r.get(x), r[name]) for step, r in sorted(records.items())
              if name in r and math.isfinite(r[name])]
    points = [(at, y) for at, y in points if at is not None]
    return [p[0] for p in points], [p[1] for p in points]


def smoothed(values, width):
    """Each with up to width - 1 before it."""
    out, total = [], 0.0
    for i, v in enumerate(values):
        total += v - (values[i - width] if i >= width else 0)
        out.append(total / min(i + 1, width))
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("logs", metavar="LOG", nargs="+")
    p.add_argument("--out", default="loss.png", metavar="FILE", help="png, svg, pdf (loss.png)")
    p.add_argument("--x", choices=("step", "tokens"), default="step")
    p.add_argument("--smooth", type=int, default=0, metavar="N")
    a = p.parse_args()
    if a.smooth < 0:
        p.error(f"--smooth {a.smooth}: wanted 0 or more")
    runs = [(path, read_log(path)) for path in a.logs]
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        sys.exit("error: no matplotlib; install python3-matplotlib, or pip install matplotlib")
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    for k, (path, records) in enumerate(runs):
        is_named = os.path.basename(path) not in ("log.jsonl", "main.log")
        label = path if is_named else os.path.dirname(path)
        for name, what, width in (("loss", "training", 0.8), ("val_loss", "held out", 2.2)):
            x, y = curve(records, name, a.x)
            if not x:
                if any(name in r for r in records.values()):
                    sys.exit(f"error: {path}: no {a.x} beside {name}; use --x step")
                continue
            is_train = name == "loss"
            y = smoothed(y, a.smooth or max(1, len(y) // 100)) if is_train else y
            axes.plot(x, y, color=f"C{k}", linewidth=width, alpha=0.6 if is_train else 1,
                      marker="." if len(x) < 30 else "",
                      label=f"{label or path}, {what}, last {y[-1]:.4f}")
    axes.set_xlabel("step" if a.x == "step" else "tokens seen")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(a.out, dpi=150)
    except (OSError, ValueError) as e:      # ValueError: no such format
        sys.exit(f"error: {a.out}: {getattr(e, 'strerror', None) or e}")
    print(f"{a.out}: {len(runs)} runs, {sum(len(r) for _, r in runs)} steps with records")


if __name__ == "__main__":
    main()
