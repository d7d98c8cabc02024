# bad_files.sh: makes bad input files of every kind, each wrong in one thing. Sourced after lib.sh.
#   make_bad_files     in the current folder; needs $B/train_gpt, for one good checkpoint
#   ./list             of each, separated by |: name, exit code, pattern of the message, arguments
# test_bad_files.sh hands them to the program, fuzz.sh takes them as seeds.

bad_case() { printf '%s|%s|%s|%s\n' "$@" >>list; }

# --- safetensors: the good one, with its header edited and without its CRCs ---
header_of() { tail -c +9 "$1" | head -c "$(od -An -tu8 -N 8 "$1" | tr -d ' ')"; }
data_of() { tail -c +$((9 + $(od -An -tu8 -N 8 "$1"))) "$1"; }
with_header() {     # with_header NAME CODE PATTERN [LENGTH] <HEADER: and the good one's data
    mkdir -p "$1"
    cp good/config.json "$1"
    cat >h
    { little 8 "${4:-$(bytes_of h)}"; cat h; data_of good/model.safetensors; } \
        >"$1/model.safetensors"
    bad_case "$1" "$2" "$3" "--eval --val t.txt --seq_len 4 --init $1"
}
edited() {          # edited NAME PATTERN SED-EXPRESSION
    header_of good/model.safetensors | sed -E 's/"header_crc32c":"[0-9a-f]*"/"none":""/' |
        sed -E "$3" | with_header "$1" 3 "$2"
    ! cmp -s h plain || fail "$1: the header is the good one"
}
wte='"transformer.wte.weight":\{"dtype":"F32","shape":\[257,4\],"data_offsets":\[0,4112\]\}'
wte_is() { edited "$1" "$2" "s/$wte/\"transformer.wte.weight\":$3/"; }

make_bad_safetensors() {
    local n
    header_of good/model.safetensors | sed -E 's/"header_crc32c":"[0-9a-f]*"/"none":""/' >plain
    grep -qE "$wte" plain || fail "the good model has no wte of (257,4): $(head -c 3000 plain)"
    for n in 0 7 8; do
        mkdir st_$n
        cp good/config.json st_$n
        head -c $n good/model.safetensors >st_$n/model.safetensors
        bad_case st_$n 3 "st_$n/model.safetensors: .*cut short" \
            "--eval --val t.txt --seq_len 4 --init st_$n"
    done
    for n in 0 1 90000 100000001 9223372036854775807 -1 -8; do
        with_header st_length_$n 3 'safetensors header of [0-9]+ bytes does not fit' $n <plain
    done
    head -c 500 plain | with_header st_header_cut 3 'JSON: wanted'
    echo 'no JSON at all' | with_header st_no_json 3 'JSON: wanted \{'
    echo '[1,2]' | with_header st_array 3 'JSON: wanted \{'
    echo '{}' | with_header st_nothing 3 'tensors take 0 bytes'
    edited st_long_name 'JSON: wanted a shorter string' \
        "s/wte.weight/$(printf 'x%.0s' {1..300})/"
    edited st_bad_escape 'JSON: wanted four hex digits' 's/wte.weight/wte\\u00g0/'
    edited st_metadata_number 'JSON: wanted a string' 's/"none":""/"none":5/'
    edited st_version 'version 99, this program reads 1' 's/"version":"1"/"version":"99"/'
    edited st_missing 'no tensor wte.weight' 's/wte.weight/wte.wait/g'
    wte_is st_number 'JSON: wanted \{' 5
    wte_is st_no_dtype 'lacks dtype' '{"shape":[257,4],"data_offsets":[0,4112]}'
    wte_is st_no_shape 'lacks dtype, shape' '{"dtype":"F32","data_offsets":[0,4112]}'
    wte_is st_no_offsets 'lacks' '{"dtype":"F32","shape":[257,4]}'
    wte_is st_five_dims 'over 4 dimensions' \
        '{"dtype":"F32","shape":[257,4,1,1,1],"data_offsets":[0,4112]}'
    wte_is st_negative 'JSON: wanted a whole number' \
        '{"dtype":"F32","shape":[-257,-4],"data_offsets":[0,4112]}'
    wte_is st_fraction 'JSON: wanted a whole number' \
        '{"dtype":"F32","shape":[257.0,4],"data_offsets":[0,4112]}'
    wte_is st_2_to_64 'JSON: wanted a number below 2\^64' \
        '{"dtype":"F32","shape":[18446744073709551616,4],"data_offsets":[0,4112]}'
    wte_is st_product_wraps 'damaged or cut short' \
        '{"dtype":"F32","shape":[4294967296,4294967296,257,4],"data_offsets":[0,0]}'
    wte_is st_bytes_wrap 'damaged or cut short' \
        '{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}'
    wte_is st_backwards 'damaged or cut short' \
        '{"dtype":"F32","shape":[257,4],"data_offsets":[4112,0]}'
    wte_is st_one_offset 'damaged or cut short' '{"dtype":"F32","shape":[257,4],"data_offsets":[0]}'
    wte_is st_beyond 'damaged or cut short' \
        '{"dtype":"F32","shape":[257,4],"data_offsets":[1000000,1004112]}'
    wte_is st_far_beyond 'damaged or cut short' \
        '{"dtype":"F32","shape":[257,4],"data_offsets":[18446744073709547504,18446744073709551615]}'
    wte_is st_too_long 'damaged or cut short' \
        '{"dtype":"F32","shape":[257,4],"data_offsets":[0,4116]}'
    wte_is st_integers 'has type I32, want F32' \
        '{"dtype":"I32","shape":[257,4],"data_offsets":[0,4112]}'
    wte_is st_unknown_type 'damaged or cut short' \
        '{"dtype":"F4","shape":[257,4],"data_offsets":[0,4112]}'
    wte_is st_turned 'has shape \(4,257\), the model needs \(257,4\)' \
        '{"dtype":"F32","shape":[4,257],"data_offsets":[0,4112]}'
    wte_is st_flat 'has shape \(1028,1\)' '{"dtype":"F32","shape":[1028],"data_offsets":[0,4112]}'
    wte_is st_half 'tensors take [0-9]+ bytes, the file has' \
        '{"dtype":"F16","shape":[257,4],"data_offsets":[0,2056]}'
    mkdir st_tail
    cp good/config.json st_tail
    { cat good/model.safetensors; printf x; } >st_tail/model.safetensors
    bad_case st_tail 3 'tensors take' "--eval --val t.txt --seq_len 4 --init st_tail"
}

