/* Delay that varies from packet to packet, without reordering and without changing its distribution. Pure.
 *
 * A packet travels for delay + X. If each X is drawn by itself, packets overtake; if a packet then waits for the one
 * before, the mean delay grows and the distribution is lost. So X must be chosen under a constraint: it may grow freely
 * from one packet to the next, but shrink by no more than the time between them. And yet X must have the asked
 * distribution, whatever the traffic.
 *
 * Let f be its density and g a function with one peak that is nowhere above f. Consider a point at (x, level) under g. It
 * moves to the left, at x with speed v g(x) / f(x), where v is at most 1: no faster than time passes. Where g falls below
 * its level it jumps: a new level is drawn, evenly below g's peak, and the point placed at the right end of the stretch in
 * which g exceeds that level; that is upwards, which the order allows. The number of passes through x is then
 * proportional to g(x) and the time that a pass spends there to f(x) / g(x), so the time that the point spends at x is
 * proportional to f(x): X has the distribution that was asked for, for every density and every arrival pattern. (When
 * packets are further apart than the distribution is wide, the order forbids nothing and X is drawn afresh.) What results
 * is what queues in a real network do to delay: it leaps up and drains.
 *
 * Levels come in a stratified sequence, with which a short run comes close to the distribution several times as fast as
 * with independent ones; v is drawn at each jump, so that nothing is periodic.
 *
 * The named distributions have one peak: f and g agree. A measured one may have several, and gaps that no value lies in.
 * The point crosses a gap as if it had a small density (GAP_SHARE of the whole if all of the range were gap), else it
 * would never come down again under dense traffic.
 *
 * With a correlation, deviations that are drawn afresh follow a Gaussian copula: the normal scores of neighbouring ranks
 * have that correlation. Between packets that are closer together the point moves slower by that share.
 */
#include "jitter.h"

#include <math.h>
#include <string.h>

#define FINE 256            /* positions are kept in 1/256 ns: movements of a fraction of a nanosecond add up */
#define SPEED_ONE 65536u    /* as fast as time passes: packets bunch up */
#define SPEED_LEAST 21845u  /* a third of that */
#define WIDE_PARTS 256      /* a cell wider than this part of the range is a bin by itself */
#define NARROW_PARTS 1024   /* no bin is narrower than this part of the range, except beside a wide one */
#define SPREAD_PARTS 512    /* so far to either side equal values are spread */
#define BIN_CELLS 16        /* and else a bin has at least so many cells */
#define DENSITY_ONE 65536u  /* of a uniform distribution */
#define GAP_SHARE 50        /* one part in so many */
#define STRATA 64           /* levels between two changes of their order */

_Static_assert(NL_JITTER_TABLE / BIN_CELLS + 2 * WIDE_PARTS < NL_JITTER_BINS, "bins suffice");

/* ---- the density ---- */

/* Values that occur several times become a narrow stretch of values, within the bounds of their neighbours. */
static void spread_equals(const int64_t *table, int64_t *fine, int64_t narrow)
{
    const int last = NL_JITTER_TABLE - 1;
    for (int from = 0, to; from <= last; from = to + 1) {
        for (to = from; to < last && table[to + 1] == table[from]; to++)
            ;
        int64_t value = table[from] * FINE;
        int64_t below = from ? (value - table[from - 1] * FINE) / 2 : 0;
        int64_t above = to < last ? (table[to + 1] * FINE - value) / 2 : 0;
        int64_t reach = from && to < last ? (below < above ? below : above) : below + above;
        reach = reach < narrow ? reach : narrow;
        int64_t start = from ? value - reach : value;
        int64_t width = (from && to < last ? 2 : 1) * reach;
        int64_t steps = to - from;
        for (int i = from; i <= to; i++)
            fine[i] = steps ? start + width * (i - from) / steps : value;
    }
}

static void close_bin(struct nl_jitter *jitter, int64_t edge, uint64_t cells, int64_t range)
{
    int64_t width = edge - jitter->edge[jitter->bins];
    if (!cells || width <= 0)
        return;
    unsigned __int128 scaled = (unsigned __int128)cells * (uint64_t)range * (DENSITY_ONE / 16);
    jitter->density[jitter->bins] = (uint64_t)(scaled / ((uint64_t)width * (NL_JITTER_TABLE / 16)));
    jitter->before[jitter->bins + 1] = jitter->before[jitter->bins] + (uint32_t)cells;
    jitter->bins++;
    jitter->edge[jitter->bins] = edge;
}

