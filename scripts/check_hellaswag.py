#!/usr/bin/env python3
"""HellaSwag by PyTorch and by train_gpt on the same weights: they must choose alike.

  check_hellaswag.py CHECKPOINT EXAMPLES.bin [--examples 40] [--program ./train_gpt]

CHECKPOINT is a folder OUT/step_NNNNNNNN, EXAMPLES.bin is in llm.c's format. train_gpt prints one
accuracy for a file, so each example goes to it as a file of its own: right or wrong must agree.
"""
import argparse, json, os, struct, subprocess, sys, tempfile
import torch
import torch.nn.functional as F
from reference import forward, load


def examples(path, count):
    with open(path, "rb") as f:
        data = f.read()
    at, found = 1024, []
    while at < len(data) and len(found) < count:
        _, size, _, label, num, n = struct.unpack_from("<6H", data, at)
        numbers, i = struct.unpack_from(f"<{(size - 12) // 2}H", data, at + 12), n
        completions = []
        for _ in range(num):
            completions.append(numbers[i + 1:i + 1 + numbers[i]])
            i += 1 + numbers[i]
        found.append((data[at:at + size], label, numbers[:n], completions))
        at += size
    return data[:1024], found


def is_right(w, cfg, label, context, completions):
    losses = []
    for c in completions:
        tokens = torch.tensor([context + c])
        logits = forward(w, cfg, tokens[:, :-1])[0, len(context) - 1:]
        losses.append(F.cross_entropy(logits, torch.tensor(c)).item())
    return losses.index(min(losses)) == label


def main():
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("examples")
    p.add_argument("--examples", dest="count", type=int, default=40)
    p.add_argument("--program", default="./train_gpt")
    a = p.parse_args()
    out, step = os.path.split(a.checkpoint.rstrip("/"))
    with open(f"{a.checkpoint}/config.json") as f:
        cfg = json.load(f)
    tensors = load(f"{a.checkpoint}/model.safetensors")[0]
    w = {name[len("transformer."):]: tensor for name, tensor in tensors.items()}
    header, found = examples(a.examples, a.count)
    right = 0
    for k, (raw, label, context, completions) in enumerate(found):
        with tempfile.NamedTemporaryFile(suffix=".bin") as f:
            f.write(header[:8] + struct.pack("<i", 1) + header[12:] + raw)
            f.flush()
            command = [a.program, "--eval", "--hellaswag", f.name, "--init", a.checkpoint,
                       "--seq_len", str(cfg["n_positions"]), "--batch_size", "1"]
            said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode != 0:
            sys.exit(said.stderr.strip())
        ours = json.loads(said.stdout)["hellaswag"]
        theirs = is_right(w, cfg, label, context, completions)
        right += theirs
        if ours != theirs:
            sys.exit(f"example {k}: train_gpt {ours}, PyTorch {theirs}")
    print(f"{len(found)} examples agree, {right} right")


if __name__ == "__main__":
    main()
