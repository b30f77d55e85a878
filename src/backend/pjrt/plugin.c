/* plugin.c - opening a PJRT plugin and calling it. */
#include "backend/pjrt/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/pjrt/cache.h"
#include "base/file.h"

static const struct elem {
    const char *name;
    int bits, type;
} elems[PJ_ELEM_COUNT] = {
    [PJ_PRED] = {"i1", 8, PJ_TYPE_PRED}, [PJ_I4] = {"i4", 4, PJ_TYPE_S4},        [PJ_U4] = {"ui4", 4, PJ_TYPE_U4},
    [PJ_I8] = {"i8", 8, PJ_TYPE_S8},     [PJ_U8] = {"ui8", 8, PJ_TYPE_U8},       [PJ_I32] = {"i32", 32, PJ_TYPE_S32},
    [PJ_F16] = {"f16", 16, PJ_TYPE_F16}, [PJ_BF16] = {"bf16", 16, PJ_TYPE_BF16}, [PJ_F32] = {"f32", 32, PJ_TYPE_F32},
    [PJ_E2M1] = {"f4E2M1FN", 4, 0},      [PJ_E4M3] = {"f8E4M3FN", 8, 0},         [PJ_E5M2] = {"f8E5M2", 8, 0},
};
const char *pj_elem_name(enum pj_elem e) { return elems[e].name; }
int pj_elem_bits(enum pj_elem e) { return elems[e].bits; }

int64_t pj_type_count(const struct pj_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++) n *= t->dim[i];
    return n;
}

int64_t pj_type_bytes(const struct pj_type *t)
{
    return pj_type_count(t) * (elems[t->elem].bits < 8 ? 1 : elems[t->elem].bits / 8);
}

double pj_type_device_bytes(const struct pj_type *t) { return (double)pj_type_count(t) * elems[t->elem].bits / 8; }

/* ---- opening ------------------------------------------------------------------------------------------------ */

static sy_status check_api(struct pj_plugin *p, struct sy_err *err)
{
    const struct pj_api *a = p->api;
    size_t need = offsetof(struct pj_api, call) + sizeof(pj_fn) * (PJ_SLOT_MAX + 1);
    if (!a || a->struct_size < offsetof(struct pj_api, call))
        return sy_fail(err, SY_ENOSUP, "plugin '%s': GetPjrtApi() gives no table of functions", p->path);
    if (a->major_version != PJ_MAJOR)
        return sy_fail(err, SY_ENOSUP,
                       "plugin '%s' is too new: it has PJRT API %d.%d, expected %d.x; use an older plugin or a newer "
                       "systole",
                       p->path, a->major_version, a->minor_version, PJ_MAJOR);
    if (a->minor_version < PJ_MINOR_MIN || a->struct_size < need)
        return sy_fail(err, SY_ENOSUP,
                       "plugin '%s' is too old: it has PJRT API %d.%d of %zu bytes, expected 0.%d or newer of %zu "
                       "bytes at least; use a newer plugin",
                       p->path, a->major_version, a->minor_version, a->struct_size, PJ_MINOR_MIN, need);
    for (int i = 0; i <= PJ_SLOT_MAX; i++)
        if (!a->call[i]) return sy_fail(err, SY_ENOSUP, "plugin '%s': function %d is missing", p->path, i);
    return SY_OK;
}

sy_status pj_plugin_open(struct pj_plugin *p, const char *path, struct sy_err *err)
{
    *p = (struct pj_plugin){0};
    snprintf(p->path, sizeof p->path, "%s", path);
    if (!sy_file_exists(path))
        return sy_fail(err, SY_ENOSUP,
                       "plugin '%s': no such file%s; expected the path of a PJRT plugin's shared library", p->path,
                       access(path, F_OK) ? "" : ", but a folder or the like");
    /* XLA logs to stderr unless told not to before it is loaded; whoever sets the level keeps it. Engines are opened
     * while the program has one thread. */
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
    /* libtpu asks the cloud's metadata server, for minutes where there is none: only a machine with a TPU has one. */
    if (access("/dev/accel0", F_OK) && access("/dev/vfio", F_OK)) setenv("TPU_SKIP_MDS_QUERY", "1", 0);
    p->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!p->handle) {
        const char *why = dlerror();
        return sy_fail(err, SY_ENOSUP, "plugin '%s' is no shared library that can be loaded here: %.200s", p->path,
                       why ? why : "unknown error");
    }
    union { /* ISO C has no conversion of an object pointer to a function pointer */
        void *object;
        const struct pj_api *(*get)(void);
    } entry = {.object = dlsym(p->handle, "GetPjrtApi")};
    if (!entry.object) return sy_fail(err, SY_ENOSUP, "'%s' is no PJRT plugin: it exports no GetPjrtApi", p->path);
    p->api = entry.get();
    sy_status st = check_api(p, err);
    struct pj_Plugin_Initialize_Args init = {.struct_size = sizeof init};
    return st ? st : pj_call(p, PJ_Plugin_Initialize, &init, "initialising", err);
}

