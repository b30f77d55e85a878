# Systole. Nothing is registered by hand: a file in a folder is found by wildcard, and tools/registry.sh writes the
# tables of models, storage formats, backends, kernels and commands. Objects of one MODE live in build/MODE.
#
#: make                  build build/release/systole (make release); make debug: build/debug/systole
#: make demo             from a clone to an answer: packages, build, a small model, a question
#: make check            all tests, unit and end to end
#: make check-unit check-e2e check-docs     parts of it
#: make check-san        the same under AddressSanitizer and UndefinedBehaviorSanitizer
#: make check-tsan       the threaded parts under ThreadSanitizer
#: make check-alloc      the program with the n-th allocation failing, for every n
#: make check-clang      built with clang
#: make check-generic    with the portable kernels only
#: make check-arm        kernels, formats and text for arm64, emulated
#: make fuzz             every fuzz target for FUZZ_SECONDS (60)
#: make bench-published  published tables of speed and cost beside what the simulator says
#: make tidy             format, layers, sizes, banned calls
#: make install          PREFIX=/usr/local DESTDIR=
#: make clean
#:
#: MODE=debug|release|san|tsan, CC=gcc|clang, O=build/MODE, DIRS="base text" (only those folders), V=1 (show commands)

MODE ?= release
O    ?= build/$(MODE)
ifeq ($(origin CC),default)
CC   := gcc
endif
DIRS ?= base graph quant checkpoint text model comm backend engine serve bench plan

VERSION  := 0.1.0
PKGS     := jansson libpcre2-8 libutf8proc libcurl libedit libcrypto libmicrohttpd
PKGFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKGLIBS  := $(shell pkg-config --libs $(PKGS) 2>/dev/null || echo -ljansson -lpcre2-8 -lutf8proc -lcurl -ledit -lcrypto -lmicrohttpd)
ifeq ($(filter demo check help clean tidy,$(MAKECMDGOALS)),)
ifeq ($(shell pkg-config --exists $(PKGS) 2>/dev/null && command -v $(CC)),)
$(error $(shell sh tools/packages.sh build))
endif
endif

OPT_release := -O3 -g
OPT_debug   := -O0 -g3
OPT_san     := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT_tsan    := -O1 -g -fsanitize=thread
OPT_fuzz    := -O1 -g -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined
OPT         := $(OPT_$(MODE)) $(MARCH)
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
CFLAGS_ALL := -std=c17 -D_GNU_SOURCE -DSY_VERSION='"$(VERSION)"' -Isrc -Iinclude $(PKGFLAGS) $(WARN) $(OPT) \
              -ffp-contract=off -fno-math-errno $(CFLAGS)
LDLIBS := $(PKGLIBS) -lpthread -lm

