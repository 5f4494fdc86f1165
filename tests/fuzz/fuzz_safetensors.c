/* Any bytes as a .safetensors file. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    dg_file *f;
    const int fd = fuzz_file(data, size, path);
    if (dg_safetensors_open(path, &f) == DG_OK) {
        fuzz_walk(f);
        dg_file_close(f);
    }
    close(fd);
    return 0;
}
