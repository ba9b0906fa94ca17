/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of every kernel: encode and decode, with a loop of their own for each element, in which
 * shifts and masks are constants. Included once by each kernel, after encode_groups and
 * decode_groups (both always inlined), KERNEL_ATTRIBUTE and KERNEL_NAME(verb).
 */
#define EACH_ELEMENT(X)                                                                            \
    X(TIERCE__ELEMENT_BF16)                                                                        \
    X(TIERCE__ELEMENT_FP16)                                                                        \
    X(TIERCE__ELEMENT_E4M3) X(TIERCE__ELEMENT_E5M2) X(TIERCE__SYMBOLS4) X(TIERCE__SYMBOLS5)

KERNEL_ATTRIBUTE static bool KERNEL_NAME(encode)(struct tierce__encoder *encoder,
                                                 const struct tierce__symbols *symbols,
                                                 enum tierce__element element, const uint8_t *src,
                                                 size_t groups, struct tierce__planes planes)
{
#define ENCODE(constant)                                                                           \
    if (element == (constant))                                                                     \
        return encode_groups(encoder, symbols, constant, src, groups, planes);
    EACH_ELEMENT(ENCODE)
#undef ENCODE
    return false;
}

KERNEL_ATTRIBUTE static size_t KERNEL_NAME(decode)(struct tierce__decoder *decoder,
                                                   const struct tierce__symbols *symbols,
                                                   enum tierce__element element, uint8_t *dst,
                                                   size_t groups, struct tierce__planes planes)
{
#define DECODE(constant)                                                                           \
    if (element == (constant))                                                                     \
        return decode_groups(decoder, symbols, constant, dst, groups, planes);
    EACH_ELEMENT(DECODE)
#undef DECODE
    return 0;
}