/* ---- calls -------------------------------------------------------------------------------------------------- */

static sy_status status_of(int code)
{
    switch (code) {
    case PJ_RESOURCE_EXHAUSTED: return SY_ENOMEM;
    case PJ_UNIMPLEMENTED: return SY_ENOSUP;
    default: return SY_EIO;
    }
}

/* The plugin's message up to its first line's end. */
static size_t first_line(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && i < 300 && s[i] != '\n' && s[i] != '\0') i++;
    return i;
}

sy_status pj_call(const struct pj_plugin *p, enum pj_slot slot, void *args, const char *doing, struct sy_err *err)
{
    void *error = p->api->call[slot](args);
    if (!error) return SY_OK;
    struct pj_Error_GetCode_Args code = {.struct_size = sizeof code, .error = error};
    void *second = p->api->call[PJ_Error_GetCode](&code);
    struct pj_Error_Message_Args m = {.struct_size = sizeof m, .error = error};
    p->api->call[PJ_Error_Message](&m);
    sy_status st = sy_fail(err, second ? SY_EIO : status_of(code.code), "plugin '%s', %s: %.*s", p->path, doing,
                           (int)first_line(m.message, m.message_size), m.message ? m.message : "");
    struct pj_Error_Destroy_Args d = {.struct_size = sizeof d, .error = error};
    p->api->call[PJ_Error_Destroy](&d);
    d.error = second;
    if (second) p->api->call[PJ_Error_Destroy](&d);
    return st;
}

static sy_status await(const struct pj_plugin *p, void *event, const char *doing, struct sy_err *err)
{
    if (!event) return SY_OK;
    struct pj_Event_Await_Args w = {.struct_size = sizeof w, .event = event};
    sy_status st = pj_call(p, PJ_Event_Await, &w, doing, err);
    struct pj_Event_Destroy_Args d = {.struct_size = sizeof d, .event = event};
    sy_status gone = pj_call(p, PJ_Event_Destroy, &d, doing, st ? NULL : err);
    return st ? st : gone;
}

/* ---- client --------------------------------------------------------------------------------------------------- */

static sy_status find_devices(struct pj_client *c, int n_device, struct sy_err *err)
{
    const struct pj_plugin *p = &c->plugin;
    struct pj_Client_AddressableDevices_Args dev = {.struct_size = sizeof dev, .client = c->client};
    sy_status st = pj_call(p, PJ_Client_AddressableDevices, &dev, "listing devices", err);
    if (st) return st;
    size_t want = n_device > 0 ? (size_t)n_device : 1;
    if (dev.num_addressable_devices < want)
        return sy_fail(err, SY_ENOSUP, "plugin '%s': expected %zu devices of this process, found %zu", p->path, want,
                       dev.num_addressable_devices);
    c->device = dev.addressable_devices;
    c->n_device = dev.num_addressable_devices;
    struct pj_Device_GetDescription_Args d = {.struct_size = sizeof d, .device = c->device[0]};
    st = pj_call(p, PJ_Device_GetDescription, &d, "describing the device", err);
    if (st) return st;
    struct pj_DeviceDescription_Kind_Args k = {.struct_size = sizeof k, .device_description = d.device_description};
    st = pj_call(p, PJ_DeviceDescription_Kind, &k, "describing the device", err);
    if (!st) snprintf(c->kind, sizeof c->kind, "%.*s", (int)k.device_kind_size, k.device_kind);
    return st;
}

static sy_status describe(struct pj_client *c, struct sy_err *err)
{
    struct pj_Client_PlatformName_Args n = {.struct_size = sizeof n, .client = c->client};
    sy_status st = pj_call(&c->plugin, PJ_Client_PlatformName, &n, "naming its platform", err);
    if (st) return st;
    snprintf(c->platform, sizeof c->platform, "%.*s", (int)n.platform_name_size, n.platform_name);
    struct pj_Client_PlatformVersion_Args v = {.struct_size = sizeof v, .client = c->client};
    st = pj_call(&c->plugin, PJ_Client_PlatformVersion, &v, "naming its version", err);
    if (!st) snprintf(c->version, sizeof c->version, "%.*s", (int)v.platform_version_size, v.platform_version);
    return st;
}

