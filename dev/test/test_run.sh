#!/usr/bin/env bash
# test_run.sh: small runs from a text to a sample, and what they print and write.
. "$(dirname "$0")/lib.sh"

small="--layers 2 --channels 32 --heads 4 --seq_len 16 --batch_size 4 --warmup_steps 5 --lr 0.01"

not_json() {        # the lines of a file that are not one JSON value
    awk '{ line = $0
           gsub(/"([^"\\]|\\.)*"/, "S"); gsub(/-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?/, "V")
           gsub(/true|false|null/, "V"); gsub(/[ \t]+/, "")
           while (gsub(/\{(S:[SV](,S:[SV])*)?\}/, "V") || gsub(/\[([SV](,[SV])*)?\]/, "V")) {}
           if ($0 != "V") print line }' "$1"
}
is_json() {
    [ -s "$1" ] || fail "$1 is empty"
    [ -z "$(not_json "$1")" ] || fail "not JSON: $(not_json "$1" | head -n 1)"
}
# The log without what differs from run to run: times and speeds.
timeless() { sed -E 's/"([a-z]+_)?ms":[^,}]*|"(tok_per_s|mfu|peak_flops)":[^,}]*//g' "$1"; }

test_json_check_can_fail() {
    local line
    for line in '{"a":nan}' '{"a":1' '{"a":1}}' '{a:1}' '{"a":1,}' '{"a" 1}' '{} {}' 'step 1'; do
        echo "$line" >line
        [ -n "$(not_json line)" ] || fail "taken for JSON: $line"
    done
    echo '{"a":[1,-2.5e-3,null],"b\"c":{},"d":{"e":""}}' >line
    is_json line
}
test_training_learns_and_logs() {
    text 300 >t.txt
    gpt $small --train t.txt --steps 120 --val_every 40
    is_json out/log.jsonl
    [ "$(grep -c '"loss":' out/log.jsonl)" -eq 120 ]
    [ "$(grep -c '"val_loss":' out/log.jsonl)" -eq 3 ]
    head -n 1 out/log.jsonl | grep -q '"git":.*"parameters":.*"flags":{'
    is_less "$(field loss out/log.jsonl)" 2.5           # from ln 257 = 5.55
    is_less "$(field val_loss out/log.jsonl)" 2.5
    [ "$(field tokens <(grep '"loss":' out/log.jsonl | head -n 1))" -eq 64 ]
    [ "$(field tokens <(grep '"loss":' out/log.jsonl))" -eq $((120 * 64)) ]
    [ ! -s stdout ] || fail "training wrote to stdout"
    local file
    for file in config.json model.safetensors train_state.safetensors; do
        [ -s out/step_00000120/$file ] || fail "the checkpoint has no $file"
    done
    tr -d '\n' <out/step_00000120/config.json >config
    is_json config
}
test_eval_equals_the_last_validation() {
    local loss
    text 300 >t.txt
    gpt $small --train t.txt --steps 30
    loss=$(field val_loss out/log.jsonl)
    gpt --eval
    is_json stdout
    [ "$(wc -l <stdout)" -eq 1 ]
    [ "$(field val_loss stdout)" = "$loss" ] || fail "$(cat stdout), the log says $loss"
    # The same checkpoint by --init, as a folder and as a file.
    gpt --eval --init out/step_00000030 --train t.txt --seq_len 16 --batch_size 4 --out none
    [ "$(field val_loss stdout)" = "$loss" ] || fail "--init folder: $(cat stdout)"
    gpt --eval --init out/step_00000030/model.safetensors --train t.txt --seq_len 16 \
        --batch_size 4 --out none
    [ "$(field val_loss stdout)" = "$loss" ] || fail "--init file: $(cat stdout)"
    [ ! -e none ] || fail "--eval made a folder"
}
test_eval_on_shards_equals_eval_on_their_text() {
    text 40 >t.txt
    gpt $small --train t.txt --steps 30
    gpt --eval --val t.txt
    cp stdout of_text
    shard t.bin $(od -An -v -tu1 t.txt)
    gpt --eval --val t.bin
    cmp of_text stdout
}
test_tokens_beyond_the_tokenizer_have_no_bits_per_byte() { # they have a loss all the same
    shard t.bin $(tokens 580) 290 $(tokens 20)
    gpt $small --train t.bin --vocab_size 300 --steps 4 --val_every 2
    says 'step 2 .*validation loss [0-9.]* .*tokenizer bytes does not know'
    [ "$(field bits_per_byte out/log.jsonl)" = null ] && is_json out/log.jsonl
    gpt --eval --val t.bin
    is_json stdout
    [ "$(field bits_per_byte stdout)" = null ] || fail "$(cat stdout)"
    gpt --sample '' --sample_tokens 20
}
test_init_starts_from_the_weights_of_a_run() {
    local loss
    text 300 >t.txt
    gpt $small --train t.txt --steps 100
    gpt $small --train t.txt --steps 1 --out more --init out/step_00000100
    loss=$(field loss <(grep '"step":1,' more/log.jsonl))
    is_less "$loss" 3
}
test_sample_prints_the_text_and_nothing_else() {
    text 300 >t.txt
    gpt $small --train t.txt --steps 60
    gpt --sample '7 times' --sample_tokens 20 --top_k 3
    [ "$(head -c 7 stdout)" = '7 times' ] || fail "does not begin with the prompt: $(cat stdout)"
    [ "$(bytes_of stdout)" -eq 28 ] || fail "not 7 + 20 bytes and a newline: $(cat stdout)"
    says '^20 tokens, [0-9.]+ a second$'
    cp stdout first
    gpt --sample '7 times' --sample_tokens 20 --top_k 3
    cmp first stdout
    gpt --sample '7 times' --sample_tokens 20 --top_k 3 --seed 5
    ! cmp -s first stdout || fail "the seed changes nothing"
    gpt --sample '' --sample_tokens 100 --temperature 0     # longer than the context
    [ "$(bytes_of stdout)" -eq 101 ]
}
test_sample_draws_no_row_without_a_token() {    # 257 tokens in a vocabulary padded to 400
    text 99 >t.txt
    gpt $small --train t.txt --steps 1 --vocab_size 400
    gpt --sample 'a' --sample_tokens 200 --temperature 9
    [ "$(bytes_of stdout)" -gt 2 ]
}
test_samples_during_training_go_to_stdout() {
    text 99 >t.txt
    gpt $small --train t.txt --steps 20 --sample_every 10 --sample_tokens 9 --top_k 3 --prompt ab
    [ "$(bytes_of stdout)" -eq 24 ] || fail "not two samples: $(cat stdout)"
}
test_plan_equals_what_a_run_allocates() {
    local flags
    text 99 >t.txt
    for flags in '' '--recompute 1' '--recompute 3' '--sample_every 9' \
                 '--total_batch_tokens 128'; do
        gpt $small $flags --plan --json
        is_json stdout
        cp stdout plan
        gpt $small $flags --train t.txt --steps 1 --out "run$flags"
        head -n 1 "run$flags/log.jsonl" >first
        [ "$(field bytes plan)" = "$(field bytes first)" ] ||
            fail "$flags: $(field bytes plan) planned, $(field bytes first) taken"
        [ "$(field parameters plan)" = "$(field parameters first)" ]
    done
    gpt $small $flags --plan
    grep -q "$(field bytes plan) bytes  in all" stdout
    [ ! -e out ] || fail "--plan made a folder"
}
test_gpt2_small_has_124439808_parameters() {
    gpt --plan --json --model d12
    [ "$(field parameters stdout)" = 124439808 ]
    gpt --plan --model d12
    grep -q '124439808 parameters' stdout
}
test_result_does_not_depend_on_threads_or_recompute() {
    local threads level
    text 99 >t.txt
    for threads in 1 2 3; do
        mkdir $threads
        (cd $threads; OMP_NUM_THREADS=$threads gpt $small --train ../t.txt --steps 20)
        same_state {1,$threads}/out/step_00000020
    done
    for level in 1 2 3; do
        gpt $small --train t.txt --steps 20 --recompute $level --out level$level
        cmp {1/out,level$level}/step_00000020/model.safetensors
    done
}
test_same_command_gives_the_same_log() {
    local run
    text 99 >t.txt
    for run in a b; do
        mkdir $run
        (cd $run; gpt $small --train ../t.txt --steps 20 --val_every 5)
    done
    timeless a/out/log.jsonl >a/log
    timeless b/out/log.jsonl >b/log
    cmp a/log b/log
    same_state {a,b}/out/step_00000020
    mkdir c
    (cd c; gpt $small --train ../t.txt --steps 20 --val_every 5 --seed 5)
    ! cmp -s {a,c}/out/step_00000020/model.safetensors || fail "the seed changes nothing"
}
test_keep_leaves_the_newest_checkpoints() {
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 9 --save_every 2 --keep 3
    [ "$(cd out; echo step_*)" = 'step_00000006 step_00000008 step_00000009' ] || { ls out; fail; }
}
test_help_lists_every_flag() {
    local flag
    gpt --help
    text 9 >t.txt
    cp stdout help
    gpt $tiny --train t.txt --steps 1 --val_fraction 0
    for flag in $(head -n 1 out/log.jsonl | sed 's/.*"flags"://' | grep -o '"[a-z0-9_]*":' |
                  tr -d '":'); do
        grep -q -e "--$flag " help || fail "--help does not list --$flag"
    done
}
test_phases_of_the_steps_add_up_to_their_time() {
    text 999 >t.txt
    gpt --layers 2 --channels 64 --heads 2 --seq_len 32 --batch_size 8 --train t.txt --steps 200 \
        --val_every 50 --val_batches 4 --save_every 50 --sample_every 100
    awk '/"loss"/ {
            match($0, /"ms":[0-9.e+-]+/)
            all += substr($0, RSTART + 5, RLENGTH - 5)
            for (rest = $0; match(rest, /(input|forward|backward|exchange|update)_ms":[0-9.e+-]+/);
                 rest = substr(rest, RSTART + RLENGTH)) {
                phase = substr(rest, RSTART, RLENGTH)
                sub(/.*:/, "", phase)
                phases += phase } }
        END { print phases / all; exit !(phases > 0.98 * all && phases < 1.02 * all) }' \
        out/log.jsonl || fail "phases of the time of all steps, wanted 1"
}

run_tests "$@"
