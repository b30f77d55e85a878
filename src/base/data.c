#include "base/data.h"

#include <string.h>

const struct sy_data *sy_data_find(const char *path)
{
    for (const struct sy_data *d = sy_data_files; d->path; d++)
        if (!strcmp(d->path, path)) return d;
    return NULL;
}
