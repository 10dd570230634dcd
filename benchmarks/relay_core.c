/* How many small packets per second the relay's pure model decides: bench_relay.py compiles and runs it. */
#define _GNU_SOURCE
#include "abi.h"

#include <stdio.h>
#include <time.h>

#define PACKETS 4000000u
#define WINDOW 1024u
#define GAP_NS 800u /* 84 wire bytes at 1 Gbit/s take 672 ns: busy, never full */

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(void)
{
    static struct nl_link link;
    static struct nl_packet packets[WINDOW];
    const struct nl_params params = {.delay_ns = 100000, .rate_bps = 1000000000, .queue_bytes = 100000,
                                     .overhead = 38, .min_frame = 84};
    uint64_t taken = 0, started = clock_ns();
    nl_link_init(&link, &params, NULL);
    for (uint64_t i = 0; i < PACKETS; i++) {
        struct nl_packet *packet = &packets[i % WINDOW]; /* 126 in flight at most: free again by then */
        packet->length = 64;
        packet->header = packet->gso_size = 0;
        nl_link_offer(&link, packet, i * GAP_NS);
        while (nl_link_take(&link, i * GAP_NS))
            taken++;
    }
    double seconds = (double)(clock_ns() - started) / 1e9;
    printf("%.0f %lu\n", PACKETS / seconds, (unsigned long)taken);
    return 0;
}