static sy_status create(struct pj_client *c, const struct pj_NamedValue *option, size_t n_option, struct sy_err *err)
{
    struct pj_Client_Create_Args a = {.struct_size = sizeof a, .create_options = option, .num_options = n_option};
    sy_status st = pj_call(&c->plugin, PJ_Client_Create, &a, "opening the device", err);
    if (st == SY_EIO && err) err->code = st = SY_ENOSUP; /* no device is what it says then */
    if (!st) c->client = a.client;
    return st ? st : describe(c, err);
}

sy_status pj_client_open(const struct sy_env *env, const char *path, int n_device, struct pj_client *c,
                         struct sy_err *err)
{
    static const char name[] = "cpu_device_count";
    *c = (struct pj_client){.env = env};
    sy_status st = pj_plugin_open(&c->plugin, path, err);
    if (st) return st;
    struct pj_NamedValue count = {.struct_size = sizeof count,
                                  .name = name,
                                  .name_size = sizeof name - 1,
                                  .type = PJ_VALUE_INT64,
                                  .int64_value = n_device,
                                  .value_size = 1};
    st = create(c, NULL, 0, err);
    if (!st && n_device > 1 && !strcmp(c->platform, "cpu")) { /* others would not know the option */
        pj_client_close(c);
        st = create(c, &count, 1, err);
    }
    if (!st) st = find_devices(c, n_device, err);
    if (st) pj_client_close(c);
    return st;
}

void pj_client_close(struct pj_client *c)
{
    if (!c->client) return;
    struct pj_Client_Destroy_Args d = {.struct_size = sizeof d, .client = c->client};
    (void)!pj_call(&c->plugin, PJ_Client_Destroy, &d, "closing", NULL);
    c->client = NULL;
}

int64_t pj_client_memory(const struct pj_client *c)
{
    struct pj_Device_MemoryStats_Args m = {.struct_size = sizeof m, .device = c->device[0]};
    if (pj_call(&c->plugin, PJ_Device_MemoryStats, &m, "asking for its memory", NULL)) return 0;
    return m.bytes_limit_is_set ? m.bytes_limit : 0;
}

/* ---- programs and buffers ---------------------------------------------------------------------------------- */

size_t pj_compile_options(int n_replica, char out[32])
{
    /* executable_build_options (field 3) { num_replicas (4), num_partitions (5): 1 } */
    char inner[16];
    size_t n = 0, at = 0;
    inner[n++] = 0x20;
    for (unsigned v = (unsigned)n_replica;; v >>= 7) {
        inner[n++] = (char)((v & 127) | (v > 127 ? 128 : 0));
        if (v <= 127) break;
    }
    inner[n++] = 0x28;
    inner[n++] = 1;
    out[at++] = 0x1a;
    out[at++] = (char)n;
    memcpy(out + at, inner, n);
    return at + n;
}

void pj_executable_free(const struct pj_client *c, void *executable)
{
    if (!executable) return;
    struct pj_LoadedExecutable_Destroy_Args d = {.struct_size = sizeof d, .executable = executable};
    (void)!pj_call(&c->plugin, PJ_LoadedExecutable_Destroy, &d, "freeing a program", NULL);
}

sy_status pj_execute(const struct pj_client *c, void *executable, int n_replica, void *const *const *args,
                     size_t n_arg, void **const *out, struct sy_err *err)
{
    void *done[PJ_RANK_MAX] = {0};
    sy_assert(n_replica <= PJ_RANK_MAX);
    struct pj_ExecuteOptions o = {.struct_size = sizeof o};
    struct pj_LoadedExecutable_Execute_Args a = {.struct_size = sizeof a,
                                                 .executable = executable,
                                                 .options = &o,
                                                 .argument_lists = args,
                                                 .num_devices = (size_t)n_replica,
                                                 .num_args = n_arg,
                                                 .output_lists = out,
                                                 .device_complete_events = done};
    sy_status st = pj_call(&c->plugin, PJ_LoadedExecutable_Execute, &a, "running a step", err);
    for (int i = 0; !st && i < n_replica; i++) {
        sy_status one = await(&c->plugin, done[i], "running a step", st ? NULL : err);
        if (!st) st = one;
    }
    return st;
}

sy_status pj_upload(const struct pj_client *c, int device, const struct pj_type *t, const void *data, void **out,
                    struct sy_err *err)
{
    struct pj_Client_BufferFromHostBuffer_Args a = {.struct_size = sizeof a,
                                                    .client = c->client,
                                                    .data = data,
                                                    .type = elems[t->elem].type,
                                                    .dims = t->dim,
                                                    .num_dims = (size_t)t->n_dim,
                                                    .device = c->device[device]};
    sy_status st = pj_call(&c->plugin, PJ_Client_BufferFromHostBuffer, &a, "copying to the device", err);
    if (st) return st;
    st = await(&c->plugin, a.done_with_host_buffer, "copying to the device", err);
    if (st) pj_buffer_free(c, a.buffer);
    else *out = a.buffer;
    return st;
}

