#!/usr/bin/env bash
# test_refusals.sh: bad flags, bad files, bad surroundings: refused in one line that names the
# fault, with the right exit code and without a trace. The numbers are those of the project's
# fault table.
#   exit codes   1 internal, memory   2 usage   3 bad input file   4 cannot write   5 numerics
. "$(dirname "$0")/lib.sh"

good() { gpt $tiny --steps 2 "$@"; }                    # must work
bad() { refused "$1" "$2" $tiny --steps 2 "${@:3}"; }   # bad CODE PATTERN ARGUMENTS...

# --- token shards ---
test_01_empty_shard() {
    : >s.bin
    bad 3 's\.bin: 0 bytes.* 1024' --train s.bin
}
test_02_shard_shorter_than_its_header() {
    shard s.bin $(tokens 40)
    truncate -s 500 s.bin
    bad 3 's\.bin: 500 bytes.* 1024' --train s.bin
}
test_03_shard_cut_short() {
    local cut
    for cut in 1 2 40 80; do
        shard s.bin $(tokens 40)
        truncate -s -$cut s.bin
        bad 3 "s\.bin: $((1104 - cut)) bytes.* 40 tokens makes 1104" --train s.bin
    done
}
test_04_shard_longer_than_its_header_says() {
    shard s.bin $(tokens 40)
    printf 'xy' >>s.bin
    bad 3 's\.bin: 1106 bytes.* 40 tokens makes 1104' --train s.bin
    printf x >>s.bin
    bad 3 's\.bin: 1107 bytes' --train s.bin
}
test_05_wrong_magic_version_or_byte_order() {
    shard s.bin $(tokens 100)
    good --train s.bin --out fine
    poke s.bin 0 4 20240326     # a model of llm.c
    bad 3 's\.bin: magic number 20240326.*20240520 or 20240801' --train s.bin
    poke s.bin 0 4 20240520
    poke s.bin 4 4 0
    bad 3 's\.bin: version 0, .*1' --train s.bin
    poke s.bin 4 4 2
    bad 3 's\.bin: version 2, .*1' --train s.bin
    poke s.bin 0 4 20240801     # goes with version 7
    bad 3 's\.bin: version 2, .*7' --train s.bin
    poke s.bin 0 4 $((0x88d83401))      # 20240520, the other way round
    bad 3 's\.bin: .*(endian|order)' --train s.bin
}
test_06_token_count_that_cannot_be() {
    local count
    shard s.bin $(tokens 40)
    for count in 0 -1 -2147483648; do
        poke s.bin 8 4 $count
        bad 3 "s\.bin: token count $count" --train s.bin
    done
    poke s.bin 8 4 2147483647
    bad 3 's\.bin: 1104 bytes.*2147483647 tokens' --train s.bin
}
test_07_shard_without_one_window() {
    shard s.bin $(tokens 8)
    bad 3 's\.bin: 8 tokens for training.*needs 9' --train s.bin --val_fraction 0
    shard s.bin $(tokens 9)     # one window: fewer than a batch, taken again and again
    good --train s.bin --val_fraction 0
}
test_08_token_beyond_the_vocabulary() {
    shard a.bin $(tokens 40)
    shard b.bin $(tokens 39) 257
    bad 3 'b\.bin: token 39 is 257.* 257' --train '[ab].bin'
    bad 3 'b\.bin: token 39 is 257' --train a.bin --val b.bin
    shard32 b.bin $(tokens 39) 4294967295
    bad 3 'b\.bin: token 39 is 4294967295' --train '[ab].bin'
    shard32 b.bin $(tokens 99) 256
    good --train '[ab].bin'
}
test_09_flipped_bit_in_a_shard_is_noticed_at_the_start() {
    text 99 >t.txt
    "$B/tokenize" --tokenizer bytes --shard_tokens 900 --out s t.txt >tokenized
    good --train 's_train_*.bin' --out whole
    flip s_train_000001.bin 1500
    bad 3 's_train_000001\.bin: damaged: CRC-32C .*again' --train 's_train_*.bin'
    bad 3 's_train_000001\.bin: damaged: CRC-32C .*again' --train t.txt --val s_train_000001.bin
}
test_09_flipped_bit_in_a_shard_of_llm_c_is_noticed_at_resume() {
    shard s.bin $(tokens 400)
    good --train s.bin
    flip s.bin 1500
    refused 3 'training data changed.*--allow_data_change' --resume --steps 4
}
test_15_other_shards_at_resume_are_refused_with_both_lists() {
    shard a.bin $(tokens 300)
    shard b.bin $(tokens 200)
    good --train '[abc].bin'
    shard c.bin $(tokens 100)
    refused 3 'then a.bin .300., b.bin .200., .* now a.bin .300., b.bin .200., c.bin .100., ' \
        --resume --steps 4
}
test_10_vocabularies_that_do_not_fit() {
    shard s.bin $(tokens 39) 300
    bad 3 's\.bin: token 39 is 300.* 257.*bytes' --train s.bin
    text 99 >t.txt
    bad 3 'bytes has 257.* 100' --train t.txt --vocab_size 100
    good --train t.txt --out start
    bad 2 'vocab_size 300.* 257' --train t.txt --init start/step_00000002 --vocab_size 300
}
test_11_windows_beyond_4_gib() {    # ... hold the same values as those of a small shard
    [ -n "${SLOW:-}" ] || skip "reads 4 GiB; SLOW=1 runs it"
    local count=$(((1 << 30) + 100))
    text 99 >t.txt
    good --train t.txt
    shard small.bin $(tokens 41)
    shard32 large.bin 0
    poke large.bin 8 4 $count
    truncate -s $((1024 + 4 * (count - 41))) large.bin
    little 4 $(tokens 41) >>large.bin
    gpt --eval --init out/step_00000002 --seq_len 8 --val small.bin
    cp stdout small
    gpt --eval --init out/step_00000002 --seq_len 8 --train large.bin \
        --val_fraction "$(awk -v n=$count 'BEGIN { printf "%.17g", 41.5 / n }')"
    cmp small stdout
}
test_13_data_that_is_no_file() {
    mkdir folder folder.bin
    mkfifo fifo
    bad 3 '^error: nosuch: no such file' --train nosuch
    bad 3 '^error: no\*such: ' --train 'no*such'
    bad 3 'folder: not a regular file' --train folder
    bad 3 'folder\.bin: not a regular file' --train '*.bin'
    bad 3 'fifo: not a regular file' --train fifo   # and does not wait for a writer
    mkfifo config.json
    bad 3 'config\.json: not a regular file' --train fifo --init .
    ln -s loop loop
    bad 3 'loop: ' --train loop
    echo some text to train on, long enough for two windows of it >closed
    chmod 000 closed
    if [ ! -r closed ]; then bad 3 'closed: Permission denied' --train closed; fi
}
# ./out ends at a checkpoint from which the run goes on, once the shard is as it was.
shard_lost() {      # shard_lost COMMAND...: done to b.bin in mid-run
    rm -rf out
    start $tiny --train '[ab].bin' --steps 600 --save_every 40 --val_every 0
    until_step 50
    cp -p b.bin kept.bin
    "$@"
    finish
    [ $status -eq 3 ] || { cat stderr; fail "exit code $status, want 3"; }
    [ "$(grep -c '^error: b\.bin: ' stderr)" -eq 1 ] || { cat stderr; fail "b.bin is not named"; }
    [ -d "out/$(newest)" ] && [ -z "$(find out -name '*.tmp')" ] || fail "$(ls out)"
    mv kept.bin b.bin
    gpt --resume --save_every 0
    : >stderr
}
test_14_shard_that_goes_away_in_mid_run() {
    shard a.bin $(tokens 400)
    shard b.bin $(tokens 300)
    shard_lost rm b.bin
    shard_lost truncate -s -2 b.bin
    shard_lost shard b.bin 1 2 3
    shard_lost touch -d 2001-01-01 b.bin        # replaced by one of the same size
    shard_lost eval 'rm b.bin; mkfifo b.bin'    # does not wait for a writer
}
test_15_shards_changed_at_resume() {
    shard a.bin $(tokens 100)
    shard b.bin $(tokens 60)
    good --train '*.bin' --val_fraction 0
    shard c.bin $(tokens 50)
    refused 3 'data changed.*160 tokens.*210 ' --resume --steps 4       # one added
    mv c.bin kept
    mv a.bin d.bin
    refused 3 'data changed' --resume --steps 4                         # another order
    mv d.bin aa.bin
    gpt --resume --steps 4                                              # another name, that is all
    rm b.bin
    refused 3 'data changed.*160 tokens.*100 ' --resume --steps 6       # one gone
    gpt --resume --steps 6 --allow_data_change
    gpt --resume --steps 8                                              # now these are its data
}
test_16_validation_data_missing_or_too_short() {
    text 99 >t.txt
    : >empty.txt
    printf 12345678 >short.txt
    bad 3 'nosuch: no such file' --train t.txt --val nosuch
    bad 3 'empty\.txt: empty' --train t.txt --val empty.txt
    bad 3 'short\.txt: 8 tokens for validation.* 9' --train t.txt --val short.txt
    bad 3 't\.txt: .*for validation.*val_fraction' --train t.txt --val_fraction 1e-3
    good --train t.txt --val_fraction 0
    ! grep -q val_loss out/log.jsonl || fail "validated without data"
    refused 2 '--eval needs' --eval             # never a NaN
    refused 2 '--eval needs' --eval --train t.txt
}

