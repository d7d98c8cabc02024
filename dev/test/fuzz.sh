#!/usr/bin/env bash
# fuzz.sh: runs each target of fuzz.c (FUZZ_SECONDS each, 20 by default) from seeds that are made
# here: a good file of each kind and all of bad_files.sh. Called by `make fuzz`, `make coverage`.
#   argument  the program; --coverage PROGRAM: one pass over the seeds, no search, and then which
#             share of the lines of the readers it has passed; exit 1 when that is below 95 %
#   exit      1 when a target crashed, leaked or took over 512 MB; its input stays in build/fuzz/
. "$(dirname "$0")/lib.sh"
. "$root/dev/test/bad_files.sh"
set -e
program=$1 seconds=${FUZZ_SECONDS:-20} runs=()
if [ "$1" = --coverage ]; then program=$2; runs=(-runs=0); fi
case $program in /*) ;; *) program=$PWD/$program ;; esac
work=$PWD/build/fuzz
mkdir -p "$work"
cd "$tmp"
mkdir shard safetensors index config hellaswag tokenizer
make_bad_files
with_text() { { printf '\005\000hello'; cat "$1"; } >"tokenizer/$2"; }
cp t.txt shard/text
shard shard/s16 $(tokens 40)
shard32 shard/s32 $(tokens 40)
shard shard/above 300 $(tokens 40)
shard shard/long $(tokens 40)
printf x >>shard/long
shard shard/none
shard32 shard/swapped 1 2 3
poke shard/swapped 0 4 $((0x88d83401))
shard shard/version 1 2 3
poke shard/version 4 4 9
head -c 99 shard/s16 >shard/short
for folder in good st_* config_*; do
    cp "$folder/model.safetensors" "safetensors/$folder"
    cp "$folder/config.json" "config/$folder"
done
cp hella_* hellaswag
for folder in index_*; do cp "$folder/model.safetensors.index.json" "index/$folder"; done
cp good/train_state.safetensors safetensors/state
one_tensor() {      # one_tensor TYPE BYTES
    printf '{"transformer.wte.weight":{"dtype":"%s","shape":[257,4],"data_offsets":[0,%s]}}' \
        "$1" "$2" >h
    { little 8 "$(bytes_of h)"; cat h; head -c "$2" /dev/zero | tr '\0' '\100'; } >"safetensors/$1"
}
one_tensor F16 2056
one_tensor BF16 2056
one_tensor F64 8224
echo '{"a\ud83d\ude00\n":"\"\t\u00e9","n_layer":1,"b":[{"c":null},[true,-1e3]]}' >config/escapes
for file in tok_* good/tokenizer.json good/vocab.json good/merges.txt; do
    with_text "$file" "${file//\//_}"
done
{   little 4 20240328 2 257 256; head -c 1008 /dev/zero
    for ((b = 0; b < 256; b++)); do little 1 1 $b; done
    printf '\015<|endoftext|>'; } >llmc && with_text llmc llmc
printf '#version: 0.2\nh e\nl l\nhe ll\n' >merges && with_text merges merges
for target in shard safetensors index config hellaswag tokenizer; do
    LLVM_PROFILE_FILE=$target.profraw FUZZ=$target "$program" -max_len=40000 -timeout=10 \
        -rss_limit_mb=512 -malloc_limit_mb=64 \
        -max_total_time="$seconds" -artifact_prefix="$work/$target-" -print_final_stats=1 \
        "${runs[@]}" $target >"$work/$target.log" 2>&1 || { tail -n 30 "$work/$target.log"; exit 1; }
    echo "fuzz $target: $(grep -o 'number_of_executed_units: [0-9]*' "$work/$target.log"), $(
        grep -oE 'cov: [0-9]+' "$work/$target.log" | tail -n 1), no fault"
done
[ "$1" = --coverage ] || exit 0

llvm-profdata merge -o all *.profraw
readers='^(in_open|in_close|in_read|in_read_all|json_.*|utf8_.*|shard_open|is_shard_magic|data_read'
readers+='|data_check_tokens|data_open.*|data_cut|st_open|st_open_index|st_read_tensor|st_find|st_bytes'
readers+='|st_meta|st_value|st_param|st_header_crc|st_close|dtype_bytes|half_to_double|config_read'
readers+='|config_check|hellaswag|ckpt_number|ckpt_state|flags_merge_saved|tok_parse|tok_read.*)$'
llvm-cov report -instr-profile=all -show-functions "$program" "$root/train_gpt.c" |
    sed 's/^[a-z_]*\.c://' | awk -v readers="$readers" '
        $1 ~ readers && NF >= 7 { lines += $5; missed += $6
            if ($6 > 0) printf "%-24s %3d of %3d lines not passed\n", $1, $6, $5 }
        END { if (lines == 0) { print "no reader found in the report"; exit 1 }
              printf "coverage of the readers: %.1f %% of %d lines\n",
                     100 * (lines - missed) / lines, lines
              exit !(missed <= 0.05 * lines) }'
