#!/usr/bin/env bash
# test_use.sh: what users do, and what once went wrong: resume with other data, another batch or
# another number of ranks, models of others, signals at odd moments, logs on full disks.
. "$(dirname "$0")/lib.sh"

run_of_four() {     # checkpoints of steps 1 to 4
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 4 --save_every 1 --keep 4
}
cut_short() { truncate -s -9 "out/step_0000000$1/train_state.safetensors"; }
names() { echo $(cd out && ls -d step_*); }

# --- checkpoints ---
test_new_checkpoints_stay_though_damaged_newer_ones_lie_there() {
    run_of_four
    cut_short 3
    cut_short 4
    gpt --resume --steps 3 --keep 1
    [ "$(names)" = 'step_00000003 step_00000004' ] || fail "left: $(names)"
    gpt --resume --steps 3              # of the two, 3 is good
    says 'nothing to do: step 3 of 3'
}
test_a_copy_of_a_checkpoint_is_none() {
    run_of_four
    cp -r out/step_00000004 out/step_4
    gpt --resume --steps 5 --keep 2
    [ "$(names)" = 'step_00000004 step_00000005 step_4' ] || fail "left: $(names)"
}
test_weights_that_are_nan_at_the_end_are_exit_5() {
    text 99 >t.txt
    run_on 1 $tiny --train t.txt --steps 4 --inject weights@4; want 5
    says 'a weight is NaN or Inf'
}

# --- resume with changes that were asked for ---
test_resume_on_other_data_and_with_another_batch_is_no_spike() {
    local flags='--layers 1 --channels 16 --heads 2 --seq_len 8 --batch_size 2 --warmup_steps 1'
    awk 'BEGIN { for (i = 0; i < 3000; i++) printf "ab" }' >ab.txt
    text 999 >t.txt
    gpt $flags --train ab.txt --steps 300 --lr 1e-2 --total_batch_tokens 256 --val_every 0
    gpt --resume --train t.txt --allow_data_change --steps 400
    gpt --resume --total_batch_tokens 16 --steps 600
    says '^changed: total_batch_tokens 256 -> 16'
    [ "$(field rollbacks out/log.jsonl)" = 0 ] || fail "rolled back"
}
test_a_text_that_is_known_by_heart_is_no_spike() {
    awk 'BEGIN { for (i = 0; i < 3000; i++) printf "ab" }' >ab.txt
    gpt --layers 1 --channels 16 --heads 2 --seq_len 8 --batch_size 2 --train ab.txt --lr 1e-2 \
        --steps 3000 --save_every 0 --val_every 0
    is_less "$(field loss <(grep '"loss":' out/log.jsonl))" 1e-3
}
test_one_rank_resumed_on_two_keeps_its_batch() {
    local flags='--layers 1 --channels 16 --heads 2 --seq_len 8 --batch_size 4'
    mpi_or_skip
    text 99 >t.txt
    gpt $flags --train t.txt --steps 4
    cp -r out whole
    run_on 2 --resume --steps 6; want 2         # 4 on each of two would be twice as many
    says 'total_batch_tokens 32 .*change --batch_size'
    run_on 2 --resume --steps 6 --batch_size 2; want 0
    gpt --resume --steps 6 --out whole
    [ "$(field tokens out/log.jsonl)" = "$(field tokens whole/log.jsonl)" ] || fail "other batches"
}
test_a_long_prompt_does_not_spoil_the_checkpoint() {
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 1 --prompt "$(head -c 100000 /dev/zero | tr '\0' x)"
    gpt --resume --steps 2
}

test_a_call_can_be_repeated_with_resume() {
    local call="$tiny --train t.txt --vocab_size 0 --max_seq_len 0"
    text 99 >t.txt
    gpt $call --steps 2
    gpt $call --steps 3 --resume
    refused 2 'eps must be above 0' --resume --steps 4 --eps 0
}
test_window_is_cleared_once_after_a_changed_batch() {   # exact, however the run came there
    local more='--resume --steps 200 --skip_nonfinite 3 --inject nan@170x3'
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 100 --val_every 0
    gpt --resume --steps 200 --total_batch_tokens 32 --save_every 50 --skip_nonfinite 3 \
        --inject nan@170x3 --keep 9
    cp -r out other
    rm -r other/step_00000200
    gpt $more --out other
    same_state out/step_00000200 other/step_00000200
}

