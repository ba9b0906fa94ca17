/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Runs every file of a corpus folder through a fuzz target, once as it is and once cut at each
 * of some lengths. A crash or a failed assertion of the target fails the test; so does an empty
 * folder.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FILE_BYTES_MAX (16u << 20)

/* The content in memory of exactly its size, so that a read beyond it is seen. */
static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return -errno;
    uint8_t *content = malloc(FILE_BYTES_MAX);
    size_t size = content != NULL ? fread(content, 1, FILE_BYTES_MAX, file) : 0;
    int rc = content == NULL ? -ENOMEM : ferror(file) != 0 ? -EIO : 0;
    fclose(file);
    size_t step = size / 64 + 1;
    for (size_t length = size; rc == 0; length -= step) {
        uint8_t *exact = malloc(length > 0 ? length : 1);
        if (exact == NULL) {
            rc = -ENOMEM;
            break;
        }
        memcpy(exact, content, length);
        LLVMFuzzerTestOneInput(exact, length);
        free(exact);
        if (length < step)
            break;
    }
    free(content);
    return rc;
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (dir == NULL) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return EXIT_FAILURE;
    }
    int files = 0, failures = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        int rc = run_file(path);
        files++;
        if (rc < 0) {
            fprintf(stderr, "%s: %s\n", path, strerror(-rc));
            failures++;
        }
    }
    closedir(dir);
    printf("%d files, %d failures\n", files, failures);
    return files > 0 && failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
