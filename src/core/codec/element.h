/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TIERCE_ELEMENT_H
#define TIERCE_ELEMENT_H

/* The kind of numbers in a run. The values are part of the format (codec.md). A kernel of a GPU
 * includes this header, so it includes nothing. */
enum tierce__element {
    TIERCE__ELEMENT_RAW = 0, /* opaque bytes: kept as they are */
    TIERCE__ELEMENT_BF16 = 1,
    TIERCE__ELEMENT_FP16 = 2,
    TIERCE__ELEMENT_E4M3 = 3,
    TIERCE__ELEMENT_E5M2 = 4,
    TIERCE__ELEMENTS,
    /* Only inside of coded runs, never in a shape: symbols of 4 and of 5 bits, a byte each. */
    TIERCE__SYMBOLS4 = 32,
    TIERCE__SYMBOLS5 = 33
};

#endif
