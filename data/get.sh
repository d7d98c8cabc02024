#!/bin/sh
# get.sh: obtains a text to train on, and prints its path, and nothing else, on stdout.
#   usage   data/get.sh [text]          text: whichever of these comes first
#   order   data/tinyshakespeare.txt, data/kjv.txt (obtained before) | a copy in $GPT_DATA/text |
#           tinyshakespeare from its public repository | the King James Bible from Debian's packages
#   exit    0 path printed · 2 usage · 4 there is no text to be had
#   files   are written under another name and renamed when complete, so a file that exists is whole
set -u

dir=$(dirname -- "$0")
shared=${GPT_DATA:-$dir/../../shared/data}
shakespeare=$dir/tinyshakespeare.txt            # 1,115,394 bytes, public domain
shakespeare_sha=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed
shakespeare_url=https://raw.githubusercontent.com/karpathy/char-rnn
shakespeare_url=$shakespeare_url/master/data/tinyshakespeare/input.txt
kjv=$dir/kjv.txt                                # 4,404,412 bytes, public domain
kjv_verses=31102                                # one a line
part=$dir/get.$$.tmp                            # what is being written
work=                                           # folder of the unpacked Debian packages

say() { echo "get.sh: $*" >&2; }
clean() { rm -rf -- "$part" ${work:+"$work"}; }
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi <"$1" | cut -d' ' -f1
}

# keep_shakespeare ORIGIN: takes $part if it is the file that it should be
keep_shakespeare() {
    [ "$(sha256 "$part")" = "$shakespeare_sha" ] && mv -- "$part" "$shakespeare" && return 0
    say "what came from $1 is not tinyshakespeare (SHA-256 differs)"
    return 1
}

copy_shakespeare() {
    [ -f "$shared/text/tinyshakespeare.txt" ] || return 1
    cp -- "$shared/text/tinyshakespeare.txt" "$part" && chmod u+w "$part" &&
        keep_shakespeare "$shared/text"
}

download_shakespeare() {
    command -v curl >/dev/null || return 1
    say "downloading tinyshakespeare (1.1 MB)"
    curl -fsSL --connect-timeout 5 --max-time 60 -o "$part" "$shakespeare_url" >&2 &&
        keep_shakespeare "its repository"
}

unpack_kjv() {      # needs no root: the packages are unpacked in a folder, not installed
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    say "fetching the Debian packages bible-kjv and bible-kjv-text (2.5 MB)"
    work=$(mktemp -d) || return 1
    (cd "$work" && apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=10 \
        download bible-kjv bible-kjv-text) >&2 || return 1
    for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/x" >&2 || return 1; done
    "$work/x/usr/bin/bible" -p "$work/x/usr/lib" -f gen1:1-rev22:21 >"$part" </dev/null || return 1
    [ "$(wc -l <"$part")" -eq "$kjv_verses" ] && mv -- "$part" "$kjv" && return 0
    say "bible-kjv did not print $kjv_verses verses"
    return 1
}

case ${1-text} in
text)
    for file in "$shakespeare" "$kjv"; do
        if [ -s "$file" ]; then echo "$file"; exit 0; fi
    done
    if copy_shakespeare || download_shakespeare; then echo "$shakespeare"; exit 0; fi
    if unpack_kjv; then echo "$kjv"; exit 0; fi
    say "error: found no text; save any text of about 1 MB as $shakespeare and try again"
    exit 4 ;;
*)
    say "error: unknown corpus '$1'; known: text"
    exit 2 ;;
esac
