#!/usr/bin/env bash
# gpu_check.sh: all that wants a real GPU, in one run of under 8 minutes; a table at the end.
#   writes    ${OUT:-out/gpu_check}, 6 files at most, up to date after each part: summary.txt (the
#             table), bench_124M.txt, bench_1558M.txt, ladders.md, ladder_times.txt, and the logs
#             of all parts in logs.tgz. Runs and their checkpoints lie in a folder of /tmp, and go
#   parts     build · test_gpt in bf16, fp32, fp16 · resume · ranks on one GPU · every op beside
#             the CPU's (dev/cuda/ops_test.cu) · training steps of 124M and 1558M · every op timed
#             (dev/cuda/bench.cu) · the same step in PyTorch, where it is installed ·
#             compute-sanitizer · the ladders
#   settings  PARTS="build tests" runs those only; LIMIT_S=480 seconds in all
# Parts that fail or do not fit into the time are in the table as such; exit 1 if one failed.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-out/gpu_check} limit_s=${LIMIT_S:-480}
parts=${PARTS:-build tests resume ranks ops steps bench pytorch sanitizer ladders}
mkdir -p "$out" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
logs=$work/logs
mkdir "$logs" || exit 1
begin=$(date +%s)
if ! nvidia-smi >"$logs/nvidia-smi.txt" 2>&1; then
    echo "gpu_check.sh: no GPU here (nvidia-smi: $(head -c 200 "$logs/nvidia-smi.txt" | head -1));" \
         "nothing was checked. Without one: make test-cuda" | tee "$out/summary.txt"
    exit 3
fi
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
{ echo "card      $card"; echo "commit    $(git rev-parse --short HEAD 2>/dev/null)"; } |
    tee "$out/summary.txt"
failed=0
row() { printf '%-10s%s\n' "$1" "$2" | tee -a "$out/summary.txt"; }
keep() {            # what has been found so far, should the machine be taken away
    cp "$logs"/bench_*.txt "$out" 2>/dev/null
    [ ! -f build/ladders/gpu.txt ] || cp build/ladders/gpu.txt "$out/ladder_times.txt"
    tar -czf "$out/logs.tgz" -C "$work" logs
}
# part NAME SECONDS FUNCTION: its log in NAME.txt; what it prints on descriptor 3 is its rows, which
# tee -a /dev/fd/3 adds to (without -a it would begin them anew)
part() {
    local name=$1 seconds=$2 function=$3 left status start; start=$(date +%s)
    case " $parts " in *" $name "*) ;; *) return ;; esac
    left=$((begin + limit_s - start))
    [ $left -ge 10 ] || { row "$name" "not run: $limit_s s are over"; return; }
    [ $left -ge "$seconds" ] || seconds=$left
    export -f "$function"
    timeout "$seconds" bash -c "set -e -o pipefail; $function" 3>>"$work/$name.row" \
        >"$logs/$name.txt" 2>&1 </dev/null
    status=$?
    if [ $status -ne 0 ]; then
        failed=1
        echo "FAILED, exit code $status; see $name.txt in logs.tgz" >>"$work/$name.row"
    fi
    while read -r line; do row "$name" "$line"; done <"$work/$name.row"
    row "$name" "$(($(date +%s) - start)) s"
    keep
}
export out work logs OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1      # more ranks than cores: Open MPI 4, and 5
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
gpu=build/gpu
export gpu

text() { head -c 300000 train_gpt.c | tr '\n' ' ' >"$work/text.txt"; }
export -f text
build() {           # what the machine lacks is left out here, and said
    local mpi=1 nccl=1 p pid pids bad=0
    command -v mpicxx >/dev/null || { mpi=0; echo "no MPI here: built without" >&3; }
    printf '#include <nccl.h>\nint main() { return ncclGroupStart(); }\n' >"$work/nccl.cu"
    "${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}" "$work/nccl.cu" \
        -o "$work/nccl" -lnccl || { nccl=0; echo "no NCCL here: built without" >&3; }
    # All at once: each keeps a core or two busy.
    { MPI=$mpi NCCL=$nccl dev/cuda/build.sh $gpu/train_gpt train_gpt.cu | tee -a /dev/fd/3; } &
    pids=$!
    export MPI=0 NCCL=0
    dev/cuda/build.sh $gpu/bench dev/cuda/bench.cu &
    pids="$pids $!"
    for p in BF16 FP32 FP16; do
        PRECISION=$p dev/cuda/build.sh $gpu/test_gpt_$p test_gpt.c -x cu -DDEV_MANAGED &
        pids="$pids $!"
        PRECISION=$p dev/cuda/build.sh $gpu/ops_$p dev/cuda/ops_test.cu -DDEV_MANAGED &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || bad=1; done
    return $bad
}
each() {            # each PROGRAM: in all precisions; the last line of each is a row
    local p bad=0
    for p in BF16 FP32 FP16; do
        $gpu/$1_$p >"$logs/$1_$p.txt" 2>&1 || bad=1
        echo "$p: $(tail -1 "$logs/$1_$p.txt")" >&3
    done
    return $bad
}
export -f each
tests() { each test_gpt; }
ops() { each ops; }
small="--layers 4 --heads 2 --channels 128 --seq_len 128 --batch_size 4 --total_batch_tokens 2048
       --val_every 0 --lr_schedule constant"
