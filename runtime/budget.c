/* The rows of a round; see budget.h. */
#include "runtime/budget.h"

#include <math.h>
#include <string.h>

static const int16_t size[DG_BUDGET_SIZES] = {1,  2,  3,  4,  5,  6,  7,  8,  10,  12,  14,  16,  20, 24,
                                              28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 224, 256};

enum {
    MEAN = 8,   /* rounds that a cost remembers */
    LATE = 4,   /* rounds that the pace of the machine is taken over */
    LOOK = 16,  /* every so many rounds a neighbour of the best size may be measured */
    STALE = 64, /* once it has not been for so many */
    DOUBT = 8,  /* rounds after which a plain step is measured again, where drafting promises little */
    MANY = 16,  /* rows of a prompt that tell what one of many costs */
    SPAN = 4,   /* rows that this counts as, beside measured ones */
    PLAIN = 2,  /* plain rounds to begin with: the first is slow, its weights come from afar */
    TRY_ON = 2, /* rounds with networks to begin with */
    TRIAL = 1,  /* rounds of a later trial */
    PAUSE = 16, /* rounds between trials, at first and at most */
    MAX_PAUSE = 128,
    NEW_TEXT = 4 /* rounds to a trial after a new text */
};
static const double decay = 0.9, better = 1.02, worth = 1.03, accept_most = 16, accept_prior = 2;
static const double first_trust = 0.8; /* in a promise, greedy, before anything came of any */
static const double row_guess = 0.25; /* a further row's price in plain steps, before anything is known of it */
static const double slower = 1.2;     /* than the pace: rather the machine than the costs */
static const double little = 1.25;    /* of plain decoding's rate */
static const double look_least = 0.9; /* of the best rate: what a look at a neighbour must promise */

int32_t dg_budget_rows(int32_t i) {
    return size[i];
}

/* The largest size of at most n rows (n >= 1). */
static int32_t size_index(int32_t n) {
    int32_t i = DG_BUDGET_SIZES - 1;
    while (size[i] > n) i--;
    return i;
}

void dg_budget_init(dg_budget *b, int32_t budget, int32_t most, bool network, double temperature) {
    *b = (dg_budget){.most = budget ? budget : most,
                     .fixed = budget > 0,
                     .network = network,
                     .on = network,
                     .wait = PLAIN + TRY_ON,
                     .pause = PAUSE};
    dg_budget_temperature(b, temperature);
}

void dg_budget_temperature(dg_budget *b, double temperature) { b->trust = first_trust / (1 + temperature); }

void dg_budget_text(dg_budget *b) {
    if (b->wait > NEW_TEXT) b->wait = NEW_TEXT;
}

/* ---- the cost curve --------------------------------------------------------------------------- */

/* What a row costs beyond the largest size that was measured, where `rows` cost `cost`: as steep as it rose so far,
 * tempered by what the prompt's rows cost. */
static double rise(const dg_budget *b, int32_t rows, double cost) {
    return (cost - 1 + b->row_price * SPAN) / (rows - 1 + SPAN);
}

/* Makes the measured costs rise with the rows: neighbours that do not are averaged (pool adjacent violators).
 * Sizes in between lie on the line; for those beyond the last see rise(). */
static void fit_curve(dg_budget *b) {
    double value[DG_BUDGET_SIZES], weight[DG_BUDGET_SIZES];
    int32_t end[DG_BUDGET_SIZES], n = 0; /* blocks of measured sizes: the last size of each */
    for (int32_t i = 0; i < DG_BUDGET_SIZES; i++) {
        if (!b->n_seen[i]) continue;
        const int32_t age = b->round - b->last_seen[i];
        value[n] = b->cost[i];
        weight[n] = (b->n_seen[i] < MEAN ? b->n_seen[i] : MEAN) / (1.0 + age / 64);
        end[n++] = i;
        for (; n > 1 && value[n - 2] > value[n - 1]; n--) {
            const double w = weight[n - 2] + weight[n - 1];
            value[n - 2] = (value[n - 2] * weight[n - 2] + value[n - 1] * weight[n - 1]) / w;
            weight[n - 2] = w, end[n - 2] = end[n - 1];
        }
    }
    int32_t from = -1, block = 0; /* the measured size before i */
    for (int32_t i = 0; i < DG_BUDGET_SIZES && n; i++) {
        if (b->n_seen[i]) {
            while (end[block] < i) block++;
            b->curve[i] = value[block];
            for (int32_t k = from + 1; k < i; k++) {
                const double low = from < 0 ? b->curve[i] : b->curve[from],
                             share = from < 0
                                         ? 1
                                         : (double)(size[k] - size[from]) / (double)(size[i] - size[from]);
                b->curve[k] = low + share * (b->curve[i] - low);
            }
            from = i;
        } else if (i > end[n - 1]) {
            b->curve[i] = b->curve[from] + rise(b, size[from], value[n - 1]) * (double)(size[i] - size[from]);
        }
    }
}

