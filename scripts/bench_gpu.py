#!/usr/bin/env python3
"""bench_gpu.py: a training step of GPT-2 in PyTorch on one GPU, to stand beside train_gpt_cuda's.

usage: bench_gpu.py [--layers 12 --heads 12 --channels 768 --batch 64 --seq 1024 --steps 20]
The same computation: bf16 autocast over fp32 weights, flash attention, clipping to norm 1, fused
AdamW; with torch.compile and without. Prints ms a step (median) and tok/s of each. Needs torch with
CUDA; exits 3 where there is none. scripts/gpu_check.sh runs it after the trainer, on the same card.
"""
import argparse, statistics, sys
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("bench_gpu.py: no torch; pip install torch")


class Block(torch.nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(channels), torch.nn.LayerNorm(channels)
        self.qkv = torch.nn.Linear(channels, 3 * channels)
        self.attproj = torch.nn.Linear(channels, channels)
        self.fc = torch.nn.Linear(channels, 4 * channels)
        self.fcproj = torch.nn.Linear(4 * channels, channels)

    def forward(self, x):                                           # (B,T,C)
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.ln1(x)).split(C, dim=2))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attproj(att.transpose(1, 2).reshape(B, T, C))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte = torch.nn.Embedding(50304, a.channels)            # 50257 padded to 128
        self.wpe = torch.nn.Embedding(a.seq, a.channels)
        self.blocks = torch.nn.ModuleList(Block(a.channels, a.heads) for _ in range(a.layers))
        self.lnf = torch.nn.LayerNorm(a.channels)

    def forward(self, tokens, targets):                             # (B,T) each
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lnf(x) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def measure(a, is_compiled):
    torch.manual_seed(1)
    model = GPT(a).cuda()
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    call = torch.compile(model) if is_compiled else model
    tokens = torch.randint(50257, (a.batch, a.seq + 1), device="cuda")
    times = []
    for step in range(a.steps + 5):                                 # 5 to warm up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = call(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    ms = statistics.median(times[5:])
    print(f"PyTorch {torch.__version__}{', compiled' if is_compiled else ''}: {ms:.1f} ms, "
          f"{a.batch * a.seq / ms * 1e3:.0f} tok/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    for name, value in dict(layers=12, heads=12, channels=768, batch=64, seq=1024,
                            steps=20).items():
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_gpu.py: no GPU that torch can use", file=sys.stderr)
        sys.exit(3)
    torch.backends.cuda.matmul.allow_tf32 = True
    for is_compiled in (False, True):
        try:
            measure(a, is_compiled)
        except torch.cuda.OutOfMemoryError:
            print(f"PyTorch{', compiled' if is_compiled else ''}: out of memory at B={a.batch}")
        torch.cuda.empty_cache()


main()
