#!/usr/bin/env bash
# test_mpi.sh: the same training on any number of processes, and what happens when one of them fails.
. "$(dirname "$0")/lib.sh"

shape="--layers 2 --channels 24 --heads 3 --seq_len 8 --batch_size 2 --warmup_steps 2"
twelve="--total_batch_tokens 192"       # 12 micro-batches: 3 or more a rank

mpi_gpt() {         # mpi_gpt RANKS ARGUMENTS...: must end in exit code 0
    run_on "$@"
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of: $*"; }
}
two_ranks() {       # two_ranks FOLDER ARGUMENTS FOLDER ARGUMENTS: of rank 0, of rank 1; as run_on
    status=0
    timeout 20 mpirun -np 2 bash -c 'shift $((2 * OMPI_COMM_WORLD_RANK)); cd "$1" || exit
        exec "$B/train_gpt" $2' bash "$@" >stdout 2>stderr || status=$?
}
# Some 10 ms a step, by sampling: a run of 30 steps does not end before a test has acted on it.
slow="--sample_every 1 --sample_tokens 600 --steps 30"
rank_pid() {        # rank_pid RANK: of the ranks that mpirun $pid has started
    local p
    for p in $(pgrep -P "$pid"); do
        if tr '\0' '\n' <"/proc/$p/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then
            echo "$p"; return
        fi
    done
    fail "no process of rank $1"
}
floats() {          # floats FILE: the numbers of a safetensors file
    od -An -v -w4 -tf4 -j $((8 + $(od -An -tu8 -N 8 "$1"))) "$1"
}
is_near() {         # is_near FILE FILE: numbers, to 1e-6 of the largest
    paste "$1" "$2" | awk '
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= worst)) worst = d
          a = $1 < 0 ? -$1 : $1; if (a > scale) scale = a }
        END { if (!(NR > 0 && worst <= 1e-6 * scale)) { print worst / scale, "apart"; exit 1 } }'
}
# The log without times, speeds and what follows from the number of ranks.
timeless() { tail -n +2 "$1" |
    sed -E 's/"([a-z]+_)?ms":[^,}]*|"(tok_per_s|mfu|sent_bytes)":[^,}]*//g'; }

