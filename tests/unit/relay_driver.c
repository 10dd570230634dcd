/* Drives the relay's C code under sanitizers: test_relay_sanitized.py compiles and runs it. Each test is a claim; a
 * failed one says where and ends the program. Datagram sockets stand in for TUN devices: one read, one packet. */
#define _GNU_SOURCE
#include "abi.h"
#include "headers.h"
#include "pump.h"
#include "stamps.h"
#include "store.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
#define MS 1000000u

static void check(int holds, const char *what, int line)
{
    if (!holds) {
        fprintf(stderr, "line %d: not so: %s\n", line, what);
        exit(1);
    }
}

static uint64_t random_state = 88172645463325252u;

static uint64_t random_u64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* ---- store ---- */

struct held {
    uint8_t *bytes;
    struct nl_chunk *chunk;
    size_t size;
    uint8_t mark;
};

static void packets_in_the_store_do_not_overlap(void)
{
    enum { HELD = 400 };
    struct held held[HELD] = {0};
    struct nl_store store;
    CHECK(nl_store_open(&store, 64 * NL_CHUNK_BYTES, -1) == 0);
    for (int round = 0; round < 40000; round++) {
        struct held *slot = &held[random_u64() % HELD];
        if (slot->bytes) {
            for (size_t i = 0; i < slot->size; i += 97)
                CHECK(slot->bytes[i] == slot->mark);
            CHECK(slot->bytes[slot->size - 1] == slot->mark);
            nl_store_free(&store, slot->chunk);
            slot->bytes = NULL;
            continue;
        }
        size_t size = 1 + random_u64() % 65536;
        uint8_t *bytes = nl_store_reserve(&store, 65536);
        if (!bytes)
            continue;
        CHECK((uintptr_t)bytes % 64 == 0);
        *slot = (struct held){.bytes = bytes, .size = size, .mark = (uint8_t)random_u64()};
        memset(bytes, slot->mark, size);
        slot->chunk = nl_store_commit(&store, size);
    }
    for (int i = 0; i < HELD; i++)
        if (held[i].bytes)
            nl_store_free(&store, held[i].chunk);
    CHECK(store.in_use_bytes == 0);
    nl_store_close(&store);
}

static void a_store_that_drains_uses_the_same_memory_again(void)
{
    struct nl_store store;
    CHECK(nl_store_open(&store, 8 * NL_CHUNK_BYTES, -1) == 0);
    void *first = nl_store_reserve(&store, 1000);
    for (int i = 0; i < 10000; i++) {
        CHECK(nl_store_reserve(&store, 1000) == first);
        nl_store_free(&store, nl_store_commit(&store, 1000));
    }
    CHECK(store.mapped_bytes == NL_CHUNK_BYTES);
    nl_store_close(&store);
}

static void a_store_ends_at_its_cap_and_recovers(void)
{
    struct nl_store store;
    struct nl_chunk *chunks[100];
    int count = 0;
    CHECK(nl_store_open(&store, 3 * NL_CHUNK_BYTES, -1) == 0);
    while (nl_store_reserve(&store, 100000)) {
        CHECK(count < 100);
        chunks[count++] = nl_store_commit(&store, 100000);
    }
    CHECK(count == 3 * (int)(NL_CHUNK_BYTES / 100032)); /* sizes are rounded up to 64 */
    CHECK(store.mapped_bytes == 3 * NL_CHUNK_BYTES);
    for (int i = 0; i < count; i++)
        nl_store_free(&store, chunks[i]);
    CHECK(nl_store_reserve(&store, 100000) != NULL);
    nl_store_close(&store);
}

static void a_provider_brings_memory_before_it_is_needed(void)
{
    struct nl_provider provider;
    struct nl_store store;
    struct nl_chunk *chunks[400];
    CHECK(nl_provider_open(&provider, 1) == 0 && nl_provider_start(&provider) == 0);
    CHECK(nl_store_open(&store, 20 * NL_CHUNK_BYTES, provider.wake_fd) == 0);
    nl_provider_serve(&provider, 0, &store);
    nl_store_prepare(&store, 5 * NL_CHUNK_BYTES);
    CHECK(store.mapped_bytes == 5 * NL_CHUNK_BYTES);
    int count = 0;
    for (; nl_store_reserve(&store, 100000) && count < 400; count++) {
        chunks[count] = nl_store_commit(&store, 100000);
        if (count % 20 == 0) /* in time or not, nothing is lost or handed out twice */
            usleep(random_u64() % 2 ? 3000 : 1);
    }
    CHECK(count == 20 * (int)(NL_CHUNK_BYTES / 100032) || count == 400);
    while (count--)
        nl_store_free(&store, chunks[count]);
    CHECK(store.in_use_bytes == 0 && store.mapped_bytes == 20 * NL_CHUNK_BYTES);
    nl_provider_serve(&provider, 0, NULL);
    nl_store_close(&store);
    nl_provider_close(&provider);
}

