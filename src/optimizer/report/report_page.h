/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_OPTIMIZER_REPORT_PAGE_H
#define TIERCE_OPTIMIZER_REPORT_PAGE_H

#include <stddef.h>

/* The files of web/report, embedded by the build. Each ends with a NUL that its size does not
 * count. */

extern const unsigned char tierce__page_html[];
extern const size_t tierce__page_html_size;
extern const unsigned char tierce__page_style[];
extern const size_t tierce__page_style_size;
extern const unsigned char tierce__page_script[];
extern const size_t tierce__page_script_size;

#endif
