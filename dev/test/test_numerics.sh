#!/usr/bin/env bash
# test_numerics.sh: NaN, Inf, spikes and flipped bits, put in by --inject: skipped on all ranks,
# counted, gone back over, and the end of the run when it does not help.
. "$(dirname "$0")/lib.sh"

few="--warmup_steps 2 --total_batch_tokens 32"
three="--steps 20 --warmup_steps 2 --total_batch_tokens 48"     # for three ranks
last=step_00000020

counts() {          # counts SKIPPED SPIKED ROLLBACKS: what the log says last
    local got
    got="$(field skipped out/log.jsonl) $(field spiked out/log.jsonl) $(
        field rollbacks out/log.jsonl)"
    [ "$got" = "$*" ] || { cat stderr; fail "skipped, spiked, rollbacks: $got, want $*"; }
}
meta() { grep -ao "\"$1\":\"[^\"]*\"" "$2/train_state.safetensors"; }

# A bad step 5 changes nothing: weights, moments and window are those after step 4.
one_bad_step() {    # one_bad_step RANKS SPEC...
    local n=$1 spec rank_of; shift
    text 99 >t.txt
    run_on "$n" $tiny $few --train t.txt --steps 4 --lr_schedule constant --out before; want 0
    for spec; do
        rm -rf out
        run_on "$n" $tiny $few --train t.txt --steps 5 --lr_schedule constant --inject "$spec"
        want 0
        says '^warning: step 5: .*skipped'
        counts 1 0 0
        cmp {before/step_00000004,out/step_00000005}/model.safetensors
        [ "$(meta window before/step_00000004)" = "$(meta window out/step_00000005)" ] ||
            fail "it has entered the window"
        [ "$(meta updates out/step_00000005)" = '"updates":"4"' ]
        [ "$(meta samples out/step_00000005)" = '"samples":"20"' ] || fail "it was read again"
        run_on "$n" --resume --steps 7; want 0
        counts 1 0 0
    done
}
test_44_bad_gradient_is_not_applied() { one_bad_step 1 nan@5 inf@5 loss@5; }
test_44_bad_gradient_of_one_rank_is_applied_on_none() {
    mpi_or_skip
    one_bad_step 2 nan@5:1 inf@5:0 loss@5:1
}
# Ten bad steps from step 5 on: back to step 4, and on with samples that were not seen yet.
gone_back_once() {  # gone_back_once RANKS SPEC
    run_on "$1" $tiny $few --steps 20 --train t.txt --save_every 2 --inject "$2"
    want 0
    says '^warning: step 14: 10 bad steps in a row'
    says '^resumed at step 4 from out/step_00000004'
    [ "$(meta samples out/$last)" = "\"samples\":\"$((4 * (20 + 10)))\"" ] ||
        fail "samples were read twice: $(meta samples out/$last)"
    [ "$(meta updates out/$last)" = '"updates":"20"' ]
    [ "$(meta step out/$last)" = '"step":"20"' ]
}
test_45_and_46_ten_bad_steps_go_back_to_the_last_checkpoint() {
    local spec
    text 99 >t.txt
    for spec in nan@5x10 loss@5x10 weights@4; do
        rm -rf out
        # A weight that is NaN is not saved: the checkpoint to go back to is that of step 2.
        case $spec in
        weights*)
            run_on 1 $tiny $few --steps 20 --train t.txt --save_every 2 --inject $spec; want 0
            says '^warning: step 4: checkpoint failed: a weight is NaN or Inf'
            says '^resumed at step 2 ' ;;
        *)  gone_back_once 1 $spec ;;
        esac
        counts 10 0 1
    done
    run_on 1 --resume --steps 22; want 0
    counts 10 0 1
}
test_45_bad_weights_on_one_rank_go_back_on_all() {
    mpi_or_skip
    text 99 >t.txt
    gone_back_once 2 nan@5x10:1
    rm -rf out
    run_on 2 $tiny $few --steps 20 --train t.txt --save_every 2 --zero 0 --inject weights@5:1
    want 0
    says '^resumed at step 4 '
    counts 10 0 1
}
test_46_second_time_ends_the_run() {
    text 99 >t.txt
    run_on 1 $tiny $few --steps 20 --train t.txt --save_every 2 --inject nan@5x20
    want 5
    tail -n 1 stderr | grep -q '^error: 10 steps in a row.* for the second time'
    counts 20 0 1
    [ "$(newest)" = step_00000004 ] || fail "$(ls out)"
    run_on 1 --resume; want 0       # the checkpoint is good
    ls out/$last >/dev/null
}
test_46_without_a_checkpoint_the_run_ends() {
    text 99 >t.txt
    run_on 1 $tiny $few --steps 20 --train t.txt --inject inf@3x99 --skip_nonfinite 4
    want 5
    tail -n 1 stderr | grep -q '^error: 4 steps in a row.*no checkpoint to go back to'
    [ "$(grep -c '^warning: .*skipped$' stderr)" -eq 4 ]
}
test_46_going_back_is_exact_across_a_kill() {   # a stop after it, and before it
    text 99 >t.txt
    run_on 1 $tiny $few --steps 20 --train t.txt --save_every 2 --inject nan@5x10; want 0
    mv out whole
    run_on 1 $tiny $few --steps 20 --train t.txt --save_every 2 --inject nan@5x10 --keep 9; want 0
    rm -r out/step_000000{08,10,12,14,16,18,20}     # as if it had been killed in step 7 or 8
    run_on 1 --resume --keep 2; want 0
    cmp {whole,out}/$last/model.safetensors
}

