# The CUDA backend on the CPU: kernels/cuda/*.cu against the headers of tests/cudasim/include, twice. $(BUILD)/sim
# is for whole models; in $(BUILD)/sim-log every access is checked (access.cpp). Neither needs a CUDA toolkit.
CXX      ?= c++
SIM_WARN := -Wall -Wextra -Wno-unknown-pragmas -Wno-missing-field-initializers -Werror
SIM_BASE := -std=c++17 -D_GNU_SOURCE -I. -pthread -g -fno-exceptions -ffp-contract=off -fno-math-errno $(SIM_WARN) -MMD -MP
SIM_CU   := $(SIM_BASE) -Itests/cudasim/include -DDG_CUDASIM -DDG_CUDA $(TESTDEF)
SIM_LOG  := -O1 -fsanitize=thread,bounds,alignment,object-size -fsanitize-recover=all
SIM_OBJ  := $(patsubst %.cpp,$(BUILD)/sim/%.o,$(wildcard tests/cudasim/*.cpp))
SIM_KERNEL := $(wildcard kernels/cuda/*.cu)
SIM_LIB_OBJ := $(filter-out %/kernels/backend.o,$(TLIB_OBJ)) $(BUILD)/sim/kernels/backend.o $(SIM_OBJ) \
               $(patsubst %.c,$(BUILD)/sim/%.o,$(wildcard kernels/cuda/*.c))

SIM_UNIT     := $(wildcard tests/cudasim/test_*.c)
SIM_MODELS   := tests/cudasim/test_round.c tests/cudasim/test_bad.c # whole models
SIM_LOGGED   := tests/cudasim/test_traffic.c # of logged accesses
# Tests that DEVICE_SRC names run as they are, but for one word of tests/support.c: single operations with every
# access checked, whole models without.
SIM_LOG_TEST := $(filter tests/ops/%,$(DEVICE_SRC)) $(filter-out $(SIM_MODELS),$(SIM_UNIT))
SIM_TEST     := $(filter-out tests/ops/%,$(DEVICE_SRC)) $(filter-out $(SIM_LOGGED),$(SIM_UNIT))
SIM_BIN  := $(if $(findstring thread,$(SAN)),,$(SIM_LOG_TEST:%.c=$(BUILD)/sim-log/%) $(SIM_TEST:%.c=$(BUILD)/sim/%))

# The simulator's own test kernels compile with nvcc too, where it is.
SIM_NVCC := $(if $(NVCC),$(BUILD)/cuda/tests/cudasim/cases.o)

$(BUILD)/sim/%.o: %.cpp Makefile tests/cudasim/cudasim.mk
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(CXX) $(SIM_BASE) -Itests/cudasim/include -O2 -c $< -o $@

$(BUILD)/sim/%.o: %.c Makefile tests/cudasim/cudasim.mk
	@mkdir -p $(@D)
	$(call say,CC ,$@)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(TESTDEF) -Itests/cudasim/include -DDG_CUDA -DDG_TEST_DEVICE='"cuda"' -c $< -o $@

# A margin behind every variable of a function, shared ones among them, that the simulator watches.
sim_cu = $(CXX) $(SIM_CU) $1 -MF $(@:.o=.d) -MT $@ -x c++ -S $< -o $(@:.o=.s) && \
         sed -i '/^_ZZ[^:]*:$$/{n;s/^[[:space:]]*\.zero.*/&\n\t.zero 64/}' $(@:.o=.s) && $(CXX) -c $(@:.o=.s) -o $@

$(BUILD)/sim/%.o: %.cu Makefile tests/cudasim/cudasim.mk
	@mkdir -p $(@D)
	$(call say,SIM,$@)
	$(Q)$(call sim_cu,-O2)

$(BUILD)/sim-log/%.o: %.cu Makefile tests/cudasim/cudasim.mk
	@mkdir -p $(@D)
	$(call say,SIM,$@)
	$(Q)$(call sim_cu,$(SIM_LOG))

$(BUILD)/sim/libdgraft-test.a: $(SIM_LIB_OBJ) $(SIM_KERNEL:%.cu=$(BUILD)/sim/%.o)
$(BUILD)/sim-log/libdgraft-test.a: $(SIM_LIB_OBJ) $(SIM_KERNEL:%.cu=$(BUILD)/sim-log/%.o)
$(BUILD)/sim/libdgraft-test.a $(BUILD)/sim-log/libdgraft-test.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR ,$@)
	$(Q)$(AR) rcs $@ $^

SIM_LINK  = $(CC) $(if $(SAN),-fsanitize=$(SAN)) $^ $(LIBS) -lcmocka -lstdc++ -ldl -o $@
SIM_TLIB := $(BUILD)/sim/tests/support.o $(filter-out %/support.o,$(TEST_LIB:%.c=$(BUILD)/test/%.o))

$(SIM_UNIT:%.c=$(BUILD)/sim/%): $(BUILD)/sim/tests/cudasim/cases.o
$(SIM_UNIT:%.c=$(BUILD)/sim-log/%): $(BUILD)/sim-log/tests/cudasim/cases.o
$(SIM_UNIT:%.c=$(BUILD)/test/%.o): BASE += -Itests/cudasim/include

$(DEVICE_SRC:%.c=$(BUILD)/sim/%) $(SIM_UNIT:%.c=$(BUILD)/sim/%): $(BUILD)/sim/%: $(BUILD)/test/%.o $(SIM_TLIB) \
	$(BUILD)/sim/libdgraft-test.a
	@mkdir -p $(@D)
	$(call say,LD ,$@)
	$(Q)$(SIM_LINK)

$(DEVICE_SRC:%.c=$(BUILD)/sim-log/%) $(SIM_UNIT:%.c=$(BUILD)/sim-log/%): $(BUILD)/sim-log/%: $(BUILD)/test/%.o \
	$(SIM_TLIB) $(BUILD)/sim-log/libdgraft-test.a
	@mkdir -p $(@D)
	$(call say,LD ,$@)
	$(Q)$(SIM_LINK)

# Operations and passes on the simulated device, for the benchmark's own test.
$(BUILD)/sim/bench/bench_ops: $(OPS_SRC:%.c=$(BUILD)/test/%.o) $(BUILD)/sim/libdgraft-test.a
	@mkdir -p $(@D)
	$(call say,LD ,$@)
	$(Q)$(CC) $(if $(SAN),-fsanitize=$(SAN)) $^ $(LIBS) -lstdc++ -ldl -o $@

.PHONY: test-cudasim
test-cudasim: $(SIM_BIN) $(SIM_NVCC) ## the CUDA backend's tests on the CPU, in a simulator
	@GOLDEN=$(GOLDEN) BUILD=$(BUILD) sh tests/run.sh --bin-only $(SIM_BIN)
