#!/usr/bin/env bash
# cuda_run.sh: train_gpt.cu as a program, on the emulator: `make test-cuda` calls it. The same flags,
# logs and checkpoints as train_gpt's; any number of ranks, any order of streams, the same bits.
#   needs  build/cuda/train_gpt (bf16, with MPI and NCCL), build/cuda/train_gpt_fp16, _fp32 and
#          build/train_gpt, all of which the Makefile builds
. "$(dirname "$0")/lib.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1      # more ranks than cores: Open MPI 4, and 5
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
cpu=$B/train_gpt cuda=$B/cuda/train_gpt

# Head size 64 for the tensor cores' attention; 8 micro-batches a step: 1 to 4 ranks share them.
shape="--train ../t.txt --layers 2 --heads 1 --channels 64 --seq_len 24 --batch_size 1
       --total_batch_tokens 192 --warmup_steps 2 --lr 0.01 --val_every 0"
text() { head -c 6000 "$root/train_gpt.c" | tr '\n' ' ' >../t.txt; }

run() {             # run PROGRAM ARGUMENTS...: must end in exit code 0
    local status=0
    timeout 120 "$@" >stdout 2>stderr || status=$?
    [ $status -eq 0 ] || { cat stderr; fail "exit code $status of: $*"; }
}
ends() {            # ends CODE PATTERN PROGRAM ARGUMENTS...: one line of error
    local code=$1 pattern=$2 status=0; shift 2
    timeout 60 "$@" >stdout 2>stderr || status=$?
    [ $status -eq "$code" ] || { cat stderr; fail "exit code $status, want $code, of: $*"; }
    says "error: .*$pattern"
}
losses() { sed -n 's/^{"step":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1"; }
near() {            # near BOUND LOG LOG: the losses of two logs
    paste <(losses "$2") <(losses "$3") | awk -v bound="$1" '
        { d = $1 - $2; if (d < 0) d = -d; if (!(d <= worst)) { worst = d; at = NR } }
        END { print NR, "losses, at most", worst, "apart, at step", at
              exit !(NR > 1 && worst <= bound) }' || fail "want at most $1"
}
words() {           # 60 kB of common words drawn at random, always the same
    awk 'BEGIN {
        n = split("of and to in that is was he for it with as his on be at by i this had not are but " \
                  "from or have an they which one you were all her she there would their we him been", w)
        for (s = 1; i < 15000; i++) {
            s = (s * 1103515245 + 12345) % 2147483648
            printf "%s%s", w[int(n * (s / 2147483648) ^ 2) + 1], i % 11 == 10 ? ".\n" : " "
        } }'
}

