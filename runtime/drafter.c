/* Parameter lists of drafters; see drafter.h. */
#include "runtime/drafter.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dg_status unknown_key(const char *drafter, const char *key, size_t len, const dg_param *table, size_t n) {
    char known[256] = "";
    for (size_t i = 0; i < n; i++) {
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", table[i].key);
    }
    DG_FAIL(DG_ERR_ARGUMENT, "drafter %s has no parameter \"%.*s\"; it takes %s", drafter, (int)len, key,
            n ? known : "none");
}

/* strtod with a decimal point, whatever the program's locale; false unless all of text is a number. */
static bool parse_number(const char *text, double *v) {
    const locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    char *end;
    errno = 0;
    *v = c ? strtod_l(text, &end, c) : strtod(text, &end);
    if (c) freelocale(c);
    return *text && !*end && !errno;
}

static dg_status parse_value(const char *drafter, const dg_param *p, const char *text) {
    if (p->type == DG_PARAM_BOOL) {
        const bool on = !strcmp(text, "1") || !strcmp(text, "true") || !strcmp(text, "on");
        const bool off = !strcmp(text, "0") || !strcmp(text, "false") || !strcmp(text, "off");
        DG_CHECK(on || off, DG_ERR_ARGUMENT, "drafter %s: %s=%s: expected 0 or 1", drafter, p->key, text);
        *(bool *)p->value = on;
        return DG_OK;
    }
    double v;
    const bool number = parse_number(text, &v), whole = p->type != DG_PARAM_INT || v == floor(v);
    DG_CHECK(number && whole && v >= p->min && v <= p->max, DG_ERR_ARGUMENT,
             "drafter %s: %s=%s: expected %s from %g to %g", drafter, p->key, text,
             p->type == DG_PARAM_INT ? "a whole number" : "a number", p->min, p->max);
    if (p->type == DG_PARAM_INT)
        *(int32_t *)p->value = (int32_t)v;
    else
        *(float *)p->value = (float)v;
    return DG_OK;
}

dg_status dg_params_parse(const char *drafter, const char *params, const dg_param *table, size_t n) {
    for (const char *at = params; at && *at;) {
        const size_t len = strcspn(at, ",");
        const char *eq = memchr(at, '=', len);
        const size_t key = eq ? (size_t)(eq - at) : len;
        size_t i = 0;
        while (i < n && !(strlen(table[i].key) == key && !memcmp(table[i].key, at, key))) i++;
        if (i == n) return unknown_key(drafter, at, key, table, n);
        char value[64];
        DG_CHECK(eq && len - key - 1 < sizeof value, DG_ERR_ARGUMENT, "drafter %s: expected %s=value", drafter,
                 table[i].key);
        snprintf(value, sizeof value, "%.*s", (int)(len - key - 1), eq + 1);
        DG_TRY(parse_value(drafter, &table[i], value));
        at += len + (at[len] == ',');
    }
    return DG_OK;
}
