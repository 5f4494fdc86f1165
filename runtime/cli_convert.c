/* dgraft convert: writes a model's weights in another type. */
#include "runtime/cli.h"

#include <string.h>
#include <sys/stat.h>

#include "runtime/convert.h"

static const struct {
    const char *name;
    dg_dtype type;
} types[] = {{"f32", DG_F32}, {"bf16", DG_BF16}, {"f16", DG_F16}, {"q8_0", DG_Q8_0}};

static void on_progress(void *ud, size_t done, size_t total) {
    const cli_options *o = ud;
    cli_progress("writing %s: %zu of %zu MiB", o->out, done >> 20, total >> 20);
}

/* The input stays mapped while the output is written, so they must not be one file. */
static int check_output(const cli_options *o) {
    struct stat in, out;
    if (stat(o->out, &out) != 0) return CLI_OK;
    if (stat(o->model, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        cli_error("-o %s is the input itself; name another file", o->out);
        return CLI_USAGE;
    }
    if (S_ISREG(out.st_mode) && !o->force) {
        cli_error("-o %s exists; --force overwrites it", o->out);
        return CLI_USAGE;
    }
    return CLI_OK;
}

static int run(const cli_options *o) {
    if (!o->out || !*o->out || !o->type) {
        cli_error("convert needs %s", !o->type ? "--type (f32, bf16, f16 or q8_0)" : "-o OUT");
        return CLI_USAGE;
    }
    size_t i = 0;
    while (i < sizeof types / sizeof *types && strcmp(types[i].name, o->type) != 0) i++;
    if (i == sizeof types / sizeof *types) {
        cli_error("--type: expected f32, bf16, f16 or q8_0, found '%s'", o->type);
        return CLI_USAGE;
    }
    const int status = check_output(o);
    if (status != CLI_OK) return status;
    const dg_status st =
        dg_convert_first(o->model, (int32_t)o->layers, o->tokenizer, o->out, types[i].type, on_progress, (void *)o);
    cli_progress_clear();
    if (st != DG_OK) return cli_library_error(st, NULL);
    fprintf(stderr, "wrote %s\n", o->out);
    return CLI_OK;
}

const cli_command cli_convert = {
    .name = "convert",
    .bit = CLI_CONVERT,
    .summary = "write a model's weights in another type",
    .about = "Reads a model or a DFlash drafter and writes its matrices as f32, bf16, f16 or q8_0. An OUT "
             "that ends\n"
             "in .gguf is a GGUF file; any other is a Hugging Face directory (f32, bf16 or f16).",
    .examples = "  dgraft convert -m model/ -o model.gguf --type q8_0\n"
                "  dgraft convert -m drafter/ -o drafter.gguf --type bf16 --tokenizer model/\n"
                "  dgraft convert -m model.gguf -o model/ --type bf16\n"
                "  dgraft convert -m model.gguf -o first8.gguf --type q8_0 --layers 8",
    .run = run,
};
