# dgraft: `make help` lists the targets. Everything is built under $(BUILD), mirroring the sources.
BUILD  ?= build
PREFIX ?= /usr/local
GOLDEN ?= ../shared/golden
DEBUG  ?=
SAN    ?=
CUDA   ?= 0
SMS    ?= 80 90

CC       ?= cc
AR       ?= ar
PKGS     := jansson libpcre2-8 libutf8proc
PKG_OK   := $(shell pkg-config --exists $(PKGS) 2>/dev/null && echo yes)
EDIT_OK  := $(shell pkg-config --exists libedit 2>/dev/null && echo yes)
ARCH     := $(shell uname -m)
VERSION  := 0.1.0

WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes -Wno-format-truncation -Wno-unknown-warning-option -Werror
CFLAGS   ?= $(if $(DEBUG),-O1 -g,-O3 -g)
BASE     := -std=c11 -D_GNU_SOURCE -I. -Iruntime -fPIC -fvisibility=hidden -pthread -ffp-contract=off -fno-math-errno $(WARN) -MMD -MP \
            $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all) \
            $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
Q        := $(if $(V),,@)
say       = $(if $(V),,@echo "  $1 $2")
LIBS     := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread
TESTDEF  := -DDG_TEST=1

# Library sources; the program is main.c and cli_*.c.
CLI_SRC  := $(wildcard runtime/main.c runtime/cli*.c)
LIB_SRC  := $(filter-out $(CLI_SRC),$(wildcard kernels/*.c kernels/cpu/*.c runtime/*.c dflash/*.c graft/*.c))
# Needs what train-smoke makes.
TRAINED  := tests/golden/test_trained.c
TEST_SRC := $(filter-out $(TRAINED),$(wildcard tests/test_*.c tests/ops/test_*.c tests/golden/test_*.c tests/e2e/test_*.c tests/bad/test_*.c))
TEST_LIB := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))
# Two programs: operations beside the machine's roofs, and modes beside plain decoding.
OPS_SRC  := $(addprefix bench/,bench_ops.c ops.c steps.c shape.c device.c measure.c peaks.c)
BENCH_SRC:= $(filter-out $(OPS_SRC) bench/rank_fit.c,$(wildcard bench/*.c)) bench/measure.c bench/peaks.c
BENCH_PART := $(addprefix bench/,stats.c prompts.c sample.c arms.c summary.c shape.c measure.c) # what its unit test links

comma    := ,
# CUDA=1 makes library and program with the CUDA backend, in $(BUILD)/cuda; auto: where nvcc is.
NVCC     ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
WITH_CUDA:= $(if $(filter 1,$(CUDA)),1,$(if $(filter auto,$(CUDA)),$(if $(NVCC),1)))
OUT      := $(BUILD)$(if $(WITH_CUDA),/cuda)
CUDA_SRC := $(wildcard kernels/cuda/*.cu)
NEWEST   := $(lastword $(SMS))
# Code for every SM named, and PTX of the newest for what comes after.
NVCCFLAGS:= -std=c++17 -O3 -I. -fmad=false -DDG_CUDA -Werror all-warnings $(foreach s,$(SMS),-gencode arch=compute_$s,code=sm_$s) \
            -gencode arch=compute_$(NEWEST),code=compute_$(NEWEST) \
            -Xcompiler -fPIC,-fvisibility=hidden,-pthread,-Wall,-Wextra,-Wno-missing-field-initializers,-Werror
# cuDNN is used where its header is beside the toolkit's or the system's.
CUDA_DIR := $(if $(NVCC),$(patsubst %/bin,%,$(patsubst %/,%,$(dir $(realpath $(NVCC))))))
CUDNN    ?= $(firstword $(wildcard $(CUDA_DIR)/include/cudnn.h /usr/include/cudnn.h /usr/local/include/cudnn.h))
CUDA_LIB := $(if $(NVCC),-L$(CUDA_DIR)/lib64 -Wl$(comma)-rpath$(comma)$(CUDA_DIR)/lib64 -lcublasLt $(if $(CUDNN),-lcudnn) -lcudart_static -lstdc++ -ldl -lrt)

# The library is built twice: as shipped, and with DG_TEST (asserts on, allocation hooks, DG_ISA).
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/rel/%.o)
CUDA_OBJ := $(CUDA_SRC:%.cu=$(BUILD)/cuda/%.o) $(patsubst %.c,$(BUILD)/cuda/%.o,$(wildcard kernels/cuda/*.c))
CLIB_OBJ := $(filter-out %/backend.o,$(LIB_OBJ)) $(BUILD)/cuda/kernels/backend.o $(CUDA_OBJ)
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/rel/%.o)
TLIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/test/%.o)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/test/%)
# Tests that run on a device too: tests/x on the CPU, sim/tests/x on the simulated device (tests/cudasim/cudasim.mk).
DEVICE_SRC := $(filter %/test_attention.c %/test_elementwise.c %/test_matmul.c %/test_select.c %/ops/test_succ.c %/golden/test_target.c \
	%/golden/test_dflash.c %/golden/test_eagle3.c %/test_lossless.c,$(TEST_SRC))

# One file per instruction set, compiled with its own flags and chosen at run time. GCC 11 and clang 12 know them all.
ifeq ($(ARCH),x86_64)
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c
ISA_amx    := $(ISA_avx512) -mamx-tile -mamx-int8
ISA_amx_model := $(ISA_avx512)
endif
# Inlining alone makes them large; -O2 compiles them in half the time and runs as fast.
isa = $(if $(findstring kernels/cpu/isa_,$1),-O2) $(foreach i,avx2 avxvnni avx512 amx amx_model,$(if $(findstring isa_$i.,$1),$(ISA_$i)))

.PHONY: all lib cli deps model demo test test-cudasim golden portable bench bench-full bench-ops fuzz asan ubsan tsan oom lint format layers train-deps train-smoke install uninstall clean help found
.DEFAULT_GOAL := all

include tests/cudasim/cudasim.mk

all: lib cli ## library and program
lib: $(OUT)/libdgraft.a $(OUT)/libdgraft.so
cli: $(OUT)/dgraft

help: ## this list
	@grep -hE '^[a-z0-9_-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

found: ## which libraries the build found
	@for p in $(PKGS) libedit cmocka; do if pkg-config --exists $$p; then echo "✓ $$p `pkg-config --modversion $$p`"; else echo "✗ $$p"; fi; done

deps: ## install what is missing (apt), or say what to install
	@sh tests/deps.sh

ifneq ($(PKG_OK),yes)
$(LIB_OBJ) $(TLIB_OBJ): | missing
.PHONY: missing
missing:
	@echo "dgraft needs $(PKGS): run 'make deps'" >&2; exit 1
endif

$(BUILD)/rel/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC ,$@)
	$(Q)$(CC) $(BASE) $(CFLAGS) -DNDEBUG $(call isa,$<) $(if $(filter runtime/cli_chat.c,$<),$(if $(EDIT_OK),-DDG_LIBEDIT)) -c $< -o $@

$(BUILD)/test/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC ,$@)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(TESTDEF) $(call isa,$<) -c $< -o $@

# The same with the CUDA backend. Of the C files, only the list of backends differs; that which calls cuDNN is there alone.
$(BUILD)/cuda/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC ,$@)
	$(Q)$(CC) $(BASE) $(CFLAGS) -DNDEBUG -DDG_CUDA $(if $(findstring /cuda/,$<),-isystem $(CUDA_DIR)/include $(if $(CUDNN),,-DDG_NO_CUDNN)) -c $< -o $@

$(BUILD)/cuda/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(if $(NVCC),,$(error CUDA=1 needs nvcc: install the CUDA toolkit, or name it with NVCC=))
	$(Q)$(NVCC) $(NVCCFLAGS) -Xptxas -v -MD -MF $(@:.o=.d) -MT $@ -c $< -o $@ >$(@:.o=.usage) 2>&1 || { cat $(@:.o=.usage); exit 1; }

$(BUILD)/libdgraft.a: $(LIB_OBJ)
$(BUILD)/cuda/libdgraft.a: $(CLIB_OBJ)
$(BUILD)/libdgraft.a $(BUILD)/cuda/libdgraft.a:
	@rm -f $@
	$(call say,AR ,$@)
	$(Q)$(AR) rcs $@ $^

$(BUILD)/libdgraft.so: $(LIB_OBJ)
$(BUILD)/cuda/libdgraft.so: $(CLIB_OBJ)
$(BUILD)/libdgraft.so $(BUILD)/cuda/libdgraft.so:
	$(call say,LD ,$@)
	$(Q)$(CC) -shared -Wl,-soname,libdgraft.so.0 -Wl,--exclude-libs,ALL $(if $(SAN),-fsanitize=$(SAN)) $^ $(LIBS) $(if $(findstring /cuda/,$@),$(CUDA_LIB)) -o $@

$(BUILD)/dgraft: $(CLI_OBJ) $(BUILD)/libdgraft.a
$(BUILD)/cuda/dgraft: $(CLI_OBJ) $(BUILD)/cuda/libdgraft.a
$(BUILD)/dgraft $(BUILD)/cuda/dgraft:
	$(call say,LD ,$@)
	$(Q)$(CC) $(if $(SAN),-fsanitize=$(SAN)) $^ $(LIBS) $(if $(findstring /cuda/,$@),$(CUDA_LIB)) $(if $(EDIT_OK),-ledit) -o $@

$(BUILD)/libdgraft-test.a: $(TLIB_OBJ)
	@rm -f $@
	$(call say,AR ,$@)
	$(Q)$(AR) rcs $@ $^

$(TEST_BIN) $(TRAINED:%.c=$(BUILD)/test/%): $(BUILD)/test/%: $(BUILD)/test/%.o $(TEST_LIB:%.c=$(BUILD)/test/%.o) $(BUILD)/libdgraft-test.a
	$(call say,LD ,$@)
	$(Q)$(CC) $(if $(SAN),-fsanitize=$(SAN)) $(filter %.o,$^) $(filter %.a,$^) $(LIBS) -lcmocka -o $@

# What the benchmark was built from, for its results; touched only when it changes.
$(BUILD)/revision.h: FORCE
	@mkdir -p $(@D)
	@{ echo '#define DG_REVISION "'`git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown`'"'; \
	   echo '#define DG_FLAGS "$(strip $(CFLAGS) $(if $(SAN),-fsanitize=$(SAN)))"'; } >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
.PHONY: FORCE
FORCE:

$(BUILD)/rel/bench/provenance.o $(BUILD)/test/bench/provenance.o: BASE += -I$(BUILD)
$(BUILD)/rel/bench/provenance.o $(BUILD)/test/bench/provenance.o: $(BUILD)/revision.h

$(BUILD)/test/tests/test_bench: $(BENCH_PART:%.c=$(BUILD)/test/%.o)
$(BUILD)/test/tests/e2e/test_bench: | $(BUILD)/bench/dgraft-bench $(BUILD)/bench/rank_fit
$(BUILD)/test/tests/e2e/test_bench_ops: | $(BUILD)/bench/bench_ops $(if $(findstring thread,$(SAN)),,$(BUILD)/sim/bench/bench_ops)
$(BUILD)/bench/bench_ops: $(OPS_SRC:%.c=$(BUILD)/rel/%.o)
$(BUILD)/bench/dgraft-bench: $(BENCH_SRC:%.c=$(BUILD)/rel/%.o)
$(BUILD)/bench/rank_fit: bench_link = -Wl,--wrap=dg_rank_learn
$(BUILD)/bench/rank_fit: $(BUILD)/rel/bench/rank_fit.o $(BUILD)/rel/bench/prompts.o
$(BUILD)/bench/bench_ops $(BUILD)/bench/dgraft-bench $(BUILD)/bench/rank_fit: $(BUILD)/libdgraft.a
$(BUILD)/cuda/bench/bench_ops: $(OPS_SRC:%.c=$(BUILD)/rel/%.o)
$(BUILD)/cuda/bench/dgraft-bench: $(BENCH_SRC:%.c=$(BUILD)/rel/%.o)
$(BUILD)/cuda/bench/bench_ops $(BUILD)/cuda/bench/dgraft-bench: $(BUILD)/cuda/libdgraft.a
$(foreach d,bench cuda/bench,$(BUILD)/$d/bench_ops $(BUILD)/$d/dgraft-bench) $(BUILD)/bench/rank_fit:
	@mkdir -p $(@D)
	$(call say,LD ,$@)
	$(Q)$(CC) $(if $(SAN),-fsanitize=$(SAN)) $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(if $(findstring /cuda/,$@),$(CUDA_LIB)) $(bench_link) -o $@

MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf

model: ## fetch and check the demo's target
	@sh tests/fetch_model.sh

demo: deps model ## drafted text, streaming, beside plain decoding
	@$(MAKE) --no-print-directory -j$(shell nproc) cli
	@$(BUILD)/dgraft run -m $(MODEL) --mode fused --drafter dflash/checkpoints/smollm2-135m-dflash-b16 --chat -n 160 --ignore-eos --compare \
	  -p "Write a short story about a lighthouse keeper who finds a message in a bottle."

test: deps ## every test; ends with `N passed, N failed, N skipped`
	@sh tests/fetch_model.sh || [ "$$CI" != true ]
	@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc)) test-run

.PHONY: test-run
test-run: $(TEST_BIN) all $(BUILD)/bench/dgraft-bench $(BUILD)/bench/bench_ops $(BUILD)/bench/rank_fit $(SIM_BIN) $(SIM_NVCC) $(if $(NVCC),$(BUILD)/cuda/libdgraft.so $(BUILD)/cuda/dgraft)
	@GOLDEN=$(GOLDEN) BUILD=$(BUILD) sh tests/run.sh $(TEST_BIN) $(SIM_BIN)

# The tests of the CUDA backend on a device.
CUDA_BIN := $(DEVICE_SRC:%.c=$(BUILD)/cuda-test/%)

$(BUILD)/cuda-test/libdgraft-test.a: $(filter-out %/kernels/backend.o,$(TLIB_OBJ)) $(BUILD)/sim/kernels/backend.o $(CUDA_OBJ)
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR ,$@)
	$(Q)$(AR) rcs $@ $^

$(CUDA_BIN): $(BUILD)/cuda-test/%: $(BUILD)/test/%.o $(SIM_TLIB) $(BUILD)/cuda-test/libdgraft-test.a
	@mkdir -p $(@D)
	$(call say,LD ,$@)
	$(Q)$(CC) $^ $(LIBS) -lcmocka $(CUDA_LIB) -o $@

.PHONY: test-cuda
test-cuda: $(CUDA_BIN) ## the CUDA backend's tests on an NVIDIA GPU
	@GOLDEN=$(GOLDEN) BUILD=$(BUILD) sh tests/run.sh --bin-only $(CUDA_BIN)

# Races and barriers are looked for in single operations; whole models would take hours.
SANITIZER ?= $(firstword $(shell command -v compute-sanitizer) $(wildcard $(CUDA_DIR)/bin/compute-sanitizer))

.PHONY: sanitize-cuda
sanitize-cuda: $(filter %/ops/test_attention %/ops/test_elementwise %/ops/test_matmul %/ops/test_select %/ops/test_succ,$(CUDA_BIN)) ## single operations on an NVIDIA GPU under compute-sanitizer
	$(if $(SANITIZER),,$(error sanitize-cuda needs compute-sanitizer: it comes with the CUDA toolkit, or name it with SANITIZER=))
	@set -e; for t in memcheck initcheck racecheck synccheck; do for b in $^; do \
	    echo "$$t $${b##*/}"; $(SANITIZER) --tool $$t --error-exitcode 1 --quiet $$b; done; done

golden: $(filter $(BUILD)/test/tests/golden/%,$(TEST_BIN)) ## the golden tests alone; GOLDEN=DIR for another set
	@GOLDEN=$(GOLDEN) BUILD=$(BUILD) sh tests/run.sh --bin-only $^

# The lossless grid and SmolLM2 would take longer than all others together.
portable: $(filter-out $(BUILD)/test/tests/e2e/% $(BUILD)/test/tests/bad/% %/test_smollm2,$(TEST_BIN)) ## unit and golden tests on the portable C path
	@DG_ISA=portable GOLDEN=$(GOLDEN) BUILD=$(BUILD) sh tests/run.sh --bin-only $^

oom: $(BUILD)/test/tests/bad/test_oom ## every allocation fails in turn
	@sh tests/run.sh --bin-only $<

# The project's own drafters: DFlash and, where one was trained, an EAGLE-3 head.
BENCH_DFLASH := dflash/checkpoints/smollm2-135m-dflash-b16
BENCH_EAGLE3 := $(firstword $(wildcard dflash/checkpoints/smollm2*eagle3*))
BENCH_SET = -m $(MODEL) --drafter dflash:$(BENCH_DFLASH) $(if $(BENCH_EAGLE3),--drafter eagle3:$(BENCH_EAGLE3)) $(BENCH_ARGS)
BENCH_PROMPTS = $(filter-out bench/prompts/languages.jsonl,$(wildcard bench/prompts/*.jsonl))

bench: deps model ## modes beside plain decoding on SmolLM2: tables, plots and JSON in bench/results/<machine>
	@$(MAKE) --no-print-directory -j$(shell nproc) $(BUILD)/bench/dgraft-bench
	@$(BUILD)/bench/dgraft-bench $(BENCH_SET) --budget 15 --arm fused-auto=fused,budget=auto \
	  $(if $(BENCH_EAGLE3),--arm eagle3=eagle3 --arm graft-eagle3=graft-eagle3) $(BENCH_PROMPTS)

bench-full: deps model ## every mode, ablation, budget and temperature, hours; an interrupted run goes on
	@$(MAKE) --no-print-directory -j$(shell nproc) $(BUILD)/bench/dgraft-bench
	@set -e; go() { out=bench/results/full/$$1; shift; \
	  [ -f $$out/run.json ] || $(BUILD)/bench/dgraft-bench $(BENCH_SET) --resume --out $$out "$$@" $(BENCH_PROMPTS) || [ $$? = 3 ]; }; \
	go modes --modes all --per-category 0 -n 128; \
	go sampled --modes main --temp 0.7,1.3 --budget 15; \
	for a in `$(BUILD)/bench/dgraft-bench --list | sed -n 's/^  \([a-z]*\) .*/\1/p'`; do go $$a --modes "" --ablate $$a; done

bench-ops: deps model ## operations, whole passes and loading beside the machine's roofs; CSV and PNG in $(BUILD)/bench-ops
	@$(MAKE) --no-print-directory -j$(shell nproc) $(BUILD)/bench/bench_ops
	@$(BUILD)/bench/bench_ops -m $(MODEL) --drafter dflash/checkpoints/smollm2-135m-dflash-b16 --out $(BUILD)/bench-ops
	@if command -v gnuplot >/dev/null; then gnuplot -e "dir='$(BUILD)/bench-ops'" bench/ops.gp; else echo "no plots: gnuplot is missing"; fi

lint: ## clang-tidy and cppcheck
	cppcheck -q --enable=warning,portability --inline-suppr --error-exitcode=1 -I. kernels runtime dflash graft
	clang-tidy --quiet $(LIB_SRC) $(CLI_SRC) -- $(filter-out -Werror,$(BASE))

train-deps: ## what training drafters needs, into build/train-venv (TORCH=cuda for a GPU)
	@sh dflash/train/deps.sh $(BUILD)/train-venv

train-smoke: train-deps ## train both drafters on a toy target; the C runtime must agree with the trainer
	@$(BUILD)/train-venv/bin/python -m unittest -q dflash.train.test_train
	@$(BUILD)/train-venv/bin/python -m dflash.train.smoke $(BUILD)/smoke
	@$(MAKE) --no-print-directory $(BUILD)/test/tests/golden/test_trained
	@GOLDEN=$(BUILD)/smoke BUILD=$(BUILD) sh tests/run.sh --bin-only $(BUILD)/test/tests/golden/test_trained

layers: ## include arrows, file and function sizes
	@sh tests/check_layers.sh

asan: ## the tests under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory BUILD=build-asan SAN=address,undefined DEBUG=1 test-run

ubsan: asan

tsan: ## the tests under ThreadSanitizer
	@$(MAKE) --no-print-directory BUILD=build-tsan SAN=thread DEBUG=1 test-run

INSTALLED = include/dgraft.h lib/libdgraft.a lib/libdgraft.so lib/libdgraft.so.0 lib/libdgraft.so.$(VERSION) \
            lib/pkgconfig/dgraft.pc share/man/man1/dgraft.1 bin/dgraft
DEST      = $(DESTDIR)$(PREFIX)

install: all ## program, man page, header, libraries, pkg-config file; PREFIX=, DESTDIR=
	install -d $(DEST)/bin $(DEST)/include $(DEST)/lib/pkgconfig $(DEST)/share/man/man1
	install -m 755 $(BUILD)/dgraft $(DEST)/bin/dgraft
	install -m 644 runtime/dgraft.h $(DEST)/include/dgraft.h
	install -m 644 $(BUILD)/libdgraft.a $(DEST)/lib/libdgraft.a
	install -m 755 $(BUILD)/libdgraft.so $(DEST)/lib/libdgraft.so.$(VERSION)
	ln -sf libdgraft.so.$(VERSION) $(DEST)/lib/libdgraft.so.0
	ln -sf libdgraft.so.0 $(DEST)/lib/libdgraft.so
	install -m 644 runtime/dgraft.1 $(DEST)/share/man/man1/dgraft.1
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@REQUIRES@|$(PKGS)|' runtime/dgraft.pc.in \
	  >$(DEST)/lib/pkgconfig/dgraft.pc

uninstall: ## remove what install put there
	rm -f $(INSTALLED:%=$(DEST)/%)

# Fuzzing needs clang and no kernels. New inputs go to build-fuzz/corpus; what is kept lies in
# tests/fuzz/corpus.
FUZZ_SECONDS ?= 60
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/%)

$(BUILD)/libdgraft-fuzz.a: $(filter-out $(BUILD)/test/kernels/cpu/%,$(TLIB_OBJ))
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/fuzz_%: tests/fuzz/fuzz_%.c tests/fuzz/fuzz.h $(BUILD)/libdgraft-fuzz.a
	$(call say,FUZZ,$@)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(TESTDEF) -fsanitize=fuzzer $< $(BUILD)/libdgraft-fuzz.a $(LIBS) -o $@

fuzz: ## fuzz the file readers with libFuzzer, FUZZ_SECONDS each (60)
	@$(MAKE) --no-print-directory BUILD=build-fuzz CC=clang WARN=-w SAN=fuzzer-no-link,address,undefined DEBUG=1 fuzz-run

.PHONY: fuzz-run
fuzz-run: $(FUZZ_BIN)
	@for f in $(FUZZ_BIN:$(BUILD)/fuzz_%=%); do \
	    mkdir -p $(BUILD)/corpus/$$f; \
	    $(BUILD)/fuzz_$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -max_len=8192 \
	        -print_final_stats=1 -artifact_prefix=$(BUILD)/$$f- $(BUILD)/corpus/$$f tests/fuzz/corpus/$$f \
	        >$(BUILD)/$$f.log 2>&1 || { tail -60 $(BUILD)/$$f.log; exit 1; }; \
	    echo "fuzz_$$f: `sed -n 's/stat::number_of_executed_units: *//p' $(BUILD)/$$f.log` runs, no findings"; done

format: ## clang-format the sources
	clang-format -i $(shell git ls-files '*.c' '*.h')

clean: ## remove what was built
	rm -rf $(BUILD) build-asan build-tsan build-fuzz

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
