#!/usr/bin/env bash
# test_resume.sh: a run that was stopped and resumed ends in the very bytes of one that was not.
# Every test runs a command twice, in ./whole from start to end and in ./cut with stops, and
# compares the two last checkpoints. ./cut is held back by its log (see lib.sh): it is at most 210
# steps ahead of what the test has read, so it does not end before it is stopped.
. "$(dirname "$0")/lib.sh"

steps=300 last=out/step_00000300

whole() {           # whole ARGUMENTS...: the run without a stop
    mkdir whole cut
    cd whole
    gpt $tiny --steps $steps "$@" --log log
    cd ../cut
}
started() { start $tiny --steps $steps "$@"; }
killed_after() {    # killed_after STEP: kill -9, and the run had not ended by itself
    until_step "$1"
    kill -9 $pid
    finish
    [ $status -eq 137 ] || { cat stderr; fail "exit code $status, want 137"; }
    [ ! -e $last ] || fail "it was killed too late"
}
resumed() {         # goes on, from the newest checkpoint, to the end
    start --resume
    finish
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of the resumed run"; }
    same_state ../whole/$last $last
}
number() { local step=${1#step_}; echo $((10#$step)); }     # step_00000040 -> 40

# --- killed ---
killed_once() {     # killed_once ARGUMENTS...
    whole --save_every 20 "$@"
    started --save_every 20 "$@"
    killed_after 21
    resumed
    says 'resumed at step'
}
test_resume_after_a_kill_is_bit_exact() {
    text 999 >t.txt
    killed_once --train ../t.txt --val_every 30 --val_batches 3
}
test_resume_after_two_kills_is_bit_exact() {
    local steps=500 last=out/step_00000500
    text 999 >t.txt
    whole --train ../t.txt --save_every 20
    started --train ../t.txt --save_every 20
    killed_after 21
    local first; first=$(newest)
    start --resume
    killed_after $(($(number "$first") + 21))
    [ "$(newest)" != "$first" ] || fail "nothing was saved between the two kills"
    resumed
}
test_resume_is_bit_exact_with_micro_batches() {
    text 999 >t.txt
    killed_once --train ../t.txt --total_batch_tokens 48
}
test_resume_is_bit_exact_across_shards_of_different_size() {
    shard a.bin $(tokens 3000)
    shard b.bin $(tokens 9)
    shard32 c.bin $(tokens 1234)
    shard d.bin $(tokens 1)
    killed_once --train '../[a-d].bin' --val_fraction 0.02
}
test_resume_is_bit_exact_across_epochs() {      # an epoch is 18.5 steps, so batches cross its end
    text 9 >t.txt
    killed_once --train ../t.txt --val_fraction 0
    [ "$(field train_tokens $last/train_state.safetensors)" = '"303"' ]
}
test_resume_is_bit_exact_after_skipped_steps() {
    text 999 >t.txt
    killed_once --train ../t.txt --inject nan@17x2
    [ "$(field skipped $last/train_state.safetensors)" = '"2"' ]
    [ "$(field updates $last/train_state.safetensors)" = '"298"' ]
}
test_resume_is_bit_exact_with_bf16_products() {
    text 999 >t.txt
    killed_once --train ../t.txt --matmul bf16
}
test_resume_is_bit_exact_at_every_recompute_level() {
    local level
    text 999 >t.txt
    for level in 1 2 3; do
        (mkdir $level; cd $level; killed_once --train ../../t.txt --recompute $level)
    done
    cmp {1,2}/whole/$last/model.safetensors
    cmp {1,3}/whole/$last/model.safetensors
}
test_resume_at_another_recompute_level_is_bit_exact() {
    text 999 >t.txt
    whole --train ../t.txt --save_every 20
    started --train ../t.txt --save_every 20
    killed_after 21
    start --resume --recompute 3
    finish
    cmp {../whole/,}$last/model.safetensors
}

# --- stopped by a signal ---
stopped_by() {      # stopped_by SIGNAL CODE: saves the step it is at, and ends in this exit code
    text 999 >t.txt
    whole --train ../t.txt --save_every 0
    started --train ../t.txt --save_every 0
    until_step 20
    kill -"$1" $pid
    finish
    [ $status -eq "$2" ] || { cat stderr; fail "exit code $status, want $2"; }
    [ "$(find out -name 'step_*' | wc -l)" -eq 1 ] || { ls out; fail "not one checkpoint"; }
    [ ! -e $last ] || fail "it was stopped too late"
    says "^stopped, saved step $(number "$(newest)"); .*--resume"
    resumed
}
test_sigterm_saves_and_ends_in_143() { stopped_by TERM 143; }
test_sigint_saves_and_ends_in_130() { stopped_by INT 130; }
test_sigusr1_saves_and_ends_in_0() { stopped_by USR1 0; }
test_sigusr2_saves_and_goes_on() {
    text 999 >t.txt
    whole --train ../t.txt --save_every 0
    started --train ../t.txt --save_every 0
    until_step 20
    kill -USR2 $pid
    finish
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status"; }
    [ "$(find out -name 'step_*' | wc -l)" -eq 2 ] || { ls out; fail "not two checkpoints"; }
    same_state ../whole/$last $last
    rm -r $last
    resumed
}
# fault 39: strace sends the signal at a certain system call.
signalled_at() {    # signalled_at CALL:WHEN [PATH]: SIGTERM there, in a run of 6 steps
    rm -rf out
    status=0
    strace -f -qq -o trace ${2:+-P "$2"} -e inject="${1%:*}:signal=TERM:when=${1#*:}" \
        "$B/train_gpt" $tiny --train t.bin --val v.bin --val_every 2 --save_every 2 --steps 6 \
        2>stderr || status=$?
    [ $status -eq 143 ] || { cat stderr; fail "$1: exit code $status, want 143"; }
    [ -z "$(find out -name '*.tmp' 2>/dev/null)" ] || fail "$1: $(ls out)"
}
saved_once() {      # saved_once STEP: one checkpoint of it, that is whole and was written once
    says "^stopped, saved step $1; "
    [ "$(find out -name "step_*$1" | wc -l)" -eq 1 ] || fail "$(ls out)"
    [ "$(grep -c "rename(\"out/step_0*$1.tmp\"" trace)" -le 1 ] || fail "it was saved twice"
    gpt --resume
    same_state whole/step_00000006 out/step_00000006
}
test_sigterm_in_a_checkpoint_in_validation_and_before_step_1() {
    local n
    strace_or_skip
    shard t.bin $(tokens 400)
    shard v.bin $(tokens 60)
    gpt $tiny --train t.bin --val v.bin --val_every 2 --save_every 2 --steps 6
    mv out whole
    for n in 2 5 9; do signalled_at fsync:$n; saved_once 2; done    # the probe's is the first
    signalled_at rename:1; saved_once 2
    signalled_at openat:6 v.bin; saved_once 2       # after two at the start: in validation
    signalled_at openat:1 v.bin                     # while the data is read: nothing is lost
    [ ! -e out ] || [ -z "$(find out -name 'step_*')" ] || fail "$(ls out)"
    signalled_at openat:1 out/log.jsonl
}
test_second_signal_ends_at_once() {     # both wait until SIGCONT, so there is no step between them
    text 99 >t.txt
    started --train t.txt
    until_step 20
    kill -STOP $pid
    kill -INT $pid
    kill -TERM $pid
    kill -CONT $pid
    finish
    [ $status -eq 130 ] || [ $status -eq 143 ] || { cat stderr; fail "exit code $status"; }
    ! grep stopped stderr || fail "it took the time to save"
    [ -z "$(find out -name 'step_*')" ] || fail "it saved"
}
test_stop_that_cannot_save_is_no_success() {
    text 99 >t.txt
    started --train t.txt --save_every 0
    until_step 20
    mv out gone && : >out           # as if the disk were gone
    kill -USR1 $pid
    finish
    [ $status -eq 4 ] || { cat stderr; fail "exit code $status, want 4"; }
    ! grep 'saved step' stderr || fail "it says that it saved"
}

# --- compatibility ---
test_resume_goes_on_from_a_checkpoint_of_the_first_release() {  # with the losses of that time
    text 99 >t.txt
    mkdir out
    cp -r "$root/dev/test/release_1/step_00000020" out/
    gpt --resume --steps 40 --out out
    says 'resumed at step 20'
    sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' out/log.jsonl |
        paste -d ' ' - "$root/dev/test/release_1/losses.txt" | awk '
            { d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || !(d <= 1e-4)) bad = 1 }
            END { exit bad || NR != 20 }' || fail "other losses than then"
}
run_tests "$@"
