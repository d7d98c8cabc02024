#!/usr/bin/env bash
# ladders.sh [--fast | --race | --gpu]: builds and runs the ladders of dev/cuda.
#   --fast    on the emulator: every rung against the CPU's op; counts go into README.md
#   --race    on the emulator's race build, small shapes (needs clang++)
#   --gpu     on the GPU here: checked, then timed; times go into README.md
#   none      --fast, then --race
#   exit      1 when a rung is wrong, or raced, or does not build; README.md then stays as it is
#   PRECISION BF16 (default, the only one that README.md shows), FP16, FP32
#   JOBS      builds at a time, 2
set -u
cd "$(dirname "$0")/../.." || exit 1
die() { echo "ladders.sh: error: $*" >&2; exit 1; }
ladders='layernorm_forward layernorm_backward matmul attention_forward attention_backward
    column_sums gelu classifier embedding_backward sum adamw'
: "${PRECISION:=BF16}" "${JOBS:=2}" "${B:=build}"
folder=$B/ladders
mkdir -p "$folder" || exit 1

# build MODE LADDER: unless it is fresh
build() {
    local exe=$folder/$2.$1.$PRECISION source
    for source in "dev/cuda/$2.cu" dev/cuda/*.h dev/cuda/build.sh train_gpt.c* dev/emu/*.*
    do  [ "$exe" -nt "$source" ] && continue
        case $1 in
        gpu) MPI=0 NCCL=0 dev/cuda/build.sh "$exe" "dev/cuda/$2.cu" ;;
        race) dev/emu/build.sh "$exe" race "dev/cuda/$2.cu" "-DPRECISION_$PRECISION" \
                  -Wno-pass-failed ;;
        *) dev/emu/build.sh "$exe" fast "dev/cuda/$2.cu" "-DPRECISION_$PRECISION" ;;
        esac >"$exe.log" 2>&1 || { cat "$exe.log" >&2; return 1; }
        grep -i warning "$exe.log" >&2 && return 1
        return 0
    done
}
# run MODE: all ladders, one after the other, on the GPU; JOBS at a time on the emulator
run() {
    local mode=$1 ladder arguments='' wrong=0
    [ "$mode" = race ] && arguments=--small
    export -f build
    export folder PRECISION
    # shellcheck disable=SC2086
    printf '%s\n' $ladders | xargs -P "$JOBS" -I{} bash -c "build $mode {}" ||
        die "not all ladders build"
    : >"$folder/$mode.txt"
    for ladder in $ladders; do
        "$folder/$ladder.$mode.$PRECISION" $arguments >"$folder/log" 2>&1 &&
            echo "ok   $mode $PRECISION $ladder" ||
            { wrong=1; echo "FAIL $mode $PRECISION $ladder"; cat "$folder/log"; }
        cat "$folder/log" >>"$folder/$mode.txt"
    done
    [ $wrong = 0 ] || exit 1
    [ "$mode" = race ] || [ "$PRECISION" != BF16 ] || table "$folder/$mode.txt"
}
# table RESULTS: their numbers into README.md, where other ones stay as they are
table() {
    # shellcheck disable=SC2086
    python3 - "$1" "$(date +%Y-%m-%d)" $ladders <<'EOF' || die "README.md is not written"
import re, sys
results, date, ladders = sys.argv[1], sys.argv[2], sys.argv[3:]
begin, end = "<!-- what follows is written by dev/cuda/ladders.sh -->\n", "<!-- end -->"
page = open("dev/cuda/README.md").read()
head, old = page.split(begin)
cells = {}                              # (op, rung): of a row; rung "": of the op
op = ""
for line in old.split("\n"):            # what is there
    row = [c.strip() for c in line.split("|")[1:-1]]
    if len(row) == 12 and row[0].startswith("**"): op = row[0].strip("*"); cells[op, ""] = row
    elif len(row) == 12 and op: cells[op, row[0]] = row
where = (re.findall(r"^Timed.*", old, re.M) + ["Timed: not measured."])[0]
op, is_time, order = "", False, {}
for line in open(results):              # what is new; of two shapes the later one
    title = re.match(r"(\w+): (.*), bf16, (.*)", line)
    rung, row = line[:14].strip(), line[14:].split()
    if title:
        op, is_time, is_gpu = title[1], False, title[3] != "emulated"
        order.setdefault(op, [])
        cells.setdefault((op, ""), [f"**{op}**"] + [""] * 11)[8 if is_gpu else 1] = title[2]
    elif not op and ": copies " in line: where = f"Timed on {line.strip()}; {date}."
    elif rung in ("rung", "time") and row: is_time = rung == "time"
    elif rung and row:
        new = cells.setdefault((op, rung), [rung] + [""] * 7 + ["not measured", "", "", ""])
        if is_time: new[8:12] = row
        else: new[2:2 + len(row)] = row
        if rung not in order[op]: order[op].append(rung)
text = [where, "", "| rung | idea | error | of bar | launches | barriers | warp ops | conflicts "
        "| us | GB/s | TFLOP/s | % of bound |", "|---" * 12 + "|"]
for op, name in zip(order, ladders):    # ideas: the first clause of what the header says
    header = re.match(r"(//.*\n)*", open(f"dev/cuda/{name}.cu").read())[0]
    text.append("| " + " | ".join(cells[op, ""]) + " |")
    for rung in order[op]:
        idea = re.search(rf"^//   {rung} +((.*\n//     )*.*)", header, re.M)
        if not idea: sys.exit(f"dev/cuda/{name}.cu: no line about the rung {rung}")
        idea = re.sub(r"\s*\n//\s*", " ", idea[1])
        cells[op, rung][1] = re.split(r"[:;.](?:\s|$)", idea)[0]
        text.append("| " + " | ".join(cells[op, rung]) + " |")
open("dev/cuda/README.md", "w").write(head + begin + "\n" + "\n".join(text) + "\n\n" + end + "\n")
EOF
}
case ${1:-} in
'') run fast; run race ;;
--fast | --race | --gpu) run "${1#--}" ;;
*) echo "usage: dev/cuda/ladders.sh [--fast | --race | --gpu]" >&2; exit 2 ;;
esac
