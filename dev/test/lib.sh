# lib.sh: what the shell tests share; sourced by run.sh and by every test_*.sh.
#   a test    is a function test_CLAIM. It runs in an empty folder of its own, and fails where a
#             command of it fails (set -e) or calls `fail REASON`; `skip REASON` leaves it unjudged
#   a file    defines tests and ends in: run_tests "$@"      (the argument: only names with it)
#   by hand   B=build dev/test/test_resume.sh epoch
set -u
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case ${B:=$root/build} in /*) ;; *) B=$root/$B ;; esac
export B
# Leaks are not looked for: the program holds all its buffers to the end, by design.
export ASAN_OPTIONS=detect_leaks=0:exitcode=99
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1      # more ranks than cores: Open MPI 4, and 5
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

passed=0 failed=0 skipped=0
now_ms() { local s=${EPOCHREALTIME:-$SECONDS.000000}; echo $((${s/[.,]/} / 1000)); }
fail() { echo "$*"; exit 1; }
skip() { echo "$*"; exit 77; }

# Clang's OpenMP leaves a file in shared memory when its process is killed; the next process of that
# number makes six more system calls at its start, and the tests that count them would miss.
sweep_shared_memory() {
    local file pid dead=()
    for file in /dev/shm/__KMP_REGISTERED_LIB_*; do
        pid=${file##*LIB_}
        [ -e "/proc/${pid%%_*}" ] || dead+=("$file")
    done
    rm -f "${dead[@]}"
}
run_test() {        # run_test NAME COMMAND...
    local name=$1 start status; start=$(now_ms); shift
    sweep_shared_memory
    mkdir -p "$tmp/$name"
    (set -e; cd "$tmp/$name"; "$@") >"$tmp/output" 2>&1 </dev/null
    status=$?
    case $status in
    0)  passed=$((passed + 1)); echo "ok   $name ($(($(now_ms) - start)) ms)" ;;
    77) skipped=$((skipped + 1)); echo "skip $name: $(tail -n 1 "$tmp/output")" ;;
    *)  failed=$((failed + 1)); echo "FAIL $name ($(($(now_ms) - start)) ms), exit code $status"
        tail -n 20 "$tmp/output" | tr -c '\n -~' '?' | cut -c 1-400 | sed 's/^/    /' ;;
    esac
    rm -rf "${tmp:?}/$name"
}
run_tests() {       # every test_* of this file, in its order, whose name has $1 in it
    local name
    # Models this small are faster on one thread; that threads change no bit has a test of its own.
    # Where there are more, none may spin while it waits: the machine may be busy.
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive
    for name in $(sed -n 's/^\(test_[a-z0-9_]*\)().*/\1/p' "$0"); do
        case $name in *"${1:-}"*) run_test "$name" "$name" ;; esac
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ]
}

# --- running the program ---
tiny="--layers 1 --channels 16 --heads 2 --seq_len 8 --batch_size 2"    # about 0.2 ms a step
is_sanitized() { grep -q __asan_init "$B/train_gpt"; }

gpt() {             # gpt ARGUMENTS...: must end in exit code 0; its output is in ./stdout, ./stderr
    local status=0
    "$B/train_gpt" "$@" >stdout 2>stderr || status=$?
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of: $*"; }
}
run_on() {          # run_on RANKS ARGUMENTS...: its exit code is in $status
    local launch=(mpirun -np "$1"); shift
    [ "${launch[2]}" != 1 ] || launch=()
    status=0
    timeout 60 "${launch[@]}" "$B/train_gpt" "$@" >stdout 2>stderr || status=$?
}
want() { [ $status -eq "$1" ] || { cat stderr; fail "exit code $status, want $1"; }; }
traces() {          # what is in ./out: names, sizes, contents. Only the lock of a run is let pass.
    find out -mindepth 1 ! -name run.lock 2>/dev/null | sort
    find out -type f ! -name run.lock -exec cksum {} + 2>/dev/null | sort
}
refused() {         # refused CODE PATTERN ARGUMENTS...: one line of error, and no trace in ./out
    local code=$1 pattern=$2 before status=0; shift 2
    before=$(traces)
    timeout 20 "$B/train_gpt" "$@" >stdout 2>stderr || status=$?
    grep -vE '^(warning|changed): ' stderr >errors || :
    [ $status -eq "$code" ] || { cat stderr; fail "exit code $status, want $code, of: $*"; }
    [ "$(wc -l <errors)" -eq 1 ] || { cat errors; fail "not one line on stderr, of: $*"; }
    grep -q '^error: ' errors || { cat errors; fail "does not begin with 'error: ', of: $*"; }
    grep -qE -e "$pattern" errors || { cat errors; fail "no '$pattern' in the error of: $*"; }
    [ ! -s stdout ] || fail "wrote to stdout: $(head -c 200 stdout), of: $*"
    [ "$before" = "$(traces)" ] || { traces; fail "left a trace in ./out, of: $*"; }
}
says() { grep -qE -e "$1" stderr || { cat stderr; fail "no '$1' on stderr"; }; }
newest() { basename "$(find "${1:-out}" -name 'step_*[0-9]' | sort | tail -n 1)"; }