# --- flags ---
test_17_zero_means_off() {
    text 99 >t.txt
    good --train t.txt --val_every 0 --val_batches 0 --sample_every 0 --save_every 0
    ! grep -q val_loss out/log.jsonl || fail "--val_every 0 validated"
    [ ! -s stdout ] || fail "--sample_every 0 sampled"
    [ "$(newest)" = step_00000002 ] || fail "no checkpoint at the end"
}
test_18_longer_than_the_model() {
    text 99 >t.txt
    refused 2 'seq_len 9: .* 8 positions' --train t.txt --seq_len 9 --max_seq_len 8
    good --train t.txt --out start
    refused 2 'seq_len 9: .* 8 positions' --train t.txt --seq_len 9 --init start/step_00000002
    refused 2 'max_seq_len 16: .* 8' --train t.txt --max_seq_len 16 --init start/step_00000002
}
test_19_batches_that_cannot_be() {
    text 99 >t.txt
    bad 2 'total_batch_tokens 17 .*16; nearest: 16 or 32' --train t.txt --total_batch_tokens 17
    bad 2 'total_batch_tokens 7 .*nearest: 16' --train t.txt --total_batch_tokens 7
    bad 2 'total_batch_tokens' --train t.txt --total_batch_tokens -16
    refused 2 '--batch_size must be in \[1, .*got 0' --train t.txt --batch_size 0
    refused 2 '--batch_size must be in .*got -2' --train t.txt --batch_size -2
    refused 2 '--batch_size wants a whole number.*1\.5' --train t.txt --batch_size 1.5
    refused 2 '--batch_size wants a whole number.*9{30}' --train t.txt --batch_size "$(
        printf 9%.0s {1..30})"
    refused 2 '--seq_len must be' --train t.txt --seq_len 0
    refused 2 '2\^31' --train t.txt --batch_size 65536 --seq_len 65536
    refused 2 '2\^31' --train t.txt --batch_size 1048576 --seq_len 1048576
    refused 2 '16 channels .* 3 heads' --train t.txt --channels 16 --heads 3
    gpt --layers 1 --channels 16 --heads 2 --batch_size 1 --seq_len 1 --steps 1 --train t.txt
}
test_20_learning_rates_that_are_no_number() {
    local lr
    text 99 >t.txt
    for lr in nan NAN inf -inf infinity 1e-4x '' ' ' 1e 1e999 1,5 0x 1e-3,; do
        bad 2 "--lr wants a number, got '$lr'" --train t.txt "--lr=$lr"
    done
    bad 2 '--lr must be in .*got -1' --train t.txt --lr -1
    bad 2 '--lr must be in .*got 1e4' --train t.txt --lr 1e4
    good --train t.txt --lr 0
    says '^warning: .*lr'
}
test_21_unknown_repeated_and_incomplete_flags() {
    text 99 >t.txt
    refused 2 '--bach_size; did you mean --batch_size' --train t.txt --bach_size 2
    refused 2 '--batchsize; did you mean --batch_size' --train t.txt --batchsize=2
    refused 2 'unknown flag' --
    refused 2 "begins with --, got '-b'" --train t.txt -b 4
    refused 2 "begins with --, got 't.txt'" t.txt
    refused 2 '--seq_len is given twice' --train t.txt --seq_len 8 --seq-len=9
    refused 2 '--resume is given twice' --resume --resume
    refused 2 '--train needs a value' --train
    refused 2 '--train needs a value' --train --steps 2
    refused 2 '--steps wants a whole number' --train t.txt --steps=
    refused 2 '--steps must be in \[1, .* got 0' --train t.txt --steps 0
    refused 2 '--json goes with --plan' --train t.txt --json
    refused 2 '--resume and --init' --resume --init x
    refused 2 '--resume wants a whole number' --resume=yes
    refused 2 '--lr_schedule must be constant\|linear.*cosin' --train t.txt --lr_schedule cosin
    refused 2 '--lr_schedule must be' --train t.txt --lr_schedule=
    refused 2 '--train FILE is needed'
    refused 2 'model d13' --train t.txt --model d13
    good --train t.txt --log=log --val-every=1 --lr-schedule linear
}
test_22_no_locale_is_ever_set() {       # so that a decimal comma can neither be read nor written
    ! grep -n setlocale "$root/train_gpt.c" || fail "a locale is set"
}
test_23_odd_paths() {
    local name long
    text 99 >t.txt
    for name in 'a b' '%s%n%d' "it's" 'quote"d' 'back\slash' 'Grüße' '-first' '[1]' '*' 'a=b'; do
        cp t.txt "./$name"
        good --train "$name" --out "out $name"
        gpt --eval --out "out $name"
        grep -q val_loss stdout
        mv "./$name" gone
        refused 3 ': ' --eval --out "out $name"     # found again under the very same name
        rm gone
    done
    cp t.txt ./--two
    good --train=--two --out=--three
    long=$(printf 'x%.0s' {1..4096})
    bad 3 'x{4096}: .*no such file' --train "$long"
    bad 4 'x{4096}: File name too long' --train t.txt --out "$long"
    bad 3 "a.\\[31mb: no such file" --train $'a\e[31mb'       # no commands to the terminal
    bad 3 'a.b: no such file' --train $'a\nb'                # and one line
    refused 2 'unknown flag' "--$long"
}
test_24_output_folder_that_cannot_be() {
    text 99 >t.txt
    bad 4 't\.txt' --train t.txt --out t.txt
    bad 4 't\.txt/in' --train t.txt --out t.txt/in
    ln -s loop loop
    bad 4 '--out loop: ' --train t.txt --out loop
    ln -s /nowhere/at/all dangling
    bad 4 '--out dangling: ' --train t.txt --out dangling
    bad 2 '--out is empty' --train t.txt --out ''
    bad 4 'nowhere/log: ' --train t.txt --log nowhere/log
    good --train t.txt --out new/and/deep/
    [ -d new/and/deep/step_00000002 ]
}
test_25_output_folder_that_is_read_only() {
    text 99 >t.txt
    mkdir closed
    unshare -rm mount -t tmpfs none closed 2>/dev/null || skip "mounting is not allowed here"
    cat >train_gpt <<-'END'
	#!/bin/sh
	exec unshare -rm sh -c 'mount -t tmpfs -o ro none closed && exec "$@"' - "$PROGRAM" "$@"
	END
    chmod +x train_gpt
    export PROGRAM=$B/train_gpt     # chmod would not stop root, a mount does
    B=$PWD
    bad 4 '--out closed: .*Read-only' --train t.txt --out closed
}

