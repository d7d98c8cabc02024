#!/usr/bin/env bash
# test_bad_files.sh: every bad file of bad_files.sh is refused, by name, in one line, in time.
. "$(dirname "$0")/lib.sh"
. "$root/dev/test/bad_files.sh"

bad_files() {       # bad_files PREFIX AT-LEAST: all of ./list that begin so
    local name code pattern arguments count=0
    make_bad_files
    while IFS='|' read -r name code pattern arguments <&4; do
        case $name in "$1"*) ;; *) continue ;; esac
        refused "$code" "$pattern" $arguments
        grep -qF "$name" errors || { cat errors; fail "the error does not name $name"; }
        count=$((count + 1))
    done 4<list
    [ $count -ge "$2" ] || fail "only $count files"
    echo "$count files"
}
test_bad_safetensors_are_refused() { bad_files st_ 34; }
test_bad_indices_of_shards_are_refused() { bad_files index_ 14; }
test_bad_configurations_are_refused() { bad_files config_ 20; }
test_bad_tokenizers_are_refused() { bad_files tok_ 14; }
test_bad_hellaswag_files_are_refused() { bad_files hella_ 16; }
test_the_good_files_are_taken() {
    make_bad_files
    gpt --eval --val t.txt --seq_len 4 --init good
    gpt --eval --val t.txt --seq_len 4 --init index_fine
    gpt --eval --hellaswag hella_fine --init good --seq_len 4
    edited st_none '' 's/"none"/"nothing"/'     # an edited header is no fault by itself
    gpt --eval --val t.txt --seq_len 4 --init st_none
}

run_tests "$@"
