#!/bin/sh
# tidy.sh: facts about the source that no reviewer should have to check by eye; run by `make tidy`.
#   prints  one line per finding and exits 1, or "tidy: ok"
#   forms   contents, in section 0      //   6 Ops, and whatever may follow the banner's title
#           banner of a section         // === 6. Ops ========================== [shared]
#           banner within a section     // --- 6.2 layernorm ---
export LC_ALL=C     # awk counts bytes everywhere, where some count characters otherwise

files() {           # new ones too; of a copy without git: all
    git ls-files -co --exclude-standard -- "$@" 2>/dev/null && return
    for pattern in "$@"; do find . -path "./$pattern" ! -path './build/*' | cut -c 3-; done
}

# check_source FILE: columns, spaces, lengths of functions; in the trainers also banners and #if
check_source() {
    awk -v file="$1" '
    function say(line, text) { print file ":" line ": " text }
    BEGIN              { is_trainer = file ~ /^train_gpt\.cu?$/; section = listed = -1 }
                       { text = $0; gsub(/[\200-\277]/, "", text) }     # UTF-8 continuation bytes
    length(text) > 100 { say(FNR, length(text) " columns, at most 100") }
    /[ \r]$/           { say(FNR, "space at the end of the line") }
    /\t/               { say(FNR, "tab") }

    is_trainer && /^\/\/ ===/ {
        if (!/^\/\/ === [0-9]+\. [^ =][^=]* =+( \[shared\])?$/) say(FNR, "malformed banner")
        if ($3 != section + 1 ".") say(FNR, "section " $3 + 0 " follows " section)
        section = $3 + 0; part = 0; title = $0
        sub(/^\/\/ === [0-9]+\. /, "", title); sub(/ =.*/, "", title)
        if (section && (index(contents[section], title) != 1 ||
                        substr(contents[section], length(title) + 1, 1) ~ /[A-Za-z0-9]/))
            say(FNR, "titled \"" title "\", in the contents \"" contents[section] "\"")
    }
    is_trainer && section == 0 && /^\/\/ +[0-9][0-9]? +[A-Z]/ {
        if (listed >= 0 && $2 != listed + 1) say(FNR, "contents: " $2 " follows " listed)
        listed = $2 + 0
        contents[listed] = $0; sub(/^\/\/ +[0-9]+ +/, "", contents[listed])
    }
    is_trainer && /^\/\/ --- [0-9]/ && $3 != section "." (++part) {
        say(FNR, "banner " $3 " stands where " section "." part " belongs")
    }
    is_trainer && section != 1 && /^ *# *(if|el)/ && !(section == 16 && /^#ifndef GPT_NO_MAIN$/) {
        say(FNR, $0 ": conditions belong in section 1")
    }
    is_trainer && /^[^\/]/ {        # code: neither blank nor a comment
        if (code == "#ifndef GPT_NO_MAIN" && !/^int main\(/ || code == "end of main" && !/^#endif/)
            say(FNR, "#ifndef GPT_NO_MAIN holds main and nothing else")
        code = $0
    }

    !start && /^[A-Za-z_]/ { start = FNR; head = ""; is_body = 0 }
    start && !is_body {
        line = $0; sub(/ *\/\/.*/, "", line); head = head " " line
        if (line ~ /\{$/ && head ~ /\(/ && head !~ /= *\{$/) is_body = 1
        else if (line ~ /[;{}\\]$|^$/) start = 0        # a declaration, a type, a table, one line
    }
    start && is_body && /^}/ {
        name = head; sub(/ *\(.*/, "", name); sub(/.*[ *]/, "", name)
        is_main = is_trainer && name == "main"; most = is_main ? 40 : 70
        if (FNR - start >= most) say(start, name ": " FNR - start + 1 " lines, at most " most)
        if (is_main) code = "end of main"
        start = 0
    }
    END { if (is_trainer && listed != section)
              say(FNR, "the last section is " section ", in the contents " listed) }
    ' "$1" || echo "$1: awk failed"
}

# section FILE N: its text, which is the same in both trainers where the banner ends in [shared]
section() { awk -v n="$2." '/^\/\/ === / { on = $3 == n } on; END { print "end" }' "$1"; }
check_shared() {
    for n in $(awk '/^\/\/ === .*\[shared\]$/ { print $3 + 0 }' train_gpt.c train_gpt.cu | sort -nu)
    do  [ "$(section train_gpt.c "$n")" = "$(section train_gpt.cu "$n")" ] ||
            echo "train_gpt.cu: section $n differs from train_gpt.c (make sync copies it)"
    done
}

findings=$(
    [ -n "$(files train_gpt.c)" ] ||
        echo "train_gpt.c: not found; wanted: the root of a git checkout"
    for f in $(files '*.c' '*.cu' '*.h'); do [ ! -f "$f" ] || check_source "$f"; done
    for cap in train_gpt.c:5280 train_gpt.cu:6215 Makefile:150; do
        f=${cap%:*}; n=$(cat "$f" 2>/dev/null | wc -l)
        [ "$n" -le "${cap#*:}" ] || echo "$f: $((n)) lines, at most ${cap#*:}"
    done
    [ ! -f train_gpt.cu ] || check_shared
    if ! command -v g++ >/dev/null; then echo "tidy: no g++, nothing checked as C++17" >&2
    else g++ -x c++ -std=c++17 -fsyntax-only -w train_gpt.c 2>&1 | grep ' error: '; fi
    for f in $(files '*.sh' .ci/run); do
        case $(head -n 1 "$f" 2>/dev/null) in "#!/bin/sh"*) shell=sh ;; *) shell=bash ;; esac
        [ ! -f "$f" ] || "$shell" -n "$f" 2>&1 | head -n 1
    done)
[ -z "$findings" ] || { printf '%s\n' "$findings"; exit 1; }
echo "tidy: ok"