/* The curve at n rows. */
static double cost_of(const dg_budget *b, int32_t n) {
    const int32_t i = size_index(n);
    if (i + 1 == DG_BUDGET_SIZES || size[i] == n) return b->curve[i];
    const double share = (double)(n - size[i]) / (double)(size[i + 1] - size[i]);
    return b->curve[i] + share * (b->curve[i + 1] - b->curve[i]);
}

double dg_budget_cost(const dg_budget *b, int32_t n) { return b->pace * cost_of(b, n); }

/* A running mean over `most` rounds that a single stall of the machine does not throw. */
static double mean(double old, double x, int32_t n, int32_t most) {
    if (n > 3 && x > 3 * old) x = 3 * old;
    return old + (x - old) / (n < most ? n : most);
}

/* The first pace that is known makes plain steps of what the prompt's rows took. */
static void set_pace(dg_budget *b, double seconds) {
    b->pace = seconds;
    b->row_price = b->prompt_row > 0 ? b->prompt_row / seconds : row_guess;
}

/* A plain step was faster than the pace: other work only slows a machine, so what was measured by that pace looked cheaper
 * than it is, and the next looks at each count for more. */
static void doubt_costs(dg_budget *b, double verify) {
    if (b->n_seen[0] <= PLAIN)
        set_pace(b, verify);
    else
        b->pace = verify;
    for (int32_t i = 1; i < DG_BUDGET_SIZES; i++)
        if (b->n_seen[i] > LATE - 1) b->n_seen[i] = LATE - 1;
}

/* A pass over one row is the measure of all others. Those tell the pace by what they cost before, unless they are but a little
 * slower than that: then it is they that cost more. */
static void learn_cost(dg_budget *b, int32_t rows, double verify) {
    const int32_t i = size_index(rows);
    if (!(b->pace > 0)) set_pace(b, verify / (1 + row_guess * (rows - 1)));
    const double pace = b->pace;
    const double plain = verify / (b->n_seen[0] ? cost_of(b, rows) : 1 + row_guess * (rows - 1));
    if (rows == 1 || plain < pace || plain > slower * pace) b->pace = mean(pace, plain, b->round, LATE);
    if (size[i] == rows) {
        b->n_seen[i]++;
        if (i == 0 && verify < pace) doubt_costs(b, verify);
        b->cost[i] = i ? mean(b->cost[i], verify / pace, b->n_seen[i], MEAN) : 1;
        b->last_seen[i] = b->round;
    }
    fit_curve(b);
}

void dg_budget_prompt(dg_budget *b, int32_t rows, double seconds) {
    if (rows < MANY) return;
    const double row = seconds / rows;
    if (!(b->prompt_row > 0) || row < b->prompt_row) b->prompt_row = row;
    if (!(b->pace > 0) || row / b->pace > b->row_price) return;
    b->row_price = row / b->pace;
    fit_curve(b);
}

/* ---- acceptance ------------------------------------------------------------------------------- */

/* What a node's score says of its own token: its probability where its parent is right. */
static double edge(const dg_tree *t, int32_t node) {
    return exp((double)(t->score[node] - t->score[t->parent[node]]));
}

/* Ranges of probability, each 2/3 of the one above. */
int32_t dg_budget_bin(double p) {
    int32_t i = 0;
    for (double low = 2.0 / 3; i < DG_BUDGET_BINS - 1 && p < low; low *= 2.0 / 3) i++;
    return i;
}

/* What such a probability has meant so far: its own promise, corrected by how the promises of its range were
 * kept. In a trial it is believed halfway: what used to be wrong may be right by now. */
