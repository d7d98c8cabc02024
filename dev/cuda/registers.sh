#!/usr/bin/env bash
# registers.sh [PRECISION]: registers, shared memory and spills of every kernel of train_gpt.cu, as
# ptxas reports them for sm_80, sm_90 and sm_100. Exit 1 if one spills, or has a stack (arrays that
# it keeps in memory), or is over its budget: 128 registers, so that a multiprocessor holds 16 warps;
# but 192 for layernorm_backward, whose sums live in them, and 255 for attention, which is launched
# with 128 threads.
set -u
cd "$(dirname "$0")/../.." || exit 1
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "registers.sh: error: no nvcc" >&2; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
for arch in sm_80 sm_90 sm_100; do
    "$nvcc" -std=c++17 -O3 "-arch=$arch" -diag-suppress 177 "-DPRECISION_${1:-BF16}" -cubin \
        -Xptxas -v train_gpt.cu -o "$work/cubin" 2>"$work/$arch" || { cat "$work/$arch"; exit 1; }
    # ptxas: three lines a kernel: its name; stack and spills; registers and shared memory
    c++filt <"$work/$arch" | awk -v arch=$arch '
        /Compiling entry function/ { name = $0; sub(/.*function .(void )?/, "", name)
                                     sub(/\(.*/, "", name) }
        /bytes spill stores/       { stack = $1; spills = $5 + $9 }
        /Used [0-9]+ registers/    { shared = $0
            if (!sub(/ bytes smem.*/, "", shared)) shared = 0; else sub(/.* /, "", shared)
            registers = $0; sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
            print name, arch, registers + 0, shared + 0, stack + 0, spills + 0 }' >>"$work/all"
done
sort "$work/all" | awk '
    function flush() { if (name != "") printf "%-34s %s\n", name, row }
    BEGIN { printf "%-34s %s\n", "kernel", "registers, static shared bytes" }
    { key = $1; for (i = 2; i <= NF - 5; i++) key = key " " $i
      if (key != name) { flush(); name = key; row = "" }
      arch = $(NF - 4); registers = $(NF - 3); stack = $(NF - 1); spills = $NF
      row = row sprintf("%s %s: %3d %6d%s%s", row == "" ? "" : " |", arch, registers, $(NF - 2),
                        stack > 0 ? " STACK " stack " bytes" : "",
                        spills > 0 ? " SPILLS " spills " bytes" : "")
      most = key ~ /^att/ ? 255 : key ~ /^layernorm_backward/ ? 192 : 128
      if (stack > 0 || spills > 0 || registers > most) bad = bad "\n" key " on " arch }
    END { flush(); kernels = NR / 3
          if (NR == 0) { print "ptxas reported no kernel"; exit 1 }
          if (bad != "") { print "over budget:" bad; exit 1 }
          print kernels " kernels, no spills, no stack" }'
