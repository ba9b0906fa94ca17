/* SPDX-License-Identifier: Apache-2.0 */
/* The binary interface of libtierce and of plug-ins is that of abi.def and functions.h. */
#include "check_main.h"

#include "functions.h"

#include <stddef.h>
#include <tierce/plugin.h>
#include <tierce/plugin_codec.h>
#include <tierce/plugin_policy.h>
#include <tierce/tierce.h>

_Static_assert(sizeof(void *) == 8 && sizeof(long) == 8 && sizeof(bool) == 1, "not LP64");

#define TIERCE_STRUCT(type, bytes)                                                                 \
    _Static_assert(sizeof(struct type) == (bytes), "struct " #type " has another size");
#define TIERCE_MEMBER(type, member, at, bytes)                                                     \
    _Static_assert(offsetof(struct type, member) == (at) &&                                        \
                       sizeof(((struct type *)0)->member) == (bytes),                              \
                   "struct " #type ": " #member " has moved");
#define TIERCE_CONSTANT(name, value)                                                               \
    _Static_assert((long long)(name) == (value), #name " has another value");
#define TIERCE_TEXT(code, symbol, text)
#define TIERCE_REASON(number, name, words)
#include "abi.def"
#undef TIERCE_STRUCT
#undef TIERCE_MEMBER
#undef TIERCE_CONSTANT
#undef TIERCE_TEXT
#undef TIERCE_REASON

#define TIERCE_STRUCT(type, bytes)
#define TIERCE_MEMBER(type, member, at, bytes)
#define TIERCE_CONSTANT(name, value)

static const struct {
    int code;
    const char *symbol, *text;
} texts[] = {
#define TIERCE_REASON(number, name, words)
#define TIERCE_TEXT(code, symbol, text) {code, symbol, text},
#include "abi.def"
#undef TIERCE_TEXT
#undef TIERCE_REASON
};

static const struct {
    int number;
    const char *name, *words;
} reasons[] = {
#define TIERCE_TEXT(code, symbol, text)
#define TIERCE_REASON(number, name, words) {number, name, words},
#include "abi.def"
#undef TIERCE_TEXT
#undef TIERCE_REASON
};

START_TEST(errors_keep_their_texts)
{
    ck_assert_str_eq(tierce_error_name(texts[_i].code), texts[_i].symbol);
    ck_assert_str_eq(tierce_strerror(texts[_i].code), texts[_i].text);
}
END_TEST

START_TEST(reasons_keep_their_names)
{
    enum tierce_miss_reason reason = (enum tierce_miss_reason)reasons[_i].number;
    ck_assert_str_eq(tierce_miss_name(reason), reasons[_i].name);
    ck_assert_str_eq(tierce_miss_text(reason), reasons[_i].words);
}
END_TEST

CHECK_MAIN("frozen_abi",
           .loops = {{errors_keep_their_texts, 0, (int)(sizeof(texts) / sizeof(texts[0]))},
                     {reasons_keep_their_names, 0, (int)(sizeof(reasons) / sizeof(reasons[0]))}})
