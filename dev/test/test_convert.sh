#!/usr/bin/env bash
# test_convert.sh: scripts/convert.py against golden files, round trips, and what it refuses.
# Golden files: $GPT_DATA/formats, made by other programs. The rest needs Python and numpy only.
. "$(dirname "$0")/lib.sh"

formats=$(cd "$root" && cd "${GPT_DATA:-../shared/data}/formats" 2>/dev/null && pwd) || formats=
export PYTHONDONTWRITEBYTECODE=1

needs_numpy() {     # the first Python with it
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import numpy' 2>/dev/null && return
    done
    skip "no Python with numpy; install python3-numpy"
}
needs_golden() {
    needs_numpy
    [ -n "$formats" ] && [ -s "$formats/tiny_byte_gpt2.gguf" ] || skip "no formats/ in GPT_DATA"
}
convert() {         # convert ARGUMENTS...: must end in exit code 0
    "$python" "$root/scripts/convert.py" "$@" >stdout 2>stderr || { cat stderr; fail "convert $*"; }
}
cannot() {          # cannot CODE PATTERN ARGUMENTS...: one line of error, and no file out*
    local code=$1 pattern=$2 status=0; shift 2
    timeout 60 "$python" "$root/scripts/convert.py" "$@" >stdout 2>stderr || status=$?
    [ $status -eq "$code" ] || { cat stderr; fail "exit code $status, want $code, of: $*"; }
    [ "$(grep -c '^error: ' stderr)" -eq 1 ] && [ "$(wc -l <stderr)" -eq 1 ] ||
        { cat stderr; fail "not one line beginning with 'error: ', of: $*"; }
    grep -qE -e "$pattern" stderr || { cat stderr; fail "no '$pattern' in the error of: $*"; }
    [ -z "$(find . -name 'out*' ! -name '*.old')" ] || fail "left a trace: $(find . -name 'out*')"
}
# Both have the same tensors and keys: PROGRAM reads a file on its own, and prints all it holds.
listing() {         # listing FILE.gguf|FILE.safetensors: names, types, shapes, CRC-32 of the data
    "$python" - "$1" <<'PY'
import json, struct, sys, zlib
b = open(sys.argv[1], "rb").read()
at = 4
def take(code):
    global at
    at += struct.calcsize("<" + code)
    return struct.unpack_from("<" + code, b, at - struct.calcsize("<" + code))[0]
def text():
    global at
    n = take("Q")
    at += n
    return b[at - n:at].decode()
def value(kind):
    if kind == 8: return text()
    if kind == 9:
        kind, n = take("I"), take("Q")
        return [kind] + [value(kind) for _ in range(n)]
    return take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])
if b[:4] == b"GGUF":
    assert take("I") == 3
    tensors, keys = take("Q"), take("Q")
    for _ in range(keys):
        name, kind = text(), take("I")
        v = value(kind)
        print(name, kind, json.dumps(v) if name != "general.name" else "")
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q"))
             for _ in range(tensors)]
    start = (at + 31) // 32 * 32
    for name, shape, kind, offset in infos:
        n = 4 if kind == 0 else 2
        for d in shape: n *= d
        print(name, shape, kind, zlib.crc32(b[start + offset:start + offset + n]))
else:
    start = 8 + struct.unpack_from("<Q", b)[0]
    header = json.loads(b[8:start])
    header.pop("__metadata__", None)
    for name, h in sorted(header.items()):
        begin, end = h["data_offsets"]
        print(name, h["dtype"], h["shape"], zlib.crc32(b[start + begin:start + end]))
PY
}
same_listing() {
    listing "$1" >a.list
    listing "$2" >b.list
    [ -s a.list ] && cmp a.list b.list || { diff a.list b.list | head; fail "$1 differs from $2"; }
}
# A small model in ./m: V is no multiple of 128, one that training has changed.
model() { text 20 >t.txt; gpt $tiny --train t.txt --steps 3 --out run; mv run/step_00000003 m; }

