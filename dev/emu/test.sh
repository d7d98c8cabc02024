#!/usr/bin/env bash
# test.sh [-v]: tests the emulator itself. Last line: N passed, N failed, N skipped.
#
#   1 correct programs give no report, in every mode and under several seeds
#   2 every planted bug of README.md's table is found by the modes that the table names
#   3 NCCL on one to three ranks, and its planted bugs
#   4 sources that are refused, each with one clear line
#   5 run and build.sh: options, exit codes
#   6 headers without a toolkit
#   7 the samples are valid CUDA
# Programs are built two at a time; every program has a time limit. -v prints what passed, too.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$root" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
verbose=${1:-}
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); [ "$verbose" != -v ] || echo "ok: $1"; }
bad() { failed=$((failed + 1)); echo "FAILED: $1"; sed 's/^/    /' "$work/out" | head -12; }
skip() { skipped=$((skipped + 1)); echo "skipped: $1"; }
title() { echo "--- $1 (at $SECONDS s)"; }

# run_case COMMAND...: output in $work/out; sets kind: right, wrong, error, race, report or rc=N
run_case() {
    (ulimit -t 60; exec timeout 900 "$@") >"$work/out" 2>&1     # a loop burns CPU, a wait only time
    local rc=$? report='EMU RACE-CHECK|(Address|Leak)Sanitizer|runtime error'
    if grep -q 'RACE-CHECK: data race' "$work/out" && [ $rc != 0 ]; then kind=race
    elif grep -qE "$report" "$work/out" && [ $rc != 0 ]; then kind=report
    elif grep -q 'EMU ERROR' "$work/out" && [ $rc = 99 ]; then kind=error
    elif [ $rc = 1 ]; then kind=wrong
    elif [ $rc = 0 ] && ! grep -qE "$report|EMU ERROR" "$work/out"; then kind=right
    else kind=rc=$rc; fi
}
# expect KIND CLAIM: compares with what the last run_case found
expect() { if [ "$kind" = "$1" ]; then ok "$2"; else bad "$2: $kind, expected $1"; fi; }

# --- build everything, two at a time ---
programs="planted_bugs flash_attention builtins rewriter streams blas"
samples="reduction tiled_gemm cooperative_groups"
modes="fast asan"
if command -v clang++ >/dev/null; then modes="$modes race"; else skip "race build: no clang++"; fi
command -v mpirun >/dev/null && programs="$programs nccl"
source_of() { ls "dev/emu/tests/$1.cu" "dev/emu/samples/$1.cu" 2>/dev/null; }
title "building"
for mode in $modes; do
    for p in $programs $samples; do echo "$work/$p.$mode $mode $(source_of "$p")"; done
done | xargs -P 2 -L 1 "$here/build.sh" 2>"$work/out" || bad "a test program does not build"

title "1 correct programs give no report"
fast_schedules=("A=" EMU_SHUFFLE={1,2,3} EMU_LAZY={1,2,3} "EMU_SHUFFLE=4 EMU_LAZY=4" EMU_PROTECT=1
                EMU_WORKERS=2 EMU_FILL=0)
