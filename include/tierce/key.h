/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_KEY_H
#define TIERCE_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tierce/status.h>

/*
 * Identity: which KV is interchangeable, and the names of token runs.
 *
 * A *namespace* holds the constants that must be equal for KV to be interchangeable; every chunk
 * contains its digest. A *chain* turns the tokens of one request into one 256-bit hash per token
 * block, each chained over the whole prefix. The hash of a chunk is the hash of its last block. A
 * *shard* names the part of a chunk that one rank holds.
 *
 *     struct tierce_chain *chain;
 *     rc = tierce_chain_create(&chain, &(struct tierce_chain_opts){
 *             .size = sizeof(struct tierce_chain_opts), .algo = TIERCE_CHAIN_SHA256,
 *             .block_tokens = 32});
 *     rc = tierce_chain_append(chain, tokens, token_count, NULL);
 *     const uint8_t *hash = tierce_chain_hash(chain, 7);      // 32 bytes, block 7
 *     tierce_chain_destroy(chain);
 *
 * Caveats: a chain object belongs to one thread at a time. Hashes do not include the namespace: two
 * models give equal hashes for equal tokens. The namespace digest separates them; every read
 * compares it in full.
 *
 * Formats, byte by byte: docs/inside/format/key.md.
 */

#ifdef __cplusplus
extern "C" {
#endif

#define TIERCE_HASH_BYTES 32
#define TIERCE_LAYERS_MAX 4096u /* layers of a namespace, of a chunk, and of a part of one */

/* The part of a chunk that one rank holds; {0, 1, 0, 1} if there is only one rank. */
struct tierce_shard {
    uint16_t tp_rank;
    uint16_t tp_size;
    uint16_t pp_rank;
    uint16_t pp_size;
};

/* The algorithm of block hashes. Values are written to disk: new ones are appended, and none is
 * reused. */
enum tierce_chain_algo {
    /* SHA-256 over (tokens, extra, parent, lengths); the default. */
    TIERCE_CHAIN_SHA256 = 1,
    /* XXH3-128 over the same bytes, in the first 16 bytes, the rest zero. Not collision resistant:
     * use it only for a single tenant. */
    TIERCE_CHAIN_XXH3_128 = 2,
    /* vLLM's sha256_cbor with its constant root: SHA-256 over canonical CBOR of [parent,
     * [token...], extra]. vLLM computes the same hashes in every process. */
    TIERCE_CHAIN_VLLM_SHA256_CBOR = 3,
};

/* "sha256", "xxh3-128", "vllm-sha256-cbor"; NULL for other values. Thread: any. */
TIERCE_API const char *tierce_chain_algo_name(enum tierce_chain_algo algo);

/* *out = the algorithm of that name. Errors: TIERCE_E_CONFIG, *out untouched. Thread: any. */
TIERCE_API TIERCE_MUSTUSE int tierce_chain_algo_parse(enum tierce_chain_algo *out,
                                                      const char *name);

/* ---- namespace ------------------------------------------------------------------------------ */

/*
 * The layers that a namespace describes. An inference engine divides the layers of a hybrid model
 * into groups: all blocks of a group have the same size, and a request has a list of block ids for
 * each group. Each group has its own namespace, so a store keeps and evicts its KV separately.
 * Values are written to disk: new ones are appended, and none is reused.
 */
enum tierce_group {
    TIERCE_GROUP_ALL = 0,     /* all layers of the model; each attends to the whole prompt */
    TIERCE_GROUP_FULL = 1,    /* some layers, which attend to the whole prompt */
    TIERCE_GROUP_WINDOW = 2,  /* a token attends to itself and the `window` - 1 tokens before it */
    TIERCE_GROUP_CHUNKED = 3, /* a token attends to itself and to the tokens before it, back to the
                                 last multiple of `window` */
    TIERCE_GROUP_STATE = 4,   /* recurrent layers: a block holds the state at its end only */
};

/*
 * The constants of a namespace. Strings are UTF-8 without control characters (a newline would
 * forge a field), up to 1 MiB each, NULL counts as "". All pointers are borrowed for the call.
 */
struct tierce_namespace {
    size_t size;                /* sizeof(struct tierce_namespace). Also valid: the offset of
                                   `window`; `group`, `window` and `layers` are then not read, and
                                   the group is ALL */
    const char *weights;        /* fingerprint of the weights, lower-case hex; must not be empty */
    const char *model;          /* effective model configuration, canonical JSON on one line */
    const char *kv_dtype;       /* "bfloat16", "float32", "fp8_e4m3", ... */
    const char *quantization;   /* of the KV, scales included; "" for none. "tierce-int8",
                                   "tierce-int4", "tierce-fp8", "tierce-cachegen-LAYERS-ORDER"
                                   (docs/inside/format/coded.md): the lossy codec of KV of bfloat16
                                   or float16 on disk and in remote stores; memory is exact */
    const char *layout;         /* the engine's memory layout: engine and version, attention
                                   backend, ISA, axis order */
    uint32_t layer_count;       /* 1 .. TIERCE_LAYERS_MAX */
    const uint32_t *cell_bytes; /* [layer_count] bytes of one token block in one layer, of one
                                   shard; each 1 .. 1 GiB */
    uint32_t block_tokens;      /* tokens of the engine's block, 1 .. 65536 */
    uint32_t chunk_blocks;      /* blocks of a full chunk, 1 .. 65536; 1 for STATE */
    enum tierce_chain_algo algo;
    enum tierce_group group;
    uint32_t window;        /* tokens, > 0, for WINDOW and CHUNKED; otherwise 0 */
    const uint32_t *layers; /* [layer_count] numbers of the group's layers in the model, each below
                               65536: ascending, and if several ranks store shares of the same
                               layers, one rank's numbers after another's; NULL for ALL */
};

/* "all", "full", "window", "chunked", "state"; NULL for other values. Thread: any. */
TIERCE_API const char *tierce_group_name(enum tierce_group group);

/*
 * The canonical text of a namespace: one "name=value" line per field in a fixed order, ending in a
 * newline. This text is digested, stored on disk, and compared field by field.
 *
 * [out]    *text  NUL-terminated, heap; free with tierce_free. Untouched on failure.
 * Errors: TIERCE_E_ARGUMENT (a field breaks its bounds), -ENOMEM. Thread: any.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_namespace_text(char **text, const struct tierce_namespace *ns);

/* The digest of a canonical text: its SHA-256. Thread: any. */
TIERCE_API void tierce_namespace_digest(uint8_t digest[TIERCE_HASH_BYTES], const char *text);

/* Receives one field that differs; NULL stands for a field that one side lacks. */
typedef void tierce_namespace_diff_fn(void *arg, const char *field, const char *a, const char *b);

/*
 * Compares two canonical texts field by field, calling `fn` (or NULL) for each that differs. The
 * texts may come from untrusted sources. Returns the number of differences, TIERCE_E_FORMAT (a text
 * is not canonical, or has more than 8 MiB or 64 fields), or -ENOMEM.
 * Thread: any.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_namespace_diff(const char *a, const char *b,
                                                    tierce_namespace_diff_fn *fn, void *arg);

/* Frees heap memory that a Tierce call returned. NULL is accepted. Thread: any. */
TIERCE_API void tierce_free(void *ptr);

/* ---- weights fingerprint -------------------------------------------------------------------- */

/* Progress of a long fingerprint: bytes read here or by another process that shares the cache, and
 * the total; files found in the cache at the start are not counted. Called at most ten times a
 * second and at the end, on the calling thread. */
typedef void tierce_fingerprint_progress_fn(void *arg, uint64_t done_bytes, uint64_t total_bytes);

struct tierce_fingerprint_opts {
    size_t size;           /* sizeof(struct tierce_fingerprint_opts) */
    const char *cache_dir; /* for cached results; created 0700 if missing; NULL: no cache */
    tierce_fingerprint_progress_fn *progress; /* or NULL */
    void *progress_arg;
};

/*
 * The fingerprint of the weights in a model folder: SHA-256 over the name, length and content of
 * config.json and of every *.safetensors file (and *.bin, *.pt, *.gguf if there is none), sorted
 * by name; written as 64 hex digits and a NUL. Links are followed, folders are not.
 *
 * A file's content is read once. Its digest is cached in `cache_dir` by device, inode, size, mtime
 * and ctime in nanoseconds, unless the file changed within the last two seconds. A damaged cache
 * file is ignored; so is a folder that other users can write, with a warning. Files are read on up
 * to 8 threads, one file by one thread; processes with the same cache read each file once. Takes
 * half a second and more per GB and thread. [borrow] everything for the call; `text` is untouched
 * on failure. Errors: -ENOENT (no weight files), -EBUSY (a file changed while it was read: repeat),
 * errno of I/O, -ENOMEM, TIERCE_E_ARGUMENT, TIERCE_E_LIMIT (over 65536 files). Blocks. Thread: any.
 */
TIERCE_API TIERCE_MUSTUSE int
tierce_weights_fingerprint(char text[65], const char *model_dir,
                           const struct tierce_fingerprint_opts *opts);

/* ---- chain ---------------------------------------------------------------------------------- */

/*
 * The properties of one request that separate its KV from that of others. Empty or NULL parts are
 * ignored. Every part is hashed with its length, so different requests never have equal roots.
 */
struct tierce_chain_root {
    size_t size;      /* sizeof(struct tierce_chain_root) */
    const void *lora; /* digest of the LoRA adapter's content */
    size_t lora_bytes;
    const void *salt; /* tenant or request salt */
    size_t salt_bytes;
    const void *other; /* anything else that changes the KV from the first token on */
    size_t other_bytes;
};

struct tierce_chain_opts {
    size_t size; /* sizeof(struct tierce_chain_opts) */
    enum tierce_chain_algo algo;
    uint32_t block_tokens;                /* 1 .. 65536 */
    const struct tierce_chain_root *root; /* NULL: nothing separates this request */
};

struct tierce_chain;

/*
 * Creates an empty chain. [borrow] opts for the call. Errors: TIERCE_E_ARGUMENT, -ENOMEM;
 * *out untouched. The caller owns *out and destroys it. Thread: any.
 */
TIERCE_API TIERCE_MUSTUSE int tierce_chain_create(struct tierce_chain **out,
                                                  const struct tierce_chain_opts *opts);

/* NULL is accepted. Thread: the owner. */
TIERCE_API void tierce_chain_destroy(struct tierce_chain *chain);

/* Input of a block besides its tokens (multimodal digests and offsets, prompt embeddings), as
 * opaque bytes. Only blocks that have such input need an entry. */
struct tierce_chain_extra {
    uint64_t block;    /* index of the block in the chain; ascending in an array */
    const void *bytes; /* for VLLM_SHA256_CBOR: the CBOR item of the extra keys */
    size_t bytes_len;  /* >= 1 */
};

struct tierce_chain_extras {
    const struct tierce_chain_extra *items;
    size_t count;
};

/*
 * Appends tokens. Hashes every block that becomes full; the remaining tokens are kept for the next
 * call. A token's value is its 32-bit pattern; VLLM_SHA256_CBOR takes it as an unsigned number.
 *
 * [in] extras  NULL or the extras of blocks that this call completes; others are ignored.
 * Returns the number of whole blocks in the chain. Errors: -ENOMEM, TIERCE_E_ARGUMENT (mixed with
 * tierce_chain_append_hashes); the chain is unchanged then. Thread: the owner.
 */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_chain_append(struct tierce_chain *chain,
                                                      const int32_t *tokens, size_t count,
                                                      const struct tierce_chain_extras *extras);

/*
 * Appends block hashes that the engine computed with the chain's algorithm: `count` times 32 bytes.
 * If the chain has a root, each hash is folded with it (SHA-256 over root and hash), because the
 * engine's hashes do not include the root. Appending the tokens to such a chain gives the same
 * hashes for VLLM_SHA256_CBOR only. Errors as above. Thread: the owner.
 */
TIERCE_API TIERCE_MUSTUSE int64_t tierce_chain_append_hashes(struct tierce_chain *chain,
                                                             const uint8_t *hashes, size_t count);

/* Number of whole blocks. Thread: the owner. */
TIERCE_API size_t tierce_chain_blocks(const struct tierce_chain *chain);

/* The hash of block `index`: 32 bytes, [borrow until the next append, reset or destroy]. `index`
 * must be below tierce_chain_blocks. The hashes of the following blocks come after it, 32 bytes
 * each. Thread: the owner. */
TIERCE_API const uint8_t *tierce_chain_hash(const struct tierce_chain *chain, size_t index);

/* The parent of block 0: 32 bytes that stand for algorithm and root. For VLLM_SHA256_CBOR without
 * a root it is vLLM's NONE_HASH. Same lifetime. */
TIERCE_API const uint8_t *tierce_chain_root_hash(const struct tierce_chain *chain);

/* Removes all blocks and pending tokens; keeps the root and the memory. Thread: the owner. */
TIERCE_API void tierce_chain_reset(struct tierce_chain *chain);

#ifdef __cplusplus
}
#endif

#endif