make_bad_indices() {
    index() {               # index NAME PATTERN SHARD [JSON]: of one shard, the good model or SHARD
        mkdir -p "$1"
        cp good/config.json "$1"
        cp "$3" "$1/1.safetensors"
        cat >"$1/model.safetensors.index.json"
        bad_case "$1" 3 "$1/.*$2" "--eval --val t.txt --seq_len 4 --init $1"
    }
    names() { echo '{"metadata":{},"weight_map":{"wte.weight":"1.safetensors"'"$1}}"; }
    local good=good/model.safetensors
    names '' | index index_fine good $good
    sed -i '/^index_fine/d' list
    : | index index_empty 'JSON: wanted \{' $good
    echo '{"metadata":{}}' | index index_no_map 'no weight_map' $good
    echo '{"weight_map":{}}' | index index_no_files 'index.json: no tensor wte.weight' $good
    echo '{"weight_map":["1.safetensors"]}' | index index_list 'JSON: wanted \{' $good
    names ',"wpe.weight":1' | index index_number 'JSON: wanted a string' $good
    names ',"wpe.weight":"../good/model.safetensors"' | index index_up 'wpe.*, and no path' $good
    names ",\"wpe.weight\":\"$PWD/$good\"" | index index_root 'wpe.weight .*, and no path' $good
    names ',"wpe.weight":"2.safetensors"' | index index_lost '2.safetensors: No such file' $good
    names ',"wpe.weight":""' | index index_folder ': not a regular file' $good
    names "$(printf ',"wpe.weight":"%0999d"' 1)" | index index_long 'JSON: wanted a shorter' $good
    names '' | index index_lacks 'index.json: no tensor wte.weight' st_missing/model.safetensors
    names ',"wpe.weight":"2.safetensors"' |
        index index_lack_both 'index.json: no tensor wte.weight' st_missing/model.safetensors
    cp index_lack_both/1.safetensors index_lack_both/2.safetensors
    names '' | index index_cut '1.safetensors: .*cut short' st_8/model.safetensors
    names ',"a":"model.safetensors.index.json"' | index index_itself 'not safetensors' $good
}

