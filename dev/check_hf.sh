#!/bin/sh
# check_hf.sh: our files and numbers beside those of PyPI's packages, which `make check-hf` puts
# into build/venv: two small checkpoints in transformers, tokenizers and llama.cpp, HellaSwag by
# PyTorch, the tokenizer by tiktoken and tokenizers. data/get.sh gets the data.
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
head -c 60000 "$text" | tr -s '\n' ' ' >$work/text
head -c 4000 $work/text >$work/small
for tokenizer in bytes gpt2; do         # 160 tokens are enough for the first HellaSwag examples
    ./train_gpt --train $work/text --tokenizer $tokenizer --out $work/$tokenizer --layers 2 \
        --heads 4 --channels 32 --seq_len 160 --batch_size 2 --steps 100 --warmup_steps 10 \
        --lr 0.005 --val_every 0 2>$work/log || { cat $work/log; exit 1; }
done
$python scripts/check_hf.py $work/bytes/step_* $work/gpt2/step_* --text $work/small
said=$($python scripts/check_hellaswag.py $work/gpt2/step_* "$hellaswag")
echo "ok   HellaSwag in PyTorch: $said"
$python scripts/check_tokenizer.py "$text" $kjv --speed
