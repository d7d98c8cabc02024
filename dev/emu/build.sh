#!/usr/bin/env bash
# build.sh OUT MODE FILE.cu [compiler flags]: build a CUDA program that runs on the CPU.
# build.sh --headers: say where CUDA's headers are
#
#   MODE fast   g++ -O2: the quick check; EMU_SHUFFLE, EMU_LAZY choose schedules at run time
#        asan   with AddressSanitizer and UndefinedBehaviorSanitizer
#        race   with the race checker (clang++)
#
# The emulator itself is compiled once per mode into build/emu/MODE-HASH/libemu.a, HASH being of
# compiler, flags and headers. Headers come from $CUDA_HOME/include, else from the toolkit whose
# nvcc is in PATH, else from /usr/local/cuda, else from build/cuda_headers (get_headers.sh).
# CXX (default g++) compiles the emulator, and the program in modes fast and asan.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
die() { echo "build.sh: error: $*" >&2; exit 1; }

[ "${1:-}" = --headers ] || [ $# -ge 3 ] || die "usage: build.sh OUT fast|asan|race FILE.cu [compiler flags]"
out=$1 mode=${2:-fast} file=${3:-$0}
[ $# -lt 3 ] || shift 3
[ -f "$file" ] || die "$file: no such file"
cxx=${CXX:-g++}
lib_cxx=$cxx
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
case $mode in
fast) program="-O2 -march=native" library="-O3 -march=native" link= ;;
asan) program="-O1 -march=native $sanitize" library="-O2 -march=native -fsanitize=address"
      link="-fsanitize=address,undefined" ;;
race) program="-O1 -march=native -fsanitize=thread" library="-O2 -march=native" link=-no-pie
      cxx=clang++ ;;
*) die "unknown mode '$mode': fast, asan or race" ;;
esac
for tool in "$cxx" "$lib_cxx" python3 ar objcopy; do
    command -v "$tool" >/dev/null || die "$tool is not installed (mode $mode needs it)"
done

# --- headers and MPI ---
find_cuda() {
    if [ -n "${CUDA_HOME:-}" ]; then echo "$CUDA_HOME"; return; fi
    local nvcc
    nvcc=$(command -v nvcc) && nvcc=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    for dir in "$nvcc" /usr/local/cuda "$root/build/cuda_headers"; do
        if [ -f "$dir/include/cuda_runtime.h" ]; then echo "$dir"; return; fi
    done
}
cuda=$(find_cuda)
[ -n "$cuda" ] || die "no CUDA headers: set CUDA_HOME or run dev/emu/get_headers.sh"
[ -f "$cuda/include/cuda_runtime.h" ] || die "CUDA_HOME=$cuda has no include/cuda_runtime.h"
if [ "$out" = --headers ]; then echo "$cuda/include"; exit; fi
has() { [ -f "$cuda/include/$1" ]; }
mpi_compile="" mpi_link=""
if command -v mpicxx >/dev/null; then
    mpi_compile=$(mpicxx --showme:compile | sed 's/-I/-isystem /g') mpi_link=$(mpicxx --showme:link)
fi
flags="-std=c++17 -g -fno-strict-aliasing -fno-delete-null-pointer-checks -I$here -isystem $cuda/include $mpi_compile"

# --- the emulator: fresh objects are kept, parts whose headers are missing are left out ---
parts="engine runtime"
has cublasLt.h && parts="$parts blas"
has nccl.h && [ -n "$mpi_compile" ] && parts="$parts nccl"
[ "$mode" = race ] && parts="$parts race"
key=$(echo "$lib_cxx $($lib_cxx -dumpfullversion) $library $flags $parts" | cksum | cut -d' ' -f1)
lib=$root/build/emu/$mode-$key
mkdir -p "$lib" || exit 1
exec 9>"$lib/lock" && flock 9                               # two builds at once: the second waits
pids=
for part in $parts; do
    object=$lib/$part.o fresh=yes
    for source in "$here/$part.cpp" "$here/engine.h" "$here/cuda_host.h"; do
        [ "$object" -nt "$source" ] || fresh=no
    done
    [ $fresh = yes ] && continue
    rm -f "$lib/libemu.a" "$object"
    # shellcheck disable=SC2086
    $lib_cxx $flags -fopenmp $library -Wall -Wextra -c "$here/$part.cpp" -o "$object" &
    pids="$pids $!"
done
for pid in $pids; do wait "$pid" || die "the emulator itself does not compile, see above"; done
if [ ! -f "$lib/libemu.a" ]; then
    # shellcheck disable=SC2046
    ar rcs "$lib/libemu.a" $(for part in $parts; do echo "$lib/$part.o"; done) || exit 1
fi
exec 9>&-

# --- the program ---
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
rewritten=$(python3 "$here/cu2host.py" "$file" "$work" "$@") || exit 1

hint() { echo "build.sh: hint: $*" >&2; }
# The first error of each line, with a hint where the cause is known.
explain() {
    local undefined='^(.*: )?([^: ]+:[0-9]+):(\(.*\):)? undefined reference to .([A-Za-z_0-9:]+).*$'
    {
        sed -nE "s/$undefined/\\2: error: \\4 is not emulated/p" "$work/log" | sort -u
        grep -E '(error|Error):' "$work/log" | grep -v '^collect2' | awk -F: '!seen[$1 ":" $2]++'
    } | head -20 >&2
    if grep -qE '(nccl|mpi)\.h: No such|undefined reference to .(nccl|MPI_)' "$work/log"; then
        [ -n "$mpi_compile" ] || hint "NCCL needs MPI: apt-get install libopenmpi-dev openmpi-bin"
        has nccl.h || hint "no nccl.h in $cuda/include: run dev/emu/get_headers.sh"
    elif grep -qE 'cublas.*\.h: No such|undefined reference to .cublas' "$work/log"; then
        has cublasLt.h || hint "no cuBLAS headers in $cuda/include: run dev/emu/get_headers.sh"
    fi
    exit 1
}
# (-gdwarf-4: ld names the right file after #line only then)
# shellcheck disable=SC2086
$cxx $flags -gdwarf-4 $program -x c++ -I"$(dirname "$file")" -include "$here/cuda_host.h" "$@" \
    -c "$rewritten" -o "$work/program.o" 2>"$work/log" || explain
grep -E 'warning:' "$work/log" >&2
if [ "$mode" = race ]; then     # clang 14 calls C's memcpy, later ones call the checker's
    objcopy --redefine-sym memcpy=__tsan_memcpy --redefine-sym memmove=__tsan_memmove \
            --redefine-sym memset=__tsan_memset "$work/program.o" || exit 1
fi
mkdir -p "$(dirname "$out")" || exit 1
# shellcheck disable=SC2086
$lib_cxx $link -o "$out" "$work/program.o" "$lib/libemu.a" -fopenmp -Wl,--as-needed $mpi_link \
    >"$work/log" 2>&1 || explain
