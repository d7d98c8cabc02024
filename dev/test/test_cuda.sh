#!/usr/bin/env bash
# test_cuda.sh quick|all: train_gpt.cu emulated on the CPU (dev/emu), under test_gpt and beside
# train_gpt.c (dev/cuda/ops_test.cu); run by hand.
#   quick     in bf16, fp32 and fp16, threads in their order
#   all       also in three random orders of threads, and of streams; AddressSanitizer; races
#   prints    a line per run, and last "N passed, N failed, N skipped"
#   needs     g++, clang++ for races, python3, CUDA's headers (dev/emu/get_headers.sh)
. "$(dirname "$0")/lib.sh"
case ${1:-} in quick|all) ;; *) echo "usage: dev/test/test_cuda.sh quick|all" >&2; exit 2 ;; esac
cd "$root" || exit 1        # test_gpt finds its reference files from here
out=$B/cuda
mkdir -p "$out"

# emulated FILE MODE PRECISION [SETTING=value...] [WORD...]: only tests with a word in their name
emulated() {
    local file=$1 mode=$2 precision=$3 settings=() newest name program; shift 3
    while [ $# -gt 0 ] && [[ $1 == *=* ]]; do settings+=("$1"); shift; done
    cd "$root"
    name=${file##*/} program=$out/${name%.*}_${mode}_$precision
    newest=$(ls -tL "$file" train_gpt.c* dev/emu/*.* "$program" 2>/dev/null | head -n 1)
    [ "$newest" = "$program" ] || dev/emu/build.sh "$program" "$mode" "$file" -DDEV_MANAGED \
        "-DPRECISION_$precision" -Wno-constant-logical-operand
    env "${settings[@]}" "$program" "$@" >"$program.log" 2>&1 || {
        grep -v '^ok ' "$program.log"
        fail "$program $*"
    }
}
for precision in BF16 FP32 FP16; do
    run_test "cuda_in_order_$precision" emulated test_gpt.c fast $precision
    run_test "cuda_beside_cpu_$precision" emulated dev/cuda/ops_test.cu fast $precision
    [ "$1" = all ] || continue
    for seed in 1 2 3; do
        run_test "cuda_shuffled_${precision}_$seed" emulated test_gpt.c fast $precision \
            EMU_SHUFFLE=$seed EMU_LAZY=$seed
    done
    run_test "cuda_asan_$precision" emulated test_gpt.c asan $precision
    # Of what is left out, some takes minutes, and some allocates more than its shadow has room for.
    run_test "cuda_races_$precision" emulated test_gpt.c race $precision embedding \
        layernorm gelu matmul_backward attention_backward classifier adamw vectors squares a_step \
        recompute
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
