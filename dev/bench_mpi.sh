#!/usr/bin/env bash
# bench_mpi.sh: one and several processes, side by side, as JSON lines.
#   usage    make bench-mpi     or   dev/bench_mpi.sh [largest number of ranks] [steps] [repeats]
#   strong   the same batch on more ranks        weak   a batch that grows with the ranks
#   prints   a line for each run (median step of each repeat; spread: slowest / fastest repeat), then
#            what the byte-identical order of sums costs, against --pairwise 0, in the same run
#   terms    T_p: a step on p ranks. Strong: speed_up T_1 / T_p, weak: p T_1 / T_p;
#            efficiency: speed_up / p; overhead: (T_p - T_ideal) / T_p = 1 - efficiency
set -eu
cd "$(dirname "$0")/.."
most=${1:-2} steps=${2:-30} repeats=${3:-3} micro=4 target=4.5
export LC_ALL=C OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1      # more ranks than cores: Open MPI 4, and 5
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
command -v mpirun >/dev/null || { echo "no mpirun; install openmpi-bin" >&2; exit 1; }
text=$(data/get.sh)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
library=$(mpirun --version | head -n 1)
batch=12 length=64                      # nanoGPT's recipe for a laptop: the flags' defaults

# once RANKS MICRO-BATCHES FLAGS...: median ms of a step, of its exchange; seconds to the target loss
once() {
    local ranks=$1 all=$2; shift 2
    rm -rf "$folder/run"
    mpirun -np "$ranks" ./train_gpt --train "$text" --out "$folder/run" --keep 0 --val_every 0 \
        --steps "$steps" --warmup_steps 5 --total_batch_tokens $((all * batch * length)) "$@" \
        2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
    awk -v target="$target" '
        function number(key) { match($0, "\"" key "\":[-0-9.e+]+")
            return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 }
        function median(list, n,   i, k, v) {
            for (i = 2; i <= n; i++) {
                v = list[i]
                for (k = i; k > 1 && list[k - 1] > v; k--) list[k] = list[k - 1]
                list[k] = v
            }
            return list[int((n + 1) / 2)]
        }
        /"loss"/ { ms[++n] = number("ms"); exchange[n] = number("exchange_ms"); s += ms[n] / 1e3
                   if (!reached && number("loss") <= target) reached = s }
        END { print median(ms, n), median(exchange, n), reached ? reached : "null" }
        ' "$folder/run/log.jsonl"
}
# repeat ...: once, several times: the fastest, and the slowest over it
repeat() {
    local i
    for ((i = 0; i < repeats; i++)); do once "$@"; done | sort -n |
        awk 'NR == 1 { best = $0; ms = $1 } { last = $1 } END { print best, last / ms }'
}
for scaling in strong weak; do
    for ((ranks = 1; ranks <= most; ranks *= 2)); do
        all=$micro; [ $scaling = strong ] || all=$((micro * ranks))
        read -r ms exchange reached spread < <(repeat "$ranks" "$all")
        [ "$ranks" -gt 1 ] || single=$ms
        tokens=$((all * batch * length))
        awk -v p="$ranks" -v one="$single" -v ms="$ms" -v x="$exchange" -v tokens=$tokens \
            -v scaling=$scaling -v reached="$reached" -v spread="$spread" -v target="$target" \
            -v version="$(git rev-parse --short HEAD)" -v cpu="$cpu" -v library="$library" \
            -v repeats="$repeats" 'BEGIN {
            speed_up = scaling == "strong" ? one / ms : p * one / ms
            printf "{\"scaling\":\"%s\",\"ranks\":%d,\"target_loss\":%s,", scaling, p, target
            printf "\"seconds_to_target\":%s,\"setup\":{\"model\":\"4 layers, 128 channels\",", reached
            printf "\"data\":\"tiny Shakespeare\",\"batch_tokens\":%d,\"precision\":\"fp32\",", tokens
            printf "\"optimizer\":\"AdamW, ZeRO-1\"},\"version\":\"%s\",\"hardware\":\"%s\",", version, cpu
            printf "\"topology\":\"1 machine, %d ranks x 1 thread\",\"comm_library\":\"%s\",", p, library
            printf "\"tok_per_s\":%.0f,\"step_ms\":%.2f,\"exchange_ms\":%.2f,", tokens / ms * 1e3, ms, x
            printf "\"repeats\":%d,\"spread\":%.3f,\"speed_up\":%.3f,", repeats, spread, speed_up
            printf "\"efficiency\":%.3f,\"overhead\":%.3f}\n", speed_up / p, 1 - speed_up / p }'
    done
done
for ((ranks = 1; ranks <= most; ranks *= 2)); do
    read -r fixed _ < <(repeat "$ranks" $micro --pairwise 1)
    read -r plain _ < <(repeat "$ranks" $micro --pairwise 0)
    awk -v p="$ranks" -v a="$fixed" -v b="$plain" 'BEGIN { printf "{\"ranks\":%d,\"pairwise_ms\":%.2f," \
        "\"plain_ms\":%.2f,\"cost_of_identical_bits\":%.3f}\n", p, a, b, a / b - 1 }'
done
