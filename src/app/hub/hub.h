/* hub.h - models by name: the cache on disk, and pulling from a model hub that speaks Hugging Face's protocol.
 *
 * Cache: $SYSTOLE_HOME (default ~/.cache/systole). hub/org/name/ holds what was pulled, models/ what the user put
 * there. A file has its final name only once it is complete and its digest was checked; until then it is FILE.part,
 * which an interrupted pull continues. hub/org/name/.complete names what to open when a whole repository was pulled.
 */
#pragma once
#include "app/app.h"
#include "base/buf.h"

/* What -m says, as a path: itself, or for hf:org/name[:file] the copy in the cache, pulled first when there is none.
 * *path lives in the arguments' arena. */
SY_CHECK sy_status sy_model_path(struct sy_args *, const char *model, const char **path, struct sy_err *);
SY_CHECK sy_status sy_cache_home(struct sy_arena *, const char **dir, struct sy_err *);
SY_CHECK sy_status sy_dir_make(const char *path, struct sy_err *); /* with its parents; there already is fine */

struct sy_repo {
    char id[200];     /* "org/name" */
    const char *file; /* borrowed from the text; NULL: the whole model */
    const char *dir;  /* of its copy in the cache */
};
bool sy_repo_named(const char *model); /* starts with hf: */
SY_CHECK sy_status sy_repo_parse(struct sy_arena *, const char *model, struct sy_repo *, struct sy_err *);
/* The path of the copy in the cache, *path = NULL when it is not (all) there. */
SY_CHECK sy_status sy_repo_cached(struct sy_arena *, const struct sy_repo *, const char **path, struct sy_err *);
/* Fetches what is missing, checks all of it, and gives the path. */
SY_CHECK sy_status sy_repo_pull(struct sy_args *, const struct sy_repo *, const char **path, struct sy_err *);

struct sy_cached {
    const char *model; /* as -m takes it */
    const char *kind, *path;
    int64_t bytes;
    bool incomplete; /* an interrupted pull left parts */
};
/* Calls each for every model in the cache. */
SY_CHECK sy_status sy_cache_each(struct sy_arena *, void (*each)(void *ctx, const struct sy_cached *), void *ctx,
                                 struct sy_err *);

/* "x-00002-of-00005.gguf": number 2 of 5, and the length of what precedes "-00002". False: not a shard. */
bool sy_shard_name(const char *path, int *number, int *count, size_t *n_stem);

/* ---- the repository's listing --------------------------------------------------------------------------- */

struct sy_hub_file {
    const char *path; /* checked: relative, below the repository */
    int64_t bytes;
    bool lfs; /* digest: SHA-256 of the bytes; else git's SHA-1 of the blob */
    char digest[65];
    bool wanted;
};
struct sy_listing {
    struct sy_hub_file *file;
    size_t n, cap;
};
/* Appends one page of GET /api/models/org/name/tree/main. Refuses paths that would leave the folder. */
SY_CHECK sy_status sy_listing_add(struct sy_arena *, const struct sy_env *, const char *json, size_t n,
                                  struct sy_listing *, struct sy_err *);
/* Marks what opening the model needs; *open is what to open, relative to the repository ("." for a folder). */
SY_CHECK sy_status sy_listing_choose(struct sy_listing *, const struct sy_repo *, const char **open, struct sy_err *);

/* ---- HTTP (libcurl) and digests (libcrypto) ------------------------------------------------------------- */

struct sy_http;
SY_CHECK sy_status sy_http_new(const struct sy_env *, struct sy_http **out, struct sy_err *);
void sy_http_free(struct sy_http *);
/* url: below HF_ENDPOINT when it starts with '/'. link_next: the page that follows, or empty. Retries what is worth
 * it. */
SY_CHECK sy_status sy_http_text(struct sy_http *, const char *url, const char *repo, struct sy_buf *out,
                                char *link_next, size_t n_link_next, struct sy_err *);
struct sy_sink {                                           /* where a download goes; bytes come in order */
    int64_t have, total;                                   /* total is known: more bytes than that are refused */
    bool (*write)(void *ctx, const void *bytes, size_t n); /* false: *err_no says why */
    bool (*restart)(void *ctx);                            /* forget everything: the server cannot resume */
    void *ctx;
    int err_no;
};
SY_CHECK sy_status sy_http_download(struct sy_http *, const char *url, const char *repo, struct sy_sink *,
                                    struct sy_err *);
void sy_url_path(struct sy_buf *, const char *path); /* appends, percent-encoded but for '/' */

struct sy_digest;
struct sy_digest *sy_digest_new(const struct sy_hub_file *); /* NULL: no memory */
void sy_digest_free(struct sy_digest *);
void sy_digest_restart(struct sy_digest *);
void sy_digest_feed(struct sy_digest *, const void *bytes, size_t n);
bool sy_digest_matches(struct sy_digest *, char found[static 65]); /* once, at the end */
