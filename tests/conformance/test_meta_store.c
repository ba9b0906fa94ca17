/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_conformance.h"

#include "check_main.h"
#include "meta_folder.h"

static void nothing(void) {}

static const char *memory_uri(void)
{
    return "";
}

int main(void)
{
    static const struct meta_factory memory = {.name = "memory",
                                               .ops = &tierce__meta_memory,
                                               .begin = nothing,
                                               .uri = memory_uri,
                                               .end = nothing};
    static const struct meta_factory rocksdb = {.name = "rocksdb",
                                                .ops = &tierce__meta_rocksdb,
                                                .is_durable = true,
                                                .begin = meta_folder_make,
                                                .uri = meta_folder_path,
                                                .end = meta_folder_remove};
    const struct meta_factory *const all[] = {&memory, &rocksdb};
    int failed = 0;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        failed |= check_main(meta_conformance(all[i]));
    return failed;
}