test_convert_golden_safetensors_to_gguf() {
    needs_golden
    convert "$formats/tiny_byte_gpt2.safetensors" tiny.gguf
    same_listing tiny.gguf "$formats/tiny_byte_gpt2.gguf"
}
test_convert_golden_gguf_to_safetensors_and_back_to_the_byte() {
    needs_golden
    convert "$formats/tiny_byte_gpt2.gguf" hf
    same_listing hf/model.safetensors "$formats/tiny_byte_gpt2.safetensors"
    convert hf back.gguf
    cmp back.gguf "$formats/tiny_byte_gpt2.gguf"
    convert "$formats/tiny_byte_gpt2_tied_no_output.gguf" tied.gguf     # the head is left out there
    cmp tied.gguf "$formats/tiny_byte_gpt2.gguf"
}
test_convert_writes_all_keys_of_the_gpt2_vocabulary() {
    needs_golden
    local vocab=${formats%/formats}/tokenizer/ggml-vocab-gpt-2.gguf
    [ -s "$vocab" ] || skip "no tokenizer/ggml-vocab-gpt-2.gguf in GPT_DATA"
    text 20 >t.txt
    gpt $tiny --train t.txt --steps 1 --out run --tokenizer "${vocab%/*}/vocab.bpe" --val_every 0
    convert run/step_00000001 out.gguf
    listing out.gguf >a.list
    listing "$vocab" >b.list
    # Same names, types, tokens and merges, in the same order; only sizes and one type may differ.
    local sized='gpt2\.(block|context|embed|feed|attention.head)|general.file_type'
    grep -E '^(general|gpt2|tokenizer)' b.list | grep -vE "^($sized)" >want
    grep -vE "^($sized)" a.list | grep -E '^(general|gpt2|tokenizer)' | grep -v add_bos >got
    [ "$(wc -l <want)" -ge 10 ] && cmp got want
    cut -d ' ' -f 1,2 b.list | grep -E "^($sized)" >want
    cut -d ' ' -f 1,2 a.list | grep -E "^($sized)" >got
    cmp got want
}
test_convert_round_trips_are_exact() {
    needs_numpy
    model
    convert m out.gguf
    convert out.gguf out.bin
    convert out.bin back --tokenizer m
    same_listing back/model.safetensors m/model.safetensors
    convert back again.gguf
    same_listing again.gguf out.gguf
    convert again.gguf again.safetensors
    cmp again.safetensors back/model.safetensors
}
test_convert_halves_come_back_exactly() {
    needs_numpy
    model
    local type
    for type in bf16 f16; do
        convert m half_$type --type $type
        convert half_$type wide_$type --type f32
        convert wide_$type again_$type --type $type
        cmp half_$type/model.safetensors again_$type/model.safetensors
        convert half_$type $type.gguf
        convert $type.gguf from_gguf_$type
        cmp half_$type/model.safetensors from_gguf_$type/model.safetensors
    done
    convert half_bf16 bf16.bin
    convert bf16.bin from_bin
    cmp half_bf16/model.safetensors from_bin/model.safetensors
    [ "$(od -An -td4 -j 4 -N 4 bf16.bin | tr -d ' ')" -eq 5 ]
    cannot 3 "f16.*--type" half_f16 out.bin
}
test_convert_rounds_to_nearest_even() {
    needs_numpy
    model
    convert m m.bin
    local i=0 bits
    # 1 + a tie, twice: down and up to even; above a tie; infinity; a NaN that would become infinity
    for bits in 0x3f808000 0x3f818000 0x3f808001 0x7f800000 0x7f800001 0xbf808000; do
        poke m.bin $((1024 + 4 * i++)) 4 $((bits))
    done
    convert m.bin half.bin --type bf16
    bits=$(od -An -tx2 -j 1024 -N 12 half.bin)
    [ "$bits" = " 3f80 3f82 3f81 7f80 7fc0 bf80" ] || fail "rounded to $bits"
    poke m.bin 1024 4 $((0x47c35000))
    cannot 3 'wte.weight: holds 100000, but f16 ends at 65504' m.bin out.gguf --type f16
}
test_convert_bin_has_the_layout_of_llmc() {
    needs_numpy
    model
    convert m m.bin
    # magic, version, T, V, L, NH, C, V padded to 128
    [ "$(od -An -v -td4 -w32 -N 32 m.bin | tr -s ' ')" = " 20240326 3 8 257 1 2 16 384" ]
    # 4 bytes each: wte, wpe, 16 tensors of a layer, the last norm
    [ "$(bytes_of m.bin)" -eq $((1024 + 4 * (384*16 + 8*16 + 12*16*16 + 13*16 + 2*16))) ]
    # The first rows are the file's, the padding is zero.
    local start=$(($(od -An -tu8 -N 8 m/model.safetensors) + 8))
    cmp <(tail -c +$((start + 1)) m/model.safetensors | head -c $((4 * 257 * 16))) \
        <(tail -c +1025 m.bin | head -c $((4 * 257 * 16)))
    cmp <(tail -c +$((1025 + 4 * 257 * 16)) m.bin | head -c $((4 * 127 * 16))) \
        <(head -c $((4 * 127 * 16)) /dev/zero)
}
test_convert_result_is_evaluated_alike() {
    needs_numpy
    model
    gpt --eval --val t.txt --init m --tokenizer m --seq_len 8 --out none
    cp stdout want
    convert m m.bin
    convert m.bin hf
    gpt --eval --val t.txt --init hf --tokenizer hf --seq_len 8 --out none
    cmp stdout want
    "$B/train_gpt" --sample "0 times" --temperature 0 --sample_tokens 20 --init m --tokenizer m \
        --seq_len 8 --out none >want
    "$B/train_gpt" --sample "0 times" --temperature 0 --sample_tokens 20 --init hf --tokenizer hf \
        --seq_len 8 --out none | cmp - want
}
test_convert_rows_without_a_token_are_padding_in_gguf() {
    needs_numpy
    text 20 >t.txt
    gpt $tiny --train t.txt --steps 1 --out run --vocab_size 300
    convert run/step_00000001 out.gguf --tokenizer run/step_00000001
    listing out.gguf | grep -a '^tokenizer.ggml.tokens' | grep -q '"\[PAD257\]".*"\[PAD299\]"\]'
    convert out.gguf hf
    same_listing hf/model.safetensors run/step_00000001/model.safetensors
    cmp <("$python" -c 'import json; print(json.load(open("hf/tokenizer.json"))["model"])') \
        <("$python" -c 'import json
print(json.load(open("run/step_00000001/tokenizer.json"))["model"])')
}
test_convert_refuses_cut_and_damaged_files() {
    needs_numpy
    model
    convert m m.gguf
    convert m m.bin
    local kind bytes cut
    cannot 3 'no file' absent.bin out.gguf
    for kind in m.gguf m.bin m/model.safetensors; do
        bytes=$(bytes_of $kind)
        for cut in 0 3 8 20 60 $((bytes / 2)) $((bytes - 1)); do
            mkdir -p cut
            cp m/config.json cut
            head -c "$cut" $kind >"cut/${kind##*/}"
            cannot 3 'cut short|header|JSON|neither|lacks' "cut/${kind##*/}" out.bin
        done
    done
    cp m.gguf n.gguf; poke n.gguf 4 4 2;                cannot 3 'version 2, want 3' n.gguf out.bin
    cp m.gguf n.gguf; poke n.gguf 16 8 $((1 << 40));    cannot 3 'n.gguf' n.gguf out.bin
    cp m.gguf n.gguf; poke n.gguf 24 8 $((1 << 62));    cannot 3 'cut short' n.gguf out.bin
    sed 's/blk.0.ffn_up.bias/blk.0.ffn_ab.bias/' m.gguf >n.gguf
    cannot 3 'no tensor blk.0.ffn_up.bias' n.gguf out.bin
    sed 's/architecture\(....\)\(........\)gpt2/architecture\1\2gptj/' m.gguf >n.gguf
    cannot 3 'general.architecture is gptj, want gpt2' n.gguf out.bin
    local at; at=$(at 'blk.0.ffn_up.weight' m.gguf)     # name, u32 dimensions, 2 u64, u32 type
    cp m.gguf n.gguf; poke n.gguf $((at + 39)) 4 2;     cannot 3 'has type 2' n.gguf out.bin
    cp m.gguf n.gguf; poke n.gguf $((at + 23)) 8 17;    cannot 3 'has shape.*want' n.gguf out.bin
    at=$(at 'output.weight' m.gguf)                     # the head's data: the last in the file
    cp m.gguf n.gguf; flip n.gguf $(($(bytes_of n.gguf) - 40));  cannot 3 'tied' n.gguf out.bin
}
test_convert_refuses_what_is_no_gpt2() {
    needs_numpy
    model
    convert m m.bin
    local edit
    cp m.bin n.bin; poke n.bin 4 4 2;       cannot 3 'version 2, want 3' n.bin out.gguf
    cp m.bin n.bin; poke n.bin 20 4 3;      cannot 3 'C is 16, not a multiple of NH' n.bin out.gguf
    cp m.bin n.bin; poke n.bin 16 4 4096;   cannot 3 'L is 4096, want 1 to 1024' n.bin out.gguf
    cp m.bin n.bin; poke n.bin 8 4 $((1 << 32 | -1)); cannot 3 'T is -1, want 1' n.bin out.gguf
    cp m.bin n.bin; poke n.bin 28 4 257;    cannot 3 'padded V is 257, want 384' n.bin out.gguf
    cp m.bin n.bin; poke n.bin 12 4 200
    poke n.bin 28 4 256;                    cannot 3 'bytes, its header makes' n.bin out.gguf
    echo "some text" >t.bin;                cannot 3 'no file, or below|neither' t.bin out.gguf
    text 9 >t.bin;                          cannot 3 'neither safetensors' t.bin out.gguf
    while IFS='|' read -r edit want; do
        cp -r m n
        sed "$edit" m/config.json >n/config.json
        cannot 3 "$want" n out.gguf
        rm -r n
    done <<'END'
s/"gpt2"/"llama"/|model_type is llama, want gpt2
s/gelu_new/relu/|activation_function is relu, want gelu_new
s/1e-05/1e-06/|layer_norm_epsilon is 1e-06, want 1e-05
s/"n_head": 2/"n_head": 3/|n_embd is 16, not a multiple of n_head, 3
s/"n_layer": 1/"n_layer": 2/|no tensor h.1.ln_1.weight
s/"n_layer": 1/"n_layer": 0/|n_layer is 0, want 1 to 1024
s/"n_layer": 1/"n_layer": "x"/|n_layer is x, want 1 to 1024
s/"n_embd": 16/"n_inner": 3, "n_embd": 16/|n_inner is 3, want 64
s/"n_embd": 16/"n_embd": 32/|wte.weight has shape .257, 16., want .257, 32.
s/"n_embd": 16,//|n_embd is None
s/}//|not JSON
END
    cp -r m n; sed -i 's/h.0.mlp.c_fc.bias":{/h.0.mlp.c_fc.bios":{/' n/model.safetensors
    cannot 3 'no tensor h.0.mlp.c_fc.bias' n out.gguf
    rm -r n; cp -r m n; sed -i 's/"data_offsets":\[0,/"data_offsets":[4,/' n/model.safetensors
    cannot 3 'wte.weight is bytes 4 to 16448, want 16448 of' n out.gguf
    cp -r m k; sed -i 's/"merges"/"mergez"/' k/tokenizer.json
    cannot 3 'tokenizer.json: not a tokenizer' k out.gguf
}
test_convert_overwrites_nothing() {
    needs_numpy
    model
    echo mine >out.gguf.old
    cp out.gguf.old x.gguf
    cannot 4 'x.gguf: exists' m x.gguf
    cmp x.gguf out.gguf.old
    cannot 4 'config.json: exists' m/model.safetensors m/again.safetensors
    cannot 3 'no tokenizer for 300 tokens.*--tokenizer' "$(
        gpt $tiny --train t.txt --steps 1 --out r --vocab_size 300 >/dev/null
        rm r/step_00000001/tok* r/step_00000001/vocab.json; echo r/step_00000001)" out.gguf
    mkdir full
    cannot 4 'full/no/out.bin.*: No such file' m full/no/out.bin
}
own_tokenizer() {   # own_tokenizer TOKENS ROWS: a model in ./m with a vocabulary of its own
    text 99 >t.txt
    "$B/train_bpe" --vocab_size "$1" --out v t.txt >/dev/null 2>stderr
    gpt --layers 1 --channels 4 --heads 1 --seq_len 8 --batch_size 2 --val_every 0 --steps 1 \
        --train t.txt --tokenizer v --vocab_size "$2" --out run
    mv run/step_00000001 m
    convert m want.gguf
}
test_convert_takes_the_tokenizer_beside_the_input() {
    needs_numpy
    own_tokenizer 257 257               # as many as bytes alone have, but in the order of GPT-2
    (cd m; convert model.safetensors ../beside.gguf)    # no folder is named
    same_listing beside.gguf want.gguf
    rm m/tokenizer.json
    convert m two_files.gguf                            # vocab.json and merges.txt
    same_listing two_files.gguf want.gguf
    convert m named.gguf --tokenizer m/vocab.json
    same_listing named.gguf want.gguf
    rm m/merges.txt
    cannot 3 'merges.txt: not there, but vocab.json needs it' m out.gguf
}
test_convert_takes_no_vocabulary_of_gpt2_where_another_is() {
    needs_numpy
    own_tokenizer 280 50257             # as many rows as GPT-2's has
    rm m/tokenizer.json
    convert m two_files.gguf
    same_listing two_files.gguf want.gguf
}
test_convert_takes_merges_with_and_without_a_version() {
    needs_numpy
    own_tokenizer 280 280
    sed 1d v/merges.txt >plain.bpe
    convert m plain.gguf --tokenizer plain.bpe
    same_listing plain.gguf want.gguf
    convert m versioned.gguf --tokenizer v/merges.txt
    same_listing versioned.gguf want.gguf
}
test_convert_refuses_tokenizers_that_the_trainer_refuses() {
    needs_numpy
    local edit want
    model
    while IFS='|' read -r edit want; do
        sed "$edit" m/tokenizer.json >t.json
        cmp -s t.json m/tokenizer.json && fail "no edit: $edit"
        cannot 3 "t.json: $want" m out.gguf --tokenizer t.json
        "$B/train_gpt" --plan --tokenizer t.json >stdout 2>stderr && fail "the trainer takes $edit"
        says 't.json: '
    done <<'END'
s/"normalizer":null/"normalizer":{"type":"Lowercase"}/|a normalizer
s/"special":true/"special":false/|an added token.*not special
s/"add_prefix_space":false/"add_prefix_space":true/g|pre_tokenizer: add_prefix_space is True
s/"use_regex":true/"use_regex":false/g|pre_tokenizer: use_regex is False
s/"byte_fallback":false/"byte_fallback":true/|model: byte_fallback is True
s/"dropout":null/"dropout":0.1/|model: dropout is 0.1
s/"end_of_word_suffix":""/"end_of_word_suffix":"<w>"/|model: end_of_word_suffix is <w>
END
    sed 's/"add_prefix_space":false,//g; s/"normalizer":null,//' m/tokenizer.json >t.json
    convert m as_few.gguf --tokenizer t.json            # what is not said is as in GPT-2
}
test_convert_gguf_ends_where_the_model_does() {
    needs_numpy
    model
    # llama.cpp takes token 11 for the end, a comma, where the file names none.
    ends() { listing "$1" | sed -n 's/^tokenizer.ggml.\([be]os\)_token_id 4 /\1 /p' | xargs; }
    convert m named.gguf
    [ "$(ends named.gguf)" = "bos 256 eos 256" ] || fail "$(ends named.gguf)"
    "$python" - <<'PY'
import json
j = json.load(open("m/tokenizer.json"))
del j["model"]["vocab"]["<|endoftext|>"]
j["added_tokens"] = []
json.dump(j, open("m/tokenizer.json", "w"))
PY
    convert m never.gguf                # the byte 255 is in no UTF-8; config.json's 256 is no token
    [ "$(ends never.gguf)" = "bos 255 eos 255" ] || fail "$(ends never.gguf)"
    sed -i 's/"eos_token_id": 256/"eos_token_id": 65/' m/config.json
    convert m config.gguf
    [ "$(ends config.gguf)" = "bos 255 eos 65" ] || fail "$(ends config.gguf)"
    convert config.gguf back            # it stays
    grep -q '"eos_token_id": 65' back/config.json || fail "$(cat back/config.json)"
    convert back again.gguf
    [ "$(ends again.gguf)" = "bos 255 eos 65" ] || fail "$(ends again.gguf)"
}
test_convert_that_fails_leaves_no_half_folder() {
    needs_numpy
    model
    convert m m.bin
    poke m.bin 1024 4 $((0x47c35000))
    cannot 3 'f16 ends at' m.bin out --type f16
    (ulimit -f 4; cannot 4 'out: File too large' m out)
    mkdir there
    echo mine >there/notes
    cannot 3 'f16 ends at' m.bin there --type f16
    [ "$(ls there)" = notes ] || fail "left $(ls there)"
}
run_tests "$@"
