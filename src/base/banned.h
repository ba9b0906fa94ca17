/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_BASE_BANNED_H
#define TIERCE_BASE_BANNED_H

/*
 * Included before every source of the library and the executable by the build. A call of one of
 * these functions does not compile: they write without a bound, read numbers without errors, keep
 * hidden state, or hand out storage that other threads overwrite.
 *
 * Instead: memcpy with a known length, snprintf, strtok_r, base/config/config_parse.h, localtime_r.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef strcpy
#undef strcat
#undef strncpy
#undef strncat
#undef sprintf
#undef vsprintf
#undef gets
#undef strtok
#undef atoi
#undef atol
#undef atoll
#undef atof
#undef localtime
#undef gmtime
#undef ctime
#undef asctime

#define strcpy(...)    tierce_banned_strcpy
#define strcat(...)    tierce_banned_strcat
#define strncpy(...)   tierce_banned_strncpy
#define strncat(...)   tierce_banned_strncat
#define sprintf(...)   tierce_banned_sprintf
#define vsprintf(...)  tierce_banned_vsprintf
#define gets(...)      tierce_banned_gets
#define strtok(...)    tierce_banned_strtok
#define atoi(...)      tierce_banned_atoi
#define atol(...)      tierce_banned_atol
#define atoll(...)     tierce_banned_atoll
#define atof(...)      tierce_banned_atof
#define localtime(...) tierce_banned_localtime
#define gmtime(...)    tierce_banned_gmtime
#define ctime(...)     tierce_banned_ctime
#define asctime(...)   tierce_banned_asctime

#endif