/* Each value of the table owns the stretch to the middle between it and its neighbours; stretches are joined to bins. */
static void build_bins(struct nl_jitter *jitter, const int64_t *fine)
{
    const int last = NL_JITTER_TABLE - 1;
    int64_t range = fine[last] - fine[0];
    uint64_t cells = 0;
    jitter->bins = 0;
    jitter->edge[0] = fine[0];
    for (int i = 0; i <= last; i++) {
        int64_t from = i ? (fine[i - 1] + fine[i]) / 2 : fine[0];
        int64_t to = i < last ? (fine[i] + fine[i + 1]) / 2 : fine[last];
        int wide = to - from >= range / WIDE_PARTS;
        if (wide && from > jitter->edge[jitter->bins]) {
            close_bin(jitter, from, cells, range);
            cells = 0;
        }
        cells++;
        int64_t width = to - jitter->edge[jitter->bins];
        if (wide || width >= range / WIDE_PARTS || (cells >= BIN_CELLS && width >= range / NARROW_PARTS) || i == last) {
            close_bin(jitter, to, cells, range);
            cells = to > jitter->edge[jitter->bins] ? cells : 0;
        }
    }
}

/* Give gaps between two peaks their small density, else nothing would ever lead across. */
static void bridge_gaps(struct nl_jitter *jitter)
{
    uint64_t right[NL_JITTER_BINS], highest = 0;
    const uint64_t bridge = DENSITY_ONE / GAP_SHARE;
    for (uint32_t i = jitter->bins; i-- > 0;) {
        right[i] = highest;
        highest = jitter->density[i] > highest ? jitter->density[i] : highest;
    }
    highest = 0;
    for (uint32_t i = 0; i < jitter->bins; i++) {
        uint64_t wall = highest < right[i] ? highest : right[i]; /* what rises on both sides */
        uint64_t least = wall < bridge ? wall : bridge;
        highest = jitter->density[i] > highest ? jitter->density[i] : highest;
        if (jitter->density[i] < least)
            jitter->density[i] = least;
    }
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The largest function with its one peak where the density has its highest that is nowhere above the density. */
static void find_hull(struct nl_jitter *jitter)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < jitter->bins; i++)
        if (jitter->density[i] > jitter->density[top])
            top = i;
    jitter->hull[top] = jitter->density[top];
    for (uint32_t i = top; i-- > 0;)
        jitter->hull[i] = least_of(jitter->hull[i + 1], jitter->density[i]);
    for (uint32_t i = top + 1; i < jitter->bins; i++)
        jitter->hull[i] = least_of(jitter->hull[i - 1], jitter->density[i]);
    jitter->top = top;
}

void nl_jitter_shape(struct nl_jitter *jitter, const int64_t *table)
{
    int64_t fine[NL_JITTER_TABLE];
    int64_t range = (table[NL_JITTER_TABLE - 1] - table[0]) * FINE;
    memcpy(jitter->table, table, sizeof jitter->table);
    jitter->started = 0;
    jitter->scored = 0;
    jitter->bins = 0;
    if (range <= 0)
        return; /* all the same: none */
    spread_equals(table, fine, range / SPREAD_PARTS);
    build_bins(jitter, fine);
    bridge_gaps(jitter);
    find_hull(jitter);
}

