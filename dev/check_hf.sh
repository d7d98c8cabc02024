#!/bin/sh
# check_hf.sh: our files and numbers beside those of PyPI's packages, which `make check-hf` puts
# into build/venv: two small checkpoints in transformers, tokenizers and llama.cpp, HellaSwag by
# PyTorch, the tokenizer by tiktoken and tokenizers, logs in TensorBoard. data/get.sh gets the data.
#   prints  a line per claim: ok | FAIL | skip
#   exit    1 when one does not hold, or some data cannot be had
set -e
cd "$(dirname "$0")/.."
python=build/venv/bin/python work=build/hf
export OMP_WAIT_POLICY=passive          # models this small wait more than they compute
text=$(data/get.sh) hellaswag=$(data/get.sh hellaswag)
kjv=$(data/get.sh kjv 2>/dev/null) || echo "skip the King James Bible: Debian's packages only"
data/get.sh gpt2 >/dev/null
rm -rf $work
mkdir -p $work
head -c 4000 "$text" | tr -s '\n' ' ' >$work/text
# 160 tokens are enough for the first HellaSwag examples; learned by heart, so that what the models
# say has more than one word.
for tokenizer in bytes gpt2; do
    ./train_gpt --train $work/text --tokenizer $tokenizer --out $work/$tokenizer --layers 2 \
        --heads 4 --channels 32 --seq_len 160 --batch_size 2 --steps 300 --warmup_steps 10 \
        --lr 0.005 --val_fraction 0 2>$work/log || { cat $work/log; exit 1; }
done
$python scripts/check_hf.py $work/bytes/step_* $work/gpt2/step_* --text $work/text
said=$($python scripts/check_hellaswag.py $work/gpt2/step_* "$hellaswag")
echo "ok   HellaSwag in PyTorch: $said"
$python scripts/check_tokenizer.py "$text" $kjv --speed

printf 's:0 tel:5.5\ns:1 trl:5.25 lr:0.001 norm:2\n' >$work/main.log      # llm.c's
$python scripts/plot.py $work/bytes/log.jsonl $work/gpt2 $work/main.log --out $work/loss.png
$python scripts/to_tensorboard.py $work/bytes/log.jsonl $work/main.log --out $work/runs
$python - $work <<'PY'
import json, os, sys
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
work = sys.argv[1]
shown = imread(os.path.join(work, "loss.png"))
assert shown.std() > 0.01, "loss.png is blank"
for run, tag, want in ("hf", "loss", [(1, 5.25)]), ("bytes", "loss", [
        (r["step"], r["loss"]) for r in map(json.loads, open(os.path.join(work, "bytes/log.jsonl")))
        if "loss" in r]):
    events = EventAccumulator(os.path.join(work, "runs", run)).Reload().Scalars(tag)
    assert [e.step for e in events] == [s for s, _ in want], (run, tag)
    assert all(abs(e.value - v) < 1e-6 * v for e, (_, v) in zip(events, want)), (run, tag)
print("ok   plot.py draws three logs; TensorBoard reads the steps and losses of two")
PY