/* ---- stamps ---- */

static struct nl_stamp_ring ring;

static struct nl_stamps fresh_stamps(void)
{
    memset(&ring, 0, sizeof ring);
    return (struct nl_stamps){.ring = &ring};
}

static void stamp(uint64_t at_ns, uint64_t length)
{
    ring.stamps[ring.count % NL_STAMPS] = (struct nl_stamp){at_ns, length};
    ring.count++;
}

static void a_packet_gets_its_own_stamp(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0;
    stamp(100, 60);
    stamp(110, 70);
    CHECK(nl_stamps_take(&stamps, 60, 500, &lost) == 100);
    CHECK(nl_stamps_take(&stamps, 70, 510, &lost) == 110);
    CHECK(nl_stamps_take(&stamps, 70, 520, &lost) == 520); /* no stamp: the time of the read */
    CHECK(lost == 0);
}

static void stamps_never_run_backwards_or_ahead_of_the_read(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0;
    stamp(100, 60);
    stamp(90, 60);
    stamp(999, 60);
    CHECK(nl_stamps_take(&stamps, 60, 500, &lost) == 100);
    CHECK(nl_stamps_take(&stamps, 60, 501, &lost) == 100);
    CHECK(nl_stamps_take(&stamps, 60, 502, &lost) == 502);
}

static void a_packet_lost_in_the_device_is_found_by_its_length(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0;
    stamp(100, 60);
    stamp(110, 70);
    stamp(120, 80);
    CHECK(nl_stamps_take(&stamps, 80, 500, &lost) == 120);
    CHECK(lost == 0); /* they may have been overtaken */
    stamp(3 * MS, 90);
    CHECK(nl_stamps_take(&stamps, 90, 4 * MS, &lost) == 3 * MS);
    CHECK(lost == 2);
}

static void a_packet_that_was_overtaken_behind_its_stamp_is_not_lost(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0;
    stamp(100, 60); /* two processors: stamped first, queued second */
    stamp(110, 70);
    stamp(120, 80);
    CHECK(nl_stamps_take(&stamps, 70, 500, &lost) == 110);
    CHECK(nl_stamps_take(&stamps, 60, 501, &lost) == 110);
    CHECK(nl_stamps_take(&stamps, 80, 502, &lost) == 120);
    lost += nl_stamps_settle(&stamps, 100 * MS);
    CHECK(lost == 0);
}

static void many_packets_lost_at_once_are_all_counted(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0;
    for (uint64_t i = 0; i < 1000; i++)
        stamp(i, 60);
    stamp(1000, 70);
    CHECK(nl_stamps_take(&stamps, 70, 2000, &lost) == 1000);
    CHECK(lost == 1000 - NL_PASSED);
    lost += nl_stamps_settle(&stamps, 100 * MS);
    CHECK(lost == 1000);
}

static void lost_packets_of_equal_length_are_found_when_the_device_stays_empty(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0;
    for (int i = 0; i < 10; i++)
        stamp(100, 60);
    for (int i = 0; i < 7; i++)
        nl_stamps_take(&stamps, 60, 500, &lost);
    for (uint64_t look = 0; look < 100; look++)
        lost += nl_stamps_settle(&stamps, 1000 + look * MS);
    CHECK(lost == 3);
    stamp(600 * MS, 60);
    CHECK(nl_stamps_take(&stamps, 60, 700 * MS, &lost) == 600 * MS);
    CHECK(lost == 3);
}

static void a_packet_on_its_way_into_the_device_is_not_lost(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0, now = 0;
    for (int i = 0; i < 1000; i++, now += MS) {
        stamp(now, 60); /* stamped, but the device still looks empty */
        lost += nl_stamps_settle(&stamps, now);
        nl_stamps_take(&stamps, 60, now, &lost);
        if (i % 8 == 7)
            lost += nl_stamps_settle(&stamps, now);
    }
    CHECK(lost == 0);
}

static void every_packet_lost_in_an_overrun_is_counted_once(void)
{
    struct nl_stamps stamps = fresh_stamps();
    uint64_t lost = 0, sent = 5 * NL_STAMPS, received = 10000;
    for (uint64_t i = 0; i < sent; i++)
        stamp(i, 60);
    for (uint64_t i = 0; i < received; i++)
        nl_stamps_take(&stamps, 60, sent, &lost);
    for (uint64_t look = 0; look < 200; look++)
        lost += nl_stamps_settle(&stamps, sent + look * MS);
    CHECK(lost == sent - received);
}

/* ---- headers ---- */

