/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/manager/bench_manager.h"

int tierce__bench_manager(const struct tierce__bench *bench)
{
    int rc = tierce__bench_manager_meta(bench);
    if (rc == 0)
        rc = tierce__bench_manager_ghost(bench);
    if (rc == 0)
        rc = tierce__bench_manager_share(bench);
    return rc == 0 ? tierce__bench_manager_rpc(bench) : rc;
}
