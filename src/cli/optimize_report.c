/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include "cli/optimize.h"
#include "cli/plot_png.h"

#define COMMAND "optimize"

static int write_one(const char *path, const struct tierce__report *report,
                     int (*write)(FILE *file, const struct tierce__report *report))
{
    if (path == NULL)
        return TIERCE__CLI_OK;
    FILE *file = tierce__optimize_open(path);
    if (file == NULL)
        return TIERCE__CLI_FAILED;
    int rc = write(file, report);
    int status = tierce__optimize_close(file, path);
    return rc < 0 ? tierce__cli_fail(COMMAND, "%.300s: %s", path, tierce_strerror(rc)) : status;
}

int tierce__optimize_write_report(const struct tierce__optimize *request,
                                  const struct tierce__report *report)
{
    int status = write_one(request->html, report, tierce__report_html);
    if (status == TIERCE__CLI_OK)
        status = write_one(request->svg, report, tierce__report_svg);
    if (status == TIERCE__CLI_OK)
        status = write_one(request->png, report, tierce__plot_png);
    return status;
}
