/* plugin.h - a PJRT plugin: opened, checked, and its calls as functions that return our errors. Private to this
 * folder. One thread per plugin. A plugin stays loaded until the process ends: none of those tried survives
 * dlclose(). */
#pragma once
#include "backend/pjrt/api.h"
#include "base/buf.h"

enum pj_elem {
    PJ_PRED,
    PJ_I4,
    PJ_U4,
    PJ_I8,
    PJ_U8,
    PJ_I32,
    PJ_F16,
    PJ_BF16,
    PJ_F32,
    PJ_E2M1, /* these three only inside programs: buffers hold them as integers */
    PJ_E4M3,
    PJ_E5M2,
    PJ_ELEM_COUNT
};
enum { PJ_DIM_MAX = 6 };
struct pj_type {
    enum pj_elem elem;
    int n_dim;
    int64_t dim[PJ_DIM_MAX];
};
const char *pj_elem_name(enum pj_elem);        /* as StableHLO writes it: "bf16" */
int pj_elem_bits(enum pj_elem);                /* on the device; a host holds 4-bit values one per byte */
int64_t pj_type_count(const struct pj_type *); /* elements */
int64_t pj_type_bytes(const struct pj_type *); /* on the host */
double pj_type_device_bytes(const struct pj_type *);

enum { PJ_RANK_MAX = 64 };
struct pj_plugin {
    const struct pj_api *api;
    void *handle;
    char path[192]; /* for messages: cut when longer */
};
/* Refuses, each with one line: no such file, not a shared library, not a plugin, a version that cannot be used. */
SY_CHECK sy_status pj_plugin_open(struct pj_plugin *, const char *path, struct sy_err *);
/* Calls the plugin; doing completes "plugin 'x.so', <doing>: " before the plugin's own first line. */
SY_CHECK sy_status pj_call(const struct pj_plugin *, enum pj_slot, void *args, const char *doing, struct sy_err *);

/* Bytes of a CompileOptionsProto for n_replica replicas of one partition; returns how many. */
size_t pj_compile_options(int n_replica, char out[32]);

struct pj_client {
    struct pj_plugin plugin;
    const struct sy_env *env;
    void *client;
    void *const *device; /* [n_device], the plugin's */
    size_t n_device;
    char platform[32], version[160], kind[64];
    int64_t n_compiled;    /* programs, since it was opened; those found in the cache are not among them */
    const char *cache_dir; /* NULL: no compile cache */
};
/* Refuses when there are fewer devices than that; of the CPU plugin as many virtual ones are asked for. */
SY_CHECK sy_status pj_client_open(const struct sy_env *, const char *path, int n_device, struct pj_client *,
                                  struct sy_err *);
void pj_client_close(struct pj_client *);           /* a zeroed one is fine */
int64_t pj_client_memory(const struct pj_client *); /* of device 0; 0: the plugin does not say */

/* What a program in the cache was compiled by, and for what. */
struct pj_origin {
    const char *platform, *kind, *version;
    int n_replica;
};
void pj_origin_text(const struct pj_plugin *, const struct pj_origin *, char *text, size_t n);
/* The caller frees it by PJ_Executable_Destroy. */
SY_CHECK sy_status pj_executable_of(const struct pj_plugin *, void *loaded, void **out, struct sy_err *);
/* Into the cache. False: the plugin cannot write it down, or the folder cannot take it. */
struct pj_key;
bool pj_executable_keep(const struct sy_env *, const struct pj_plugin *, void *executable, const char *dir,
                        const struct pj_key *);
/* One executable of a text; compiled, or found in the cache (cache.c). */
SY_CHECK sy_status pj_compile(struct pj_client *, const char *text, size_t n, int n_replica, void **out,
                              struct sy_err *);
void pj_executable_free(const struct pj_client *, void *executable); /* NULL is fine */
/* args and out: [n_replica][n], handles of buffers. Waits until all devices are done. Out's are the caller's. */
SY_CHECK sy_status pj_execute(const struct pj_client *, void *executable, int n_replica, void *const *const *args,
                              size_t n_arg, void **const *out, struct sy_err *);
SY_CHECK sy_status pj_upload(const struct pj_client *, int device, const struct pj_type *, const void *data,
                             void **out, struct sy_err *);
SY_CHECK sy_status pj_download(const struct pj_client *, void *buffer, void *data, size_t n_bytes, struct sy_err *);
void pj_buffer_free(const struct pj_client *, void *buffer); /* NULL is fine */