# --- checkpoints ---
# A run of six steps with the checkpoints 2, 4 and 6 in ./out; its copy in ./whole.
run_of_six() {
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 6 --save_every 2 --keep 3
    cp -r out whole
}
# The newest checkpoint, which was damaged, is named and passed over, and step 6 is made again.
passed_over() {     # passed_over PATTERN
    gpt --resume
    says "^warning: .*out/step_00000006/$1"
    says 'resumed at step 4'
    same_state out/step_00000006 whole/step_00000006
    cp whole/step_00000006/* out/step_00000006/
}
test_32_damaged_checkpoint_is_passed_over() {
    local file half
    run_of_six
    for file in model train_state; do
        file=$file.safetensors
        half=$(($(bytes_of whole/step_00000006/$file) / 2))
        truncate -s -1 out/step_00000006/$file; passed_over "$file: "
        truncate -s 7 out/step_00000006/$file; passed_over "$file: 7 bytes"
        truncate -s 0 out/step_00000006/$file; passed_over "$file: 0 bytes"
        printf x >>out/step_00000006/$file; passed_over "$file: "
        rm out/step_00000006/$file; passed_over "$file: No such file"
        flip out/step_00000006/$file 0; passed_over "$file: "           # length of the header
        flip out/step_00000006/$file 9; passed_over "$file: "           # header
        flip out/step_00000006/$file $half; passed_over "$file: .*CRC"  # data
        flip out/step_00000006/$file $((2 * half - 1)); passed_over "$file: .*CRC"
        head -c $((2 * half)) /dev/zero >out/step_00000006/$file; passed_over "$file: "
    done
    rm out/step_00000006/config.json; passed_over "config.json: "
}
test_32_every_byte_of_a_header_counts() {   # a number that is changed in it does not go unnoticed
    local file=out/step_00000006/train_state.safetensors text
    run_of_six
    for text in '"samples":"' '"tokens":"' '"updates":"' 'lr..:0' 'crc32c.v.h.0' 'crc32c.m.w'; do
        flip $file $(($(at "$text" $file) + ${#text}))
        passed_over "train_state.safetensors: "
    done
    file=out/step_00000006/model.safetensors
    flip $file $(($(at 'crc32c.' $file) + 10)); passed_over "model.safetensors: "
    sed -i 's/"n_head": 2/"n_head": 4/' out/step_00000006/config.json; passed_over ''
    cp out/step_00000004/model.safetensors $file; passed_over ''     # of another step
}
test_32_without_a_good_checkpoint() {       # never starts anew on its own
    local step
    run_of_six
    for step in 2 4 6; do truncate -s 100 out/step_0000000$step/model.safetensors; done
    refused 3 'out: none of its 3 checkpoints is good' --resume
    [ "$(grep -c '^warning: .*passed over' stderr)" -eq 3 ]
    refused 3 'out: none of its 3 checkpoints is good' --eval
    rm -r out
    refused 3 'no checkpoint in out' --resume
    refused 3 'no checkpoint in out' --eval
    refused 3 'no checkpoint in out' --sample a
}
test_32_training_anew_over_a_run() {
    run_of_six
    bad 2 'there already.*--resume' --train t.txt
    bad 2 'there already.*--resume' --train t.txt --init whole/step_00000006
}
test_33_leftovers_of_a_killed_run() {
    run_of_six
    rm -r out/step_00000006
    cp -r out/step_00000004 out/step_00000008.tmp
    mkdir out/step_00000006.tmp
    gpt --resume
    says 'resumed at step 4'
    same_state out/step_00000006 whole/step_00000006
    [ -z "$(find out -name '*.tmp')" ] || fail "leftovers stay"
}
test_34_newest_by_step_not_by_date() {
    run_of_six
    rm -r out/step_00000006
    touch -d 2001-01-01 out/step_00000004 out/step_00000004/*
    touch -d 2099-01-01 out/step_00000002 out/step_00000002/*
    gpt --resume
    says 'resumed at step 4'
    same_state out/step_00000006 whole/step_00000006
}
test_41_flags_changed_at_resume() {
    local change
    run_of_six
    for change in 'layers 2' 'channels 32' 'heads 4' 'max_seq_len 16' 'vocab_size 300'; do
        refused 2 "${change% *}.* ${change#* }" --resume --steps 8 --$change
    done
    for change in 'seq_len 4' 'val_fraction 0.2' 'seed 5' 'tokenizer gpt2'; do
        refused 2 "${change% *} .*${change#* }.*checkpoint has" --resume --steps 8 --$change
    done
    gpt --resume --steps 8 --lr 1e-4 --beta1 0.9 --weight_decay 0.2 --layers 1
    says '^changed: steps 6 -> 8$'
    says '^changed: lr 0\.001.* -> 0*\.*0*1'
    says '^changed: weight_decay 0\.1.* -> 0\.2'
    [ "$(grep -c '^changed: ' stderr)" -eq 3 ] || { cat stderr; fail "not three changes"; }
    gpt --resume --steps 10         # the new values stay
    ! grep '^changed: lr' stderr || fail "the new lr did not stay"
}
test_42_resume_of_a_finished_run() {
    run_of_six
    gpt --resume
    says 'nothing to do: step 6 of 6'
    gpt --resume --steps 3
    says 'nothing to do: step 6 of 3'
    same_state out/step_00000006 whole/step_00000006
    [ "$(newest)" = step_00000006 ]
}
test_43_checkpoint_of_another_program_or_version() {
    local file=out/step_00000006/train_state.safetensors
    run_of_six
    rm -r out/step_0000000[24]
    sed -i 's/"version":"1"/"version":"9"/' $file
    refused 3 'none of its 1 checkpoints' --resume
    says '^warning: .*version 9, this program reads 1'
    sed -i 's/"version":"9"/"version":"0"/' $file
    refused 3 'none of its 1 checkpoints' --resume
    says '^warning: .*version 0, this program reads 1'
    rm $file                        # Hugging Face's folders have none
    refused 3 'none of its 1 checkpoints' --resume
    gpt --eval --init out/step_00000006 --train t.txt --seq_len 8
    cp whole/step_00000006/config.json .
    shard llm.bin $(tokens 40)      # a model of llm.c
    poke llm.bin 0 4 20240326
    rm -r out
    bad 3 'llm\.bin: .*safetensors' --train t.txt --init llm.bin
    sed 's/gpt2/llama/' whole/step_00000006/config.json >config.json
    bad 3 'config\.json: model_type is llama' --train t.txt --init llm.bin
    sed 's/gelu_new/relu/' whole/step_00000006/config.json >config.json
    bad 3 'config\.json: activation_function is relu' --train t.txt --init llm.bin
}

# --- surroundings ---
test_46_bad_steps_in_a_row_end_the_run() {
    local status=0
    text 99 >t.txt
    "$B/train_gpt" $tiny --train t.txt --steps 99 --lr 1000 --weight_decay 900 --grad_clip 0 \
        --warmup_steps 0 --lr_schedule constant --out out 2>stderr || status=$?
    [ $status -eq 5 ] || { cat stderr; fail "exit code $status, want 5"; }
    [ "$(grep -c '^warning: step .* skipped' stderr)" -eq 10 ]
    tail -n 1 stderr | grep -q '^error: 10 steps in a row'
    [ "$(field skipped out/log.jsonl)" -eq 10 ]
}
test_48_two_runs_in_one_folder() {
    text 99 >t.txt
    start $tiny --train t.txt --steps 1000 --save_every 4
    until_step 5
    kill -STOP $pid                 # so that it makes no checkpoint while we look
    refused 4 'another run is using' --resume
    rm -r out/step_*
    refused 4 'another run is using' $tiny --steps 2 --train t.txt
    kill -9 $pid
    wait $pid 2>/dev/null || :
    good --train t.txt              # the lock of a dead process is taken over
}
test_49_out_of_memory() {
    text 99 >t.txt
    refused 1 'out of memory.*--batch_size' --train t.txt --channels 65536 --layers 1024
    ! is_sanitized || skip "sanitizers want all address space"
    (ulimit -v 200000; refused 1 'out of memory: .* wants [0-9.]+ MB.*--plan' --train t.txt \
        --channels 1024 --layers 8 --heads 8)
}
test_50_odd_numbers_of_threads() {
    local threads
    text 99 >t.txt
    unset OMP_NUM_THREADS
    good --train t.txt --out unset
    for threads in 0 33 -1 '' x; do
        # LLVM's libomp aborts on these before main begins.
        case $threads in -1 | '' | x) ! ldd "$B/train_gpt" | grep -q libomp || continue ;; esac
        OMP_NUM_THREADS=$threads good --train t.txt --out "out$threads"
        cmp unset/step_00000002/model.safetensors "out$threads/step_00000002/model.safetensors"
    done
}
test_51_standard_output_closed_or_full() {
    local status=0
    text 99 >t.txt
    good --train t.txt --out fine --sample_every 1 --sample_tokens 5
    # Neither the log nor the checkpoints may get the place of a closed standard output.
    "$B/train_gpt" $tiny --train t.txt --steps 2 --out closed --sample_every 1 --sample_tokens 5 \
        <&- >&- 2>&- || status=$?
    [ $status -eq 0 ] || [ $status -eq 4 ] || fail "closed: exit code $status"
    ! grep -av '^{.*}$' closed/log.jsonl || fail "text got into the log"
    [ ! -s closed/run.lock ] || fail "text got into the lock"
    cmp fine/step_00000002/model.safetensors closed/step_00000002/model.safetensors
    [ "$(wc -l <fine/log.jsonl)" -eq "$(wc -l <closed/log.jsonl)" ]
    [ -e /dev/full ] || return 0
    status=0
    "$B/train_gpt" $tiny --train t.txt --steps 2 --out full --sample_every 1 --sample_tokens 5 \
        >/dev/full 2>stderr || status=$?
    [ $status -eq 4 ] || fail "full: exit code $status, want 4"
    says '^error: .*standard output'
    cmp fine/step_00000002/model.safetensors full/step_00000002/model.safetensors
    status=0
    "$B/train_gpt" --sample a --out fine >/dev/full 2>stderr || status=$?
    [ $status -eq 4 ] || fail "--sample: exit code $status, want 4"
}
test_51_reader_of_the_output_leaves() {
    text 99 >t.txt
    { "$B/train_gpt" $tiny --train t.txt --steps 20 --sample_every 1 --sample_tokens 500 \
          2>stderr && echo 0 >code || echo $? >code; } | head -c 10 >/dev/null
    case $(cat code) in 0 | 4) ;; *) cat stderr; fail "exit code $(cat code)" ;; esac
    [ "$(newest)" = step_00000020 ] || fail "the last checkpoint was lost"
}

run_tests "$@"
