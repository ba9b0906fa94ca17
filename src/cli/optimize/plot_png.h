/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CLI_PLOT_PNG_H
#define TIERCE_CLI_PLOT_PNG_H

#include "optimizer/report/report.h"

/* Loads libcairo.so.2 and libfontconfig.so.1, once; they stay loaded. Errors: -ELIBACC: a library
 * is not installed, or lacks a function. Threads: one at a time. */
TIERCE_MUSTUSE int tierce__plot_png_load(void);

/* The plot of tierce__report_svg as PNG, two pixels for one, by cairo in an installed font. Write
 * errors are reported by ferror(file). [borrow] the report for the call. Errors: -ENOMEM, and those
 * of tierce__plot_png_load. Threads: one at a time. */
TIERCE_MUSTUSE int tierce__plot_png(FILE *file, const struct tierce__report *report);

#endif
