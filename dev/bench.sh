#!/bin/sh
# bench.sh: median times of a training step, by phase, for nanoGPT's recipe and for GPT-2 124M.
#   usage   make bench        or   dev/bench.sh [steps of the recipe] [steps of d12] [more flags]
#   prints  one line for each model: forward, backward, update and whole step in ms; tokens a second
set -eu
cd "$(dirname "$0")/.."
recipe_steps=${1:-200} d12_steps=${2:-8}
[ $# -ge 1 ] && shift
[ $# -ge 1 ] && shift
text=$(data/get.sh)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

bench() { # bench NAME FLAGS...
    name=$1; shift
    ./train_gpt --train "$text" --out "$folder/$name" --keep 0 --val_every 0 "$@" 2>"$folder/err" ||
        { cat "$folder/err"; exit 1; }
    awk -v name="$name" '
        function median(key,   count, i, k, list, value) {
            for (i = 3; i <= steps; i++) {       # the first two touch memory for the first time
                match(lines[i], "\"" key "\":[-0-9.e+]+")
                value = substr(lines[i], RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0
                for (k = count++; k > 0 && list[k - 1] > value; k--) list[k] = list[k - 1]
                list[k] = value
            }
            return list[int(count / 2)]
        }
        /"loss"/ { lines[++steps] = $0 }
        END {
            printf "%-8s forward %8.2f  backward %8.2f  update %7.2f  step %8.2f ms  %8.0f tok/s  %3.0f%% of peak\n",
                name, median("forward_ms"), median("backward_ms"), median("update_ms"), median("ms"),
                median("tok_per_s"), 100 * median("mfu")
        }' "$folder/$name/log.jsonl"
}
bench recipe --steps "$recipe_steps" "$@"
bench d12 --model d12 --batch_size 4 --seq_len 64 --steps "$d12_steps" "$@"