# --- models of others ---
test_init_takes_the_tokenizer_beside_the_file() {
    text 99 >t.txt
    "$B/train_bpe" --vocab_size 300 --out vocab t.txt >/dev/null
    gpt $tiny --train t.txt --steps 1 --tokenizer vocab
    gpt --eval --val t.txt
    cp stdout want
    cp -r out/step_00000001 m
    gpt --eval --val t.txt --init m/model.safetensors --seq_len 8 --batch_size 2 --out none
    cmp want stdout
    rm m/tokenizer.json                         # vocab.json and merges.txt say the same
    gpt --eval --val t.txt --init m --seq_len 8 --batch_size 2 --out none
    cmp want stdout
    rm m/vocab.json m/merges.txt
    gpt --eval --val t.txt --init m --seq_len 8 --batch_size 2 --out none
    says '^warning: no tokenizer beside m/model.safetensors, of vocab_size 300'
}
test_init_refuses_what_it_would_compute_otherwise() {
    local change
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 1
    for change in '"scale_attn_weights":false' '"scale_attn_by_inverse_layer_idx":true' \
        '"add_cross_attention":true' '"n_inner":7' '"tie_word_embeddings":false'; do
        rm -rf m
        cp -r out/step_00000001 m
        sed -i "s/^  \"tie_word.*/  $change,/" m/config.json
        refused 3 "$(tr -d '"' <<<"${change%:*}")" --eval --init m --val t.txt
    done
    cp out/step_00000001/config.json m
    sed -i 's/^  "tie_word.*/  "n_inner": null, "scale_attn_weights": true,/' m/config.json
    gpt --eval --init m --val t.txt --seq_len 8
    refused 3 'nobody/gpt2: No such file.*nothing is downloaded' --eval --init nobody/gpt2 --val t.txt
}
test_flags_of_a_run_record_the_shape_of_its_model() {
    text 99 >t.txt
    gpt --layers 2 --channels 16 --heads 2 --seq_len 8 --train t.txt --steps 1
    gpt --train t.txt --init out/step_00000001 --steps 1 --seq_len 8 --out more
    [ "$(field layers more/log.jsonl)" = 2 ] || fail "the log says $(field layers more/log.jsonl)"
    gpt --resume --steps 2 --layers 2 --out more
    refused 2 'layers 12: .* has 2; a model that is loaded keeps' \
        --train t.txt --init out/step_00000001 --model d12 --out none
    refused 2 'only one can be given' --plan --resume
    refused 2 'only one can be given' --eval --sample a
}