static uint32_t bin_of(const struct nl_jitter *jitter, int64_t position)
{
    uint32_t low = 0, high = jitter->bins - 1;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (jitter->edge[middle] <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- deviations drawn by themselves ---- */

static double share_of(uint64_t bits)
{
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* A normal deviate from two random numbers (Box and Muller 1958). */
static double normal(uint64_t first, uint64_t second)
{
    return sqrt(-2 * log(share_of(first))) * cos(2 * 3.14159265358979323846 * share_of(second));
}

static double share_below(double score)
{
    return 0.5 * erfc(-score * 0.70710678118654752440);
}

/* The score below which lies the given share of a normal distribution. */
static double score_of(double share)
{
    double low = -9, high = 9;
    for (int i = 0; i < 50; i++) {
        double middle = (low + high) / 2;
        if (share_below(middle) < share)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

static double rank_of(const struct nl_jitter *jitter, int64_t position)
{
    uint32_t bin = bin_of(jitter, position);
    double width = (double)(jitter->edge[bin + 1] - jitter->edge[bin]);
    double part = (double)(position - jitter->edge[bin]) / width;
    double cells = jitter->before[bin] + part * (jitter->before[bin + 1] - jitter->before[bin]);
    return fmin(fmax(cells / NL_JITTER_TABLE, 1e-9), 1 - 1e-9);
}

/* An entry of the table, correlated with the deviation before. */
static uint32_t correlated_index(struct nl_jitter *jitter, uint64_t seed, uint64_t n, double correlation)
{
    double fresh = normal(nl_random(seed, NL_STREAM_JITTER, n, 0), nl_random(seed, NL_STREAM_JITTER, n, 2));
    if (jitter->started && !jitter->scored)
        jitter->score = score_of(rank_of(jitter, jitter->position));
    if (jitter->started)
        fresh = correlation * jitter->score + sqrt(1 - correlation * correlation) * fresh;
    jitter->score = fresh;
    jitter->scored = 1;
    uint32_t index = (uint32_t)(share_below(fresh) * NL_JITTER_TABLE);
    return index < NL_JITTER_TABLE ? index : NL_JITTER_TABLE - 1;
}

static void draw_afresh(struct nl_jitter *jitter, uint64_t seed, uint64_t correlation)
{
    uint64_t n = jitter->count;
    uint32_t index = (uint32_t)(nl_random(seed, NL_STREAM_JITTER, n, 0) / (UINT64_MAX / NL_JITTER_TABLE + 1));
    if (correlation)
        index = correlated_index(jitter, seed, n, (double)correlation / (double)NL_CERTAIN);
    jitter->position = jitter->table[index] * FINE;
    jitter->bin = bin_of(jitter, jitter->position);
    jitter->level = nl_below(nl_random(seed, NL_STREAM_JITTER, n, 1), jitter->hull[jitter->bin]);
    if (!jitter->started)
        jitter->speed = SPEED_LEAST;
    jitter->started = 1;
}

/* ---- deviations that keep the order ---- */

static uint64_t bits_reversed(uint64_t value)
{
    uint64_t reversed = 0;
    for (int i = 0; i < 64; i++, value >>= 1)
        reversed = reversed << 1 | (value & 1);
    return reversed;
}

/* The level of the n-th jump: a van der Corput sequence, shifted digit by digit anew for each STRATA levels. */
static uint64_t stratified_level(const struct nl_jitter *jitter, uint64_t seed, uint64_t n)
{
    uint64_t shift = nl_random(seed, NL_STREAM_JITTER_TURN, n / STRATA, 0);
    return nl_below(bits_reversed(n) ^ shift, jitter->hull[jitter->top]);
}

/* From the left end of a stretch to the right end of one at a new level. */
static void jump(struct nl_jitter *jitter, uint64_t seed)
{
    uint64_t n = jitter->jumps++;
    uint32_t low = jitter->top, high = jitter->bins - 1; /* to the right of its top the hull only falls */
    jitter->level = stratified_level(jitter, seed, n);
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (jitter->hull[middle] > jitter->level)
            low = middle;
        else
            high = middle - 1;
    }
    jitter->bin = low;
    jitter->position = jitter->edge[low + 1];
    uint64_t bits = nl_random(seed, NL_STREAM_JITTER_TURN, n, 1);
    jitter->speed = SPEED_LEAST + (uint32_t)nl_below(bits, SPEED_ONE - SPEED_LEAST);
}

/* The point's speed in its bin, in units of SPEED_ONE^2. */
static uint64_t speed_here(const struct nl_jitter *jitter)
{
    uint64_t hull = jitter->hull[jitter->bin], density = jitter->density[jitter->bin];
    uint64_t part = (uint64_t)((unsigned __int128)hull * SPEED_ONE / density);
    return jitter->speed * (part ? part : 1);
}

/* Move to the left for the given time; what is left of it at the end of the stretch. */
static uint64_t descend(struct nl_jitter *jitter, uint64_t time)
{
    const unsigned __int128 one = (unsigned __int128)SPEED_ONE * SPEED_ONE;
    while (1) {
        uint64_t room = (uint64_t)(jitter->position - jitter->edge[jitter->bin]);
        uint64_t speed = speed_here(jitter);
        uint64_t way = (uint64_t)(time * (unsigned __int128)speed / one);
        if (way <= room) {
            jitter->position -= (int64_t)way;
            return 0;
        }
        time -= (uint64_t)(room * one / speed);
        jitter->position = jitter->edge[jitter->bin];
        if (!jitter->bin || jitter->hull[jitter->bin - 1] <= jitter->level)
            return time;
        jitter->bin--;
    }
}

int64_t nl_jitter_next(struct nl_jitter *jitter, uint64_t seed, uint64_t sent_ns, uint64_t correlation, int keep_order)
{
    if (!jitter->bins)
        return 0;
    uint64_t passed = sent_ns - jitter->sent_ns;
    uint64_t range = (uint64_t)(jitter->edge[jitter->bins] - jitter->edge[0]);
    jitter->sent_ns = sent_ns;
    if (!jitter->started || !keep_order || passed > range / FINE)
        draw_afresh(jitter, seed, correlation);
    else if (passed) {
        unsigned __int128 slowed = (unsigned __int128)(passed * FINE) * (NL_CERTAIN - correlation);
        uint64_t time = (uint64_t)(slowed / NL_CERTAIN);
        jitter->scored = 0;
        while ((time = descend(jitter, time)))
            jump(jitter, seed);
    }
    jitter->count++;
    int64_t whole = jitter->position / FINE;
    return whole - (jitter->position % FINE < 0); /* rounded down, so that the order holds in whole nanoseconds too */
}