same_state() {      # same_state A B: two checkpoints hold the same, bit for bit
    cmp "$1/model.safetensors" "$2/model.safetensors"
    cmp "$1/train_state.safetensors" "$2/train_state.safetensors"
}
is_less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }' || fail "$1 is not below $2"; }
field() { grep -ao "\"$1\":[^,}]*" "$2" | tail -n 1 | cut -d : -f 2; }  # field NAME FILE: the last

mpi_or_skip() {
    command -v mpirun >/dev/null || skip "no mpirun; install openmpi-bin"
    grep -q MPI_Init_thread "$B/train_gpt" ||
        skip "train_gpt is built without MPI; install libopenmpi-dev and make"
}
strace_or_skip() {
    command -v strace >/dev/null || skip "no strace; install strace"
    strace -f -qq -o none true 2>/dev/null || skip "ptrace is not permitted here; install strace where it is"
    ! is_sanitized || skip "the sanitizer's own system calls change the counts"
}

# --- a run in the background, held back by its log: a pipe of 64 KiB, some 200 lines of a step ---
start_on() {        # start_on RANKS ARGUMENTS...
    local launch=(mpirun -np "$1"); shift
    [ "${launch[2]}" != 1 ] || launch=()
    [ -p log ] || mkfifo log
    exec 3<>log
    "${launch[@]}" "$B/train_gpt" "$@" --log log >>stdout 2>>stderr &
    pid=$!
    trap 'kill -9 $pid 2>/dev/null || :' EXIT
}
start() { start_on 1 "$@"; }
until_step() {      # until the log says that step $1 is done
    local line
    while IFS= read -r -t 30 -u 3 line; do case $line in "{\"step\":$1,"*) return ;; esac; done
    cat stderr
    fail "the log never came to step $1"
}
finish() {          # lets the run go on to its end; its exit code is in $status
    cat <&3 >/dev/null &
    local drain=$!
    status=0
    wait $pid 2>/dev/null || status=$?
    kill -9 $drain
    wait $drain 2>/dev/null || :
}

# --- files ---
text() {            # text LINES: some text, always the same
    awk -v lines="$1" 'BEGIN { for (i = 0; i < lines; i++)
        print i, "times", i % 7, "is", i * (i % 7) ", and that is", i % 3 ? "odd." : "even!" }'
}
little() {          # little BYTES NUMBER...: little-endian
    local bytes=$1 number i hex all=''; shift
    for number; do for ((i = 0; i < bytes; i++)); do
        printf -v hex '\\x%02x' $((number >> 8 * i & 255)); all+=$hex
    done; done
    printf "$all"
}
tokens() { awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) print (i * i + 7 * i) % 251 }'; }
shard() {           # shard FILE TOKEN...: llm.c's format, 16 bits a token
    local file=$1; shift
    { little 4 20240520 1 $#; head -c 1012 /dev/zero; little 2 "$@"; } >"$file"
}
shard32() {         # the same with 32 bits a token
    local file=$1; shift
    { little 4 20240801 7 $#; head -c 1012 /dev/zero; little 4 "$@"; } >"$file"
}
poke() {            # poke FILE OFFSET BYTES NUMBER: overwrites
    little "$3" "$4" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
flip() {            # flip FILE OFFSET: its lowest bit
    poke "$1" "$2" 1 $(($(od -An -tu1 -j "$2" -N 1 "$1") ^ 1))
}
bytes_of() { wc -c <"$1" | tr -d ' '; }
at() { grep -abo -m 1 -e "$1" "$2" | head -n 1 | cut -d : -f 1; }    # at TEXT FILE: its offset
