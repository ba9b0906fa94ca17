/* SPDX-License-Identifier: Apache-2.0 */
#define KERNEL_ATTRIBUTE
#define QUANTIZE_KERNEL tierce__quantize_portable
#include "core/codec/quantize_loops.h"