static uint16_t header_checksum(const uint8_t *ip)
{
    uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2)
        sum += i == 10 ? 0 : (uint32_t)(ip[i] << 8 | ip[i + 1]);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static void a_congestion_mark_keeps_the_checksum_right(void)
{
    for (int round = 0; round < 100000; round++) {
        uint8_t ip[20];
        for (int i = 0; i < 20; i++)
            ip[i] = (uint8_t)random_u64();
        ip[0] = 0x45;
        uint16_t sum = header_checksum(ip);
        ip[10] = (uint8_t)(sum >> 8);
        ip[11] = (uint8_t)sum;
        int capable = (ip[1] & 3) != 0;
        CHECK(nl_ecn_capable(ip, sizeof ip) == capable);
        nl_ecn_mark(ip, sizeof ip);
        CHECK((ip[1] & 3) == (capable ? 3 : 0));
        sum = header_checksum(ip);
        CHECK(ip[10] == sum >> 8 && ip[11] == (sum & 0xff));
    }
}

static void only_whole_ip_headers_are_marked(void)
{
    uint8_t ipv6[40] = {0x60, 0x10};
    CHECK(nl_ecn_capable(ipv6, sizeof ipv6) && !nl_ecn_capable(ipv6, 39));
    nl_ecn_mark(ipv6, sizeof ipv6);
    CHECK(ipv6[0] == 0x60 && ipv6[1] == 0x30);
    uint8_t other[40] = {0x10, 0xff};
    CHECK(!nl_ecn_capable(other, sizeof other));
}

/* ---- the pure code under random use ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); /* relay_fuzz.c */

static void arbitrary_input_breaks_no_rule(void)
{
    uint8_t input[2048];
    for (int round = 0; round < 4000; round++) {
        size_t size = random_u64() % sizeof input;
        uint64_t calm = random_u64() % 4; /* how many of the bytes are small */
        for (size_t i = 0; i < size; i++)
            input[i] = (uint8_t)(random_u64() % 4 < calm ? random_u64() % 8 : random_u64());
        LLVMFuzzerTestOneInput(input, size);
    }
}

/* ---- the pump between two sockets ---- */

struct rig {
    struct nl_shared *shared;
    struct nl_direction *direction;
    int into, from; /* our ends */
    struct nl_provider provider;
    pthread_t thread;
};

static void *pump_thread(void *argument)
{
    struct rig *rig = argument;
    nl_pump_run(rig->shared, 0, &rig->provider);
    return NULL;
}

static uint32_t state_of(const struct rig *rig)
{
    return __atomic_load_n(&rig->direction->state, __ATOMIC_ACQUIRE);
}

static void start_rig(struct rig *rig, struct nl_params params, uint64_t memory)
{
    int in_pair[2], out_pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, in_pair) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, out_pair) == 0);
    rig->shared = calloc(1, nl_shared_bytes(1));
    rig->shared->directions = 1;
    rig->shared->spin_cap_ns = 50000;
    rig->shared->spin_permille = 100;
    rig->direction = nl_shared_direction(rig->shared, 0);
    rig->direction->in_fd = in_pair[1];
    rig->direction->out_fd = out_pair[1];
    rig->direction->wake_fd = eventfd(0, EFD_NONBLOCK);
    rig->direction->params = params;
    rig->direction->memory_cap_bytes = memory;
    rig->into = in_pair[0];
    rig->from = out_pair[0];
    CHECK(nl_provider_open(&rig->provider, 1) == 0 && nl_provider_start(&rig->provider) == 0);
    CHECK(pthread_create(&rig->thread, NULL, pump_thread, rig) == 0);
    while (state_of(rig) == NL_STARTING)
        usleep(100);
    CHECK(state_of(rig) == NL_RUNNING);
}

/* stats may be NULL. */
static void stop_rig(struct rig *rig, struct nl_stats *stats)
{
    uint64_t one = 1;
    __atomic_store_n(&rig->shared->stop, 1, __ATOMIC_RELAXED);
    CHECK(write(rig->direction->wake_fd, &one, sizeof one) == sizeof one);
    pthread_join(rig->thread, NULL);
    nl_provider_close(&rig->provider);
    CHECK(state_of(rig) == NL_ENDED);
    if (stats)
        nl_stats_read(rig->direction, stats);
    close(rig->into);
    close(rig->from);
    close(rig->direction->in_fd);
    close(rig->direction->out_fd);
    close(rig->direction->wake_fd);
    free(rig->shared);
}

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void send_number(struct rig *rig, uint32_t number, size_t size)
{
    uint8_t bytes[2048] = {0};
    memcpy(bytes + sizeof(struct virtio_net_hdr), &number, sizeof number);
    while (write(rig->into, bytes, sizeof(struct virtio_net_hdr) + size) < 0)
        CHECK(errno == EAGAIN);
}

