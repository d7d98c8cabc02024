#!/usr/bin/env bash
# cuda.sh quick|all: train_gpt.cu emulated on the CPU (dev/emu): under test_gpt, beside train_gpt.c
# (dev/cuda/ops_test.cu), and as a program (cuda_run.sh). `make test-cuda`, `make test-cuda-all`.
#   quick     in bf16, fp32 and fp16, threads in their order; the program in all modes
#   all       test_gpt, too, in three random orders of threads and of streams, under
#             AddressSanitizer, and watched for races
#   prints    a line per run, and last "N passed, N failed, N skipped"
#   needs     g++, clang++ for races, python3, CUDA's headers (make deps), Open MPI; with nvcc there
#             is one test more
. "$(dirname "$0")/lib.sh"
case ${1:-} in quick|all) ;; *) echo "usage: dev/test/cuda.sh quick|all" >&2; exit 2 ;; esac
cd "$root" || exit 1        # test_gpt finds its reference files from here
out=$B/cuda
mkdir -p "$out"

# emulated FILE MODE PRECISION [SETTING=value...] [WORD...]: only tests with a word in their name
emulated() {
    local file=$1 mode=$2 precision=$3 settings=() newest name program; shift 3
    while [ $# -gt 0 ] && [[ $1 == *=* ]]; do settings+=("$1"); shift; done
    cd "$root"
    name=${file##*/} program=$out/${name%.*}_${mode}_$precision
    newest=$(ls -tL "$file" train_gpt.c* dev/*/*.h dev/emu/*.* "$program" 2>/dev/null |
             head -n 1)
    [ "$newest" = "$program" ] || dev/emu/build.sh "$program" "$mode" "$file" -DDEV_MANAGED \
        "-DPRECISION_$precision" -Wno-constant-logical-operand
    env "${settings[@]}" "$program" "$@" >"$program.log" 2>&1 || {
        grep -v '^ok ' "$program.log"
        fail "$program $*"
    }
}
for precision in BF16 FP32 FP16; do
    run_test "cuda_in_order_$precision" emulated test_gpt.c fast $precision
    [ "$1 $precision" = "quick FP16" ] || # as bf16, but for the type
        run_test "cuda_beside_cpu_$precision" emulated dev/cuda/ops_test.cu fast $precision
    [ "$1" = all ] || continue
    for seed in 1 2 3; do
        run_test "cuda_shuffled_${precision}_$seed" emulated test_gpt.c fast $precision \
            EMU_SHUFFLE=$seed EMU_LAZY=$seed
    done
    run_test "cuda_asan_$precision" emulated test_gpt.c asan $precision
    [ $precision != BF16 ] || # its leaks are its own, and the two programs'
        run_test "cuda_beside_cpu_asan" emulated dev/cuda/ops_test.cu asan $precision \
            ASAN_OPTIONS=detect_leaks=0
    # Of what is left out, some takes minutes, and some allocates more than its shadow has room for.
    run_test "cuda_races_$precision" emulated test_gpt.c race $precision embedding \
        layernorm gelu matmul_backward attention_backward classifier adamw vectors squares a_step \
        recompute
done
check_registers() {
    [ -x "${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}" ] ||
        skip "no nvcc, which alone counts registers; install the CUDA toolkit"
    "$root/dev/cuda/registers.sh"
}
run_test cuda_kernels_keep_to_their_registers check_registers
program() {         # program MODE: the whole program, two steps, validation, a sample, a checkpoint
    cd "$root"
    dev/emu/build.sh "$out/train_gpt_$1" "$1" train_gpt.cu
    head -c 20000 train_gpt.c | tr '\n' ' ' >"$tmp/text.txt"
    "$out/train_gpt_$1" --train "$tmp/text.txt" --layers 2 --heads 1 --channels 64 --seq_len 24 \
        --batch_size 2 --total_batch_tokens 96 --steps 2 --val_every 1 --val_batches 2 \
        --sample_every 2 --sample_tokens 5 --out "$tmp/program"
    rm -rf "$tmp/program"
}
for mode in asan race; do run_test "cuda_program_$mode" program $mode; done
"$root/dev/test/cuda_run.sh" | tee "$tmp/run" | grep -vE '^[0-9]+ passed, [0-9]+ failed'
read -r good bad left < <(tail -n 1 "$tmp/run" | tr -cd '0-9 \n')
passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-1})) skipped=$((skipped + ${left:-0}))
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