static double corrected(const dg_budget *b, double p) {
    const int32_t i = dg_budget_bin(p);
    const double kept = (b->accepted[b->use][i] + b->trust * accept_prior) / (b->promised[b->use][i] + accept_prior);
    p *= b->trial && kept < 1 ? (1 + kept) / 2 : kept;
    return p < 1 ? p : 1;
}

/* Nodes whose parent was accepted were put to the test. */
static void learn_acceptance(dg_budget *b, const dg_tree *t, const dg_walk *w) {
    bool on_path[DG_TREE_MAX] = {false};
    for (int32_t i = 0; i < w->n; i++) on_path[w->path[i]] = true;
    for (int32_t i = 1; i < t->n; i++) {
        if (!on_path[t->parent[i]]) continue;
        const double p = edge(t, i);
        double *promised = &b->promised[b->use][dg_budget_bin(p)], *accepted = &b->accepted[b->use][dg_budget_bin(p)];
        *promised += p;
        *accepted += on_path[i];
        /* remembered by number, not by age: where all is accepted a round puts many to the test, else only a
         * few */
        if (*promised > accept_most) *accepted *= accept_most / *promised, *promised = accept_most;
    }
}

void dg_budget_start(dg_budget *b, const dg_budget_prior *p) {
    enum { WORTH = 2 }; /* rounds that what was known counts as */
    if (p->seconds[0] > 0) set_pace(b, p->seconds[0]);
    for (int32_t i = 0; i < DG_BUDGET_SIZES && b->pace > 0; i++)
        if (p->seconds[i] > 0) b->cost[i] = p->seconds[i] / b->pace, b->n_seen[i] = WORTH;
    fit_curve(b);
    for (int32_t k = 0; k < 2; k++) {
        if (p->draft[k] > 0 && b->pace > 0) b->draft[k] = p->draft[k] / b->pace, b->n_round[k] = WORTH;
        for (int32_t i = 0; i < DG_BUDGET_BINS; i++) {
            const double much = p->promised[k][i] / (accept_most / 2), share = much > 1 ? 1 / much : 1;
            b->promised[k][i] = p->promised[k][i] * share, b->accepted[k][i] = p->accepted[k][i] * share;
        }
    }
}

/* ---- choosing --------------------------------------------------------------------------------- */

/* Probabilities of the nodes but the root in the order in which dg_tree_prune keeps them. */
static int32_t node_probabilities(const dg_budget *b, const dg_tree *t, double *sorted) {
    double p[DG_TREE_MAX] = {1};
    int16_t order[DG_TREE_MAX];
    int32_t n = 0;
    for (int32_t i = 1; i < t->n; i++) {
        p[i] = p[t->parent[i]] * corrected(b, edge(t, i));
        int32_t j = n++;
        for (; j > 0 && t->score[order[j - 1]] < t->score[i]; j--) order[j] = order[j - 1];
        order[j] = (int16_t)i;
    }
    for (int32_t r = 0; r < n; r++) sorted[r] = p[order[r]];
    return n;
}

static double round_cost(const dg_budget *b, int32_t i) { return b->draft[b->use] + b->rest + b->curve[i]; }

/* The size with the most expected tokens a second; *tokens: those of each size. */
static int32_t best_size(const dg_budget *b, const dg_tree *t, double *tokens) {
    double p[DG_TREE_MAX];
    const int32_t n = node_probabilities(b, t, p), last = size_index(n + 1);
    double sum = 1, most = 0;
    int32_t best = 0;
    for (int32_t i = 0, at = 0; i <= last; i++) {
        while (at < size[i] - 1) sum += p[at++];
        tokens[i] = sum;
        const double rate = sum / round_cost(b, i);
        if (rate > most) most = i ? rate : worth * rate, best = i; /* a doubtful gain is none */
    }
    return best;
}

/* The best size, or one beside it that was not measured for long and costs little to measure. */
static int32_t look_around(const dg_budget *b, int32_t best, int32_t last, const double *tokens) {
    int32_t look = best;
    for (int32_t i = best - 1; i <= best + 1; i += 2) {
        if (i < 0 || i > last || (b->n_seen[i] && b->round - b->last_seen[i] < STALE)) continue;
        if (tokens[i] / round_cost(b, i) < look_least * tokens[best] / round_cost(b, best)) continue;
        if (look == best || b->last_seen[i] < b->last_seen[look]) look = i;
    }
    return look;
}

