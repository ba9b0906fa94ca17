/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "base/assert.h"
#include "router/router_body.h"

/* Bodies of requests to the router index. The first byte chooses the type: odd, MessagePack. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NUMBERS_MAX 1000u

static void read_numbers(const struct tierce__router_body *body, enum tierce__router_array which)
{
    uint64_t *numbers = NULL;
    int64_t count = tierce__router_body_numbers(&numbers, body, which, NUMBERS_MAX);
    TIERCE_ASSERT(count != 0 && count <= NUMBERS_MAX && (count > 0) == (numbers != NULL));
    for (int64_t i = 0; i < count; i++)
        TIERCE_ASSERT(which != TIERCE__ROUTER_TOKENS || numbers[i] <= UINT32_MAX);
    tierce__free(numbers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tierce__router_body body;
    const char *why = NULL;
    if (size == 0)
        return 0;
    if (tierce__router_body_read(&body, data + 1, size - 1, (data[0] & 1) != 0, &why) != 0) {
        TIERCE_ASSERT(why != NULL);
        return 0;
    }
    TIERCE_ASSERT(tierce__json_value_kind(body.rest.value) == '{');
    for (unsigned i = 0; i < TIERCE__ROUTER_ARRAYS; i++)
        read_numbers(&body, (enum tierce__router_array)i);
    tierce__router_body_close(&body);
    return 0;
}
