/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/text/url.h"
#include "store/remote/s3/s3_private.h"
#include "store/remote/s3/s3_xml.h"

#include <stdio.h>
#include <string.h>

/* An answer of S3: parsed texts lie within its limits, and a key that is a valid name decodes to
 * that name. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct look {
    char first[TIERCE__S3_XML_TEXT_MAX + 1];
    char path[256];
    bool any;
};

static bool look_at(void *arg, const char *path, const char *text, size_t bytes)
{
    struct look *look = arg;
    char name[TIERCE__CONNECTOR_NAME_MAX], key[TIERCE__S3_KEY_BYTES];
    size_t name_bytes = 0;
    TIERCE_ASSERT(strlen(path) > 0 && strlen(path) < sizeof(look->path));
    TIERCE_ASSERT(strlen(text) == bytes && bytes <= TIERCE__S3_XML_TEXT_MAX);
    if (!look->any) {
        memcpy(look->first, text, bytes + 1);
        memcpy(look->path, path, strlen(path) + 1);
    }
    look->any = true;
    for (int has_paths = 0; has_paths < 2; has_paths++) {
        if (!tierce__s3_name(name, &name_bytes, "", has_paths, text))
            continue;
        struct tierce_plugin_name found = {.text = name, .bytes = name_bytes};
        TIERCE_ASSERT(name_bytes > 0 && name_bytes <= sizeof(name));
        tierce__s3_key(key, "", has_paths, &found);
        TIERCE_ASSERT(strcmp(key, text) == 0);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct look look = {.any = false};
    char text[TIERCE__S3_XML_TEXT_MAX + 1];
    int rc = tierce__s3_xml_read((const char *)data, size, look_at, &look);
    TIERCE_ASSERT(rc == 0 ? look.any : rc == TIERCE_E_FORMAT);
    if (rc == 0) {
        rc = tierce__s3_xml_find(text, sizeof(text), (const char *)data, size, look.path);
        TIERCE_ASSERT(rc == 0 && strcmp(text, look.first) == 0);
        if (tierce__url_decode(text, true))
            TIERCE_ASSERT(strlen(text) <= strlen(look.first));
    }
    return 0;
}