export small
resume() {
    text
    rm -rf "$work/a" "$work/b"
    $gpu/train_gpt --train "$work/text.txt" $small --steps 20 --out "$work/a"
    $gpu/train_gpt --train "$work/text.txt" $small --steps 10 --out "$work/b"
    $gpu/train_gpt --resume --steps 20 --out "$work/b"
    cmp "$work/a/step_00000020/model.safetensors" "$work/b/step_00000020/model.safetensors"
    echo "20 steps, and 10 + 10 with --resume: the same bits" >&3
    rm -rf "$work/b"
}
ranks() {
    command -v mpirun || { echo "no mpirun here: not run" >&3; return; }
    text
    rm -rf "$work/a" "$work/r"
    $gpu/train_gpt --train "$work/text.txt" $small --steps 10 --out "$work/a"
    GPT_COMM=mpi mpirun -np 2 $gpu/train_gpt --train "$work/text.txt" $small --steps 10 \
        --out "$work/r"
    cmp "$work/a/step_00000010/model.safetensors" "$work/r/step_00000010/model.safetensors"
    echo "1 and 2 ranks (MPI by way of the host, one GPU): the same bits" >&3
    rm -rf "$work/a" "$work/r"
}
sanitizer() {
    command -v compute-sanitizer || { echo "no compute-sanitizer here: not run" >&3; return; }
    text
    rm -rf "$work/s"
    # cuBLASLt and NCCL try calls that may fail, which is no error of ours
    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
        $gpu/train_gpt --train "$work/text.txt" --layers 2 --heads 2 --channels 128 --seq_len 64 \
        --batch_size 2 --steps 3 --val_every 0 --keep 0 --out "$work/s"
    echo "memcheck: no error in 3 steps" >&3
}
steps() {           # tokens of a byte vocabulary in a model of GPT-2's: the speed is the same
    local model batch line
    text
    for model in "d12 64" "d48 8"; do
        read -r model batch <<<"$model"
        rm -rf "$work/$model"
        $gpu/train_gpt --train "$work/text.txt" --model "$model" --seq_len 1024 \
            --batch_size "$batch" --steps 30 --val_every 0 --keep 0 --sample_every 0 \
            --out "$work/$model" ||
            { echo "$model at B=$batch: failed" >&3; return 1; }
        line=$(sed -n 's/.*"ms":\([^,]*\),"tok_per_s":\([^,]*\),"mfu":\([^,]*\),.*/\1 \2 \3/p' \
            "$work/$model/log.jsonl" | tail -20 | sort -n | sed -n 10p)
        cp "$work/$model/log.jsonl" "$logs/$model.jsonl"
        echo "$model, B=$batch, T=1024, bf16, recompute 0: ms, tok/s, MFU (median of 20): $line" >&3
    done
}
bench() {
    $gpu/bench | tee "$logs/bench_124M.txt"
    tail -1 "$logs/bench_124M.txt" >&3
    $gpu/bench 8 1024 1600 25 50257 48 | tee "$logs/bench_1558M.txt"
    tail -1 "$logs/bench_1558M.txt" >&3
}
ladders() {
    local bad=0
    rm -f build/ladders/gpu.txt
    JOBS=$(nproc) dev/cuda/ladders.sh --gpu || bad=1
    cp dev/cuda/README.md "$out/ladders.md"
    echo "table in ladders.md, as the ladders print it in ladder_times.txt" >&3
    return $bad
}
pytorch() {
    python3 -c 'import torch; assert torch.cuda.is_available()' ||
        { echo "no PyTorch with CUDA here: not run" >&3; return; }
    python3 scripts/bench_gpu.py >&3
}
part build 200 build
part tests 120 tests
part resume 40 resume
part ranks 40 ranks
part ops 60 ops
part steps 90 steps
part bench 60 bench
part pytorch 120 pytorch
part sanitizer 60 sanitizer
part ladders 150 ladders
row all "$(($(date +%s) - begin)) s"
exit $failed
