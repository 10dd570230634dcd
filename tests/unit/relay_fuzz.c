/* A libFuzzer target for the relay's pure code: the input decides parameters, tables, packets, the clock and changes, and
 * what must always hold is checked. With clang:
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Inetlab/links/core tests/unit/relay_fuzz.c \
 *       netlab/links/core/{link,measure,random,chain,jitter,codel,order,headers}.c -lm -o fuzz && ./fuzz -max_total_time=60
 *
 * relay_driver.c runs the same function over random inputs, with whatever compiler there is. */
#include "abi.h"
#include "headers.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000u
#define PACKETS 256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t left;
};

/* The next bytes of the input; zeros behind its end. */
static uint64_t take_bytes(struct input *in, size_t count)
{
    uint64_t value = 0;
    size_t got = count < in->left ? count : in->left;
    memcpy(&value, in->data, got);
    in->data += got;
    in->left -= got;
    return value;
}

static void require(int holds)
{
    if (!holds)
        abort();
}

static struct nl_chain chain_from(struct input *in)
{
    struct nl_chain chain = {.states = (uint32_t)(take_bytes(in, 1) % (NL_STATES_MAX + 1)),
                             .move_first = (uint32_t)(take_bytes(in, 1) % 2)};
    for (uint32_t i = 0; i < chain.states; i++) {
        chain.event[i] = take_bytes(in, 2) << 47;
        for (int j = 0; j < 3; j++)
            chain.move[3 * i + j] = take_bytes(in, 2) << 47;
    }
    return chain;
}

static struct nl_params params_from(struct input *in)
{
    uint64_t flags = take_bytes(in, 1);
    struct nl_params params = {
        .delay_ns = take_bytes(in, 4),
        .rate_bps = flags & 1 ? 1000 + take_bytes(in, 6) % 999999999000u : 0,
        .queue_bytes = flags & 2 ? take_bytes(in, 3) : 0,
        .queue_packets = flags & 4 ? take_bytes(in, 1) : 0,
        .overhead = 38,
        .min_frame = 84,
        .link_header = flags & 8 ? 14 : 0,
        .full_frame = 1538,
        .down = (uint32_t)(flags >> 7),
        .reorder_gap = (uint32_t)take_bytes(in, 1) % 8,
        .jitter = flags & 16 ? 1 + (uint32_t)take_bytes(in, 1) : 0,
        .jitter_reorder = (flags & 32) != 0,
        .jitter_correlation = flags & 64 ? take_bytes(in, 2) << 47 : 0,
        .codel_target_ns = take_bytes(in, 3),
        .codel_interval_ns = take_bytes(in, 3),
        .codel_ecn = take_bytes(in, 1) % 2,
        .seed = take_bytes(in, 8),
    };
    params.duplicate = chain_from(in);
    params.loss = chain_from(in);
    params.corrupt = chain_from(in);
    params.reorder = chain_from(in);
    return params;
}

/* Ascending, from runs of equal or evenly spaced values; it may be all the same. */
static void table_from(struct input *in, int64_t *table)
{
    int64_t value = -(int64_t)take_bytes(in, 4);
    int i = 0;
    while (i < NL_JITTER_TABLE) {
        int64_t step = (int64_t)(take_bytes(in, 1) << take_bytes(in, 1) % 24);
        int run = in->left ? 1 + (int)take_bytes(in, 2) % NL_JITTER_TABLE : NL_JITTER_TABLE;
        for (; run > 0 && i < NL_JITTER_TABLE; run--, i++, value += step)
            table[i] = value;
    }
}

struct run {
    struct nl_link link;
    struct nl_packet packets[PACKETS]; /* each offered once, so a pointer names a packet */
    uint64_t held, now;
    int changed;
};

static void drain(struct run *run)
{
    struct nl_packet *packet;
    while ((packet = nl_link_take(&run->link, run->now))) {
        require(packet >= run->packets && packet < run->packets + PACKETS);
        require(packet->release_ns <= run->now && packet->release_ns >= packet->arrival_ns);
        require(packet->corrupt_bit == NL_NO_BIT
                || packet->corrupt_bit / 8 + run->link.params.link_header < packet->length || run->changed);
        run->held--;
    }
    while (nl_link_take_dropped(&run->link))
        run->held--;
    require(nl_link_next(&run->link) > run->now);
}

static void offer(struct run *run, struct input *in, struct nl_packet *packet)
{
    uint64_t shape = take_bytes(in, 3), wire, packets;
    *packet = (struct nl_packet){.length = (uint32_t)(shape & 0xffff), .ecn_capable = shape >> 16 & 1};
    if (shape >> 17 & 1) {
        packet->header = 40;
        packet->gso_size = 1 + (uint32_t)(shape >> 18);
    }
    int copies = nl_link_copies(&run->link);
    require(copies >= 0 && copies <= 2 && (copies == 0) == (run->link.params.down != 0));
    nl_link_backlog(&run->link, run->now, &wire, &packets);
    int verdict = nl_link_offer(&run->link, packet, run->now);
    require(packet->wire_bytes >= 84 && packet->segments >= 1);
    run->held += verdict == NL_ACCEPT;
    require(verdict != NL_DROP_QUEUE || wire > 0); /* an empty queue takes any packet */
}

static void exercise_link(struct input *in)
{
    static struct run run;
    static int64_t table[NL_JITTER_TABLE];
    memset(&run, 0, sizeof run);
    struct nl_params params = params_from(in);
    table_from(in, table);
    run.now = take_bytes(in, 7);
    nl_link_init(&run.link, &params, table);
    for (int i = 0; i < PACKETS && in->left; i++) {
        uint64_t what = take_bytes(in, 1);
        run.now += take_bytes(in, what % 4);
        if (what >= 250) {
            params = params_from(in);
            table_from(in, table);
            nl_link_change(&run.link, &params, table, run.now);
            run.changed = 1;
        }
        drain(&run);
        offer(&run, in, &run.packets[i]);
    }
    run.now = UINT64_MAX - 1;
    drain(&run);
    require(run.held == 0 && nl_link_next(&run.link) == UINT64_MAX);
}

static void exercise_headers(struct input *in)
{
    struct virtio_net_hdr offload = {0};
    struct nl_packet packet = {0};
    for (size_t i = 0; i < sizeof offload; i++)
        ((uint8_t *)&offload)[i] = (uint8_t)take_bytes(in, 1);
    packet.length = (uint32_t)in->left;
    uint8_t *bytes = malloc(in->left + 1); /* a sanitizer watches its end */
    memcpy(bytes, in->data, in->left);
    if (nl_headers_parse(&offload, bytes, &packet) == 0)
        require(packet.header <= packet.length);
    if (nl_ecn_capable(bytes, in->left))
        nl_ecn_mark(bytes, in->left);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    if (take_bytes(&in, 1) % 4)
        exercise_link(&in);
    else
        exercise_headers(&in);
    return 0;
}