make_bad_config() {         # make_bad_config NAME PATTERN <config.json
    mkdir "$1"
    cp good/model.safetensors "$1"
    cat >"$1/config.json"
    bad_case "$1" 3 "$1/config.json: .*$2" "--eval --val t.txt --seq_len 4 --init $1"
}
make_bad_configs() {
    config() { sed -E "$1" good/config.json; }
    : | make_bad_config config_empty 'JSON: wanted \{'
    echo nothing | make_bad_config config_text 'JSON: wanted \{'
    head -c 60 good/config.json | make_bad_config config_cut JSON
    config 's/"n_layer": 1/"n_layer": 0/' | make_bad_config config_layers_0 'layers 0, limit'
    config 's/"n_layer"/"layers"/' | make_bad_config config_no_layers 'layers 0, limit'
    config 's/"n_layer": 1/"n_layer": 1025/' | make_bad_config config_layers_1025 'layers 1025, lim'
    config 's/"n_layer": 1/"n_layer": -1/' | make_bad_config config_layers_minus 'wanted a whole'
    config 's/"n_layer": 1/"n_layer": 2/' | make_bad_config config_more_layers ''
    sed -i 's/^config_more_layers|3|[^|]*/config_more_layers|3|no tensor h\\.1/' list
    config 's/"n_head": 1/"n_head": 0/' | make_bad_config config_heads_0 'not divide into 0'
    config 's/"n_head": 1/"n_head": 3/' | make_bad_config config_heads_3 'not divide into 3'
    config 's/"n_embd": 4/"n_embd": 65537/' | make_bad_config config_channels 'channels 65537'
    config 's/"n_positions": 4/"n_positions": 0/' | make_bad_config config_positions 'max_seq_len 0'
    config 's/"vocab_size": 257/"vocab_size": 16777217/' | make_bad_config config_vocab vocab_size
    config 's/"vocab_size": 257/"vocab_size": 18446744073709551616/' |
        make_bad_config config_vocab_huge 'JSON: .* 2\^64'
    config 's/"vocab_size": 257/"vocab_size": "257"/' | make_bad_config config_vocab_text 'a whole'
    config 's/gelu_new/gelu/' | make_bad_config config_gelu 'activation_function is gelu'
    config 's/"gpt2"/"bert"/' | make_bad_config config_bert 'model_type is bert'
    config 's/gelu_new/relu/; s/"gpt2"/"opt"/' | make_bad_config config_opt 'model_type is opt'
    config 's/1e-05/1e-06/' | make_bad_config config_eps 'layer_norm_epsilon is 1e-06'
    config 's/1e-05/1e-05x/' | make_bad_config config_eps_text 'JSON'
    config "s/\"n_ctx\": 4/\"n_ctx\": $(printf '[%.0s' {1..9999})/" |
        make_bad_config config_deep JSON
    { cat good/config.json; head -c 1100000 /dev/zero | tr '\0' ' '; } |
        make_bad_config config_large '[0-9]+ bytes, limit 1048576'
}

make_bad_tokenizers() {
    tok() {                 # tok NAME PATTERN <FILE
        cat >"$1"
        bad_case "$1" 3 "$1: .*$2" "--train t.txt --tokenizer $1"
    }
    : | tok tok_empty '0 bytes: no vocab'
    printf 'a\0b' | tok tok_zero '3 bytes: no vocab'
    bpe() { echo '{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE",'"$1}}"; }
    echo '{}' | tok tok_json_empty 'no token for byte 0'
    echo '{"model":{"type":"WordPiece","vocab":{}}}' | tok tok_wordpiece 'only "BPE" is supported'
    bpe '"vocab":{"a":0,"b":0},"merges":[]' | tok tok_same_id "token 0 is given twice"
    bpe '"vocab":{"a":4294967295},"merges":[]' | tok tok_large_id "token 4294967295"
    sed -E 's/"special": *true/"special":false/' good/tokenizer.json |
        tok tok_added 'added token 256 is not special'
    merges() { sed -E "s/\"merges\": *\[\]/\"merges\": [$1]/" good/tokenizer.json; }
    merges '"a zz"' | tok tok_unknown_part "makes no token"
    merges '"a"' | tok tok_half_merge "wanted two tokens"
    merges '["a","b","c"]' | tok tok_merge_of_three "wanted a pair"
    merges '"a b","a b"' | tok tok_merge_twice "makes no token"
    bpe '"vocab":{"a":-1},"merges":[]' | tok tok_minus "JSON: wanted a whole"
    bpe "\"vocab\":{\"$(printf 'a%.0s' {1..5000})\":0}" | tok tok_long_token "5000 bytes"
    echo '{"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}' | tok tok_no_pattern pre_tokenizer
    bpe '"vocab":{"a":0' | tok tok_json_cut JSON
    printf '#version: 0.2\na b c\n' | tok tok_three 'merge 0'
    printf '#version: 0.2\nab cd\n' | tok tok_not_made_yet 'merge 0'
    printf 'IQ== 0\nIQ== 1\n' | tok tok_twice 'have the same bytes'
    printf 'IQ== 99999999999\n' | tok tok_rank 'token 99999999999'
    printf '!!!! 0\n' | tok tok_base64 'line 1: wanted a token in base64'
    { little 4 20240328 2 50257 50256; head -c 1008 /dev/zero; } | tok tok_llmc_cut 'cut short in'
    { little 4 20240328 9 1 0; head -c 1008 /dev/zero; } | tok tok_llmc_version 'version 9, wanted'
}

