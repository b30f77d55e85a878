/* layers.c - which layers see everything and which a window. */
#include <string.h>

#include "model/model.h"

/* "LLLG": one letter a layer, over and over; the last layer of all is global. */
static sy_status letters(struct sy_jread *r, const char *pattern, int32_t n_layer, bool *full)
{
    size_t n = strlen(pattern);
    if (n == 0 || strspn(pattern, "LG") != n)
        return sy_jread_refuse(r, SY_EFORMAT, "'sliding_window_pattern': expected a number or letters L and G");
    for (int32_t l = 0; l < n_layer; l++) full[l] = l == n_layer - 1 || pattern[(size_t)l % n] == 'G';
    return r->st;
}

sy_status sy_layers_open(struct sy_arena *a, struct sy_jread *r, int32_t n_layer, int32_t pattern, bool **out)
{
    const struct sy_json *types = sy_json_get(r->obj, "layer_types");
    const char *text = sy_json_text(sy_json_get(r->obj, "sliding_window_pattern"));
    bool *full = *out = sy_arena_array(a, (size_t)n_layer, sizeof *full);
    if (!full) return sy_jread_refuse(r, SY_ENOMEM, "no memory");
    if (!sy_json_is_array(types)) {
        if (text) return letters(r, text, n_layer, full);
        int64_t every = sy_jread_int_or(r, "_sliding_window_pattern", pattern, 1, 1 << 20);
        every = sy_jread_int_or(r, "sliding_window_pattern", every, 1, 1 << 20);
        for (int32_t l = 0; l < n_layer; l++) full[l] = (l + 1) % every == 0;
        return r->st;
    }
    if (sy_json_len(types) != (size_t)n_layer)
        return sy_jread_refuse(r, SY_EFORMAT, "'layer_types': expected %d entries, found %zu", n_layer,
                               sy_json_len(types));
    for (int32_t l = 0; l < n_layer; l++) {
        const char *type = sy_json_text(sy_json_at(types, (size_t)l));
        full[l] = type && !strcmp(type, "full_attention");
        if (!full[l] && (!type || strcmp(type, "sliding_attention") != 0))
            return sy_jread_refuse(r, SY_ENOSUP, "'layer_types'[%d]: '%s' is not supported", l, type ? type : "");
    }
    return r->st;
}
