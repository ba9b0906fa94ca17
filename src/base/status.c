/* SPDX-License-Identifier: Apache-2.0 */
#include <tierce/status.h>
#include <tierce/version.h>

#include <stddef.h>
#include <string.h>

const char *tierce_version(void)
{
    return TIERCE_VERSION;
}

const char *tierce_strerror(int status)
{
    switch (status) {
    case 0:
        return "success";
#define TIERCE_ERROR(name, value, text)                                                            \
    case (value):                                                                                  \
        return text;
#include <tierce/errors.def>
#undef TIERCE_ERROR
    default:
        break;
    }
    /* strerrordesc_np returns constant storage, and NULL if the number is not an errno value. */
    const char *text = NULL;
    if (status > -4096 && status < 4096)
        text = strerrordesc_np(status < 0 ? -status : status);
    return text != NULL ? text : "unknown status";
}

const char *tierce_error_name(int status)
{
    switch (status) {
    case 0:
        return "OK";
#define TIERCE_ERROR(name, value, text)                                                            \
    case (value):                                                                                  \
        return "TIERCE_E_" #name;
#include <tierce/errors.def>
#undef TIERCE_ERROR
    default:
        break;
    }
    const char *name = NULL;
    if (status > -4096 && status < 4096)
        name = strerrorname_np(status < 0 ? -status : status);
    return name != NULL ? name : "UNKNOWN";
}