test_cuda_losses_follow_the_cpu_for_200_steps() {
    local long="--layers 2 --heads 1 --channels 64 --seq_len 32 --batch_size 4 --steps 200
                --train words.txt --val_every 0"
    words >words.txt
    run "$cpu" $long --out cpu
    run "$cuda" $long --out bf16
    near 0.02 cpu/log.jsonl bf16/log.jsonl
    mkdir -p "$B/curves"        # scripts/plot.py draws them
    cp cpu/log.jsonl "$B/curves/cpu.jsonl"; cp bf16/log.jsonl "$B/curves/cuda_bf16.jsonl"
}
test_cuda_in_narrow_adam_state_stays_within_1_percent() {   # 6 bytes a parameter instead of 14
    local short="--layers 2 --heads 1 --channels 64 --seq_len 16 --batch_size 4 --steps 80 --lr 0.003
                 --train words.txt --val_every 0"
    words >words.txt
    run "$cuda" $short --out wide
    run "$cuda" $short --adam_state bf16 --master_weights 0 --out narrow
    paste <(losses wide/log.jsonl) <(losses narrow/log.jsonl) | tail -n 20 | awk '
        { wide += $1; narrow += $2 }
        END { print wide / NR, narrow / NR; exit !(NR == 20 && (narrow / wide - 1) ^ 2 < 0.01 ^ 2) }' ||
        fail "the mean of the last 20 losses is over 1 % off"
    run "$cuda" --resume --steps 81 --out narrow    # the state of bf16 is in the checkpoint
    [ "$(du -b narrow/step_00000081/train_state.safetensors | cut -f 1)" -gt 100000 ]
}
test_cuda_in_fp32_and_fp16_follows_the_cpu() {
    text
    local gentle=${shape/0.01/0.002}      # at 0.01 a gradient overflows in fp16
    run "$cpu" $gentle --steps 6 --out cpu
    run "${cuda}_fp32" $gentle --steps 6 --out fp32
    run "${cuda}_fp16" $gentle --steps 6 --out fp16
    near 2e-5 cpu/log.jsonl fp32/log.jsonl
    near 0.01 cpu/log.jsonl fp16/log.jsonl
}
test_cuda_gives_the_same_bits_on_1_2_and_4_ranks() {
    local n
    text
    run "$cuda" $shape --steps 3 --out 1
    for n in 2 4; do
        run mpirun -np $n "$cuda" $shape --steps 3 --out $n
        same_state 1/step_00000003 $n/step_00000003
    done
    GPT_COMM=mpi run mpirun -np 2 "$cuda" $shape --steps 3 --out mpi
    same_state 1/step_00000003 mpi/step_00000003
    run mpirun -np 2 "$cuda" $shape --steps 3 --zero 0 --out whole
    cmp 1/step_00000003/model.safetensors whole/step_00000003/model.safetensors
}
# ZeRO-1 sends its gradients but its own shard, and its shard of the weights to all others: of 256
# parts rank 0 of 3 owns 85, so 171 parts of 4 bytes and 2 x 85 of 2 bytes in each step.
test_cuda_sends_what_zero_1_has_to() {
    local one=${shape/--total_batch_tokens 192/} gradients want
    text
    run mpirun -np 3 "$cuda" $one --steps 2 --out out
    run "$cuda" $one --plan --json --out plan
    gradients=$(field gradients stdout)
    want=$((2 * gradients / 4 / 256 * (171 * 4 + 2 * 85 * 2)))
    [ "$(field sent_bytes out/log.jsonl)" = $want ] ||
        fail "sent $(field sent_bytes out/log.jsonl) bytes, want $want"
}
test_cuda_gives_the_same_bits_in_any_order_of_streams() {
    local seed
    text
    run "$cuda" $shape --steps 2 --out order
    for seed in 1 2 3; do
        EMU_LAZY=$seed run "$cuda" $shape --steps 2 --out lazy$seed
        EMU_LAZY=$seed run mpirun -np 2 "$cuda" $shape --steps 2 --out ranks$seed
        EMU_SHUFFLE=$seed run "$cuda" $shape --steps 2 --out shuffle$seed
        same_state order/step_00000002 lazy$seed/step_00000002
        same_state order/step_00000002 ranks$seed/step_00000002
        same_state order/step_00000002 shuffle$seed/step_00000002
    done
    EMU_LAZY=1 GPT_COMM=mpi run mpirun -np 2 "$cuda" $shape --steps 2 --out staged
    same_state order/step_00000002 staged/step_00000002
}
test_cuda_resume_is_bit_exact() {
    text
    run "$cuda" $shape --steps 4 --lr_schedule constant --out whole
    run "$cuda" $shape --steps 2 --lr_schedule constant --out out
    run "$cuda" --resume --steps 4 --out out
    cmp whole/step_00000004/model.safetensors out/step_00000004/model.safetensors
}
test_cuda_resumes_at_another_number_of_ranks() {
    text
    run "$cuda" $shape --steps 4 --lr_schedule constant --out whole
    run mpirun -np 4 "$cuda" $shape --steps 2 --lr_schedule constant --out out
    run mpirun -np 2 "$cuda" --resume --steps 3 --out out
    run "$cuda" --resume --steps 4 --out out
    cmp whole/step_00000004/model.safetensors out/step_00000004/model.safetensors
}
test_cuda_and_cpu_resume_each_others_checkpoints() {
    local more="--lr_schedule constant --resume"
    text
    run "$cpu" $shape --steps 6 --lr_schedule constant --out cpu
    run "$cpu" $shape --steps 2 --lr_schedule constant --out out
    run "${cuda}_fp32" $more --steps 4 --out out
    run "$cpu" $more --steps 6 --out out
    near 2e-5 cpu/log.jsonl out/log.jsonl
    run "$cuda" $more --steps 7 --out out
    says 'resumed at step 6'
}
test_cuda_recompute_levels_give_the_same_bits() {
    local level
    text
    run "$cuda" $shape --steps 2 --out fused
    run "$cuda" $shape --steps 2 --out fused3 --recompute 3
    cmp fused/step_00000002/model.safetensors fused3/step_00000002/model.safetensors
    for level in 0 1 2 3; do
        run "$cuda" $shape --steps 2 --recompute $level --gelu_fusion 0 --out $level
        cmp 0/step_00000002/model.safetensors $level/step_00000002/model.safetensors
    done
    near 2e-3 fused/log.jsonl 0/log.jsonl
}
test_cuda_tunes_products_once_for_a_run() {
    local before
    text
    run "$cuda" $shape --steps 2 --out untuned
    run mpirun -np 2 "$cuda" $shape --steps 2 --tune_matmul 1 --out out
    cmp untuned/step_00000002/model.safetensors out/step_00000002/model.safetensors  # one algorithm
    before=$(cksum out/matmul.tuned)
    [ "$(stat -c %s out/matmul.tuned)" -ge 1000 ] || fail "no choices were kept"
    run "$cuda" --resume --steps 3 --out out
    [ "$before" = "$(cksum out/matmul.tuned)" ] || fail "a resumed run chose again"
}
test_cuda_waits_for_the_gpu_once_a_step() {
    local few many
    text
    EMU_PROFILE=1 run "$cuda" $shape --steps 2 --out few
    few=$(sed -n 's/.* \([0-9]*\) host synchronisations.*/\1/p' stderr)
    EMU_PROFILE=1 run "$cuda" $shape --steps 5 --out many
    many=$(sed -n 's/.* \([0-9]*\) host synchronisations.*/\1/p' stderr)
    [ $((many - few)) -eq 3 ] || fail "3 steps more, $((many - few)) waits more"
}
test_cuda_plan_is_what_is_allocated() {
    text
    run "$cuda" $shape --steps 1 --out out
    run "$cuda" $shape --plan --json
    [ "$(field bytes stdout)" = "$(grep -o '"bytes":[0-9]*' out/log.jsonl | cut -d: -f2)" ] ||
        { head -1 out/log.jsonl; cat stdout; fail "the plan differs"; }
}
test_cuda_fp16_halves_its_loss_scale_when_gradients_overflow() {
    text
    run "${cuda}_fp16" $shape --steps 5 --inject inf@2x2 --out out
    says 'step 2: gradients overflow, skipped; loss scale now 2\^15'
    says 'step 3: gradients overflow, skipped; loss scale now 2\^14'
    [ "$(field loss_scale out/log.jsonl)" = 16384 ] || fail "scale $(field loss_scale out/log.jsonl)"
    [ "$(field skipped out/log.jsonl)" = 2 ] || fail "skipped $(field skipped out/log.jsonl)"
    run "${cuda}_fp16" --resume --steps 6 --out out
    [ "$(field loss_scale out/log.jsonl)" = 16384 ] || fail "after resume: another scale"
}
test_cuda_skips_what_is_not_finite_on_all_ranks() {
    text
    run mpirun -np 2 "$cuda" $shape --steps 3 --inject nan@2:1 --out out
    says 'step 2: loss .* skipped'
    [ "$(field skipped out/log.jsonl)" = 1 ] || fail "skipped $(field skipped out/log.jsonl)"
}
test_cuda_samples_from_its_checkpoint() {
    text
    run "$cuda" $shape --steps 1 --out out
    run "$cuda" --sample "static" --sample_tokens 40 --temperature 0 --out out
    cp stdout cached
    run "$cpu" --sample "static" --sample_tokens 8 --temperature 0 --out out
    [ "$(head -c 12 cached)" = "$(head -c 12 stdout)" ] || { cat cached stdout; fail "other text"; }
}
test_cuda_refuses_what_it_cannot_do() {
    text
    ends 2 '20 channels, train_gpt_cuda wants a multiple of 8' "$cuda" --train ../t.txt \
        --channels 20 --heads 2
    ends 2 '--matmul tf32 is for the fp32 build' "$cuda" $shape --matmul tf32
    ends 2 '--matmul bf16' "${cuda}_fp32" $shape --matmul bf16
    ends 1 'out of memory: --batch_size 65536 needs more than' "$cuda" --train ../t.txt \
        --seq_len 64 --batch_size 65536
    says '--batch_size [0-9]+ takes'
    EMU_DEVICES=0 ends 2 'no CUDA GPU' "$cuda" $shape
}
test_cuda_finds_its_ranks_without_mpi() {   # as torchrun tells them; the emulator needs mpirun
    local port=$((20000 + $$ % 20000))
    text
    run "$cuda" $shape --steps 2 --out one
    cat >as_torchrun <<END
#!/bin/sh
export RANK=\$OMPI_COMM_WORLD_RANK LOCAL_RANK=\$OMPI_COMM_WORLD_RANK WORLD_SIZE=2
export LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK PMI_SIZE
exec "$cuda" "\$@"
END
    chmod +x as_torchrun
    run mpirun -np 2 ./as_torchrun $shape --steps 2 --out two
    same_state one/step_00000002 two/step_00000002
    RANK=1 WORLD_SIZE=2 ends 2 'neither mpirun nor MASTER_ADDR' "$cuda" $shape
    GPT_COMM=mpi RANK=1 WORLD_SIZE=2 ends 2 'without NCCL \(GPT_COMM=mpi\)' "$cuda" $shape
}
# Slurm and wrappers may show each rank its own GPU alone. What goes by way of the host, waits often.
test_cuda_uses_nccl_where_each_rank_sees_one_gpu_of_its_own() {
    local gpus waits=()
    text
    export EMU_PROFILE=1
    for gpus in all own same; do
        { echo '#!/bin/sh'
          [ $gpus = all ] || echo 'export EMU_DEVICES=1'
          [ $gpus != own ] || echo 'export EMU_FIRST_DEVICE=$OMPI_COMM_WORLD_RANK'
          echo "exec '$cuda' \"\$@\" --out $gpus"; } >$gpus.sh
        chmod +x $gpus.sh
        run mpirun -np 2 ./$gpus.sh $shape --steps 2
        waits+=("$(sed -n 's/.* \([0-9]*\) host synchronisations.*/\1/p' stderr | sort -n | tail -n 1)")
        same_state all/step_00000002 $gpus/step_00000002
    done
    [ "${waits[0]}" -eq "${waits[1]}" ] && [ "${waits[2]}" -gt "${waits[0]}" ] ||
        fail "waits, with all GPUs, an own one, the same one: ${waits[*]}"
}
run_tests "$@"
