/* The way of a packet through the relay: read from a device into the store, given to the model, and written from the
 * store when the model releases it. See pump.h. */
#define _GNU_SOURCE
#include "headers.h"
#include "pump.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define READ_BATCH 64

/* The virtio-net header ends where a cache line ends, so that the packet itself starts aligned. */
#define OFFLOAD_BYTES sizeof(struct virtio_net_hdr)
#define PACKET_OFFSET 128
#define LARGEST_PACKET (65536 + 64)

struct record {
    struct nl_packet packet; /* first: the model gives back a pointer to it */
    struct nl_chunk *chunk;
};
_Static_assert(sizeof(struct record) + OFFLOAD_BYTES <= PACKET_OFFSET, "the headers do not overlap the record");

/* The packet as the device has it, behind its virtio-net header. */
static uint8_t *bytes_of(struct record *record)
{
    return (uint8_t *)record + PACKET_OFFSET;
}

static uint8_t *offload_of(struct record *record)
{
    return bytes_of(record) - OFFLOAD_BYTES;
}

static struct record *reserve(struct nl_pump *pump)
{
    return nl_store_reserve(&pump->store, PACKET_OFFSET + LARGEST_PACKET);
}

/* ---- out ---- */

static void count_failed_write(struct nl_pump *pump, int error)
{
    struct nl_stats *stats = pump->stats;
    if (error == EAGAIN || error == ENOBUFS || error == ENOMEM)
        nl_add(&stats->drops_write_busy, 1);
    else if (error == EIO)
        nl_add(&stats->drops_write_down, 1);
    else if (error == EINVAL)
        nl_add(&stats->drops_write_bad, 1);
    else
        nl_add(&stats->drops_write_other, 1);
    if (error == EBADFD || error == EBADF || error == ENODEV)
        nl_end(pump, error);
}

static void count_lateness(struct nl_pump *pump, uint64_t lateness_ns)
{
    struct nl_stats *stats = pump->stats;
    uint32_t bucket = nl_bucket_of(lateness_ns);
    nl_add(&stats->lateness[bucket], 1);
    if (pump->woken)
        nl_add(&stats->lateness_wake[bucket], 1);
    pump->woken = 0;
    nl_add(&stats->lateness_sum_ns, lateness_ns);
    nl_raise(&stats->lateness_max_ns, lateness_ns);
}

/* Do to the bytes what the model decided. */
static void impair(struct nl_pump *pump, struct record *record)
{
    const struct nl_packet *packet = &record->packet;
    uint32_t skip = pump->link.params.link_header;
    uint8_t *ip = bytes_of(record) + skip;
    if (packet->marked) {
        nl_ecn_mark(ip, packet->length - skip);
        nl_add(&pump->stats->marked, packet->segments);
    }
    if (packet->corrupt_bit != NL_NO_BIT) {
        ip[packet->corrupt_bit / 8] ^= (uint8_t)(1u << packet->corrupt_bit % 8);
        nl_add(&pump->stats->corrupted, packet->segments);
    }
    if (packet->overtakes)
        nl_add(&pump->stats->overtakers, packet->segments);
}

/* Whether the far kernel refuses a packet for what the model did to it: a damaged version of IP fits no device, where any
 * other damage is found a moment later, by the host behind it. */
static int refused_as_damaged(const struct nl_packet *packet, int error)
{
    return error == EINVAL && packet->corrupt_bit != NL_NO_BIT;
}

static void write_packet(struct nl_pump *pump, struct record *record)
{
    struct nl_stats *stats = pump->stats;
    const struct nl_packet *packet = &record->packet;
    impair(pump, record);
    uint64_t at_ns = nl_now_ns();
    ssize_t written = write(pump->direction->out_fd, offload_of(record), OFFLOAD_BYTES + packet->length);
    if (written < 0 && !refused_as_damaged(packet, errno)) {
        count_failed_write(pump, errno);
        nl_fate_note(pump->fates, packet, NL_FATE_REFUSED, at_ns);
        return;
    }
    count_lateness(pump, at_ns - packet->release_ns);
    nl_add(&stats->units_out, 1);
    nl_add(&stats->packets_out, packet->segments);
    nl_add(&stats->bytes_out, packet->ip_bytes);
    nl_add(&stats->wire_bytes_out, packet->wire_bytes);
    nl_fate_note(pump->fates, packet, NL_FATE_PASSED, at_ns);
}

