#!/usr/bin/env bash
# run.sh: all tests; `make test` calls it with B, the build folder.
#   prints    a line per test: ok NAME (ms) | FAIL NAME, the reason indented | skip NAME: reason
#             and last "N passed, N failed, N skipped"
#   exit      1 when a test failed, or a program of tests ended without its counts
#   argument  only tests with this in their name: dev/test/run.sh shard
#   needs     no network and no Python; with python3 and torch there is one test more
. "$(dirname "$0")/lib.sh"
cd "$root" || exit 1        # test_gpt finds its reference files from here
filter=${1:-}
counts='[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped'

suite() {           # suite PROGRAM: passes on its lines, adds its counts, which it prints last
    local status line good bad left
    timeout 600 "$1" ${filter:+"$filter"} 2>&1 | tee "$tmp/suite" |
        grep --line-buffered -vE "^$counts\$"
    status=${PIPESTATUS[0]}
    names+=$(grep -a '^FAIL ' "$tmp/suite" | sed 's/^FAIL */\n  /')
    line=$(tail -n 1 "$tmp/suite" | grep -E "^$counts\$")
    read -r good bad left < <(echo "${line:-0 0 0}" | tr -cd '0-9 \n')
    # With a filter a program may have nothing to run, and may say so by its exit code.
    if [ -n "$filter" ] && [ "$good $bad $left" = '0 0 0' ] && [ -n "$line" ]; then status=0; fi
    if [ -z "$line" ] || { [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; }; then
        echo "FAIL ${1##*/}"
        echo "    exit code $status, and last: $(tail -n 1 "$tmp/suite")"
        bad=$((bad + 1))
    fi
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left))
}
single() { case $1 in *"$filter"*) run_test "$@" ;; esac; }

check_tidy() { cd "$root" && dev/tidy.sh; }
check_reference() {
    python3 -c 'import torch' 2>/dev/null || skip "python3 has no torch; install python3-torch"
    for dump in reference reference_c8 init init_c8; do
        python3 "$root/scripts/reference.py" --check "$root/dev/test/$dump.safetensors" || return
    done
}

suite "$B/test_gpt"
suite "$B/test_gpt_fp64"
suite "$B/test_gpt_bf16"
single tidy check_tidy
single reference_dump_equals_pytorch check_reference
for file in dev/test/test_*.sh; do # all but the one that is run by hand
    [ "$file" = dev/test/test_cuda.sh ] || suite "$file"
done
[ -z "${names-}" ] || printf 'failed, see above:%b\n' "$names"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
