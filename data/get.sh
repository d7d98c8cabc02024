#!/bin/sh
# get.sh: gets a public corpus, and prints the paths of its files, and nothing else, on stdout.
#   usage   data/get.sh [NAME [SHARDS]]     --list shows the names; SHARDS: so many for training
#   text    without a NAME: tinyshakespeare or, where only Debian's packages can be had, kjv;
#           whichever is there already comes first
#   from    a copy in a folder of $GPT_DATA | the address below, or the same file names under the
#           address $GET_FROM (a mirror; file:///some/folder will do)
#   checks  size and SHA-256, as recorded below or else by the Hugging Face Hub; where neither has a
#           record, that the size is what the header of a shard says. The SHA-256 is printed on stderr.
#   files   arrive as FILE.part and are renamed when they have passed: a file that exists is whole.
#           After an interruption the same command goes on where it stopped.
#   exit    0 all there · 2 usage · 4 not to be had: one line on stderr says why
set -u

dir=$(dirname -- "$0")
shared=${GPT_DATA:-$dir/../../shared/data}
hub=https://huggingface.co/datasets
name=${1-text} shards=${2-1}
work=                                           # folder of the unpacked Debian packages

say() { echo "get.sh: $*" >&2; }
trap 'rm -rf -- ${work:+"$work"}' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

list() { cat <<'END'
text                   whichever of the next two is to be had
tinyshakespeare        1.1 MB  text; public domain
kjv                    4.4 MB  text, the King James Bible, from two of Debian's packages; public domain
tinystories            2.3 GB  text, TinyStoriesV2-GPT4, data/tokenize --split eot; CDLA-Sharing-1.0
fineweb10B [1..103]    0.2 GB a shard and 0.2 GB for validation; web pages as GPT-2 tokens; ODC-By
fineweb-edu [1..1001]  the same of FineWeb-Edu 100B
hellaswag              3.8 MB  10,042 examples for --hellaswag; MIT
gpt2                   0.5 MB  vocab.bpe, for --tokenizer gpt2; MIT
END
}

