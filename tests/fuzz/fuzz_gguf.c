/* Any bytes as a GGUF file, and its metadata as a configuration. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    dg_file *f;
    dg_config c;
    const int fd = fuzz_file(data, size, path);
    if (dg_gguf_open(path, &f) == DG_OK) {
        fuzz_walk(f);
        if (dg_config_read(f, &c) == DG_OK) fuzz_config_check(&c);
        dg_file_close(f);
    }
    close(fd);
    return 0;
}