sy_status pj_download(const struct pj_client *c, void *buffer, void *data, size_t n_bytes, struct sy_err *err)
{
    struct pj_Buffer_ToHostBuffer_Args a = {.struct_size = sizeof a, .src = buffer, .dst = data, .dst_size = n_bytes};
    sy_status st = pj_call(&c->plugin, PJ_Buffer_ToHostBuffer, &a, "copying from the device", err);
    return st ? st : await(&c->plugin, a.event, "copying from the device", err);
}

void pj_buffer_free(const struct pj_client *c, void *buffer)
{
    if (!buffer) return;
    struct pj_Buffer_Destroy_Args d = {.struct_size = sizeof d, .buffer = buffer};
    (void)!pj_call(&c->plugin, PJ_Buffer_Destroy, &d, "freeing memory", NULL);
}

/* ---- compiling ----------------------------------------------------------------------------------------------- */

void pj_origin_text(const struct pj_plugin *p, const struct pj_origin *o, char *text, size_t n)
{
    snprintf(text, n, "%s\n%s\n%s\nPJRT %d.%d\n%d replicas\n", o->platform, o->kind, o->version,
             p->api->major_version, p->api->minor_version, o->n_replica);
}

sy_status pj_executable_of(const struct pj_plugin *p, void *loaded, void **out, struct sy_err *err)
{
    struct pj_LoadedExecutable_GetExecutable_Args g = {.struct_size = sizeof g, .loaded_executable = loaded};
    sy_status st = pj_call(p, PJ_LoadedExecutable_GetExecutable, &g, "reading a program", err);
    if (!st) *out = g.executable;
    return st;
}

bool pj_executable_keep(const struct sy_env *env, const struct pj_plugin *p, void *executable, const char *dir,
                        const struct pj_key *key)
{
    struct pj_Executable_Serialize_Args s = {.struct_size = sizeof s, .executable = executable};
    if (pj_call(p, PJ_Executable_Serialize, &s, "storing a program", NULL)) return false;
    bool ok = pj_cache_write(env, dir, key, s.serialized_bytes, s.serialized_bytes_size);
    s.serialized_executable_deleter(s.serialized_executable);
    return ok;
}

static void keep(struct pj_client *c, const struct pj_key *key, void *loaded)
{
    struct pj_Executable_Destroy_Args d = {.struct_size = sizeof d};
    if (pj_executable_of(&c->plugin, loaded, &d.executable, NULL)) return;
    (void)pj_executable_keep(c->env, &c->plugin, d.executable, c->cache_dir, key);
    (void)!pj_call(&c->plugin, PJ_Executable_Destroy, &d, "freeing a program", NULL);
}

static void *find(struct pj_client *c, const struct pj_key *key)
{
    struct sy_buf b;
    sy_buf_init(&b, c->env, 0);
    struct pj_Executable_DeserializeAndLoad_Args a = {.struct_size = sizeof a, .client = c->client};
    if (pj_cache_read(c->env, c->cache_dir, key, &b)) {
        a.serialized_executable = b.at;
        a.serialized_executable_size = b.len;
        if (pj_call(&c->plugin, PJ_Executable_DeserializeAndLoad, &a, "loading a program", NULL))
            a.loaded_executable = NULL;
    }
    sy_buf_release(&b);
    return a.loaded_executable;
}

sy_status pj_compile(struct pj_client *c, const char *text, size_t n, int n_replica, void **out, struct sy_err *err)
{
    char options[32], target[512];
    size_t n_option = pj_compile_options(n_replica, options);
    struct pj_origin origin = {c->platform, c->kind, c->version, n_replica};
    pj_origin_text(&c->plugin, &origin, target, sizeof target);
    struct pj_key key = {target, text, n};
    *out = find(c, &key);
    if (*out) return SY_OK;
    char *copy = sy_new(c->env, n); /* the API takes it as not const */
    if (!copy) return sy_fail(err, SY_ENOMEM, "no memory for a program of %zu bytes", n);
    memcpy(copy, text, n);
    struct pj_Program p = {.struct_size = sizeof p, .code = copy, .code_size = n, .format = "mlir", .format_size = 4};
    struct pj_Client_Compile_Args a = {.struct_size = sizeof a,
                                       .client = c->client,
                                       .program = &p,
                                       .compile_options = options,
                                       .compile_options_size = n_option};
    sy_status st = pj_call(&c->plugin, PJ_Client_Compile, &a, "compiling", err);
    sy_delete(c->env, copy);
    if (st) return st;
    c->n_compiled++;
    if (c->cache_dir) keep(c, &key, a.executable);
    *out = a.executable;
    return SY_OK;
}