# file NAME PATH BYTES SHA-256 URL. The records come from projects that have published what they
# downloaded, each found in two or more places, but for train 1 of fineweb-edu; tinyshakespeare,
# hellaswag and gpt2 were compared with the files. The other shards (-) are held to the Hub's record.
table() {
    file tinyshakespeare tinyshakespeare.txt 1115394 \
        86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed \
        https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
    stories=$hub/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64
    file tinystories tinystories/TinyStoriesV2-GPT4-valid.txt 22502601 \
        6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d $stories
    file tinystories tinystories/TinyStoriesV2-GPT4-train.txt 2227753162 \
        6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443 $stories
    up_to fineweb10B 103
    fineweb=$hub/kjj0/fineweb10B-gpt2/resolve/889765ea1f903759787add96995d81171b632d0c
    file fineweb10B fineweb10B/fineweb_val_000000.bin 200001024 \
        5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640 $fineweb
    file fineweb10B fineweb10B/fineweb_train_000001.bin 200001024 \
        771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e $fineweb
    more fineweb10B fineweb10B/fineweb_train $fineweb
    up_to fineweb-edu 1001
    edu=$hub/karpathy/fineweb-edu-100B-gpt2-token-shards/resolve
    edu=$edu/a33f75d78c7f74236fb03754ec1eb3cc77507d64
    file fineweb-edu fineweb-edu/edu_fineweb_val_000000.bin - - $edu
    file fineweb-edu fineweb-edu/edu_fineweb_train_000001.bin - \
        6bb7ce7bcac8e11463433767ec3402311c7527c3d8d766e7d65ef86dc4546bb2 $edu
    more fineweb-edu fineweb-edu/edu_fineweb_train $edu
    file hellaswag hellaswag_val.bin 3762386 \
        59509ba401e820f2cd8b579141354e8ebc14a20f8e2cc181f1836f1d0e59eb99 \
        $hub/karpathy/llmc-starter-pack/resolve/main
    file gpt2 vocab.bpe 456318 \
        1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5 \
        https://openaipublic.blob.core.windows.net/gpt-2/encodings/main
}
up_to() {           # up_to NAME LAST: refuses other numbers of shards
    [ "$1" != "$name" ] || { [ "$shards" -ge 1 ] && [ "$shards" -le "$2" ]; } 2>/dev/null ||
        { say "error: $1 has shards 1 to $2, wanted: $shards"; exit 2; }
}
more() {            # more NAME PREFIX URL: shards 2 to $shards
    i=2
    while [ "$1" = "$name" ] && [ $i -le "$shards" ]; do
        file "$1" "$2_$(printf %06d $i).bin" - - "$3"
        i=$((i + 1))
    done
}

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi <"$1" | cut -d' ' -f1
}
is_good() {         # is_good FILE BYTES SHA-256: if not, what is wrong is in $wrong
    wrong='' bytes=$(wc -c <"$1" | tr -d ' ')
    if [ "$2" != - ] && [ "$bytes" -ne "$2" ]; then wrong="$bytes bytes, wanted $2"; return 1; fi
    sha=$(sha256 "$1")
    if [ "$3" != - ]; then
        [ "$sha" = "$3" ] || wrong="SHA-256 $sha, wanted $3"
    else
        set -- $(od -An -td4 -N 12 "$1")    # magic, version, number of tokens, of 2 bytes each
        [ "${1-} ${2-}" = '20240520 1' ] && [ "$bytes" -eq $((1024 + 2 * $3)) ] ||
            wrong="$bytes bytes, no whole shard of llm.c's format"
    fi
    [ -z "$wrong" ]
}
download() {        # download URL FILE: goes on with it. What went wrong is in $error
    command -v curl >/dev/null || { error="install curl"; return 1; }
    set -- -fL -C - --connect-timeout 10 --speed-limit 1000 --speed-time 30 -o "$2" \
        -w '%{http_code}' "$1"
    if [ -t 2 ]; then error=$(curl -# "$@"); else error=$(curl -sS "$@" 2>&1); fi
    code=$? http=${error#"${error%???}"} error=${error%???}     # three digits stand at the end
    case $code/$http in 33/* | 36/* | 22/416) rm -f -- "$part" ;; esac  # no going on with it
    return $code
}
hub_record() {      # hub_record URL: $size and $sha of the pointer that stands for a large file in git
    pointer=$(curl -fsSL --connect-timeout 10 --max-time 30 --max-filesize 999 \
        "${1%%/resolve/*}/raw/${1#*/resolve/}" 2>/dev/null)
    size=$(printf '%s\n' "$pointer" | sed -n 's/^size \([0-9]\{1,\}\)$/\1/p')
    sha=$(printf '%s\n' "$pointer" | sed -n 's/^oid sha256:\([0-9a-f]\{64\}\)$/\1/p')
}
file() {
    [ "$1" = "$name" ] || return 0
    found=1 path=$dir/$2 part=$dir/$2.part base=${2##*/} url=$5
    case $url in *.txt) ;; *) url=$url/$base ;; esac
    [ -z "${GET_FROM-}" ] || url=$GET_FROM/$base
    if [ -s "$path" ]; then echo "$path"; return; fi
    case $4$url in -*/resolve/*) hub_record "$url"; set -- "$1" "$2" "${size:-$3}" "${sha:--}" ;; esac
    mkdir -p -- "${path%/*}"
    for copy in "$shared"/*/"$base"; do
        if [ -f "$copy" ] && is_good "$copy" "$3" "$4"; then cp -- "$copy" "$part"; fi
    done
    # A part may be whole: when this was interrupted at the very end.
    if { [ -s "$part" ] && is_good "$part" "$3" "$4"; } || download "$url" "$part"; then
        is_good "$part" "$3" "$4" && chmod u+w "$part" && mv -- "$part" "$path" || {
            rm -f -- "$part"
            error="what came is not $base: $wrong"
        }
    else
        [ -s "$part" ] || rm -f -- "$part"
    fi
    if [ ! -s "$path" ]; then
        rmdir -- "${path%/*}" 2>/dev/null
        say "error: cannot get $url${error:+: }$(printf %s "$error" | tr '\n' ' ')"
        exit 4
    fi
    say "$path: SHA-256 $sha, $([ "$4" = - ] && echo "no record" || echo "as recorded")"
    echo "$path"
}

unpack_kjv() {      # needs no root: the packages are unpacked in a folder, not installed
    kjv=$dir/kjv.txt part=$dir/kjv.txt.part     # 4,404,412 bytes, 31,102 verses, one a line
    [ ! -s "$kjv" ] || return 0
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    say "fetching the Debian packages bible-kjv and bible-kjv-text (2.5 MB)"
    work=$(mktemp -d) || return 1
    (cd "$work" && apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=10 \
        download bible-kjv bible-kjv-text) >&2 || return 1
    for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/x" >&2 || return 1; done
    "$work/x/usr/bin/bible" -p "$work/x/usr/lib" -f gen1:1-rev22:21 >"$part" </dev/null || return 1
    [ "$(wc -l <"$part")" -eq 31102 ] && mv -- "$part" "$kjv" && return 0
    say "bible-kjv did not print 31102 verses"
    rm -f -- "$part"
    return 1
}

case $name in
--list | --help | -h) list ;;
text)
    for path in "$dir/tinyshakespeare.txt" "$dir/kjv.txt"; do
        if [ -s "$path" ]; then echo "$path"; exit 0; fi
    done
    (name=tinyshakespeare; table) && exit 0
    unpack_kjv && echo "$kjv" && exit 0
    say "error: no text; save any of about 1 MB as $dir/tinyshakespeare.txt and try again"
    exit 4 ;;
kjv)
    unpack_kjv && echo "$kjv" && exit 0
    say "error: cannot get Debian's packages bible-kjv and bible-kjv-text"
    exit 4 ;;
*)
    found=''
    table
    if [ -z "$found" ]; then
        say "error: unknown corpus '$name'; data/get.sh --list shows them"
        exit 2
    fi ;;
esac