# --- evaluation ---
test_eval_needs_nothing_but_its_own_file() {
    text 99 >t.txt
    text 50 >v.txt
    gpt $tiny --train t.txt --steps 1 --total_batch_tokens 64
    rm t.txt
    gpt --eval --val v.txt --batch_size 3
    gpt --eval --val v.txt --seq_len 7
    gpt --sample A --seq_len 7 --sample_tokens 2
}
test_end_of_text_has_no_bytes() {
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 1
    shard v.bin $(tokens 30) 256 256 256 $(tokens 32)     # 64 targets of which 3 are no text
    gpt --eval --val v.bin
    awk -v loss="$(field val_loss stdout)" -v bits="$(field bits_per_byte stdout)" 'BEGIN {
        want = loss * 64 / log(2) / 61; exit !(bits > want - 1e-6 && bits < want + 1e-6) }' ||
        fail "$(cat stdout)"
}
test_terminal_gets_no_control_bytes_of_a_sample() {
    command -v script >/dev/null || skip "no script; install bsdutils"
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 1
    SHELL=/bin/sh script -qec "$B/train_gpt --sample_tokens 1 --sample '"$'a\xc2\x9bb\x9bc\xe2\x86\x92d\x1b'\' \
        /dev/null </dev/null >seen 2>&1
    grep -aqF $'a\xc2\\x9bb\\x9bc\xe2\x86\x92d\\x1b' seen || fail "$(od -c seen)"
}
test_eval_by_hellaswag_alone_needs_no_text() {
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 1
    rm t.txt
    little 4 20240522 1 1 $(yes 0 | head -n 253) >h.bin
    little 2 65535 38 0 0 2 5  1 2 3 4 5  2 6 7  3 8 9 10 >>h.bin
    truncate -s $((1024 + 38)) h.bin
    gpt --eval --hellaswag h.bin
    grep -qE '^\{"hellaswag":[01]\}$' stdout || fail "$(cat stdout)"
}
test_hellaswag_is_looked_at_before_the_first_step() {
    text 99 >t.txt
    bad_hellaswag() { refused "$1" "$2" $tiny --train t.txt --steps 1 --hellaswag h.bin; }
    bad_hellaswag 3 'h.bin: No such file'
    little 4 20240522 1 1 $(yes 0 | head -n 253) >h.bin
    little 2 65535 38 0 0 2 9  1 2 3 4 5 6 7 8 9  1 7  1 8 >>h.bin  # a context of 9, two of 1
    bad_hellaswag 2 'example 0 has 10 tokens: --seq_len 8 is too short'
}

# --- signals, and the log ---
test_usr1_while_it_is_set_up_is_a_clean_stop() {
    text 200000 >t.txt                          # the handler is there before this is read
    "$B/train_gpt" $tiny --train t.txt --steps 100000 2>stderr &
    pid=$! status=0
    until grep -qE 'SigCgt:.*[2367abef].{2}$' /proc/$pid/status; do :; done
    [ ! -e out/log.jsonl ] || fail "the handler came too late"
    kill -USR1 $pid
    wait $pid || status=$?
    want 0
    says '^stopped, saved step [0-9]+;'
}
test_run_survives_a_log_that_nobody_reads() {
    text 99 >t.txt
    { "$B/train_gpt" $tiny --train t.txt --steps 50 --log /dev/stdout 2>stderr; echo $? >code; } | true
    [ "$(cat code)" = 0 ] || { cat stderr; fail "exit code $(cat code)"; }
    [ "$(newest)" = step_00000050 ] || fail "$(newest)"
}
test_stop_in_the_middle_of_a_validation_is_at_once() {
    text 20000 >t.txt
    start $tiny --train t.txt --steps 1 --val_fraction 0.9
    until_step 1
    kill -TERM $pid
    finish
    want 143
    says '^stopping after this step; once more'
    says '^stopped, saved step 1'
    ! grep 'validation loss' stderr || fail "it was validated to the end"
}
test_second_kill_ends_it_at_once_whatever_lies_between() {
    text 99 >t.txt
    start $tiny --train t.txt --steps 1 --total_batch_tokens 16777216
    until grep -qE 'SigCgt:.*[4567cdef].{3}$' /proc/$pid/status; do :; done     # TERM
    kill -TERM $pid; sleep 0.1; kill -USR1 $pid; sleep 0.1; kill -TERM $pid
    finish
    want 143
    [ -z "$(find out -name 'step_*')" ] || fail "it went on to save"
}
test_log_is_whole_lines_after_a_crash() {
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 2
    truncate -s -5 out/log.jsonl
    gpt --resume --steps 3
    ! grep '.{"version"' out/log.jsonl || fail "two lines in one"
    [ "$(grep -c '"loss":' out/log.jsonl)" -eq 3 ] || fail "$(cat out/log.jsonl)"
}
test_log_is_utf8_whatever_a_path_is() {
    local name=$'caf\xe9.txt'
    text 99 >"$name"
    gpt $tiny --train "$name" --steps 1
    iconv -f UTF-8 -t UTF-8 out/log.jsonl >/dev/null || fail "not UTF-8"
    grep -q 'caf\\udce9.txt' out/log.jsonl || fail "$(head -n 1 out/log.jsonl)"
    gpt --resume --steps 2                      # and it is the same file again
}

run_tests "$@"
