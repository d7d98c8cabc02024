#!/usr/bin/env bash
# test_get.sh: data/get.sh, from folders and a server of this machine: what is wrong or cut short is
# not taken, what was begun is gone on with, and no network is one line and no trace.
. "$(dirname "$0")/lib.sh"

# A copy of get.sh in ./data, for which tinyshakespeare is 999 lines of ours in ./mirror.
set_up() {
    command -v curl >/dev/null || skip "no curl; install curl"
    mkdir data mirror
    text 999 >mirror/tinyshakespeare.txt
    sed -e "s/\<1115394\>/$(bytes_of mirror/tinyshakespeare.txt)/" \
        -e "s/86c4e6aa[0-9a-f]*/$(sha_of mirror/tinyshakespeare.txt)/" "$root/data/get.sh" \
        >data/get.sh
    chmod +x data/get.sh
    export GPT_DATA=$PWD/none GET_FROM=file://$PWD/mirror
}
sha_of() { sha256sum "$1" | cut -d ' ' -f 1; }
get() {             # get ARGUMENTS...: must end in exit code 0; its output is in ./stdout, ./stderr
    local status=0
    data/get.sh "$@" >stdout 2>stderr || status=$?
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of: $*"; }
}
cannot_get() {      # cannot_get CODE PATTERN ARGUMENTS...: one line of error, no new file
    local code=$1 pattern=$2 before status=0; shift 2
    before=$(find data -type d -o -name '*[a-z]' ! -name '*.part')
    data/get.sh "$@" >stdout 2>stderr || status=$?
    [ $status -eq "$code" ] || { cat stderr; fail "exit code $status, want $code, of: $*"; }
    [ "$(wc -l <stderr)" -eq 1 ] && grep -q '^get.sh: error: ' stderr ||
        { cat stderr; fail "not one line of error, of: $*"; }
    says "$pattern"
    [ ! -s stdout ] || fail "wrote to stdout: $(cat stdout)"
    [ "$before" = "$(find data -type d -o -name '*[a-z]' ! -name '*.part')" ] || fail "$(find data)"
}
serve() {           # ./mirror, at the address that is then in GET_FROM
    command -v python3 >/dev/null || skip "no python3; install python3"
    (cd mirror && exec python3 -u -m http.server 0 --bind 127.0.0.1 >../server 2>&1) &
    pid=$!
    local i
    trap 'kill $pid 2>/dev/null || :' EXIT
    for ((i = 0; i < 100; i++)); do grep -q port server && break; sleep 0.1; done
    export GET_FROM=http://127.0.0.1:$(sed -n 's/.* port \([0-9]*\) .*/\1/p' server)
}
no_part() { [ -z "$(find data -name '*.part')" ] || fail "left $(find data -name '*.part')"; }
is_got() {          # is_got NAME: the file of the mirror, announced in one line
    cmp "mirror/$1" "data/$1"
    [ "$(cat stdout)" = "data/$1" ] || fail "printed $(cat stdout)"
    no_part
}