test_gradients_are_those_of_one_process() {     # after one step with beta1 = 0, m is the gradient
    local n step=step_00000001 one="--steps 1 --beta1 0 --grad_clip 0 --val_every 0"
    mpi_or_skip
    text 99 >t.txt
    gpt $shape $twelve $one --train t.txt --out out1
    floats out1/$step/train_state.safetensors >want
    for n in 2 3 4; do
        mpi_gpt $n $shape $twelve $one --train t.txt --out out$n
        floats out$n/$step/train_state.safetensors >got
        is_near want got
        field loss out$n/log.jsonl >loss
        is_near <(field loss out1/log.jsonl) loss
        is_near <(field grad_norm out1/log.jsonl) <(field grad_norm out$n/log.jsonl)
    done
}
test_run_is_byte_identical_at_1_2_4_ranks() {
    local run n flags
    mpi_or_skip
    text 99 >t.txt
    gpt $shape $twelve --train t.txt --steps 12 --val_every 5 --out out1
    for run in '2 --zero 0' '2 --zero 1' '4 --zero 1'; do
        read -r n flags <<<"$run"
        mpi_gpt "$n" $shape $twelve $flags --train t.txt --steps 12 --val_every 5 --out "$run"
        same_state out1/step_00000012 "$run/step_00000012"
        cmp <(timeless out1/log.jsonl) <(timeless "$run/log.jsonl")
    done
    mpi_gpt 2 $shape $twelve --pairwise 0 --train t.txt --steps 12 --val_every 5 --out plain
    ! cmp -s {out1,plain}/step_00000012/model.safetensors || fail "any order gives the same bits"
}
test_three_ranks_divide_nothing() {
    local flags="--layers 1 --channels 20 --heads 2 --seq_len 7 --batch_size 1 --steps 12"
    mpi_or_skip
    text 20 >t.txt
    mpi_gpt 3 $flags --zero 0 --train t.txt --out zero0
    mpi_gpt 3 $flags --zero 1 --train t.txt --out zero1
    same_state zero{0,1}/step_00000012
    gpt $flags --total_batch_tokens 21 --train t.txt --out one
    is_near <(field loss one/log.jsonl) <(field loss zero1/log.jsonl)
}
test_zero_keeps_a_share_and_sends_what_ddp_sends() {
    local weights zero n=5
    mpi_or_skip
    text 99 >t.txt
    for zero in 0 1; do
        mpi_gpt 4 $shape --plan --json --zero $zero
        weights=$(field weights stdout)
        [ "$(grep -o '"Adam m":[0-9]*' stdout)" = "\"Adam m\":$((weights / (zero ? 4 : 1)))" ] ||
            fail "$(cat stdout)"
        mpi_gpt 2 $shape --train t.txt --steps $n --keep 0 --zero $zero --out zero$zero
        [ "$(field sent_bytes zero$zero/log.jsonl)" -eq $((n * weights)) ] ||
            fail "zero $zero: $(field sent_bytes zero$zero/log.jsonl), want $((n * weights))"
    done
    # 6 micro-batches a rank: still one exchange a step
    mpi_gpt 2 $shape $twelve --train t.txt --steps $n --keep 0 --out more
    [ "$(field sent_bytes more/log.jsonl)" -eq $((n * weights)) ]
}
test_long_messages_are_split() {        # a layer of 3 MB; messages are of 1 MiB
    local flags="--layers 1 --channels 256 --heads 1 --seq_len 4 --batch_size 1 --steps 2"
    mpi_or_skip
    text 20 >t.txt
    gpt $flags --total_batch_tokens 8 --train t.txt --val_every 0 --out one
    mpi_gpt 2 $flags --train t.txt --total_batch_tokens 8 --val_every 0 --out two
    same_state {one,two}/step_00000002
}
test_resume_at_another_number_of_ranks() {
    local flags="$shape $twelve --lr_schedule constant --val_every 0"
    mpi_or_skip
    text 99 >t.txt
    gpt $flags --train t.txt --steps 9 --out whole
    mpi_gpt 4 $flags --train t.txt --steps 3
    gpt --resume --steps 6
    mpi_gpt 2 --resume --steps 9
    says 'resumed at step 6'
    same_state {whole,out}/step_00000009
    mpi_gpt 3 --resume --steps 12
    gpt --resume --steps 12 --out whole
    is_near <(field loss whole/log.jsonl) <(field loss out/log.jsonl)
}
test_resume_keeps_the_batch_of_more_ranks() {
    mpi_or_skip
    text 99 >t.txt
    mpi_gpt 4 $shape --train t.txt --steps 3
    gpt --resume --steps 6
    [ "$(field samples out/step_00000006/train_state.safetensors)" = '"48"' ]
    run_on 3 --resume --steps 9
    want 2
    says 'total_batch_tokens 64 is no multiple.* nearest: 48 or 96'
}
test_killed_rank_ends_the_run_and_resume_is_bit_exact() {
    local last=step_00000030 flags="$tiny --total_batch_tokens 64 --save_every 5 $slow"
    mpi_or_skip
    text 99 >t.txt
    gpt $flags --train t.txt --out whole
    start_on 2 $flags --train t.txt
    until_step 6
    kill -9 "$(rank_pid 1)"
    finish
    want 137
    [ -e out/step_00000005 ] && [ ! -e out/$last ] || fail "$(ls out)"
    mpi_gpt 2 --resume
    same_state {whole,out}/$last
}
test_stopped_rank_is_named_by_the_watchdog() {
    local start stopped
    mpi_or_skip
    text 99 >t.txt
    start_on 3 $tiny --train t.txt --steps 1000000 --timeout 2
    until_step 5
    stopped=$(rank_pid 1)
    kill -STOP "$stopped"
    start=$(now_ms)
    finish
    want 6
    [ $(($(now_ms) - start)) -lt 12000 ] || fail "took $(($(now_ms) - start)) ms"
    says 'rank [02]: error: no progress for 2 s .*step.* behind:.* rank 1 \(step .* silent'
    sleep 1
    [ ! -e "/proc/$stopped" ] || grep -q 'State:.Z' "/proc/$stopped/status" ||
        fail "rank 1 is still there"
}
test_stopped_rank_ends_an_evaluation() {        # nothing is written: it is not known which one
    local stopped
    mpi_or_skip
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 1
    yes "some words of a text" | head -c 6000000 >big.txt
    mpirun -np 2 "$B/train_gpt" --eval --val big.txt --timeout 2 >stdout 2>stderr &
    pid=$!
    trap 'kill -9 $pid 2>/dev/null || :' EXIT
    sleep 2
    stopped=$(rank_pid 1)
    kill -STOP "$stopped"
    status=0
    wait $pid || status=$?
    want 6
    says 'rank 0: error: no progress for 2 s .*unknown which'
}
test_rank_that_hangs_is_named_not_one_that_waits_for_it() {
    mpi_or_skip
    text 99 >t.txt
    mkfifo full
    exec 5<>full                            # nobody reads it: rank 0 hangs when it is full
    run_on 2 $tiny --train t.txt --steps 3000 --timeout 3 --val_every 0 --save_every 0 \
        --sample_every 10 --sample_tokens 40 --log full
    want 6
    says 'no progress for 3 s .*; behind: rank 0 '
    ! grep -q 'behind:.* rank 1 ' stderr || { cat stderr; fail "rank 1 only waits"; }
}
test_fault_of_all_ranks_is_told_once() {
    mpi_or_skip
    text 99 >t.txt
    run_on 4 $tiny --train t.txt --val_every 0 --save_every 2 --steps 40 --inject nan@5x99
    want 5
    [ "$(grep -c 'error:' stderr)" -eq 1 ] || { cat stderr; fail "not one error"; }
}
test_usr1_while_mpi_is_set_up_is_a_clean_stop() {  # sent as soon as it is blocked, before MPI_Init
    mpi_or_skip
    [ -r /proc/self/status ] || skip "no /proc"
    text 99 >t.txt
    cat >rank <<-'END'
	"$B/train_gpt" "$@" & pid=$!
	until grep -q '^SigBlk:.*a..$' /proc/$pid/status; do :; done
	kill -USR1 $pid
	wait $pid
	END
    status=0
    timeout 60 mpirun -np 2 bash rank $tiny --train t.txt --steps 1000000 >stdout 2>stderr ||
        status=$?
    want 0
    says '^stopped, saved step [0-9]+;'
}
test_ranks_share_out_the_cores() {
    local cores
    mpi_or_skip
    text 99 >t.txt
    unset OMP_NUM_THREADS
    cores=$(nproc)                          # which looks at it
    mpi_gpt() { mpirun "$@" "$B/train_gpt" $tiny --train t.txt --steps 1 >stdout 2>stderr; rm -r out; }
    mpi_gpt -np 1
    says "machine .* $cores threads in each of 1 processes"
    mpi_gpt -np 2
    says "machine .* $((cores > 2 ? cores / 2 : 1)) threads in each of 2 processes"
    mpirun --version | grep -q ' 4\.' || return 0      # 5 does not tell the ranks how they are bound
    mpi_gpt -np 1 --bind-to core
    [ "$(lscpu -p=core | grep -v '#' | sort -u | wc -l)" -eq "$cores" ] || return 0 # 2 of a core
    says "machine .* 1 threads in each of 1 processes"
}
test_slow_rank_is_left_alone() {        # stopped for less than the time out
    mpi_or_skip
    text 99 >t.txt
    start_on 2 $tiny --train t.txt $slow --timeout 6
    until_step 5
    stopped=$(rank_pid 1)
    kill -STOP "$stopped"
    sleep 2
    kill -CONT "$stopped"
    finish
    want 0
}
test_fault_of_one_rank_before_they_meet_ends_all() {
    mpi_or_skip
    text 99 >t.txt
    two_ranks . "$tiny --train t.txt" . "$tiny --train none.txt"
    want 3
    says '^rank 1: error: none.txt: no such file'
    text 98 >other.txt
    two_ranks . "$tiny --train t.txt --out a" . "$tiny --train other.txt --out a"
    want 3
    says 'rank 0: error: the ranks do not see the same files'
}
test_ranks_with_other_flags_or_another_checkpoint_are_refused() {
    local other
    mpi_or_skip
    text 99 >t.txt
    for other in '--lr 1e-4' '--seed 2' '--zero 0' '--steps 9'; do
        two_ranks . "$tiny --train t.txt" . "$tiny --train t.txt $other"
        want 3
        says 'rank 0: error: the ranks .*not the same flags'
        rm -rf out
    done
    mkdir a b                               # the same flags and step, other weights
    (cd a; gpt $tiny --train ../t.txt --steps 2 --total_batch_tokens 32)
    (cd b; gpt $tiny --train ../t.txt --steps 2 --total_batch_tokens 32 --inject spike@1)
    two_ranks a '--resume --steps 4' b '--resume --steps 4'
    want 3
    says 'rank 0: error: the ranks do not see the same files'
}
test_only_rank_0_speaks() {
    local line
    mpi_or_skip
    text 99 >t.txt
    mpi_gpt 3 $tiny --train t.txt --steps 3 --sample_every 3 --sample_tokens 5 --prompt ab
    [ "$(grep -ac '^ab' stdout)" -eq 1 ] || fail "not one sample: $(cat stdout)"
    for line in model machine 'step 1/3' next:; do
        [ "$(grep -c "^$line" stderr)" -eq 1 ] || { cat stderr; fail "not one line '$line'"; }
    done
    [ "$(grep -c '"loss"' out/log.jsonl)" -eq 3 ]
    run_on 3 $tiny --trian t.txt
    want 2
    [ "$(grep -c 'error:' stderr)" -eq 1 ] || { cat stderr; fail "not one error"; }
    gpt --eval
    cp stdout eval
    mpi_gpt 3 --eval
    cmp eval stdout
}
test_hellaswag_is_the_same_on_any_number_of_ranks() {
    local k n want right=0
    mpi_or_skip
    text 99 >t.txt
    gpt $tiny --train t.txt --steps 60 --lr 0.01 --warmup_steps 5 --val_every 0
    # Example k: magic, bytes, number, which of 4 is right, 4, 2 tokens of context; 4 of 2 tokens.
    example() { little 2 65535 40 "$1" $(($1 * 7 % 4)) 4 2 49 $((48 + $1)) \
        2 32 116 2 105 115 2 $((97 + $1)) 32 2 46 10; }
    examples() { little 4 20240522 1 $#; head -c 1012 /dev/zero; for k; do example "$k"; done; }
    score() { field hellaswag stdout | tr -d '\n'; }
    for k in {0..8}; do
        examples $k >one.bin
        gpt --eval --hellaswag one.bin
        case $(score) in 1) right=$((right + 1)) ;; 0) ;; *) fail "$(cat stdout)" ;; esac
    done
    [ $right -gt 0 ] && [ $right -lt 9 ] || fail "$right of 9: that tells nothing"
    examples {0..8} >nine.bin
    gpt --eval --hellaswag nine.bin
    want=$(score)
    awk -v a="$want" -v b=$right 'BEGIN { d = 9 * a - b; exit !(d * d < 1e-9) }' ||
        fail "$want, but $right of 9 are right"
    for n in 2 3 4; do
        mpi_gpt $n --eval --hellaswag nine.bin
        [ "$(score)" = "$want" ] || fail "$n ranks: $(cat stdout), one: $want"
    done
    examples 0 >one.bin                         # fewer examples than ranks
    gpt --eval --hellaswag one.bin
    want=$(score)
    mpi_gpt 4 --eval --hellaswag one.bin
    [ "$(score)" = "$want" ] || fail "4 ranks: $(cat stdout), one: $want"
}
signalled() {       # signalled SIGNAL WHOM CODE PATTERN: saved a step, and ended in this exit code
    rm -rf out log
    start_on 2 $tiny --train t.txt --steps 1000000 --save_every 0
    until_step 5
    if [ "$2" = mpirun ]; then kill -"$1" $pid; else kill -"$1" "$(rank_pid "$2")"; fi
    finish
    [[ " $3 " = *" $status "* ]] || { cat stderr; fail "exit code $status, want $3"; }
    says '^stopped, saved step [0-9]+; .*--resume'
    [ "$(find out -name 'step_*' | wc -l)" -eq 1 ] || { ls out; fail "not one checkpoint"; }
}
test_signals_reach_all_ranks() {
    mpi_or_skip
    text 99 >t.txt
    signalled USR1 mpirun 0
    signalled USR1 1 0
    signalled TERM 1 143
    signalled TERM mpirun '1 143'       # mpirun's own code; it leaves the ranks a second
}
test_sigusr2_to_one_rank_saves_and_goes_on() {
    mpi_or_skip
    text 99 >t.txt
    start_on 2 $tiny --train t.txt $slow --save_every 0
    until_step 5
    kill -USR2 "$(rank_pid 1)"
    finish
    want 0
    [ "$(find out -name 'step_*' | wc -l)" -eq 2 ] || { ls out; fail "not two checkpoints"; }
}
test_build_without_mpi_refuses_to_be_one_of_several() {
    local status
    ${CC:-cc} -std=gnu11 -O0 "$root/train_gpt.c" -o alone -lm
    for variables in 'RANK=1 WORLD_SIZE=2' 'OMPI_COMM_WORLD_SIZE=2' 'PMI_RANK=0 PMI_SIZE=3' \
                     'SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2'; do
        status=0
        env $variables ./alone --help >stdout 2>stderr || status=$?
        want 2
        says "error: started as one of several processes \(${variables##* }\).*make MPI=1"
    done
    env SLURM_STEP_NUM_TASKS=2 WORLD_SIZE=1 ./alone --help >stdout
    mpi_or_skip
    status=0
    timeout 20 mpirun -np 2 ./alone --help >stdout 2>stderr || status=$?
    want 2
    says 'OMPI_COMM_WORLD_SIZE=2'
}
test_collectives_equal_those_of_mpi() {
    local n
    mpi_or_skip
    OMPI_CC=${CC:-cc} MPICH_CC=${CC:-cc} mpicc -O1 "$root/dev/dist/collectives.c" -o collectives -lm
    for n in 1 3 4; do timeout 60 mpirun -np $n ./collectives check; done
}

run_tests "$@"
