#!/usr/bin/env bash
# ladders.sh [--fast | --race | --gpu]: builds and runs the ladders of dev/cuda.
#   --fast    on the emulator: every rung against the CPU's op; counts go into README.md
#   --race    on the emulator's race build, small shapes (needs clang++)
#   --gpu     on the GPU here: checked, then timed; times go into README.md
#   none      --fast, then --race
#   exit      1 when a rung is wrong, or raced, or does not build; README.md keeps what it has of
#             that ladder, and gets the others
#   PRECISION BF16 (default, the only one that README.md shows), FP16, FP32
#   JOBS      builds at a time, 2
set -u
cd "$(dirname "$0")/../.." || exit 1
die() { echo "ladders.sh: error: $*" >&2; exit 1; }
ladders='layernorm_forward layernorm_backward matmul attention_forward attention_backward
    column_sums gelu classifier embedding_backward sum adamw exchange'
: "${PRECISION:=BF16}" "${JOBS:=2}" "${B:=build}"
folder=$B/ladders
mkdir -p "$folder" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# build MODE LADDER: unless it is fresh
build() {
    local exe=$folder/$2.$1.$PRECISION source ranks=()
    [ "$2" = exchange ] && ranks=(-DUSE_MPI -DUSE_NCCL)
    for source in "dev/cuda/$2.cu" dev/cuda/*.h dev/cuda/build.sh train_gpt.c* dev/emu/*.*
    do  [ "$exe" -nt "$source" ] && continue
        if [ "$1" != gpu ]; then
            dev/emu/build.sh "$exe" "$1" "dev/cuda/$2.cu" "-DPRECISION_$PRECISION" \
                -Wno-pass-failed "${ranks[@]}"
        elif [ "$2" = exchange ]; then dev/cuda/build.sh "$exe" dev/cuda/exchange.cu
        else MPI=0 NCCL=0 dev/cuda/build.sh "$exe" "dev/cuda/$2.cu"
        fi >"$exe.log" 2>&1 || { cat "$exe.log" >&2; rm -f "$exe"; return 1; }
        ! grep -i warning "$exe.log" >&2 || [ "$1" = gpu ] || { rm "$exe"; return 1; }
        return 0
    done
}
# has_ranks MODE: says so if not
has_ranks() {
    if ! command -v mpirun >/dev/null; then echo "skip exchange: no MPI"
    elif [ "$1" = race ]; then echo "skip exchange: no ranks in the race build"
    elif [ "$1" = gpu ] && [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then echo "skip exchange: one GPU"
    else return 0; fi
    return 1
}
run() { # MODE: all ladders
    local mode=$1 ladder some=$ladders wrong=0 ranks=4 command
    [ "$mode" = gpu ] && ranks=$(nvidia-smi -L | wc -l)
    has_ranks "$mode" || some=${ladders/exchange/}
    export -f build
    export folder PRECISION
    # shellcheck disable=SC2086
    printf '%s\n' $some | xargs -P "$JOBS" -I{} bash -c "build $mode {}" || wrong=1
    : >"$folder/$mode.txt"
    for ladder in $some; do
        command=("$folder/$ladder.$mode.$PRECISION")
        [ -x "${command[0]}" ] || { echo "FAIL $mode $PRECISION $ladder: does not build"; continue; }
        [ "$mode" = race ] && command+=(--small)
        [ "$ladder" = exchange ] && command=(mpirun --oversubscribe -n "$ranks" "${command[@]}")
        [ "$mode" = gpu ] && command=(timeout 60 "${command[@]}")   # the next ones want a turn, too
        if "${command[@]}" >"$folder/log" 2>&1; then
            echo "ok   $mode $PRECISION $ladder"
            { echo "ladder $ladder"; cat "$folder/log"; } >>"$folder/$mode.txt"
        else
            wrong=1
            echo "FAIL $mode $PRECISION $ladder: ${command[*]}"
            cat "$folder/log"
        fi
    done
    [ "$mode" = race ] || [ "$PRECISION" != BF16 ] || table "$folder/$mode.txt"
    [ $wrong = 0 ] || exit 1
}
# table RESULTS: their numbers into README.md, where the others stay as they are
table() {
    # shellcheck disable=SC2086
    python3 - "$1" "$(date +%Y-%m-%d)" $ladders <<'EOF' || die "README.md is not written"
import re, sys
results, date, ladders = sys.argv[1], sys.argv[2], sys.argv[3:]
begin, end = "<!-- what follows is written by dev/cuda/ladders.sh -->\n", "<!-- end -->"
head, old = open("dev/cuda/README.md").read().split(begin)
where = (re.findall(r"^Timed.*", old, re.M) + ["Timed: not measured."])[0]
rows = {ladder: {} for ladder in ladders}       # of a rung: its cells; "": of the ladder
ladder, unmeasured = "", ["not measured", "", "", ""]
for line in old.split("\n"):                    # what is there
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    if len(cells) != 12: continue
    if cells[0].startswith("**"): ladder = cells[0].strip("*"); cells[0] = ""
    if ladder in rows: rows[ladder][cells[0]] = cells
fresh = {}                                      # what is new; of two shapes the later one
for line in open(results):
    title = re.match(r"\w+: (.*), bf16, (.*)", line)
    name, cells = line[:14].strip(), line[14:].split()
    if line.startswith("ladder "): ladder = line.split()[1]; fresh[ladder] = {}; is_time = False
    elif ": copies " in line: where = f"Timed on {line.strip()}; {date}."
    elif title:
        row = rows[ladder].get("", [""] * 12)
        row[1 if title[2] == "emulated" else 8] = title[1]
        fresh[ladder][""], is_time = row, False
    elif name in ("rung", "time"): is_time = name == "time"
    elif name and ladder and "" in fresh[ladder]:
        row = rows[ladder].get(name, [name] + [""] * 7 + unmeasured)
        row = fresh[ladder].setdefault(name, row)
        if is_time: row[8:12] = cells
        else: row[2:2 + len(cells)] = cells
rows.update(fresh)                              # rungs that are gone, go
text = ["| rung | idea | error | of bar | launches | barriers | warp ops | conflicts | us | GB/s "
        "| TFLOP/s | % of bound |", "|---" * 12 + "|"]
for ladder in ladders:
    header = re.match(r"(//.*\n)*", open(f"dev/cuda/{ladder}.cu").read())[0]
    for name, row in rows[ladder].items():
        idea = re.search(rf"^//   {name} +((.*\n//     )*.*)", header, re.M)
        if name == "": row[0] = f"**{ladder}**"
        elif not idea: sys.exit(f"dev/cuda/{ladder}.cu: no line about the rung {name}")
        else: row[1] = re.split(r"[:;.](?:\s|$)", re.sub(r"\s*\n//\s*", " ", idea[1]))[0]
        text.append("| " + " | ".join(row) + " |")
page = head + begin + "\n" + where + "\n\n" + "\n".join(text) + "\n\n" + end + "\n"
open("dev/cuda/README.md", "w").write(page)
EOF
}
case ${1:-} in
'') run fast; run race ;;
--fast | --race | --gpu) run "${1#--}" ;;
*) echo "usage: dev/cuda/ladders.sh [--fast | --race | --gpu]" >&2; exit 2 ;;
esac