int32_t dg_budget_cut(const dg_budget *b, const dg_tree *t) {
    if (b->fixed) return t->n - 1;
    if (!(b->pace > 0)) return 0;
    double tokens[DG_BUDGET_SIZES];
    const int32_t best = best_size(b, t, tokens);
    /* The first plain steps, behind a prompt, may have been slow, and rows look cheap beside them: a small gain may be none. */
    const bool doubtful = tokens[best] / round_cost(b, best) < little / round_cost(b, 0);
    if (doubtful && b->round - b->last_seen[0] >= DOUBT) return 0;
    return size[b->round % LOOK ? best : look_around(b, best, size_index(t->n), tokens)] - 1;
}

/* Expected tokens a second of late rounds; with networks or without. */
static double rate(const dg_budget *b, bool network) {
    return b->time[network] > 0 ? b->tokens[network] / b->time[network] : 0;
}

bool dg_budget_sure(dg_budget *b, const dg_tree *t) {
    if (b->trial || b->fixed || !(b->pace > 0) || !b->n_round[1]) return false;
    const bool use = b->use;
    double tokens[DG_BUDGET_SIZES];
    b->use = false;
    const int32_t i = best_size(b, t, tokens);
    b->sure = i > 0 && tokens[i] / round_cost(b, i) > better * rate(b, true);
    b->use = use && !b->sure;
    return b->sure;
}

/* After a trial. Trials get rarer each time that they change nothing, or nothing for long. */
static void decide(dg_budget *b) {
    const bool change = rate(b, !b->on) > better * rate(b, b->on),
               lasting = b->round - b->changed >= MAX_PAUSE / 2;
    if (change && lasting)
        b->pause = PAUSE;
    else if (!change || b->on)
        b->pause = b->pause < MAX_PAUSE / 2 ? 2 * b->pause : MAX_PAUSE;
    if (change) b->on = !b->on, b->changed = b->round;
    b->wait = b->pause;
}

static bool choose_network(dg_budget *b) {
    if (!b->network) return false;
    if (b->trial > 0) return !b->on;
    if (b->wait > 0) return b->on;
    b->trial = TRIAL;
    return !b->on;
}

int32_t dg_budget_begin(dg_budget *b, int32_t room, bool *network) {
    if (room > b->most) room = b->most;
    if (room < 0) room = 0;
    /* A plain step is the measure of everything else. */
    const bool plain = !b->fixed && (b->n_seen[0] < PLAIN || b->round - b->last_seen[0] >= STALE);
    b->use = b->fixed || (!plain && choose_network(b));
    *network = b->use;
    b->sure = false;
    if (b->fixed) return room;
    if (plain) return 0;
    const int32_t enough = 2 * b->kept + 8; /* more than twice the last is not going to pay at once */
    return room < enough ? room : enough;
}

static void learn_rate(dg_budget *b, const dg_tree *t, int32_t gained) {
    for (int i = 0; i < 2; i++) b->tokens[i] *= decay, b->time[i] *= decay; /* by age, not by use */
    if (b->sure) return;
    double tokens[DG_BUDGET_SIZES];
    best_size(b, t, tokens); /* those of what was verified */
    const bool use = b->use;
    b->n_round[use]++;
    /* what came of it is scattered, what was expected may be wrong: the mean of both */
    b->tokens[use] += (tokens[size_index(t->n)] + gained) / 2;
    b->time[use] += b->draft[use] + b->rest + cost_of(b, t->n);
}

void dg_budget_learn(dg_budget *b, const dg_tree *t, const dg_walk *w, double draft, double verify,
                     double rest) {
    if (b->fixed) return;
    b->round++;
    b->kept = t->n - 1;
    learn_cost(b, t->n, verify);
    learn_acceptance(b, t, w);
    b->draft[b->use] = mean(b->draft[b->use], draft / b->pace, b->n_round[b->use] + 1, MEAN);
    b->rest = mean(b->rest, rest / b->pace, b->round, MEAN);
    learn_rate(b, t, w->n);
    if (!b->network) return;
    if (b->trial > 0) {
        if (--b->trial == 0) decide(b);
    } else if (b->wait > 0) {
        b->wait--;
    }
    /* No need to wait where plain decoding is faster. */
    const double plain = 1 / (1 + b->rest);
    if (b->on && b->use && b->round - b->changed >= TRY_ON && plain > better * rate(b, true)) b->wait = 0;
}
