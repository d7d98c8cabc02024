#!/usr/bin/env bash
# build.sh OUT FILE.cu [flags of nvcc]: build a CUDA program with what this machine has, and say what.
#
#   NVCC       the compiler; default: in PATH, else /usr/local/cuda/bin/nvcc
#   CUDA_ARCH  like sm_90, several with commas; default: of the GPUs here, else sm_80,sm_90,sm_100
#   PRECISION  BF16 (default), FP16, FP32
#   MPI=0      without MPI: one process, or several started by torchrun or Slurm
#   NCCL=0     without NCCL: several GPUs exchange by way of the host
# Nothing is left out unless asked for: what is missing is named, with the package that brings it.
set -u
die() { echo "build.sh: error: $*" >&2; exit 1; }
[ $# -ge 2 ] || die "usage: build.sh OUT FILE.cu [flags]"
out=$1 file=$2
shift 2
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || die "no nvcc (NVCC=$nvcc): install the CUDA toolkit (apt: nvidia-cuda-toolkit;" \
    "or developer.nvidia.com/cuda-downloads), or run the program without a GPU: make emu"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# tries HEADER STATEMENT FLAGS...: whether a program with them compiles and links
tries() {
    printf '#include <%s>\nint main() { %s; return 0; }\n' "$1" "$2" >"$work/try.cu"
    shift 2
    "$nvcc" "$work/try.cu" -o "$work/try" "$@" >"$work/log" 2>&1
}
tries cuda_runtime.h 'cudaFree(0)' || { tail -5 "$work/log" >&2
    die "$nvcc compiles nothing: it wants a g++ that it knows (apt: g++)"; }
flags=(-lcublasLt)
tries cublasLt.h 'cublasLtHandle_t h; cublasLtCreate(&h)' -lcublasLt ||
    die "no cuBLASLt: apt-get install libcublas-dev-\$VERSION (as the toolkit's), or the whole toolkit"
found="cuBLASLt"
if [ "${NCCL:-1}" != 0 ]; then
    tries nccl.h 'ncclGroupStart()' -lnccl ||
        die "no NCCL: apt-get install libnccl-dev libnccl2; or NCCL=0, if one GPU is all there is"
    flags+=(-DUSE_NCCL -lnccl)
    found="$found, NCCL"
fi
if [ "${MPI:-1}" != 0 ]; then
    mpi=()
    for flag in $(mpicxx --showme:compile 2>/dev/null) $(mpicxx --showme:link 2>/dev/null); do
        case $flag in
        -Wl,*) mpi+=(-Xlinker "${flag#-Wl,}") ;;
        -pthread) mpi+=(-Xcompiler -pthread) ;;
        *) mpi+=("$flag") ;;
        esac
    done
    tries mpi.h 'MPI_Init(0, 0)' ${mpi[@]+"${mpi[@]}"} || die "no MPI: apt-get install" \
        "libopenmpi-dev openmpi-bin; or MPI=0, for one process or torchrun"
    flags+=(-DUSE_MPI "${mpi[@]}")
    found="$found, MPI"
fi
if [ -z "${CUDA_ARCH:-}" ]; then
    CUDA_ARCH=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
                sort -u | sed 's/^\([0-9]*\)\.\([0-9]\)$/sm_\1\2/' | paste -sd, -)
    where="of the GPUs here"
    [ -n "$CUDA_ARCH" ] || { CUDA_ARCH=sm_80,sm_90,sm_100; where="no GPU is visible"; }
else where="as asked for"
fi
for arch in ${CUDA_ARCH//,/ }; do
    flags+=("-gencode=arch=compute_${arch#sm_},code=$arch")
done
version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
echo "CUDA $version, $found, ${PRECISION:-BF16}, for $CUDA_ARCH ($where)"
mkdir -p "$(dirname "$out")"
# 177: a function that this program does not use (they are all static)
"$nvcc" -std=c++17 -O3 -lineinfo --threads 2 -diag-suppress 177 -Xcompiler -fopenmp,-Wall \
    -Xcompiler -Wno-unused-function "-DPRECISION_${PRECISION:-BF16}" \
    "-DGIT_HASH=\"$(git rev-parse --short HEAD 2>/dev/null || echo unknown)\"" \
    "$@" "$file" -o "$out" "${flags[@]}"
