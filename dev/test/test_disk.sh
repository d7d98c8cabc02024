#!/usr/bin/env bash
# test_disk.sh: disks that are full, fail, lie or lose power while a checkpoint is written, and the
# kill at every system call of one. strace puts the faults in. The numbers: the fault table's.
. "$(dirname "$0")/lib.sh"
export OMP_NUM_THREADS=1

quiet="$tiny --val_every 0 --save_every 1"
calls="write pwrite64 fsync close rename mkdir unlink rmdir openat"     # all that a checkpoint does

# ./base: checkpoints of steps 1 and 2; ./whole: step 3 as well. resumed_to_3 is the call that is
# disturbed. first[CALL], last[CALL]: which of its CALLs belong to the checkpoint of step 3.
declare -A first last
prepare() {
    local call
    text 99 >t.txt
    gpt $quiet --train t.txt --steps 2
    mv out base
    cp -r base/ out
    strace -f -qq -o trace -e trace="$(echo $calls | tr ' ' ,)" \
        "$B/train_gpt" --resume --steps 3 2>/dev/null
    mv out whole
    awk 'NR == 1 { main = $1 } $1 == main' trace >calls     # strace counts in each thread apart
    for call in $calls; do
        first[$call]=$(awk -v c=" $call(" '
            index($0, "mkdir(\"out/step_00000003.tmp\"") { print n + 1; exit } index($0, c) { n++ }
            ' calls)
        last[$call]=$(awk -v c=" $call(" '
            index($0, "\"time: ") { print n + 0; exit } index($0, c) { n++ }' calls)
    done
    [ "${last[write]}" -gt $((${first[write]} + 40)) ] || fail "no writes: ${!last[*]} ${last[*]}"
}
resumed_to_3() {    # resumed_to_3 INJECTION...: exit code in $status
    rm -rf out
    cp -r base/ out
    status=0
    strace -f -qq -o trace $(printf -- '-e inject=%s ' "$@") \
        "$B/train_gpt" --resume --steps 3 2>stderr || status=$?
}
good_now() {        # what is left leads to step 3 as it should be, and nothing else is left
    local step
    for step in 1 2 3; do
        step=step_0000000$step
        [ "${1:-}" = "$step" ] || [ ! -d out/$step ] || [ ! -d whole/$step ] ||
            same_state {out,whole}/$step
    done
    gpt --resume --steps 3
    same_state {out,whole}/step_00000003
    [ -z "$(find out -name '*.tmp')" ] || fail "leftovers: $(ls out)"
}

# --- full and failing ---
test_26_full_disk_at_one_write() {
    local n
    strace_or_skip
    prepare
    for n in ${first[write]} $((${first[write]} + 20)) ${last[write]}; do
        rm -rf out
        cp -r base/ out
        strace -f -qq -o trace -e inject=write:error=ENOSPC:when=$n \
            "$B/train_gpt" --resume --steps 4 2>stderr || fail "$(cat stderr)"
        says '^warning: step 3: checkpoint failed: No space left on device; earlier ones are kept'
        [ "$(cd out && echo step_*)" = 'step_00000002 step_00000004' ] || fail "$(ls out)"
    done
}
test_26_three_failures_in_a_row_end_the_run() {
    strace_or_skip
    prepare
    rm -rf out
    cp -r base/ out
    status=0
    strace -f -qq -o trace -e inject=fsync:error=ENOSPC:when=${first[fsync]}+ \
        "$B/train_gpt" --resume --steps 9 2>stderr || status=$?
    [ $status -eq 4 ] || { cat stderr; fail "exit code $status, want 4"; }
    [ "$(grep -c '^warning: step .*checkpoint failed' stderr)" -eq 3 ]
    tail -n 1 stderr | grep -q '^error: out: three checkpoints in a row failed: No space left'
    [ "$(cd out && echo step_*)" = 'step_00000001 step_00000002' ] || fail "$(ls out)"
    good_now
}
test_26_full_file_system() {    # a real one: it has room for two checkpoints
    text 99 >t.txt
    mkdir small
    unshare -rm mount -t tmpfs none small 2>/dev/null || skip "mounting is not allowed here"
    cat >run <<-'END'
	mount -t tmpfs -o size=320k none small
	"$B/train_gpt" "$@"; code=$?
	ls small
	cp -r small kept
	exit $code
	END
    status=0
    unshare -rm sh run $quiet --train t.txt --steps 9 --out small --keep 5 >stdout 2>stderr ||
        status=$?
    [ $status -eq 4 ] || { cat stderr; fail "exit code $status, want 4"; }
    tail -n 1 stderr | grep -q '^error: small: three checkpoints in a row failed: No space left'
    ! grep -q tmp stdout || fail "the half checkpoint was left on the full disk: $(cat stdout)"
    gpt --resume --steps 9 --out kept
    gpt $quiet --train t.txt --steps 9 --out whole --keep 5
    same_state {kept,whole}/step_00000009
}
test_27_failing_fsync_close_and_rename() {
    local call n injected
    strace_or_skip
    prepare
    for call in fsync close rename; do
        injected=0
        for n in $(seq ${first[$call]} ${last[$call]}); do
            rm -rf out
            cp -r base/ out
            strace -f -qq -o trace -e inject=$call:error=EIO:when=$n \
                "$B/train_gpt" --resume --steps 3 2>stderr && status=0 || status=$?
            grep -q "EIO.*INJECTED" trace || continue
            injected=$((injected + 1))
            # A file that was only read may fail to close: nothing is lost by that.
            if [ $status -eq 0 ]; then
                [ $call = close ] || fail "$call $n: the failure went unnoticed"
            else
                [ $status -eq 4 ] || { cat stderr; fail "$call $n: exit code $status, want 4"; }
                says '^warning: step 3: checkpoint failed: Input/output error'
                [ -d out/step_00000001 ] && [ -d out/step_00000002 ] || fail "an old one is gone"
            fi
            good_now
        done
        [ $injected -gt 0 ] || fail "no $call failed"
    done
}
# After a rollback the run is saved at the step of the checkpoint that it went back to.
test_27_and_30_checkpoint_is_there_while_its_successor_takes_its_name() {
    local fault name=out/step_00000004
    strace_or_skip
    text 99 >t.txt
    for fault in rename:signal=KILL:when=2 renameat2:signal=KILL renameat2:error=EIO; do
        rm -rf out
        strace -f -qq -o trace -P $name -P $name.tmp -P $name/train_state.safetensors \
            -e trace=openat,rename,renameat2 -e inject=openat:signal=USR1:when=3 \
            -e inject=$fault "$B/train_gpt" $tiny --train t.txt --val_every 0 --save_every 4 \
            --steps 20 --inject nan@5x10 2>stderr || :
        says 'resumed at step 4'
        [ -d $name ] || fail "$fault: $(ls out)"
        grep -q 'renameat2(' trace || fail "the old one has gone before: $(cat trace)"
        gpt --resume --steps 5
        says 'resumed at step 4'
        [ -z "$(find out -name '*.tmp')" ] || fail "leftovers: $(ls out)"
    done
}
test_31_all_is_on_the_disk_before_it_has_its_name() {
    local file files="config.json vocab.json merges.txt tokenizer.json tokenizer_config.json"
    strace_or_skip
    text 99 >t.txt
    strace -f -y -qq -o trace -e trace=fsync,rename "$B/train_gpt" $quiet --train t.txt --steps 1 \
        2>/dev/null
    sed -n -e "s|.*fsync([0-9]*<$PWD/\(out.*\)>) *= 0|fsync \1|p" \
           -e 's|.*rename("\(.*\)", "\(.*\)") *= 0|rename \1 \2|p' trace | grep -v probe >order
    {   for file in $files model.safetensors train_state.safetensors; do
            echo "fsync out/step_00000001.tmp/$file"
        done
        echo "fsync out/step_00000001.tmp"
        echo "rename out/step_00000001.tmp out/step_00000001"
        echo "fsync out"; } | diff - order
}

# --- short, interrupted, lying ---
test_28_interrupted_writes_are_taken_up_again() {
    local n
    strace_or_skip
    prepare
    resumed_to_3 write:error=EINTR:when=${first[write]}..${last[write]}+2
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status"; }
    [ "$(grep -c 'EINTR.*INJECTED' trace)" -gt 20 ]
    good_now
}
test_28_lying_disk_is_found_at_the_next_start() {   # it says that it wrote, and wrote nothing
    local n
    strace_or_skip
    prepare
    # Of text files too: the fifth write is in the middle of the tokenizer's.
    for n in ${first[write]} $((${first[write]} + 3)) $((${first[write]} + 30)) ${last[write]}; do
        resumed_to_3 write:retval=64:when=$n
        [ $status -eq 0 ] || { cat stderr; fail "exit code $status"; }
        gpt --resume --steps 3
        says '^warning: checkpoint passed over: out/step_00000003'
        same_state {out,whole}/step_00000003
    done
    resumed_to_3 pwrite64:retval=64:when=${first[pwrite64]}     # ... and a header
    [ $status -eq 4 ] || fail "a short header went unnoticed"
    resumed_to_3 write:retval=0:when=$((${first[write]} + 9))   # no progress, no error: no hang
    [ $status -eq 4 ] || fail "exit code $status, want 4"
    good_now
}
test_29_limit_on_the_size_of_a_file() {
    text 99 >t.txt
    gpt $quiet --train t.txt --steps 2
    status=0
    (ulimit -f 20; exec "$B/train_gpt" --resume --steps 9) 2>stderr || status=$?
    [ $status -eq 4 ] || { cat stderr; fail "exit code $status, want 4"; }
    says '^warning: step 3: checkpoint failed: File too large'
    [ "$(cd out && echo step_*)" = 'step_00000001 step_00000002' ] || fail "$(ls out)"
    gpt --resume --steps 3
}

# --- killed, and without power ---
killed_at() {       # killed_at CALL WHICH...: in a folder of its own
    local call=$1 n; shift
    mkdir "by_$1"
    cd "by_$1"
    ln -s ../../{t.txt,base,whole} .
    for n; do
        resumed_to_3 "$call:signal=KILL:when=$n"
        [ $status -eq 137 ] || { cat stderr; fail "$call $n: exit code $status, want 137"; }
        good_now || fail "after kill at $call $n"
    done
}
test_30_kill_at_every_system_call_of_a_checkpoint() {
    local call n odd even pids count=0
    strace_or_skip
    prepare
    for call in $calls; do
        odd='' even=''
        for n in $(seq ${first[$call]} ${last[$call]}); do
            if ((n % 2)); then odd+=" $n"; else even+=" $n"; fi
            count=$((count + 1))
        done
        mkdir $call
        pids=''
        for n in "$odd" "$even"; do
            [ -z "$n" ] || { (set -e; cd $call; killed_at $call $n) & pids+=" $!"; }
        done
        for n in $pids; do wait $n; done
    done
    [ $count -ge 80 ] || fail "only $count system calls"
    echo "$count system calls"
}
test_31_power_cut() {           # a name that is on the disk before the data is
    local file
    strace_or_skip              # only for the two folders
    prepare
    for file in $(ls whole/step_00000003); do
        rm -rf out
        cp -r whole out
        head -c "$(bytes_of out/step_00000003/$file)" /dev/zero >out/step_00000003/$file
        gpt --resume --steps 3
        says '^warning: checkpoint passed over: out/step_00000003'
        says '^resumed at step 2 '
        same_state {out,whole}/step_00000003
        cmp {out,whole}/step_00000003/$file
    done
    rm -rf out                  # the rename was lost
    cp -r whole out
    mv out/step_00000003 out/step_00000003.tmp
    good_now
}

run_tests "$@"
