/* How many small packets per second the relay's pure model decides, plain and with every effect: bench_relay.py compiles
 * and runs it. Prints both figures. */
#define _GNU_SOURCE
#include "abi.h"

#include <stdio.h>
#include <time.h>

#define PACKETS 4000000u
#define WINDOW 65536u
#define GAP_NS 800u /* 84 wire bytes at 1 Gbit/s take 672 ns: busy, never full */
#define PERCENT (NL_CERTAIN / 100)

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void forward(struct nl_link *link, struct nl_packet *packet, uint64_t now_ns)
{
    packet->length = 64;
    packet->header = packet->gso_size = 0;
    nl_link_offer(link, packet, now_ns);
    while (nl_link_take(link, now_ns))
        ;
    while (nl_link_take_dropped(link))
        ;
}

static double packets_per_s(const struct nl_params *params, const int64_t *jitter)
{
    static struct nl_link link;
    static struct nl_packet packets[WINDOW]; /* free again by the time they are used again: 52 ms later */
    uint64_t next = 0, started = clock_ns();
    nl_link_init(&link, params, jitter);
    for (uint64_t i = 0; i < PACKETS; i++)
        for (int copies = nl_link_copies(&link); copies > 0; copies--)
            forward(&link, &packets[next++ % WINDOW], i * GAP_NS);
    return PACKETS / ((double)(clock_ns() - started) / 1e9);
}

/* An event with this probability whose neighbours are correlated. */
static struct nl_chain clustered(uint64_t percent)
{
    return (struct nl_chain){.states = 2,
                             .move_first = 1,
                             .move = {NL_CERTAIN - percent * PERCENT / 2, NL_CERTAIN, NL_CERTAIN,
                                      NL_CERTAIN / 2 - percent * PERCENT / 2, NL_CERTAIN, NL_CERTAIN},
                             .event = {0, NL_CERTAIN}};
}

int main(void)
{
    static int64_t table[NL_JITTER_TABLE];
    struct nl_params params = {.delay_ns = 100000, .rate_bps = 1000000000, .queue_bytes = 100000,
                               .overhead = 38, .min_frame = 84, .full_frame = 1538};
    printf("%.0f ", packets_per_s(&params, NULL));
    for (int i = 0; i < NL_JITTER_TABLE; i++)
        table[i] = (i - NL_JITTER_TABLE / 2) * 20; /* 41 us to either side, uniform */
    params.jitter = 1;
    params.seed = 1;
    params.loss = params.duplicate = params.corrupt = params.reorder = clustered(1);
    params.reorder_gap = 1;
    params.codel_target_ns = 5000000;
    params.codel_interval_ns = 100000000;
    printf("%.0f\n", packets_per_s(&params, table));
    return 0;
}
