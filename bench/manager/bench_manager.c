/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/manager/bench_manager.h"

int tierce__bench_manager(const struct tierce__bench *bench)
{
    int rc = tierce__bench_manager_meta(bench);
    return rc == 0 ? tierce__bench_manager_rpc(bench) : rc;
}
