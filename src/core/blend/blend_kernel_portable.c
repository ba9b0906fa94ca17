/* SPDX-License-Identifier: Apache-2.0 */
#define KERNEL_ATTRIBUTE
#define BLEND_KERNEL  tierce__blend_portable
#define KERNEL_NAME   "portable"
#define KERNEL_USABLE true
#include "core/blend/blend_loops.h"
