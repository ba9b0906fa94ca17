/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_CUDA_DECODE_H
#define TIERCE_CUDA_DECODE_H

#include "core/device/cuda/cuda_private.h"

/*
 * Runs of the lossless codec that are decoded on the device, by the kernel of kernels/decode.cu:
 *
 *     coded bytes ─host─► pinned memory ─copy engine─► staging on the device ─kernel─► bytes
 *
 * The host reads the headers of the blocks, and gives the kernel as many blocks at a time as the
 * staging holds. Calls of several threads use different lanes: while one waits for the device,
 * another copies.
 */

void tierce__cuda_decoder_init(struct tierce__cuda_decoder *decoder);
void tierce__cuda_decoder_fini(struct tierce__cuda_decoder *decoder);

/* The operation of device.h. */
int tierce__cuda_decode(struct tierce__device *device, const struct tierce__device_run *runs,
                        size_t count, uint64_t deadline_ns);

/* The number of lanes that have a stream: all, or none before the trial of the kernel. */
size_t tierce__cuda_lanes(const struct tierce__cuda *cuda);

/* Between enter and leave, when no call is in progress and the streams of the lanes are empty. */
void tierce__cuda_decoder_close(struct tierce__cuda *cuda);

#endif
