#!/usr/bin/env bash
# test_data.sh: data/tokenize, from texts of every kind to shards, and data/train_bpe, whose
# vocabularies the trainer, data/tokenize and, where it is installed, `tokenizers` read alike.
. "$(dirname "$0")/lib.sh"

tok() {             # tok ARGUMENTS...: must end in exit code 0; its output is in ./stdout, ./stderr
    local status=0
    timeout 60 "$B/tokenize" "$@" >stdout 2>stderr || status=$?
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of: $*"; }
}
bytes() { tok --tokenizer bytes "$@"; }     # ids are then known: bytes, and 256 before a document
tok_refused() {     # tok_refused CODE PATTERN ARGUMENTS...: one line of error, no file out*
    local code=$1 pattern=$2 status=0; shift 2
    "$B/tokenize" "$@" >stdout 2>stderr || status=$?
    [ $status -eq "$code" ] || { cat stderr; fail "exit code $status, want $code, of: $*"; }
    [ "$(wc -l <stderr)" -eq 1 ] && grep -qE -e "^error: .*$pattern" stderr ||
        { cat stderr; fail "not one line with '$pattern', of: $*"; }
    [ -z "$(find . -name 'out_*')" ] || fail "left $(find . -name 'out_*'), of: $*"
}
ids() {             # ids SHARD...: the tokens of all of them, on one line
    local f
    for f; do
        case $(od -An -td4 -N 4 "$f") in
        *20240520) od -An -v -tu2 -j 1024 "$f" ;;
        *20240801) od -An -v -tu4 -j 1024 "$f" ;;
        esac
        [ $(($(bytes_of "$f") - 1024)) -eq $(($(od -An -td4 -j 8 -N 4 "$f") * (
            $(od -An -td4 -j 4 -N 4 "$f") == 7 ? 4 : 2))) ] || echo "wrong count in $f"
    done | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'
}
as_bytes() { printf '%b' "$1" | od -An -v -tu1 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }
documents() {       # documents TEXT...: the ids of these documents, with \n and the like in them
    local d all=''
    for d; do all+=" 256 $(as_bytes "$d")"; done
    echo "${all# }"
}
holds() {           # holds SHARD DOCUMENT...: exactly these
    local shard=$1; shift
    [ "$(ids "$shard")" = "$(documents "$@")" ] ||
        fail "$shard holds: $(ids "$shard" | head -c 300), wanted: $(documents "$@" | head -c 300)"
}
# A vocabulary of our own in ./vocab, and words.txt, in which it has been found.
vocabulary() {
    text 400 >words.txt
    printf "Caf\303\251 na\303\257ve \346\227\245\346\234\254 don't we'll\n" >>words.txt
    "$B/train_bpe" --vocab_size "${1:-400}" --out vocab words.txt >stdout 2>stderr ||
        { cat stderr; fail "train_bpe"; }
}
noise() {           # noise BYTES SEED: any bytes, the same each time; many are words
    awk -v n="$1" -v seed="$2" 'BEGIN { srand(seed)
        while (made < n) {
            c = int(rand() * 256); count = 1 + int(rand() * 9)
            s = sprintf("%c", c)
            if (rand() < 0.7) s = substr("is odd and times even", c % 20, count) " "
            printf "%s", s; made += length(s) } }' | head -c "$1"
}