make_bad_hellaswag() {
    hella() {               # hella NAME PATTERN [ARGUMENTS] <EXAMPLES IN UINT16
        { little 4 20240522 1 1; head -c 1012 /dev/zero; cat; } >"$1"
        bad_case "$1" "${4:-3}" "$1: .*$2" "--eval --hellaswag $1 --init good ${3:---seq_len 4}"
    }
    # 65535, bytes, number, right one, completions, context of 1: 5; completion of 2: 7 8
    little 2 65535 20 0 0 1 1 5 2 7 8 | hella hella_fine good
    sed -i '/^hella_fine/d' list
    head -c 10 hella_fine >hella_short
    bad_case hella_short 3 'no HellaSwag file' '--eval --hellaswag hella_short --init good'
    : | hella hella_none 'example 0 is damaged'
    little 2 65535 20 0 0 1 1 5 2 7 8 | hella hella_magic 'no HellaSwag file'
    poke hella_magic 0 4 20240523
    little 2 65535 20 0 0 1 1 5 2 7 8 | hella hella_minus 'no HellaSwag file'
    poke hella_minus 8 4 -1
    little 2 65535 20 0 0 1 1 5 2 7 8 | hella hella_more 'example 1 is damaged'
    poke hella_more 8 4 2
    little 2 65534 20 0 0 1 1 5 2 7 8 | hella hella_mark 'example 0 is damaged'
    little 2 65535 0 0 0 1 1 5 2 7 8 | hella hella_bytes_0 'example 0 is damaged'
    little 2 65535 65535 0 0 1 1 5 2 7 8 | hella hella_bytes_many 'example 0 is damaged'
    little 2 65535 20 0 1 1 1 5 2 7 8 | hella hella_right 'example 0 is damaged'
    little 2 65535 20 0 0 1 65535 5 2 7 8 | hella hella_context 'example 0 is damaged'
    little 2 65535 20 0 0 1 0 2 7 8 5 | hella hella_no_context 'example 0 is damaged'
    little 2 65535 20 0 0 1 1 5 0 7 8 | hella hella_no_completion 'leaves the example'
    little 2 65535 20 0 0 1 1 5 3 7 8 | hella hella_completion 'leaves the example'
    little 2 65535 20 0 0 2 1 5 2 7 8 | hella hella_two 'leaves the example'
    little 2 65535 20 0 0 1 1 5 2 7 300 | hella hella_token 'token 300, .* 257'
    little 2 65535 20 0 0 1 1 5 2 7 8 | hella hella_long 'too short' '--seq_len 1' 2
    little 2 65535 20 0 0 1 1 5 2 7 8 | { cat; printf x; } | hella hella_odd 'no HellaSwag file'
}

make_bad_files() {
    : >list
    text 99 >t.txt
    gpt --layers 1 --channels 4 --heads 1 --seq_len 4 --batch_size 1 --steps 1 --train t.txt \
        --val_every 0 --out run
    cp -r run/step_00000001 good
    rm -r run
    make_bad_safetensors
    make_bad_indices
    make_bad_configs
    make_bad_tokenizers
    make_bad_hellaswag
}