# Kernels: each folder under kernel/ names its compiler flags and the machines it exists for in isa.mk.
ARCH  := $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)
KDIR  := src/backend/cpu/kernel
-include $(wildcard $(KDIR)/*/isa.mk)
ISAS  := $(foreach k,$(notdir $(patsubst %/,%,$(wildcard $(KDIR)/*/))),$(if $(filter any $(ARCH),$(ISA_ARCH_$(k))),$(k)))
ISA_SRC_SKIP := $(foreach k,$(notdir $(patsubst %/,%,$(wildcard $(KDIR)/*/))),$(if $(filter $(k),$(ISAS)),,$(KDIR)/$(k)/%))

find_c   = $(sort $(foreach d,$(1),$(shell find $(d) -name '*.c' 2>/dev/null)))
LIB_SRC := $(filter-out $(ISA_SRC_SKIP),$(call find_c,$(addprefix src/,$(DIRS))))
LIB_OBJ := $(patsubst %.c,$(O)/%.o,$(LIB_SRC))
APP_SRC := $(call find_c,src/app)
APP_OBJ := $(patsubst %.c,$(O)/%.o,$(APP_SRC)) $(O)/commands.o
UNIT_SRC := $(wildcard test/unit/*.c)
UNIT_BIN := $(patsubst test/unit/%.c,$(O)/test/unit/%,$(UNIT_SRC))
FUZZ_SRC := $(wildcard test/fuzz/*.c)
FUZZ_BIN := $(patsubst test/fuzz/%.c,build/fuzz/test/fuzz/%,$(FUZZ_SRC))
LIB := $(O)/libsystole.a

.PHONY: all release debug FORCE
all: $(O)/systole
release:
	@$(MAKE) --no-print-directory MODE=release O=build/release all
debug:
	@$(MAKE) --no-print-directory MODE=debug O=build/debug all

# The registry is regenerated on every run and written only when it changed.
$(O)/registry.c: FORCE
	@mkdir -p $(@D)
	@sh tools/registry.sh lib "$(LIB_SRC)" > $@.new && { cmp -s $@ $@.new || cp $@.new $@; rm -f $@.new; }
$(O)/commands.c: FORCE
	@mkdir -p $(@D)
	@sh tools/registry.sh app "$(APP_SRC)" > $@.new && { cmp -s $@ $@.new || cp $@.new $@; rm -f $@.new; }
# Cards, prices, measurements and what reports are made of travel in the program.
DATA := $(sort $(wildcard data/*/*.json data/report/*))
$(O)/data.c: FORCE
	@mkdir -p $(@D)
	@sh tools/embed.sh $(DATA) > $@.new && { cmp -s $@ $@.new || cp $@.new $@; rm -f $@.new; }
$(O)/data.o: $(DATA)
FORCE:

# V=1 shows the commands.
ifeq ($(V),)
Q   := @
say  = @echo "  $(1) $@"
endif

# No parser of outside bytes runs in a kernel, and clang needs minutes to instrument one.
KERNEL_PLAIN := $(if $(filter fuzz,$(MODE)),-fno-sanitize=all)

define isa_rule
$(O)/$(KDIR)/$(1)/%.o: $(KDIR)/$(1)/%.c
	@mkdir -p $$(@D)
	$$(call say,CC )
	$$(Q)$$(CC) $$(CFLAGS_ALL) $(ISA_FLAGS_$(1)) $(KERNEL_PLAIN) -MMD -MP -c $$< -o $$@
endef
$(foreach k,$(ISAS),$(eval $(call isa_rule,$(k))))

$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC )
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
# Tests at -O2: gcc 12 for arm64 ends with an internal error on one of them at -O3.
$(O)/test/unit/%.o: test/unit/%.c
	@mkdir -p $(@D)
	$(call say,CC )
	$(Q)$(CC) $(CFLAGS_ALL) $(if $(filter release,$(MODE)),-O2) -MMD -MP -c $< -o $@
$(O)/registry.o $(O)/commands.o $(O)/data.o: $(O)/%.o: $(O)/%.c
	$(call say,CC )
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
$(LIB): $(LIB_OBJ) $(O)/registry.o $(O)/data.o
	@rm -f $@
	$(call say,AR )
	$(Q)$(AR) rcs $@ $^
$(O)/systole: $(APP_OBJ) $(LIB)
	$(call say,LD )
	$(Q)$(CC) $(CFLAGS_ALL) $(APP_OBJ) $(LIB) $(LDLIBS) $(LDFLAGS) -o $@
$(O)/test/unit/%: $(O)/test/unit/%.o $(LIB)
	$(call say,LD )
	$(Q)$(CC) $(CFLAGS_ALL) $< $(LIB) -lcmocka $(LDLIBS) $(LDFLAGS) -o $@
$(O)/test/unit/app_%: $(O)/test/unit/app_%.o $(filter-out %/app/main.o,$(APP_OBJ)) $(LIB)
	$(call say,LD )
	$(Q)$(CC) $(CFLAGS_ALL) $^ -lcmocka $(LDLIBS) $(LDFLAGS) -o $@
build/fuzz/test/fuzz/%: build/fuzz/test/fuzz/%.o build/fuzz/libsystole.a
	$(call say,LD )
	$(Q)clang $(CFLAGS_ALL) -fsanitize=fuzzer $^ $(LDLIBS) -o $@

.PRECIOUS: $(O)/%.o
-include $(shell find $(O) -name '*.d' 2>/dev/null)

# ---- tests -----------------------------------------------------------------------------------------------------
# Every suite ends with one line "N passed, N failed, N skipped" and fails when one did.

E2E  := $(wildcard test/e2e/*.py test/e2e/*.sh)
PJRT := $(wildcard test/e2e/pjrt*.py)
JOBS ?= $(shell nproc)
SUB  := $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(JOBS))
unit  = $(patsubst test/unit/%.c,$(1)/test/unit/%,$(2))
SAN_ENV := ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
           TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

.PHONY: test-programs check check-unit check-e2e check-pjrt check-san check-tsan check-alloc check-clang \
        check-generic check-arm check-docs fuzz fuzz-programs tidy
test-programs: $(O)/systole $(UNIT_BIN)
check:
	@sh tools/packages.sh check --install
	@$(SUB) MODE=release O=build/release test-programs
	@SYSTOLE=build/release/systole tools/check.sh build/release/log $(call unit,build/release,$(UNIT_SRC)) $(E2E)
check-unit: $(UNIT_BIN)
	@tools/check.sh $(O)/log $(UNIT_BIN)
check-e2e: $(O)/systole
	@SYSTOLE=$(O)/systole tools/check.sh $(O)/log $(E2E)
# All golden models through a PJRT plugin; check-e2e takes one for each kind of layer.
check-pjrt: $(O)/systole
	@PJRT_EVERY=1 TEST_SECONDS=$${TEST_SECONDS:-3000} SYSTOLE=$(O)/systole tools/check.sh $(O)/log $(PJRT)
# The same tests under AddressSanitizer and UBSan; those that drive threads under ThreadSanitizer.
SLOW     = TEST_SECONDS=$${TEST_SECONDS:-900} SOAK_SECONDS=20
SAN_E2E := $(filter-out $(PJRT) $(addprefix test/e2e/,docs.sh real.py serve_openai.py serve_schema.py studies.py),$(E2E))
check-san:
	@$(SUB) MODE=san O=build/san test-programs
	@$(SAN_ENV) $(SLOW) GOLDEN_ROTATE=1 SYSTOLE=build/san/systole SYSTOLE_TEST_SLOWER=10 \
	  tools/check.sh build/san/log $(call unit,build/san,$(UNIT_SRC)) $(SAN_E2E)
THREADED := $(filter test/unit/cpu_pool.c test/unit/engine_% test/unit/serve_% test/unit/text_tokenizer.c,$(UNIT_SRC))
THREADED_E2E := $(addprefix test/e2e/,chat.py serve_api.py serve_http.py serve_stress.py)
check-tsan:
	@$(SUB) MODE=tsan O=build/tsan $(call unit,build/tsan,$(THREADED)) build/tsan/systole
	@$(SAN_ENV) $(SLOW) GOLDEN_ROTATE=1 SYSTOLE=build/tsan/systole SYSTOLE_TEST_SLOWER=20 \
	  tools/check.sh build/tsan/log $(call unit,build/tsan,$(THREADED)) $(THREADED_E2E)
# The whole program with the n-th allocation failing, for every n.
check-alloc:
	@$(SUB) MODE=release O=build/release all
	@$(SLOW) SYSTOLE=build/release/systole tools/check.sh build/release/log-alloc test/alloc/alloc.py
check-clang:
	@$(SUB) CC=clang MODE=release O=build/clang test-programs
	@SYSTOLE=build/clang/systole tools/check.sh build/clang/log $(call unit,build/clang,$(UNIT_SRC)) test/e2e/usage.py
# Portable kernels only, then the same sources on another architecture.
KERNEL_USERS := $(filter test/unit/cpu_% test/unit/engine_%,$(UNIT_SRC))
check-generic:
	@$(SUB) MODE=release O=build/release test-programs
	@$(SLOW) SYSTOLE_ISA=generic SYSTOLE=build/release/systole \
	  tools/check.sh build/release/log-generic $(call unit,build/release,$(KERNEL_USERS)) test/e2e/golden.py
check-arm:
	@tools/check_arm.sh
check-docs:
	@$(SUB) MODE=release O=build/release all
	@SYSTOLE=build/release/systole tools/check.sh build/release/log test/e2e/docs.sh

FUZZ_SECONDS ?= 60
fuzz:
	@$(SUB) MODE=fuzz O=build/fuzz CC=clang fuzz-programs
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/fuzz.sh $(FUZZ_BIN)
fuzz-programs: $(FUZZ_BIN)
tidy:
	@tools/tidy.sh
.PHONY: bench-published
bench-published: release
	@build/release/systole plan published --simulate 1

# ---- the rest --------------------------------------------------------------------------------------------------

PREFIX  ?= /usr/local
DESTDIR ?=
MAN     := build/man
.PHONY: demo install man help clean
demo:
	@sh tools/demo.sh
man: release
	@rm -rf $(MAN) && mkdir -p $(MAN) && build/release/systole help --man $(MAN)
install: man
	@PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) VERSION=$(VERSION) PKGS="$(PKGS)" sh tools/install.sh
clean:
	rm -rf build
help:
	@sed -n 's/^#: \{0,1\}//p' Makefile