for p in builtins rewriter streams blas "planted_bugs none" "flash_attention none "{1,65,200} \
         $samples; do
    # shellcheck disable=SC2086
    set -- $p
    for schedule in "${fast_schedules[@]}"; do
        # shellcheck disable=SC2086
        run_case env $schedule "$work/$1.fast" "${@:2}"
        expect right "$p, fast $schedule"
    done
    for mode in ${modes#fast }; do
        for schedule in A= "EMU_SHUFFLE=1 EMU_LAZY=1" EMU_SHUFFLE=2; do
            # shellcheck disable=SC2086
            run_case env $schedule "$work/$1.$mode" "${@:2}"
            expect right "$p, $mode $schedule"
        done
    done
done

title "2 planted bugs are found by the modes that README.md names"
# found BUG CELL MODE [VARIABLE]: as the cell says; with a variable, under one of three seeds
found() {
    local program="$work/${1%% *}.$3"
    [ -n "$2" ] && [ -x "$program" ] || return 0
    for seed in 1 2 3; do
        run_case env ${4:+$4=$seed} "$program" "${1#* }"
        [ "$kind" != "$2" ] && [ -n "${4:-}" ] || break
    done
    expect "$2" "$1, $3 ${4:-}"
}
bugs=0
while IFS='|' read -r _ bug _ fast shuffle lazy asan race _; do
    bug=$(tr -d '`' <<<"$bug" | xargs)
    found "$bug" "${fast// /}" fast
    found "$bug" "${shuffle// /}" fast EMU_SHUFFLE
    found "$bug" "${lazy// /}" fast EMU_LAZY
    found "$bug" "${asan// /}" asan
    found "$bug" "${race// /}" race
    bugs=$((bugs + 1))
done < <(grep -E '^\| `(planted_bugs|flash_attention|blas) ' "$here/README.md")
kind=$bugs
expect 39 "bugs in README.md's table"
run_case env EMU_PROTECT=1 "$work/planted_bugs.fast" host_writes_device_memory
expect error "EMU_PROTECT=1 finds host_writes_device_memory"

title "3 NCCL over MPI"
mpi() { run_case mpirun --oversubscribe -n "$@"; }
if [ -x "$work/nccl.fast" ]; then
    export ASAN_OPTIONS=detect_leaks=0                        # MPI itself leaks
    for ranks in 1 2 3; do
        mpi $ranks "$work/nccl.fast"
        expect right "nccl, $ranks ranks"
    done
    for mode in ${modes#fast }; do
        mpi 2 "$work/nccl.$mode"
        expect right "nccl, $mode"
    done
    EMU_LAZY=1 mpi 2 "$work/nccl.fast"
    expect right "nccl, lazy"
    for bug in other_count too_long overlap; do
        mpi 2 "$work/nccl.fast" $bug
        expect error "nccl $bug"
    done
    unset ASAN_OPTIONS
else
    skip "NCCL: no MPI (apt-get install libopenmpi-dev openmpi-bin)"
fi

title "4 refused sources"
# refused NAME LINE PATTERN <source: the build fails with "NAME.cu:LINE: ... PATTERN"
refused() {
    cat >"$work/$1.cu"
    "$here/build.sh" "$work/refused" fast "$work/$1.cu" >"$work/out" 2>&1
    kind=$?
    grep -qE "$1\.cu:$2:.*error: .*$3" "$work/out" || kind="$kind without its message"
    expect 1 "refused: $1"
}
refused shared_initialiser 2 'no initialiser' <<'CU'
__global__ void k() {
    __shared__ int x = 3;
}
CU
refused shared_in_macro 1 'inside a macro' <<'CU'
#define BUFFER __shared__ int x[32]
CU
refused launch_of_expression 3 'must be written NAME<<<' <<'CU'
__global__ void k() {}
int main() {
    (*k)<<<1, 1>>>();
}
CU
refused unclosed_launch 3 'cannot find the >>>' <<'CU'
__global__ void k() {}
int main() {
    k<<<1, 1>();
}
CU
refused inline_ptx 3 'inline PTX' <<'CU'
__global__ void k(int* p) {
    // asm in a comment is fine
    asm volatile("mov.u32 %0, %laneid;" : "=r"(*p));
}
CU
refused wmma 1 'mma.h> is not emulated' <<'CU'
#include <mma.h>
int main() {}
CU
refused pipeline 1 'cuda_pipeline.h> is not emulated' <<'CU'
#include <cuda_pipeline.h>
int main() {}
CU
refused occupancy 4 'cudaOccupancyMaxActiveBlocksPerMultiprocessor is not emulated' <<'CU'
__global__ void k() {}
int main() {
    int blocks;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 128, 0);
}
CU
refused unknown_call 3 'cudaMallocPitch is not emulated' <<'CU'
int main() {
    void* p; size_t pitch;
    return cudaMallocPitch(&p, &pitch, 4, 4);
}
CU
refused not_cpp 1 '.' <<'CU'
this is not C++
CU

title "5 run and build.sh: options and exit codes"
# exits CODE PATTERN COMMAND...
exits() {
    timeout 900 "${@:3}" >"$work/out" 2>&1
    kind=$?
    grep -qE "$2" "$work/out" || kind="$kind without '$2'"
    expect "$1" "exit code of ${*:3}"
}
run=$here/run bugs_cu=dev/emu/tests/planted_bugs.cu
exits 0 'result right' "$run" "$bugs_cu" none
exits 2 'usage: planted_bugs NAME' "$run" "$bugs_cu" no_such_bug
exits 99 'EMU ERROR: divergent barrier' "$run" --shuffle 1 "$bugs_cu" two_barriers
exits 1 'does not hold' "$run" --lazy 1 "$bugs_cu" host_reads_too_early
exits 0 'bank conflicts 0.00' "$run" --profile dev/emu/tests/flash_attention.cu
exits 2 'unknown option --fast' "$run" --fast 1 "$bugs_cu"
exits 2 "unknown mode 'slow'" "$run" --mode slow "$bugs_cu"
exits 2 'wants a number' "$run" --shuffle x "$bugs_cu"
exits 2 'no such file' "$run" no_such_file.cu
exits 99 'EMU_LAZY=x: a number' env EMU_LAZY=x "$work/planted_bugs.fast" none
exits 2 'has no include/cuda_runtime.h' env CUDA_HOME=/nonexistent "$run" "$bugs_cu"
cat >"$work/file_scope.cu" <<'CU'
extern __shared__ int buffer[];
int main() {}
CU
exits 99 '__shared__ buffer outside of a kernel' "$run" "$work/file_scope.cu"
cat >"$work/division.cu" <<'CU'
__device__ int quotient;
__global__ void k(int zero) { quotient = 7 / zero; }
int main() { k<<<1, 1>>>(0); }
CU
exits 99 'integer division by zero' "$run" "$work/division.cu"
mkdir -p "$work/folder"
printf '#include <stdio.h>\n__global__ void k() { __shared__ int x; x = 1; }\n' \
    >"$work/folder/included.cuh"
printf '#include "included.cuh"\nint main() { k<<<1, 1>>>(); puts("ran"); }\n' >"$work/includer.cu"
exits 0 'ran' "$run" --flags "-I$work/folder" "$work/includer.cu"
if [ -x "$work/planted_bugs.race" ]; then
    cat >"$work/null.cu" <<'CU'
__global__ void k(int* p) { *p = 1; }
int main() { k<<<1, 1>>>(nullptr); }
CU
    exits 99 'touches invalid address' "$run" --mode race "$work/null.cu"
    exits 98 'planted_bugs.cu:' "$run" --mode race "$bugs_cu" global_race
fi
if [ -x "$work/nccl.fast" ]; then
    exits 0 'result right' "$run" --ranks 2 dev/emu/tests/nccl.cu
fi

title "6 headers without a toolkit"
if [ -f build/cuda_headers/include/cublasLt.h ]; then
    export CUDA_HOME=$root/build/cuda_headers
    for p in flash_attention blas; do
        "$here/build.sh" "$work/headers" fast "$(source_of $p)" -MD -MF "$work/deps"
        run_case "$work/headers"
        # no header of CUDA may come from elsewhere
        grep -oE '[^ ]*/(cuda|cublas|nccl|vector_types)[^/ ]*\.h' "$work/deps" >"$work/out"
        grep -vE 'build/cuda_headers|dev/emu' "$work/out" && kind="a header from elsewhere"
        expect right "$p with headers only"
    done
    unset CUDA_HOME
else
    skip "headers only (dev/emu/get_headers.sh fetches them)"
fi

title "7 the samples are valid CUDA"
if command -v nvcc >/dev/null; then
    for p in $samples flash_attention; do
        run_case nvcc -arch=sm_90 -ptx -o /dev/null "$(source_of "$p")"
        expect right "nvcc takes $p"
    done
else
    skip "samples under nvcc: not installed"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
