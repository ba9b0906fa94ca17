/* SPDX-License-Identifier: Apache-2.0 */
#include "meta_conformance.h"

#include "check_main.h"

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
    return check_main(meta_conformance(&memory));
}