# --- documents ---
test_tokenize_takes_the_documents_of_jsonl() {
    cat >a.jsonl <<'END'
{"text":"one"}

 {"id": 5, "meta": {"text": [1, "}", {"a": null}], "b": "\"{"}, "text" : "two\nlines\t\\ \/ \"q\""}
{"text" : "and", "z" : -1.5e3 , "y" : true }
{"body":"\u00e9\ud83d\ude42","text":"\u00e9\ud83d\ude42"}
{"text":""}
{"te\u0078t":"named by an escape"}
END
    printf '{"text":"no end of line"}' >>a.jsonl
    bytes --out out a.jsonl
    holds out_train_000000.bin one 'two\nlines\t\\ / "q"' and '\303\251\360\237\231\202' \
        'named by an escape' 'no end of line'
    says '1 empty documents were left out'
    bytes --out by_flag --field body <<<'{"body":"b","text":"a"}' -
    holds by_flag_train_000000.bin b
    { printf '\357\273\277'; cat a.jsonl; } >mark.jsonl # U+FEFF first
    bytes --out mark mark.jsonl
    cmp {out,mark}_train_000000.bin
    mv a.jsonl a.ndjson
    bytes --out again a.ndjson
    cmp {out,again}_train_000000.bin
    bytes --out half - --field text <<<'{"text":"a\ud83dz\udc00"}'
    holds half_train_000000.bin 'a\357\277\275z\357\277\275'
    says '2 halves of surrogate pairs'
}
test_tokenize_refuses_bad_jsonl_by_its_line() {
    local line want
    while IFS='|' read -r line want; do
        { echo '{"text":"good"}'; printf '%b' "$line"; } >a.jsonl
        tok_refused 3 "a.jsonl: line 2: $want" --tokenizer bytes --out out a.jsonl
    done <<'END'
{"txt":"a"}\n|no field "text"
{}\n|no field "text"
{"text\\u0000x":"a"}\n|no field "text"
{"text":5}\n|field "text": wanted one string
{"text":null}\n|field "text": wanted one string
{"text":"a","text":"b"}\n|field "text": wanted one string
just text\n|wanted \{ at the start of a line of JSONL, found j
["a"]\n|wanted \{
{"text":"a"} x\n|wanted the end of the line
{"text":"a"|wanted a comma or \}, found the end of the file
{"text":"a\n|a string does not end
{"text":"a|a string does not end
{"text":"\\x"}\n|unknown escape
{"text":"\\u12g4"}\n|wanted four hex digits
{"text" "a"}\n|wanted a colon
{"text":"a" "b":1}\n|wanted a comma
{"a":,"text":"a"}\n|wanted a value
{"a":[1}\n|
END
}
test_tokenize_splits_texts_as_asked() {
    printf 'one\ntwo\n\n\nthree\n<|endoftext|>four' >t.txt
    bytes --out none t.txt
    holds none_train_000000.bin 'one\ntwo\n\n\nthree\n<|endoftext|>four'
    bytes --out blank --split blank t.txt
    holds blank_train_000000.bin 'one\ntwo\n\n' '\nthree\n<|endoftext|>four'
    bytes --out eot --split eot t.txt
    holds eot_train_000000.bin 'one\ntwo\n\n\nthree\n' four
    printf 'one\r\n\r\n\n\r\n\r\rtwo\n\rthree\n\r' >t.txt      # Windows' ends of lines
    bytes --out crlf --split blank t.txt
    holds crlf_train_000000.bin 'one\r\n\r\n' '\n\r\n' '\r\rtwo\n\rthree\n\r'
    printf '<|endoftext|>a<|endofb<|endoftext|><<|endoftext|>' >t.txt
    bytes --out edge --split eot t.txt
    holds edge_train_000000.bin 'a<|endofb' '<'
    printf 'b' >u.txt
    bytes --out two t.txt u.txt                 # a document never spans two files
    holds two_train_000000.bin '<|endoftext|>a<|endofb<|endoftext|><<|endoftext|>' b
}
test_tokenize_keeps_any_bytes() {
    printf 'a\0b\377\376\300\200\355\240\200\360\237\n' >t.txt
    bytes --out out t.txt
    holds out_train_000000.bin 'a\0b\377\376\300\200\355\240\200\360\237\n'
    noise 50000 1 >n.txt
    bytes --out noise n.txt
    [ "$(ids noise_train_000000.bin)" = "256 $(od -An -v -tu1 n.txt | tr -s ' \n' ' ' |
        sed 's/^ //; s/ $//')" ] || fail "other bytes than the file's"
    printf '{"text":"\377\\u0000\200"}' >a.jsonl
    bytes --out jsonl a.jsonl
    holds jsonl_train_000000.bin '\377\0\200'
}
test_tokenize_of_nothing_makes_nothing() {
    : >empty.txt
    printf '\n \n' >blank.jsonl
    tok_refused 3 'none of 0 documents' --tokenizer bytes --out out empty.txt
    tok_refused 3 'none of 0 documents' --tokenizer bytes --out out empty.txt blank.jsonl
    tok_refused 3 'none of 0 documents' --tokenizer bytes --out out --split eot empty.txt
    echo a >t.txt
    bytes --out some empty.txt t.txt blank.jsonl
    holds some_train_000000.bin 'a\n'
    tok_refused 3 'none of 1 documents fell into the val part: --split' --tokenizer bytes \
        --out out2 --val_fraction 0.001 t.txt
}

# --- shards ---
test_tokenize_cuts_shards_and_parts_by_document() {
    local i
    for i in {1..200}; do printf 'document %d of several\n\n' $i; done >t.txt
    bytes --out one --split blank t.txt
    bytes --out cut --split blank --shard_tokens 1000 t.txt
    [ "$(ids one_*)" = "$(ids cut_*)" ] || fail "other tokens in shards of 1000"
    for i in cut_train_00000{0,1,2,3}.bin; do [ "$(ids $i | wc -w)" -eq 1000 ] || fail "$i"; done
    [ "$(ids cut_train_000004.bin | wc -w)" -lt 1000 ] && [ ! -e cut_train_000005.bin ]
    bytes --out split --split blank --val_fraction 0.3 --shard_tokens 1000 t.txt
    lines() { ids "$@" | sed 's/ *256 */\n/g' | grep .; }
    [ "$({ lines split_train_*; lines split_val_*; } | sort)" = "$(lines one_* | sort)" ] ||
        fail "a document is in neither part, in both or cut"
    [ "$(lines split_train_*)" = "$(lines one_* | grep -Fxf <(lines split_train_*))" ] ||
        fail "the order has changed"
    i=$(lines split_val_* | wc -l)
    [ "$i" -gt 40 ] && [ "$i" -lt 80 ] || fail "$i of 200 documents for validation"
    bytes --out again --split blank --val_fraction 0.3 t.txt
    [ "$(ids split_val_*)" = "$(ids again_val_*)" ] || fail "another run, other documents"
    bytes --check_overlap --ngram 30 again_train_000000.bin again_val_000000.bin
    grep -q '^0 of' stdout || fail "$(cat stdout)"
    bytes --check_overlap --ngram 12 one_train_000000.bin again_val_000000.bin
    grep -q ': 100.0000 %' stdout || fail "$(cat stdout)"
    # Of the 12-grams of "a...m" and "n...z" in the second file one half is in the first.
    shard x.bin 256 {1..13} 256 99 {1..9}
    shard y.bin 256 {1..13} 256 {21..33}
    bytes --check_overlap --ngram 12 x.bin one_train_000000.bin again_val_000000.bin
    grep -q 'are in the files before it too: 100.0000 %' stdout || fail "$(cat stdout)"
    bytes --check_overlap --ngram 12 x.bin y.bin
    grep -q '^2 of 4 12-grams of y.bin are in x.bin too: 50.0000 %; of 4 .* 2$' stdout ||
        fail "$(cat stdout)"
}
test_tokenize_writes_32_bits_where_ids_need_them() {
    awk 'BEGIN { for (i = 33; i < 127; i++) for (j = 33; j < 127; j++) { print c(i), c(j); n++ }
                 for (i = 33; i < 127; i++) for (j = i + 1; j < 127; j++) for (k = 33; k < 127; k++)
                     if (n++ < 70000) print c(i) c(j), c(k) }
         function c(i) { return sprintf("%c", i) }' >merges.txt
    printf '!"!!"#' >t.txt                  # a merge of the first pair comes before any other
    tok --tokenizer merges.txt --out wide t.txt
    [ "$(od -An -td4 -N 8 wide_train_000000.bin | tr -s ' ')" = ' 20240801 7' ]
    tok --tokenizer merges.txt --print_ids t.txt
    [ "$(ids wide_train_000000.bin)" = "70256 $(cat stdout)" ] ||
        fail "$(ids wide_train_000000.bin), --print_ids: $(cat stdout)"
    head -n 65279 merges.txt >w16.txt; tok --tokenizer w16.txt --out w16 t.txt      # 65,536 tokens
    head -n 65280 merges.txt >w32.txt; tok --tokenizer w32.txt --out w32 t.txt      # 65,537
    [ "$(od -An -td4 -N 4 w16_train_000000.bin)" -eq 20240520 ]
    [ "$(od -An -td4 -N 4 w32_train_000000.bin)" -eq 20240801 ]
    [ "$(ids w16_train_000000.bin | cut -d ' ' -f 1)" -eq 65535 ]
    for i in w16 w32; do
        gpt --layers 1 --channels 4 --heads 1 --seq_len 2 --batch_size 1 --vocab_size 65537 \
            --tokenizer $i.txt --train ${i}_train_000000.bin --val t.txt --steps 1 --out $i
    done
}
test_tokenize_reads_standard_input() {
    text 99 >t.txt
    bytes --out file t.txt
    bytes --out pipe - < <(cat t.txt)
    cmp {file,pipe}_train_000000.bin
    gzip -c t.txt >t.gz
    bytes --out gzip - < <(zcat t.gz)
    cmp {file,gzip}_train_000000.bin
    bytes --print_ids <t.txt
    [ "256 $(cat stdout)" = "$(ids file_train_000000.bin)" ]
    [ "$(wc -l <stdout)" -eq 1 ]
}
test_tokenize_leaves_whole_shards_or_none() {
    local i
    yes "a document without an end" | "$B/tokenize" --tokenizer bytes --shard_tokens 100000 \
        --out out - >stdout 2>stderr &
    pid=$!                              # the last of the pipe: yes ends with it
    trap 'kill -9 $pid 2>/dev/null || :' EXIT
    for ((i = 0; i < 500; i++)); do [ ! -e out_train_000003.bin ] || break; sleep 0.02; done
    kill -9 $pid
    wait $pid 2>/dev/null || :
    [ -e out_train_000003.bin ] || fail "$(ls), $(cat stderr)"
    for i in out_*.bin; do [ "$(ids "$i" | wc -w)" -eq 100000 ] || fail "$i is not whole"; done
    # They are never replaced: what is there has to be moved away by hand.
    echo a >t.txt
    cksum out_* >before
    "$B/tokenize" --tokenizer bytes --out out t.txt 2>stderr && fail "replaced them"
    says '^error: out_train_0000[0-9]*.bin exists: remove it'
    cmp <(cksum out_*) before
    rm out_*.bin
    bytes --out out t.txt               # over what a killed one has left
    holds out_train_000000.bin 'a\n'
}
test_shard_says_which_vocabulary_made_it() {
    text 99 >t.txt
    "$B/train_bpe" --vocab_size 300 --out v t.txt >stdout
    "$B/tokenize" --tokenizer v --out a t.txt >stdout
    local file=a_train_000000.bin other='tokens of another vocabulary than'
    refused 3 "$file: $other that of --tokenizer bytes: name" $tiny --train $file --vocab_size 300
    gpt $tiny --tokenizer v --train $file --steps 1
    gpt --eval --val $file                              # the checkpoint has the vocabulary
    gpt --eval --val $file --tokenizer v/merges.txt     # the same tokens from another file of it
    sed 's/$/\r/' v/merges.txt >windows.txt
    gpt --eval --val $file --tokenizer windows.txt
    refused 3 "$file: $other" --eval --val $file --tokenizer bytes
    bytes --out b t.txt
    tok_refused 3 "$file: $other the other file's" --check_overlap $file b_train_000000.bin
    poke $file 12 4 0                                   # as llm.c's scripts write shards
    gpt $tiny --train $file --vocab_size 300 --steps 1 --out llmc
    "$B/tokenize" --check_overlap $file b_train_000000.bin >stdout
}
test_tokenize_replaces_no_shard_of_any_number() {
    local i
    text 99 >t.txt
    for i in train_000002 val_000000 train_1000000; do
        echo mine >out_$i.bin
        "$B/tokenize" --tokenizer bytes --shard_tokens 1000 --out out t.txt 2>stderr &&
            fail "took --out with out_$i.bin there"
        says "^error: out_$i.bin exists: remove it"
        [ "$(cat out_*)" = mine ] || fail "changed out_$i.bin, or left more: $(ls)"
        rm out_*
    done
    touch out_train_x.bin out_train_000000.bin.old out_train_train_000000.bin   # are none of its own
    bytes --shard_tokens 1000 --out out t.txt
    mkfifo pipe                         # one comes while the program runs
    "$B/tokenize" --tokenizer bytes --out late - <pipe >stdout 2>stderr &
    pid=$!
    trap 'kill -9 $pid 2>/dev/null || :' EXIT
    exec 4>pipe
    yes | head -c 2000000 >&4           # it has begun: a pipe holds less
    echo mine >late_train_000000.bin
    exec 4>&-
    wait $pid && fail "replaced a shard that came late"
    says '^error: late_train_000000.bin: File exists'
    [ "$(cat late_*)" = mine ] || fail "changed it, or left more: $(ls)"
}
test_tokenize_that_fails_leaves_no_shard() {
    { echo '{"text":"'"$(text 99 | tr '\n' ' ')"'"}'; echo '{'; } >a.jsonl
    tok_refused 3 'a.jsonl: line 2' --tokenizer bytes --shard_tokens 1000 --out out a.jsonl
    text 99 >t.txt
    tok_refused 3 'none of 1 documents fell into the val part' --tokenizer bytes \
        --shard_tokens 1000 --val_fraction 0.001 --out out t.txt
    (ulimit -f 2
    tok_refused 4 'out_train_000000.bin: File too large' --tokenizer bytes --out out t.txt)
}
test_tokenize_that_is_stopped_leaves_no_shard() {
    local i n
    for i in {TERM,HUP,INT}{,,,,,,,,,}; do  # ten times each: it may come between any two shards
        yes | "$B/tokenize" --tokenizer bytes --shard_tokens 20000 --out out - >stdout 2>stderr &
        pid=$!                          # the last of the pipe: yes ends with it
        trap 'kill -9 $pid 2>/dev/null || :' EXIT
        for ((n = 0; n < 500; n++)); do [ ! -e out_train_000001.bin ] || break; sleep 0.01; done
        [ -e out_train_000001.bin ] || fail "$(ls)"
        kill -$i $pid
        status=0
        wait $pid 2>/dev/null || status=$?
        want $((128 + $(kill -l $i)))
        [ -z "$(find . -name 'out_*')" ] || fail "SIG$i left $(find . -name 'out_*')"
    done
}
test_tokenize_and_train_bpe_notice_a_full_stdout() {
    [ -c /dev/full ] || skip "no /dev/full"
    local command
    text 9 >t.txt
    shard x.bin 256 {1..20}
    for command in 'tokenize --check_overlap x.bin x.bin' 'tokenize --tokenizer bytes --out o t.txt' \
                   'tokenize --tokenizer bytes --print_ids t.txt' 'tokenize --help' \
                   'train_bpe --out vocab t.txt' 'train_bpe --help'; do
        status=0
        "$B/"$command >/dev/full 2>stderr || status=$?
        want 4
        says '^error: cannot write to standard output: No space left'
    done
}
test_tokenize_check_overlap_of_shards_that_start_inside_a_document() {
    # The same 30 tokens in both, in the first file behind the rest of a document that has begun
    # with 7; the last document's n-grams are in both as well if 7 is taken for the end of text.
    shard x.bin 7 8 9 256 {1..30} 7 {60..70}
    shard y.bin 256 {1..30} 7 {60..70} 256 {90..99} 8
    tok --check_overlap --ngram 10 x.bin y.bin
    grep -q '^33 of 35 10-grams' stdout || fail "$(cat stdout)"
    bytes --check_overlap --ngram 10 y.bin x.bin        # the second starts inside: by --tokenizer
    grep -q '^33 of 33 10-grams' stdout || fail "$(cat stdout)"
}
test_tokenize_gives_the_ids_of_the_trainer_and_of_whole_documents() {
    local threads i
    vocabulary
    noise 600000 2 >n.txt               # three parts: cut where it must not matter
    tok --tokenizer vocab --print_ids n.txt
    mv stdout want
    for threads in 1 3; do
        OMP_NUM_THREADS=$threads tok --tokenizer vocab --out t$threads n.txt
        [ "399 $(cat want)" = "$(ids t${threads}_train_000000.bin)" ] || fail "$threads threads"
    done
    for i in 1 2 3 4; do { echo $i; head -c 270000 n.txt; } >$i.txt; done    # of two parts each
    tok --tokenizer vocab --out whole {1,2,3,4}.txt
    tok --tokenizer vocab --out half --val_fraction 0.5 {1,2,3,4}.txt
    lines() { ids "$@" | sed 's/ *\<399\> */\n/g' | grep .; }
    cmp <({ lines half_train_*; lines half_val_*; } | sort) <(lines whole_* | sort)
    head -c 3000 n.txt >small.txt
    tok --tokenizer vocab --print_ids small.txt
    shard small.bin $(cat stdout)       # the trainer puts no end of text before its own
    gpt $tiny --vocab_size 400 --tokenizer vocab --train small.txt --steps 1 --out run
    gpt --eval --val small.txt --out run
    mv stdout of_text
    gpt --eval --val small.bin --out run
    cmp of_text stdout
}
long_line() {       # long_line MILLIONS: a line of JSONL of so many bytes, in 60 MB at most
    ! is_sanitized || skip "the sanitizer's shadow memory counts"
    { printf '{"text":"'; yes 'seven by' | tr '\n' ' ' | head -c $(($1 * 1000000)); echo '"}'
    } | (ulimit -v 60000; exec "$B/tokenize" --tokenizer bytes --field text --out out - \
        >stdout 2>stderr) || { cat stderr; fail "exit code $?"; }
    [ "$(awk '{ n += $2 } END { printf "%.0f", n }' stdout)" = $(($1 * 1000000 + 1)) ] ||
        fail "$(cat stdout)"
}
test_tokenize_takes_a_line_longer_than_memory() { long_line 100; }
test_tokenize_takes_a_line_of_over_2_gib() {
    [ -n "${SLOW:-}" ] || skip "slow: SLOW=1"
    long_line 2200
}
test_tokenize_refuses_wrong_flags() {
    echo a >t.txt
    tok_refused 2 'see --help' --out out
    tok_refused 2 'trian.*unknown flag; see --help' --trian t.txt
    tok_refused 2 'wanted none, blank or eot' --split lines t.txt
    tok_refused 2 'val_fraction 2: wanted 0 to 1' --val_fraction 2 t.txt
    tok_refused 2 'shard_tokens 0: wanted 1' --shard_tokens 0 t.txt
    tok_refused 2 'a value is missing' t.txt --out
    tok_refused 3 'absent.txt: No such file' --tokenizer bytes --out out absent.txt
    tok_refused 3 '/: not a regular file|Is a directory' --tokenizer bytes --out out ./
    tok_refused 3 't.txt: .*no vocab|t.txt' --tokenizer t.txt --out out t.txt
    tok_refused 4 'No such file' --tokenizer bytes --out out/no/way t.txt
    tok_refused 2 'wanted two files' --check_overlap t.txt
}

# --- vocabularies ---
bpe() {
    local status=0
    "$B/train_bpe" "$@" >stdout 2>stderr || status=$?
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of: $*"; }
}
test_train_bpe_finds_the_merges_of_the_definition() {
    command -v python3 >/dev/null || skip "no python3; install python3"
    text 99 >t.txt                      # more pieces and pairs than its tables have room for at first
    awk 'BEGIN { for (srand(3); i < 6000; i++) print c() c() c() }
         function c() { return sprintf("%c", 33 + int(rand() * 94)) }' >>t.txt
    head -c 1000 /dev/zero | tr '\0' x >>t.txt
    bpe --vocab_size 300 --min_count 1 --out vocab t.txt
    python3 - <<'PY' >want
import collections, re
# GPT-2's pattern on ASCII. Pairs are counted anew for every merge; of several most frequent ones
# the one with the lowest ids is taken, in the order of GPT-2's ids of bytes.
cut = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
order = visible + [b for b in range(256) if b not in visible]
char = {b: chr(b) if b in visible else chr(256 + i - len(visible)) for i, b in enumerate(order)}
id_of = {char[b]: i for i, b in enumerate(order)}
pieces = cut.findall(open("t.txt", newline="").read())
pieces = [w[i:i + 256] for w in pieces for i in range(0, len(w), 256)]
words = [[char[ord(c)] for c in w] for w in pieces]
words = [(list(w), n) for w, n in collections.Counter(map(tuple, words)).items()]
print("#version: 0.2")
assert len(words) > 2048
for _ in range(300 - 257):
    count = collections.Counter()
    for w, n in words:
        for pair in zip(w, w[1:]): count[pair] += n
    assert len(count) > 2048
    best = min(count, key=lambda p: (-count[p], id_of[p[0]], id_of[p[1]]))
    print(*best)
    id_of["".join(best)] = len(id_of)
    for w, _ in words:
        i = 0
        while i + 1 < len(w):
            if (w[i], w[i + 1]) == best: w[i:i + 2] = ["".join(best)]
            i += 1
PY
    cmp want vocab/merges.txt || { diff want vocab/merges.txt | head -n 5; fail "other merges"; }
}
test_train_bpe_makes_files_that_agree() {
    local file
    vocabulary 500
    noise 20000 4 >n.txt
    tok --tokenizer vocab --print_ids n.txt
    mv stdout want
    [ "$(wc -w <want)" -lt 15000 ] || fail "no word has become a token"
    for file in tokenizer.json vocab.json merges.txt; do
        tok --tokenizer vocab/$file --print_ids n.txt
        cmp stdout want
    done
    # The trainer takes it, and a checkpoint hands it on.
    gpt $tiny --vocab_size 500 --tokenizer vocab --train words.txt --steps 2 --out run
    gpt --eval --val words.txt --out run
    tok --tokenizer run/step_00000002 --print_ids n.txt
    cmp stdout want
    gpt --sample 'Caf' --sample_tokens 5 --out run
    [ "$(head -c 3 stdout)" = Caf ]
    python3 -c 'import tokenizers' 2>/dev/null || return 0      # make check-hf has it
    python3 - <<'PY'
import tokenizers
text = open("n.txt", "rb").read().decode("utf-8", "replace")
open("u.txt", "w", newline="").write(text)
ids = tokenizers.Tokenizer.from_file("vocab/tokenizer.json").encode(text).ids
print(*ids, file=open("hf", "w"))
PY
    tok --tokenizer vocab --print_ids u.txt
    cmp stdout hf
}
test_train_bpe_takes_any_bytes() {
    noise 400000 5 >n.txt
    head -c 300000 </dev/zero | tr '\0' x >x.txt
    bpe --vocab_size 700 --out vocab n.txt x.txt
    grep -q ': 700 tokens from 700000 bytes' stdout
    tok --tokenizer vocab --print_ids n.txt
    [ "$(wc -w <stdout)" -lt 300000 ]
    bpe --vocab_size 600 --min_count 999999 --out few n.txt
    says 'no other pair has --min_count'
    grep -q ': 257 tokens' stdout
}
test_train_bpe_refuses() {
    local flags want
    echo 'some text' >t.txt
    mkdir full
    echo a >full/a
    while IFS='|' read -r flags want; do
        "$B/train_bpe" $flags >stdout 2>stderr && fail "took $flags"
        [ "$(grep -c '^error: ' stderr)" -eq 1 ] || { cat stderr; fail "not one error: $flags"; }
        says "$want"
        [ ! -e out ] && [ ! -e out.tmp ] || fail "left $(ls), of $flags"
    done <<'END'
t.txt|use: train_bpe
--out out|use: train_bpe
--out out --vocab_size 256 t.txt|vocab_size: 257 to
--out out --vocab_size x t.txt|--vocab_size x: wanted a number
--out out --vocab-size|a value is missing
--out out --volume 5 t.txt|--volume: unknown
--out out absent.txt|absent.txt: No such file
--out full t.txt|full: Directory not empty|exists
END
    [ "$(ls full)" = a ] || fail "full was changed"
    text 99 >t.txt
    "$B/train_bpe" --out full t.txt 2>stderr && fail "took a full folder"
    ! grep -q pieces stderr || fail "refused only after the training"
}
test_train_bpe_takes_values_and_folders_as_they_are_written() {
    text 99 >t.txt
    mkdir empty
    bpe --vocab_size 300 --out plain t.txt
    bpe --vocab-size=300 --min_count=2 --out=slash// t.txt
    bpe --vocab_size 300 --out empty/ t.txt
    diff -r plain slash
    diff -r plain empty
    [ -z "$(find . -name '*.tmp')" ] || fail "left $(ls)"
}
test_train_bpe_without_room_leaves_nothing() {
    text 99 >t.txt
    status=0
    (ulimit -f 2; exec "$B/train_bpe" --out vocab t.txt >stdout 2>stderr) || status=$?
    want 4
    says '^error: vocab: File too large'
    [ ! -e vocab ] && [ ! -e vocab.tmp ] || fail "left $(ls)"
}

run_tests "$@"
