#!/bin/sh
# run.sh: builds and runs the ladders; `make ladders-cpu` calls it with the Makefile's CC, FLAGS, B.
#   --check   small shapes, correctness only: a line a rung; README.md stays as it is
#   else      runs all and writes their tables into README.md, between its two markers
#   exit      1 when a rung is wrong: nothing is timed then, and README.md stays as it is
#   libraries are optional: OPENBLAS and ONEDNN may name where they lie (-I... -L... -l...)
set -eu
cd "$(dirname "$0")/../.."
: "${FLAGS:?is not set; run it as: make ladders-cpu}" "${CC:=cc}" "${B:=build}"
readme=dev/cpu/README.md ladders='matmul attention layernorm classifier adamw'
mode=${1:-}
case $mode in ''|--check) ;; *) echo "usage: dev/cpu/run.sh [--check]" >&2; exit 2 ;; esac
mkdir -p "$B"

# library NAME HEADER FLAGS...: prints what the compiler needs for it, or says that it is left out
library() {
    name=$1 header=$2; shift 2
    if printf '#include <%s>\nint main(void) { return 0; }\n' "$header" |
        $CC -x c - -o "$B/probe" "$@" 2>/dev/null
    then echo "-D$name $*"
    else echo "$name: does not link, no rows for it" >&2; fi
    rm -f "$B/probe"
}
openblas=$(library OPENBLAS cblas.h \
    ${OPENBLAS:-$(pkg-config --cflags --libs openblas 2>/dev/null || echo -lopenblas)})
onednn=$(library ONEDNN oneapi/dnnl/dnnl.h ${ONEDNN:--ldnnl})
# Of Debian's builds of OpenBLAS the one with OpenMP: the other one's threads would compete with ours.
for d in /usr/lib/*/openblas-openmp
do  [ ! -d "$d" ] || export LD_LIBRARY_PATH="$d${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; done

build() { # build LADDER LIBRARIES...
    ladder=$1 exe=$B/ladder_$1; shift
    for source in "dev/cpu/$ladder.c" dev/cpu/ladder.h train_gpt.c "$B/flags" "$0"
    do  [ "$exe" -nt "$source" ] || { $CC $FLAGS "dev/cpu/$ladder.c" -o "$exe" "$@" -lm; break; }
    done
}
for ladder in $ladders
do  case $ladder in matmul) build matmul $openblas $onednn ;; *) build "$ladder" ;; esac & 
    pids="${pids:-} $!"
done
for pid in $pids; do wait "$pid"; done

[ -z "$mode" ] || {
    for ladder in $ladders; do "$B/ladder_$ladder" --check; done
    exit 0
}
table=$(mktemp) page=$(mktemp) out=$(mktemp)
trap 'rm -f "$table" "$page" "$out"' EXIT
all=${OMP_NUM_THREADS:-$(nproc)}
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
{   echo
    echo "\`make ladders-cpu\` on ${cpu:-$(uname -m)}, $(date +%Y-%m-%d);" \
        "$($CC --version | head -n 1), $FLAGS."
    for threads in 1 $([ "$all" -eq 1 ] || echo "$all"); do
        printf '\n## %s thread%s\n' "$threads" "$([ "$threads" -eq 1 ] || echo 's: the last rungs')"
        for ladder in $ladders; do
            printf '\n### %s\n\n' "$ladder"
            OMP_NUM_THREADS=$threads "$B/ladder_$ladder" >"$out"
            if [ "$threads" -eq 1 ]; then cat "$out"
            else grep -E '^$|^At|^\*\*|^\|(---| (rung|shipped|OpenBLAS|oneDNN))' "$out"; fi
        done
    done
    echo
} >"$table"
awk -v table="$table" '
    /^<!-- end of what/ { skip = 0 }
    !skip
    /^<!-- what follows/ { skip = 1; while ((getline line <table) > 0) print line }
' $readme >"$page"
cat "$page" >$readme
cat "$table"
