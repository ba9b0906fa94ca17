/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_PAGED_H
#define TIERCE_PAGED_H

#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * The paged KV memory of an inference engine, described as data.
 *
 * The engine keeps, per layer, an array of token blocks of equal size. Tierce moves whole blocks as
 * opaque bytes. It never interprets them; their axis order and packing are part of the namespace's
 * layout text. Block b of layer l lies at layers[l].base + b * block_stride.
 *
 *     struct tierce_paged_layer layers[2] = {
 *         {.base = k0, .block_stride = 131072, .block_bytes = 131072},
 *         {.base = k1, .block_stride = 131072, .block_bytes = 131072}};
 *     struct tierce_paged paged = {.size = sizeof(paged), .layers = layers, .layer_count = 2,
 *                                  .block_count = 4096};
 *
 * Layers may lie in one allocation: if the blocks of all layers are interleaved, every layer has
 * the same large block_stride and a base of its own. The last byte of block block_count - 1 must be
 * an address of the process; Tierce touches only blocks whose ids a call names.
 *
 * Caveats: the memory belongs to the engine. The guarantees depend on the kind of memory:
 *
 * - Memory of the host: Tierce reads it only inside a store call and writes it only inside a load
 *   call, on the calling thread and on those of copy.threads; no transfer continues after the call
 *   returns. The processor must be able to read and write it. Tierce does not synchronise with the
 *   engine's kernels: store a layer only after the engine has computed it.
 * - Memory of a GPU: Tierce reads and writes it by copies that tierce_store_layer and
 *   tierce_load_layer enqueue, in the order of the caller's stream (tierce_transfer_opts.stream).
 *   A copy out of the memory begins after the work that is on the stream at the call, and may
 *   continue until tierce_store_end returns. Until then no work of the engine may change these
 *   blocks. A copy into the memory also begins after the stream's work, and all work that is
 *   enqueued on that stream later begins after the copy. If the copies have not completed by
 *   timeout.load, or the device has failed, the end of the transfer returns while they may
 *   continue: no KV of this transfer is published or reported as loaded. The memory must stay
 *   allocated until all views that used it are closed.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* One layer. A call with an invalid description returns TIERCE_E_ARGUMENT and moves nothing. */
struct tierce_paged_layer {
    void *base;            /* block 0; any alignment */
    uint64_t block_stride; /* bytes from a block to the next one, >= block_bytes */
    uint32_t block_bytes;  /* bytes that are moved; the namespace's cell_bytes of this layer */
};

/* The memory that holds the layers. Values are stable. */
enum tierce_device {
    TIERCE_DEVICE_HOST = 0, /* memory of the host */
    TIERCE_DEVICE_CUDA = 1, /* memory of an Nvidia GPU, in its primary context; `base` is an address
                               of the GPU */
};

/* All layers that a view moves, in the order of its namespace's cell_bytes. A program that was
 * built when the struct ended with block_count passes that size, and its memory is that of the
 * host. */
struct tierce_paged {
    size_t size;                             /* sizeof(struct tierce_paged) */
    const struct tierce_paged_layer *layers; /* [layer_count] [borrow as this struct] */
    uint32_t layer_count;
    uint32_t block_count;      /* block ids must be below it; every call checks them */
    enum tierce_device device; /* of all layers */
};

#ifdef __cplusplus
}
#endif

#endif
