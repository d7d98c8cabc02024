# make            builds ./train_gpt             make run     trains a small GPT on a real text
# make test       all tests, under 3 minutes     make help    the rest
# Settings:  CC=clang  OMP=0  SANITIZE=1  ARCH=x86-64-v3 (default: this machine)  PRECISION=FP64  MPI=0
CC        = gcc
# -fno-math-errno: sqrt in a loop is then an instruction, not a call. Never -ffast-math: NaN must show.
CFLAGS    = -std=gnu11 -O3 -fno-math-errno -Wall -Wextra -Wno-unused-function -Wno-pass-failed
ARCH      = native
PRECISION = FP32
OUT       = out
PYTHON    = $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $(p) -c "import torch" 2>/dev/null && echo $(p))) python3)
B         = build

# Everything that changes the binary is in FLAGS; -march is spelled -mcpu on ARM compilers.
FLAGS = $(CFLAGS) $(MARCH) $(OPENMP) $(SAN) -DGIT_HASH='"$(GIT)"'
GIT  := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
compiles = $(shell printf 'int main(void){return 0;}' | $(CC) $(1) -x c - -o /dev/null 2>/dev/null && echo $(1))
MARCH  := $(or $(call compiles,-march=$(ARCH)),$(call compiles,-mcpu=$(ARCH)))
ifneq ($(OMP),0)
OPENMP := $(call compiles,-fopenmp)
endif
# Several processes: where mpicc works, unless MPI=0. It is told which compiler to call.
MPICC = OMPI_CC='$(CC)' MPICH_CC='$(CC)' mpicc
MPI  := $(shell printf '\043include <mpi.h>\nint main(void){return 0;}' | $(MPICC) -x c - -o /dev/null 2>/dev/null && echo 1)
CC_TRAIN = $(CC)
ifneq ($(filter 1,$(MPI)),)
CC_TRAIN = $(MPICC) -DUSE_MPI
endif
ifdef SANITIZE
SAN = -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g
B   = build/sanitize
endif
ifeq ($(OPENMP),)
$(info no OpenMP in $(CC): one thread$(if $(filter 0,$(OMP)),, (install libomp or libgomp for more)))
CFLAGS += -Wno-unknown-pragmas
endif

all: train_gpt data/tokenize data/train_bpe
train_gpt: $(B)/train_gpt
	@cp $< $@

# The flags of the last build: another compiler or another machine rebuilds everything.
$(B)/flags: FORCE
	@mkdir -p $(B); echo '$(CC) $(FLAGS) $(PRECISION) $(MPI)' | cmp -s - $@ || \
	    echo '$(CC) $(FLAGS) $(PRECISION) $(MPI)' > $@
FORCE:

$(B)/train_gpt: train_gpt.c $(B)/flags
	$(CC_TRAIN) $(FLAGS) -DPRECISION_$(PRECISION) $< -o $@ -lm
$(B)/test_gpt: test_gpt.c train_gpt.c $(B)/flags
	$(CC) $(FLAGS) $< -o $@ -lm
$(B)/test_gpt_bf16: test_gpt.c train_gpt.c $(B)/flags
	$(CC) $(FLAGS) -DPRECISION_BF16 $< -o $@ -lm
$(B)/test_gpt_fp64: test_gpt.c train_gpt.c $(B)/flags
	$(CC) $(FLAGS) -DPRECISION_FP64 $< -o $@ -lm

# nanoGPT's recipe for a laptop, which is what the flags' defaults are; a second call goes on or samples.
run: train_gpt
	@text=$$(data/get.sh) && ./train_gpt --train "$$text" --out $(OUT) --sample_every 2000 \
	    $$(ls -d $(OUT)/step_[0-9]* >/dev/null 2>&1 && echo --resume)

# From text to token shards, and a vocabulary of one's own.
$(B)/%: data/%.c train_gpt.c $(B)/flags
	$(CC) $(FLAGS) $< -o $@ -lm
data/tokenize data/train_bpe: data/%: $(B)/%
	@cp $< $@

test: $(B)/test_gpt $(B)/test_gpt_fp64 $(B)/test_gpt_bf16 $(B)/train_gpt $(B)/tokenize $(B)/train_bpe
	@B=$(B) CC="$(CC)" dev/test/run.sh
# Also the slow ones: reads beyond 4 GiB; larger PyTorch dumps, where torch is installed.
DUMP = scripts/reference.py --layers 3 --heads 3 --channels 96 --vocab 257 --positions 70 --batch 2 \
       --seq 65 --out build/
test-all: $(B)/flags
	@$(LADDERS) --check
	@mkdir -p build; $(PYTHON) $(DUMP)dump.safetensors && \
	    $(PYTHON) $(DUMP)dump_init.safetensors --init pytorch || echo "install python3-torch"
	@SLOW=1 GPT_DUMP=$$(ls build/dump.safetensors) GPT_DUMP_INIT=$$(ls build/dump_init.safetensors) \
	    $(MAKE) --no-print-directory test
