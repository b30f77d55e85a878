# Systole. `make` builds build/release/systole; `make help` lists the targets.
#
# Nothing is registered by hand: a file in a folder is found by wildcard, and tools/registry.sh writes the
# tables of models, storage formats, backends, kernels and commands. Objects of one MODE live in build/MODE.
#   make MODE=debug|release|san|tsan      DIRS="base text" restricts the library to those folders

MODE ?= release
O    ?= build/$(MODE)
ifeq ($(origin CC),default)
CC   := gcc
endif
DIRS ?= base graph quant checkpoint text model comm backend engine serve bench

VERSION  := 0.1.0
PKGS     := jansson libpcre2-8 libutf8proc libcurl libedit libcrypto
PKGFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKGLIBS  := $(shell pkg-config --libs $(PKGS) 2>/dev/null || echo -ljansson -lpcre2-8 -lutf8proc -lcurl -ledit -lcrypto)

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
ARCH  := $(shell $(CC) -dumpmachine | cut -d- -f1)
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

.PHONY: all release debug help FORCE
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
FORCE:

# V=1 shows the commands.
ifeq ($(V),)
Q   := @
say  = @echo "  $(1) $@"
endif

define isa_rule
$(O)/$(KDIR)/$(1)/%.o: $(KDIR)/$(1)/%.c
	@mkdir -p $$(@D)
	$$(call say,CC )
	$$(Q)$$(CC) $$(CFLAGS_ALL) $(ISA_FLAGS_$(1)) -MMD -MP -c $$< -o $$@
endef
$(foreach k,$(ISAS),$(eval $(call isa_rule,$(k))))

$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC )
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
$(O)/registry.o $(O)/commands.o: $(O)/%.o: $(O)/%.c
	$(call say,CC )
	$(Q)$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@
$(LIB): $(LIB_OBJ) $(O)/registry.o
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
