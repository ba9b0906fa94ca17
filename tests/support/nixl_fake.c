/* SPDX-License-Identifier: Apache-2.0 */
/* A library with the functions of NIXL's and the text of another version, or of none. Only its
 * version is looked at. */
#include "store/remote/nixl/nixl_library.h"

extern const char nixl_fake_version[];
#ifdef NIXL_FAKE_VERSION
const char nixl_fake_version[] = "NIXL version: \0" NIXL_FAKE_VERSION;
#else
const char nixl_fake_version[] = "";
#endif

#define TIERCE_NIXL_CALL(name, arguments)                                                          \
    int nixl_capi_##name arguments;                                                                \
    int nixl_capi_##name arguments                                                                 \
    {                                                                                              \
        return -1;                                                                                 \
    }
#include "store/remote/nixl/nixl_calls.def"
#undef TIERCE_NIXL_CALL