test_get_lists_and_refuses_names() {
    set_up
    get --list
    local name
    for name in tinyshakespeare tinystories fineweb10B fineweb-edu hellaswag gpt2; do
        grep -q "^$name " stdout || fail "--list has no $name"
        grep -q "^    file $name " data/get.sh || fail "no address of $name"
    done
    cannot_get 2 "unknown corpus 'tinyshakspeare'.*--list" tinyshakspeare
    for name in 0 -1 104 x ''; do cannot_get 2 'has shards 1 to 103' fineweb10B "$name"; done
    cannot_get 2 'has shards 1 to 1001' fineweb-edu 1002
}
test_get_without_a_network_is_one_line_and_no_trace() {
    set_up
    export GET_FROM=http://127.0.0.1:9      # nobody listens there
    local name
    for name in tinyshakespeare tinystories fineweb10B fineweb-edu hellaswag gpt2; do
        cannot_get 4 'cannot get http://127.0.0.1:9/.*: curl' $name
        no_part
    done
    mkdir bin
    for name in sh dirname mkdir rm rmdir tr; do ln -s "$(command -v $name)" bin; done
    PATH=$PWD/bin data/get.sh gpt2 2>stderr && fail "got it without curl"
    says '^get.sh: error: .*install curl'
}
test_get_takes_only_the_file_that_is_recorded() {
    set_up
    get tinyshakespeare
    is_got tinyshakespeare.txt
    says "SHA-256 $(sha_of mirror/tinyshakespeare.txt), as recorded"
    export GET_FROM=http://127.0.0.1:9
    get tinyshakespeare                     # there already: nothing is fetched
    [ "$(cat stdout)" = data/tinyshakespeare.txt ] && [ ! -s stderr ]
    get                                     # text, the default
    [ "$(cat stdout)" = data/tinyshakespeare.txt ]
    rm data/tinyshakespeare.txt
    export GET_FROM=file://$PWD/mirror
    cp mirror/tinyshakespeare.txt good
    flip mirror/tinyshakespeare.txt 5000
    cannot_get 4 'not tinyshakespeare.txt: SHA-256 [0-9a-f]{64}, wanted' tinyshakespeare
    no_part
    head -c 9999 good >mirror/tinyshakespeare.txt
    cannot_get 4 'not tinyshakespeare.txt: 9999 bytes, wanted' tinyshakespeare
    no_part
}
test_get_goes_on_where_it_was_interrupted() {
    set_up
    head -c 9999 mirror/tinyshakespeare.txt >data/tinyshakespeare.txt.part
    get tinyshakespeare
    is_got tinyshakespeare.txt
    # What is there is not fetched again: with another beginning there the whole is wrong.
    mv data/tinyshakespeare.txt good
    head -c 9999 /dev/zero >data/tinyshakespeare.txt.part
    cannot_get 4 'SHA-256' tinyshakespeare
    no_part
    cp good data/tinyshakespeare.txt.part   # whole, but not renamed yet
    GET_FROM=http://127.0.0.1:9 get tinyshakespeare
    is_got tinyshakespeare.txt
    rm data/tinyshakespeare.txt
    head -c 9999 good >data/tinyshakespeare.txt.part
    GET_FROM=http://127.0.0.1:9 cannot_get 4 'curl: .7.' tinyshakespeare
    [ "$(bytes_of data/tinyshakespeare.txt.part)" -eq 9999 ] || fail "the part is gone"
    cat good good >data/tinyshakespeare.txt.part
    cannot_get 4 'cannot get' tinyshakespeare
    get tinyshakespeare
    is_got tinyshakespeare.txt
}
test_get_from_a_server_without_ranges() {
    set_up
    serve
    get tinyshakespeare
    is_got tinyshakespeare.txt
    cannot_get 4 'error: 404' gpt2
    no_part
    rm data/tinyshakespeare.txt
    head -c 9999 mirror/tinyshakespeare.txt >data/tinyshakespeare.txt.part
    cannot_get 4 'byte ranges' tinyshakespeare
    get tinyshakespeare                     # from the start
    is_got tinyshakespeare.txt
}
test_get_holds_a_shard_to_the_record_of_the_hub() {
    set_up
    serve           # a shard of 1,064 bytes at resolve/, and what stands for it in git at raw/
    sed -i "s,^table() {,&\n    file ours s.bin - - $GET_FROM/resolve/1," data/get.sh
    unset GET_FROM
    mkdir -p mirror/resolve/1 mirror/raw/1
    shard mirror/resolve/1/s.bin {1..20}
    point() { printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %s\n' "$@" \
        >mirror/raw/1/s.bin; }
    get ours
    says ', no record$'
    rm data/s.bin
    point "$(sha_of mirror/resolve/1/s.bin)" 1064
    get ours
    says ', as recorded$'
    rm data/s.bin
    point "$(sha_of mirror/resolve/1/s.bin)" 1065
    cannot_get 4 'not s.bin: 1064 bytes, wanted 1065' ours
    point "$(sha_of data/get.sh)" 1064
    cannot_get 4 'not s.bin: SHA-256 [0-9a-f]{64}, wanted' ours
}
# On a terminal curl shows its progress and its messages there, and get.sh does not see them.
test_get_on_a_terminal_drops_only_a_part_that_cannot_be_gone_on_with() {
    set_up
    command -v python3 >/dev/null || skip "no python3; install python3"
    cat >try.py <<'PY'      # prints what the part has after each answer
import http.server, os, pty, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.server.code != 200: return self.send_error(self.server.code)
        self.send_response(200)     # and the whole of it, without a word about ranges
        self.end_headers()
        self.wfile.write(b"text")
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["GET_FROM"] = f"http://127.0.0.1:{server.server_port}"
part = "data/tinyshakespeare.txt.part"
for server.code in 503, 404, 416, 200:
    open(part, "w").write("a part\n")
    end = os.waitstatus_to_exitcode(pty.spawn(["data/get.sh", "tinyshakespeare"]))
    with open("found", "a") as f:
        print(server.code, end, os.path.exists(part) and os.path.getsize(part), file=f)
PY
    python3 try.py
    echo "503 4 7,404 4 7,416 4 False,200 4 False" | tr , '\n' | cmp - found || fail "$(cat found)"
}
test_get_counts_the_tokens_of_shards() {
    set_up
    local i
    shard mirror/edu_fineweb_val_000000.bin $(tokens 40)
    for i in 1 2 3; do shard mirror/edu_fineweb_train_00000$i.bin $(tokens 9$i); done
    sed -i "s/6bb7ce7b[0-9a-f]*/$(sha_of mirror/edu_fineweb_train_000001.bin)/" data/get.sh
    get fineweb-edu 2
    [ "$(wc -l <stdout)" -eq 3 ] || fail "$(cat stdout)"
    says 'val_000000.bin: SHA-256 [0-9a-f]{64}, no record'
    says 'train_000001.bin: SHA-256 [0-9a-f]{64}, as recorded'
    for i in val_000000 train_000001 train_000002; do
        cmp {mirror,data/fineweb-edu}/edu_fineweb_$i.bin
    done
    [ ! -e data/fineweb-edu/edu_fineweb_train_000003.bin ] || fail "more than was asked for"
    local last=mirror/edu_fineweb_train_000003.bin
    cp $last good
    shard_is_refused() {
        data/get.sh fineweb-edu 3 >stdout 2>stderr && fail "taken: $*"
        says 'not edu_fineweb_train_000003.bin: [0-9]+ bytes, no whole shard'
        no_part
    }
    poke $last 0 4 20240521;        shard_is_refused another magic
    head -c 1100 good >$last;       shard_is_refused cut
    head -c 9 good >$last;          shard_is_refused cut in the header
    cat good good >$last;           shard_is_refused too long
    gpt $tiny --train 'data/fineweb-edu/*_train_*.bin' --val 'data/fineweb-edu/*_val_*.bin' --steps 1
}
test_get_has_the_checksums_of_the_files_in_gpt_data() {
    local name file
    local shared; shared=$(cd "$root" && cd "${GPT_DATA:-../shared/data}" 2>/dev/null && pwd) || :
    [ -s "$shared/tokenizer/vocab.bpe" ] || skip "no tokenizer/vocab.bpe in GPT_DATA"
    mkdir data
    cp "$root/data/get.sh" data
    export GPT_DATA=$shared GET_FROM=http://127.0.0.1:9
    for name in tinyshakespeare=text/tinyshakespeare.txt gpt2=tokenizer/vocab.bpe \
                hellaswag=hellaswag/hellaswag_val.bin; do
        file=${name#*=}
        get "${name%=*}"
        cmp "data/${file##*/}" "$shared/$file"
        says 'as recorded'
    done
}

run_tests "$@"
