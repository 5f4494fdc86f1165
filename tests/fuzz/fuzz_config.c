/* Any text as config.json and, after a byte 0, as generation_config.json. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t n = zero ? (size_t)(zero - data) : size;
    dg_file f = {.path = "fuzz", .container = DG_CONTAINER_SAFETENSORS};
    dg_config c;
    if (dg_json_parse("config", text, n, &f.config) != DG_OK) return 0;
    if (!zero || dg_json_parse("generation", text + n + 1, size - n - 1, &f.generation) == DG_OK)
        if (dg_config_read(&f, &c) == DG_OK) fuzz_config_check(&c);
    json_decref(f.config);
    json_decref(f.generation);
    return 0;
}