# --- spikes: 130 steps fill the window ---
long="--steps 136 --save_every 50 --warmup_steps 2 --lr 1e-3"
test_46_spike_of_a_hundred_times_is_skipped() {
    text 99 >t.txt
    run_on 1 $tiny $long --train t.txt --inject spike@20; want 0        # ten times the largest
    says '^warning: step 20: .*a spike, skipped'
    counts 1 1 0
    rm -r out
    run_on 1 $tiny $long --train t.txt --inject spike@132 --spike_zscore 0; want 0
    counts 0 0 0
    rm -r out
    run_on 1 $tiny $long --train t.txt --inject spike@8; want 0         # too few to compare with
    counts 0 0 0
}
test_46_norms_that_stay_high_do_not_end_the_run() {
    text 99 >t.txt
    run_on 1 $tiny $long --train t.txt --inject norm@20x20; want 0
    says '^warning: step 22: .*a spike, skipped'
    counts 3 3 0
}
test_46_ten_spikes_go_back_and_twenty_end_the_run() {
    text 99 >t.txt
    run_on 1 $tiny $long --train t.txt --inject spike@60x10; want 0
    says '^resumed at step 50 '
    counts 10 10 1
    rm -r out
    run_on 1 $tiny $long --train t.txt --inject spike@60x20; want 5
    counts 20 20 1
}
test_resume_keeps_the_window_bit_for_bit() {
    text 99 >t.txt
    run_on 1 $tiny $long --train t.txt --keep 9; want 0
    cp -r out whole
    rm -r out/step_00000136
    run_on 1 --resume; want 0
    same_state {whole,out}/step_00000136
    [ "$(meta window_count out/step_00000136)" = '"window_count":"136"' ]
    [ "$(meta window out/step_00000136)" != "$(meta window out/step_00000100)" ]
}

# --- replicas ---
test_47_flipped_bit_in_a_replica_is_found_and_named() {
    mpi_or_skip
    text 99 >t.txt
    run_on 3 $tiny $three --zero 0 --train t.txt --check_replicas 4 --inject flip@5:1
    want 5
    says 'error: step 8: the weights differ between the ranks, off: rank 1:'
    [ "$(newest)" = '' ] || [ ! -d "out/$(newest)" ] || fail "it was saved"
    rm -rf out
    run_on 2 $tiny $few --steps 20 --zero 0 --train t.txt --check_replicas 4 --inject flip@5:1
    want 5
    says 'error: step 8: .* off: rank 0 rank 1:'         # of two, nobody knows which
    rm -rf out
    run_on 2 $tiny $few --steps 20 --zero 0 --train t.txt --save_every 6 --inject flip@5:1
    want 5
    says 'error: step 6: .* off: rank 0 rank 1:'         # no checkpoint is made of it
    [ ! -d out/step_00000006 ] || fail "it was saved"
    rm -rf out
    run_on 2 $tiny $few --steps 20 --train t.txt --check_replicas 4 --inject flip@8:1
    want 5                                              # ZeRO-1: before the owner sends its share
    says 'error: step 8: .* off: rank'
    rm -rf out
    run_on 2 $tiny $few --steps 20 --zero 0 --train t.txt --check_replicas 0 --inject flip@5:1
    want 0                                              # the check can be turned off
}
test_sound_replicas_pass() {
    mpi_or_skip
    text 99 >t.txt
    run_on 3 $tiny $three --train t.txt --check_replicas 1; want 0
    run_on 2 $tiny $few --steps 20 --zero 0 --train t.txt --check_replicas 1 --out two; want 0
}

# --- flags, checkpoints kept for good, the last line ---
test_inject_specs_that_are_none() {
    local spec
    text 99 >t.txt
    for spec in x nan nan@ nan@x nan@5y nan@5x nan@5: nan@5x2: ':1' na@5 'nan|inf@5' 'nan@5 '; do
        refused 2 '--inject wants' $tiny --train t.txt --inject "$spec"
    done
    gpt $tiny $few --steps 20 --train t.txt --inject nan@50
    ! grep -aq inject out/$last/train_state.safetensors || fail "it is in the checkpoint"
}
test_keep_every_keeps_for_good() {
    text 99 >t.txt
    gpt $tiny $few --steps 20 --train t.txt --save_every 1 --keep 2 --keep_every 5
    [ "$(cd out && echo step_* | sed 's/step_0*//g')" = '5 10 15 19 20' ] || fail "$(ls out)"
}
test_time_is_accounted_for_in_one_line() {
    text 99 >t.txt
    gpt $tiny $few --steps 20 --train t.txt --val_every 3
    [ "$(grep -c '^time: ' stderr)" -eq 1 ]
    says '^time: [0-9.]+ s, effective for training [0-9.]+ %; checkpoints [0-9.]+ % \([0-9.]+ MB\), communication'
    awk '/^time: / { exit !($7 > 0 && $7 + $10 <= 100.2) }' stderr || fail "$(grep ^time: stderr)"
}

run_tests "$@"
