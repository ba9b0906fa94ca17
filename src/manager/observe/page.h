/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_MANAGER_PAGE_H
#define TIERCE_MANAGER_PAGE_H

#include "manager/manager_private.h"
#include "manager/api/admin_http.h"

/*
 * The web page on the administrators' HTTP port, read-only:
 *
 *   GET / the page, with /page.css and /page.js (web/manager); it loads nothing else GET /api/page
 * its numbers as JSON (page.c), for callers with access
 *
 * Threads: any; tierce__page_sample one at a time.
 */

/* The routes. Constant storage. */
const struct tierce__http_route *tierce__page_routes(size_t *count);

/* Adds one sample to the history that the page shows. */
void tierce__page_sample(struct tierce__manager *manager);

/* The page's files, embedded by the build. Each ends with a NUL that its size does not count. */
extern const unsigned char tierce__manager_page_html[];
extern const size_t tierce__manager_page_html_size;
extern const unsigned char tierce__manager_page_css[];
extern const size_t tierce__manager_page_css_size;
extern const unsigned char tierce__manager_page_js[];
extern const size_t tierce__manager_page_js_size;

#endif
