#!/bin/sh
# sync.sh: copies the [shared] sections of train_gpt.c into train_gpt.cu; run by `make sync`.
# The .cu keeps its own sections, and must have a banner for every section. Replaced when complete.
set -eu
cd "$(dirname "$0")/.."
from=${1:-train_gpt.c} to=${2:-train_gpt.cu}
[ -f "$to" ] || { echo "sync: there is no $to yet"; exit 0; }
awk -v from="$from" '
    function is_banner(line) { return line ~ /^\/\/ === [0-9]+\. / }
    BEGIN {
        while ((getline line < from) > 0) {
            if (is_banner(line)) { split(line, word, " "); name = word[3] }
            if (name != "") text[name] = text[name] line "\n"
            if (is_banner(line) && line ~ /\[shared\]$/) shared[name] = 1
        }
    }
    is_banner($0) {
        is_skipped = $3 in shared
        if (is_skipped) printf "%s", text[$3]
        seen[$3] = 1
    }
    !is_skipped { print }
    END {
        for (name in shared) if (!(name in seen)) {
            print "sync: no section " name " in the .cu" > "/dev/stderr"
            exit 1
        }
    }' "$to" > "$to.tmp"
mv "$to.tmp" "$to"
echo "sync: $to has the shared sections of $from"