void nl_write_due(struct nl_pump *pump)
{
    struct nl_packet *packet;
    while (!pump->ended && (packet = nl_link_take(&pump->link, nl_now_ns()))) {
        struct record *record = (struct record *)packet;
        write_packet(pump, record);
        nl_store_free(&pump->store, record->chunk);
    }
    while ((packet = nl_link_take_dropped(&pump->link))) {
        nl_add(&pump->stats->drops_codel, packet->segments);
        nl_fate_note(pump->fates, packet, NL_FATE_CODEL, 0);
        nl_store_free(&pump->store, ((struct record *)packet)->chunk);
    }
}

void nl_note_held(struct nl_pump *pump)
{
    struct nl_packet *packet;
    while (pump->fates && (packet = nl_link_take(&pump->link, UINT64_MAX)))
        nl_fate_note(pump->fates, packet, NL_FATE_HELD, 0);
    while (pump->fates && (packet = nl_link_take_dropped(&pump->link)))
        nl_fate_note(pump->fates, packet, NL_FATE_HELD, 0);
}

/* ---- in ---- */

/* Let the model judge a packet in reserved memory. 1 when it keeps the packet, and so the memory. */
static int offer(struct nl_pump *pump, struct record *record, uint64_t arrival_ns)
{
    struct nl_stats *stats = pump->stats;
    uint64_t waiting_bytes, waiting_packets;
    int verdict = nl_link_offer(&pump->link, &record->packet, arrival_ns);
    if (verdict != NL_ACCEPT) {
        nl_add(verdict == NL_DROP_LOSS ? &stats->drops_loss : &stats->drops_queue, record->packet.segments);
        nl_fate_note(pump->fates, &record->packet, verdict == NL_DROP_LOSS ? NL_FATE_LOSS : NL_FATE_QUEUE, 0);
        return 0;
    }
    record->chunk = nl_store_commit(&pump->store, PACKET_OFFSET + record->packet.length);
    nl_raise(&stats->held_bytes_peak, pump->store.in_use_bytes);
    nl_link_backlog(&pump->link, arrival_ns, &waiting_bytes, &waiting_packets);
    nl_raise(&stats->queue_bytes_peak, waiting_bytes);
    return 1;
}

/* A second packet like this one, in memory of its own; a packet that the model did not keep is its own copy. */
static struct record *copy_of(struct nl_pump *pump, struct record *record, int kept)
{
    if (!kept)
        return record;
    struct record *copy = reserve(pump);
    if (!copy) {
        nl_add(&pump->stats->drops_memory, 1);
        nl_fate_note_unread(pump->fates, record->packet.ip_bytes, record->packet.arrival_ns, NL_FATE_MEMORY);
        return NULL;
    }
    copy->packet = record->packet;
    memcpy(offload_of(copy), offload_of(record), OFFLOAD_BYTES + record->packet.length);
    return copy;
}

static void arrive(struct nl_pump *pump, struct record *record, uint64_t arrival_ns)
{
    struct nl_stats *stats = pump->stats;
    struct nl_packet *packet = &record->packet;
    nl_packet_measure(&pump->link.params, packet);
    nl_add(&stats->units_in, 1);
    nl_add(&stats->packets_in, packet->segments);
    nl_add(&stats->bytes_in, packet->ip_bytes);
    packet->cookie = stats->units_in;
    packet->arrival_ns = arrival_ns;
    packet->marked = packet->overtakes = 0;
    packet->corrupt_bit = NL_NO_BIT;
    int copies = nl_link_copies(&pump->link);
    if (!copies) {
        nl_add(&stats->drops_down, packet->segments);
        nl_fate_note(pump->fates, packet, NL_FATE_DOWN, 0);
        return;
    }
    int kept = offer(pump, record, arrival_ns);
    if (copies < 2)
        return;
    nl_add(&stats->copies, packet->segments);
    struct record *copy = copy_of(pump, record, kept);
    if (copy) {
        copy->packet.cookie |= NL_FATE_IS_COPY;
        offer(pump, copy, arrival_ns);
    }
}