# Variants of the CPU ops, from the plainest to the shipped: checked, timed, table in dev/cpu/README.md.
LADDERS = CC="$(CC)" B=$(B) FLAGS='$(CFLAGS) $(MARCH) $(OPENMP) $(SAN)' dev/cpu/run.sh
ladders-cpu: $(B)/flags
	@$(LADDERS)
# Beside PyPI's packages (in build/venv): checkpoints, GGUF, tokenizer, HellaSwag. Takes 2 minutes.
build/venv/ok:
	$(PYTHON) -m venv --system-site-packages build/venv
	build/venv/bin/pip install -q "transformers<4.48" xllamacpp tiktoken "numpy<2; python_version<'3.12'" matplotlib tensorboard && \
	    touch $@
check-hf: all build/venv/ok
	@dev/check_hf.sh

# The CUDA program. build.sh says what it found, and which package brings what is missing.
cuda: FORCE
	@dev/cuda/build.sh train_gpt_cuda train_gpt.cu
	@MPI=0 NCCL=0 dev/cuda/build.sh $(B)/test_gpt_cuda test_gpt.c -x cu -DDEV_MANAGED
# The same on the emulator: on a CPU, slowly. It needs CUDA's headers alone, which `make deps` brings.
deps:
	@dev/emu/build.sh --headers >/dev/null || dev/emu/get_headers.sh
RANKS = $(if $(filter 1,$(MPI)),-DUSE_MPI -DUSE_NCCL)
emu_train_gpt      = train_gpt.cu $(RANKS)
emu_train_gpt_fp16 = train_gpt.cu $(RANKS) -DPRECISION_FP16
emu_train_gpt_fp32 = train_gpt.cu $(RANKS) -DPRECISION_FP32
emu_test_gpt       = test_gpt.c -DDEV_MANAGED
$(B)/cuda/%: train_gpt.cu test_gpt.c train_gpt.c $(wildcard dev/emu/*.cpp dev/emu/*.h) Makefile
	@dev/emu/build.sh $@ fast $(emu_$*)
emu: $(B)/cuda/train_gpt $(B)/cuda/test_gpt
	@cp $(B)/cuda/train_gpt train_gpt_emu
	@cp $(B)/cuda/test_gpt test_gpt_emu
test-cuda test-cuda-all: $(addprefix $(B)/cuda/train_gpt,_fp16 _fp32) $(B)/cuda/train_gpt $(B)/train_gpt
	@B=$(B) dev/test/cuda.sh $(if $(filter test-cuda,$@),quick,all)
test-emu:
	@dev/emu/test.sh
# The CPU program on ARM (NEON): built by Debian's gcc-aarch64-linux-gnu, run by qemu-user. 2 minutes.
test-arm:
	@$(MAKE) -s CC=aarch64-linux-gnu-gcc ARCH=armv8-a MPI=0 B=build/arm \
	    build/arm/train_gpt build/arm/test_gpt build/arm/test_gpt_bf16
	@for test in test_gpt_bf16 test_gpt; do \
	    qemu-aarch64 -L /usr/aarch64-linux-gnu build/arm/$$test || exit; done
# Fuzzing of the readers, FUZZ_SECONDS each; which lines of them the bad files of the tests pass.
FUZZ = clang -std=gnu11 -g -O1 -w -fno-math-errno dev/test/fuzz.c -lm -fsanitize=fuzzer
fuzz: $(B)/train_gpt
	$(FUZZ),address,undefined -fno-sanitize-recover=undefined -o $(B)/fuzz_gpt
	@B=$(B) dev/test/fuzz.sh $(B)/fuzz_gpt
coverage: $(B)/train_gpt
	$(FUZZ) -O0 -fprofile-instr-generate -fcoverage-mapping -o $(B)/fuzz_coverage
	@B=$(B) dev/test/fuzz.sh --coverage $(B)/fuzz_coverage
ladders: ; @dev/cuda/ladders.sh
tidy sync:
	@dev/$@.sh

bench: train_gpt
	@dev/bench.sh
bench-mpi: train_gpt
	@dev/bench_mpi.sh
reference:
	@for out in '--out dev/test/reference' '--dump-init dev/test/init'; do $(PYTHON) scripts/reference.py \
	    $$out.safetensors && $(PYTHON) scripts/reference.py --channels 8 $${out}_c8.safetensors; done
clean:
	rm -rf build train_gpt train_gpt_cuda train_gpt_emu test_gpt_emu data/tokenize data/train_bpe
help:
	@sed -n '1,3p' Makefile; grep -E '^[a-z -]+:' Makefile | sed 's/:.*//' | tr '\n' ' '; echo

.PHONY: all run test test-all check-hf cuda deps emu test-cuda test-cuda-all test-emu test-arm ladders-cpu \
        ladders tidy sync bench bench-mpi reference fuzz coverage clean help FORCE