static uint32_t receive_number(struct rig *rig, size_t size)
{
    uint8_t bytes[2048];
    uint32_t number;
    CHECK(read(rig->from, bytes, sizeof bytes) == (ssize_t)(sizeof(struct virtio_net_hdr) + size));
    memcpy(&number, bytes + sizeof(struct virtio_net_hdr), sizeof number);
    return number;
}

static void the_pump_carries_packets_in_order_and_not_early(void)
{
    struct rig rig;
    start_rig(&rig, (struct nl_params){.delay_ns = 20 * MS, .overhead = 38, .min_frame = 84}, 64 * NL_CHUNK_BYTES);
    for (uint32_t batch = 0; batch < 20; batch++) {
        uint64_t sent = clock_ns();
        for (uint32_t i = 0; i < 50; i++)
            send_number(&rig, batch * 50 + i, 100 + i);
        for (uint32_t i = 0; i < 50; i++)
            CHECK(receive_number(&rig, 100 + i) == batch * 50 + i);
        CHECK(clock_ns() - sent >= 20 * MS);
    }
    struct nl_stats stats;
    stop_rig(&rig, &stats);
    CHECK(stats.packets_in == 1000);
    CHECK(stats.packets_out == 1000 && stats.bytes_in == stats.bytes_out);
    CHECK(stats.drops_queue == 0 && stats.drops_memory == 0);
}

static void a_change_reaches_a_sleeping_pump_and_loses_nothing(void)
{
    struct rig rig;
    struct nl_params slow = {.delay_ns = 0, .rate_bps = 8000, .overhead = 0, .min_frame = 0};
    struct nl_params fast = {.delay_ns = MS, .rate_bps = 0};
    start_rig(&rig, slow, 64 * NL_CHUNK_BYTES);
    for (uint32_t i = 0; i < 10; i++)
        send_number(&rig, i, 1000); /* a second each at this rate */
    uint64_t one = 1, changed = clock_ns(), sequence = rig.direction->sequence;
    nl_params_publish(rig.direction, &fast, NULL, 64 * NL_CHUNK_BYTES);
    CHECK(write(rig.direction->wake_fd, &one, sizeof one) == sizeof one);
    for (uint32_t i = 0; i < 10; i++)
        CHECK(receive_number(&rig, 1000) == i);
    CHECK(clock_ns() - changed < 900 * MS);
    CHECK(nl_params_taken(rig.direction) == sequence + 2);
    stop_rig(&rig, NULL);
}

static void packets_beyond_the_memory_are_counted_not_held(void)
{
    struct rig rig;
    struct nl_stats stats;
    start_rig(&rig, (struct nl_params){.delay_ns = 3600000000000u}, NL_CHUNK_BYTES);
    for (uint32_t i = 0; i < 4000; i++)
        send_number(&rig, i, 1000);
    do {
        nl_stats_read(rig.direction, &stats);
    } while (stats.packets_in + stats.drops_memory < 4000);
    CHECK(stats.drops_memory > 0 && stats.held_bytes_peak == NL_CHUNK_BYTES);
    CHECK(stats.packets_in > 1500 && stats.packets_in < 2000); /* 2 MiB less the room kept for a 64 KB read */
    stop_rig(&rig, NULL);
}

static void the_pump_ends_when_its_device_goes_away(void)
{
    struct rig rig;
    start_rig(&rig, (struct nl_params){0}, NL_CHUNK_BYTES);
    shutdown(rig.into, SHUT_RDWR);
    while (state_of(&rig) != NL_ENDED)
        usleep(100);
    CHECK(rig.direction->ended_errno == ENODEV);
    stop_rig(&rig, NULL);
}

int main(void)
{
    packets_in_the_store_do_not_overlap();
    a_store_that_drains_uses_the_same_memory_again();
    a_store_ends_at_its_cap_and_recovers();
    a_provider_brings_memory_before_it_is_needed();
    a_packet_gets_its_own_stamp();
    stamps_never_run_backwards_or_ahead_of_the_read();
    a_packet_that_was_overtaken_behind_its_stamp_is_not_lost();
    many_packets_lost_at_once_are_all_counted();
    a_packet_lost_in_the_device_is_found_by_its_length();
    lost_packets_of_equal_length_are_found_when_the_device_stays_empty();
    a_packet_on_its_way_into_the_device_is_not_lost();
    every_packet_lost_in_an_overrun_is_counted_once();
    a_congestion_mark_keeps_the_checksum_right();
    only_whole_ip_headers_are_marked();
    arbitrary_input_breaks_no_rule();
    the_pump_carries_packets_in_order_and_not_early();
    a_change_reaches_a_sleeping_pump_and_loses_nothing();
    packets_beyond_the_memory_are_counted_not_held();
    the_pump_ends_when_its_device_goes_away();
    puts("all hold");
    return 0;
}