/* Read one packet: its bytes and when it came. Returns the length without the offload header, or -1: there is none. */
static ssize_t read_device(struct nl_pump *pump, uint8_t *start, uint64_t *arrival_ns)
{
    uint64_t lost = 0;
    ssize_t got = read(pump->direction->in_fd, start, OFFLOAD_BYTES + LARGEST_PACKET);
    if (got < 0 && errno == EAGAIN)
        lost = nl_stamps_settle(&pump->stamps, nl_now_ns());
    else if (got < 0 && errno != EINTR)
        nl_end(pump, errno);
    else if (got > (ssize_t)OFFLOAD_BYTES)
        *arrival_ns = nl_stamps_take(&pump->stamps, (uint64_t)got - OFFLOAD_BYTES, nl_now_ns(), &lost);
    nl_add(&pump->stats->drops_device, lost);
    return got < 0 ? -1 : got - (ssize_t)OFFLOAD_BYTES;
}

/* No memory is left for what the model would hold: take the packet off the device and count it. */
static int discard_packet(struct nl_pump *pump)
{
    static _Thread_local uint8_t scratch[OFFLOAD_BYTES + LARGEST_PACKET];
    uint64_t arrival_ns = 0;
    ssize_t length = read_device(pump, scratch, &arrival_ns);
    if (length < 0)
        return 0;
    nl_add(&pump->stats->drops_memory, 1);
    nl_fate_note_unread(pump->fates, (uint32_t)length, arrival_ns, NL_FATE_MEMORY);
    return 1;
}

/* Find out what the model must know of the packet. 0, or -1: it is malformed. */
static int describe(struct nl_pump *pump, struct record *record)
{
    struct nl_packet *packet = &record->packet;
    struct virtio_net_hdr offload;
    uint32_t skip = pump->link.params.link_header;
    memcpy(&offload, offload_of(record), sizeof offload);
    if (packet->length <= skip || nl_headers_parse(&offload, bytes_of(record), packet) != 0)
        return -1;
    packet->ecn_capable = (uint32_t)nl_ecn_capable(bytes_of(record) + skip, packet->length - skip);
    if (packet->gso_size) { /* say truly how long the headers are: the kernel puts the rest into page fragments */
        offload.hdr_len = (uint16_t)packet->header;
        memcpy(offload_of(record), &offload, sizeof offload);
    }
    return 0;
}

/* Read one packet into the store and hand it to the model. 1 when there was one. */
static int read_packet(struct nl_pump *pump)
{
    struct record *record = reserve(pump);
    if (!record)
        return discard_packet(pump);
    uint64_t arrival_ns = 0;
    ssize_t length = read_device(pump, offload_of(record), &arrival_ns);
    if (length < 0)
        return 0;
    record->packet.length = (uint32_t)length;
    if (describe(pump, record) == 0) {
        arrive(pump, record, arrival_ns);
        return 1;
    }
    nl_add(&pump->stats->drops_malformed, 1);
    nl_fate_note_unread(pump->fates, (uint32_t)length, arrival_ns, NL_FATE_MALFORMED);
    return 1;
}

int nl_read_batch(struct nl_pump *pump)
{
    int count = 0;
    while (count < READ_BATCH && !pump->ended && read_packet(pump)) {
        count++;
        if (nl_link_next(&pump->link) <= nl_now_ns())
            break;
    }
    return count > 0;
}
