/* The model of one direction of a link. Pure: packet and clock in, verdict and release time out.
 *
 * A packet passes two stages. It waits in a tail-drop queue for the transmitter, which sends at rate_bps; then it
 * travels for delay_ns. Serialization is assigned lazily, when the transmitter becomes free and not when the packet
 * arrives, so that a change of rate acts on everything that still waits.
 *
 * Arithmetic is exact. The moment at which the transmitter is free is kept as free_ns + free_rem / rate_bps, the work
 * of a packet in units of bits x 1e9 ("bit-nanoseconds per second"), so nothing is rounded from packet to packet and a
 * year of back-to-back packets has no drift. Only a release time is rounded, upwards: never early.
 *
 * No overflow: a unit has at most 2^29 wire bytes (nl_packet_measure sees to it), so its work is at most
 * 2^29 * 8 * 1e9 = 4.3e18, and with a remainder below 1e12 the sum stays under 2^63.
 */
#include "abi.h"

#define WORK_PER_BYTE 8000000000u
#define WIRE_BYTES_MAX (1u << 29)
#define RATE_MAX 1000000000000u

_Static_assert((uint64_t)WIRE_BYTES_MAX * WORK_PER_BYTE + RATE_MAX < (uint64_t)1 << 63, "work of one unit fits");

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void nl_link_init(struct nl_link *link, const struct nl_params *params)
{
    *link = (struct nl_link){.params = *params};
}

/* Wire bytes of one packet with this many IP bytes. */
static uint64_t frame_bytes(const struct nl_params *params, uint64_t ip_bytes)
{
    return max_u64(ip_bytes + params->overhead, params->min_frame);
}

/* Fill in what the packet, or each packet that an offloaded unit will become, occupies on the link. */
void nl_packet_measure(const struct nl_params *params, struct nl_packet *packet)
{
    uint64_t ip = packet->length > params->link_header ? packet->length - params->link_header : 0;
    uint64_t ip_header = packet->header > params->link_header ? packet->header - params->link_header : 0;
    uint64_t segments = 1, wire = frame_bytes(params, ip), total_ip = ip;

    if (packet->gso_size && ip > ip_header) {
        uint64_t payload = ip - ip_header;
        uint64_t last = payload % packet->gso_size;
        segments = payload / packet->gso_size;
        wire = segments * frame_bytes(params, ip_header + packet->gso_size);
        if (last) {
            segments++;
            wire += frame_bytes(params, ip_header + last);
        }
        total_ip = payload + segments * ip_header;
    }
    packet->segments = (uint32_t)segments;
    packet->wire_bytes = wire < WIRE_BYTES_MAX ? (uint32_t)wire : WIRE_BYTES_MAX;
    packet->ip_bytes = total_ip < UINT32_MAX ? (uint32_t)total_ip : UINT32_MAX;
}

static void append(struct nl_packet **head, struct nl_packet **tail, struct nl_packet *packet)
{
    packet->next = NULL;
    if (*head)
        (*tail)->next = packet;
    else
        *head = packet;
    *tail = packet;
}

/* Start sending at link->free_ns and move the transmitter's free moment past the packet. */
static void transmit(struct nl_link *link, uint64_t work)
{
    uint64_t rate = link->params.rate_bps;
    uint64_t total = work + link->free_rem;
    link->free_ns += total / rate;
    link->free_rem = total % rate;
}

/* When the last bit of all that was started has left, rounded up: never early. */
static uint64_t last_bit_ns(const struct nl_link *link)
{
    return link->free_ns + (link->free_rem != 0);
}

/* Let a packet travel whose last bit leaves at sent_ns. Packets keep their order, whatever delay_ns was before. */
static void propagate(struct nl_link *link, struct nl_packet *packet, uint64_t sent_ns)
{
    packet->release_ns = max_u64(sent_ns + link->params.delay_ns, link->last_release_ns);
    link->last_release_ns = packet->release_ns;
    append(&link->flight_head, &link->flight_tail, packet);
}

static void start_head(struct nl_link *link)
{
    struct nl_packet *packet = link->queue_head;
    link->queue_head = packet->next;
    link->queue_wire_bytes -= packet->wire_bytes;
    link->queue_packets -= packet->segments;

    if (link->free_ns < packet->arrival_ns) {
        link->free_ns = packet->arrival_ns;
        link->free_rem = 0;
    }
    uint64_t start_ns = link->free_ns;
    transmit(link, packet->wire_bytes * (uint64_t)WORK_PER_BYTE);
    link->busy_ns += link->free_ns - start_ns;

    link->prior_release_ns = link->last_release_ns;
    link->in_service = packet;
    link->service_wire_bytes = packet->wire_bytes;
    link->service_segments = packet->segments;
    propagate(link, packet, last_bit_ns(link));
}

/* Start every waiting packet whose turn has come by now_ns. */
static void serve(struct nl_link *link, uint64_t now_ns)
{
    while (link->queue_head && last_bit_ns(link) <= now_ns)
        start_head(link);
    if (last_bit_ns(link) <= now_ns)
        link->in_service = NULL;
}

/* What had not been sent at at_ns, the rest of the packet in service included; propagation does not count. at_ns may lie
 * before what the model has already served: up to free_ns the transmitter has been busy without a break. Packets that
 * were finished since then are counted as if they had been of the size of the last. */
void nl_link_backlog(const struct nl_link *link, uint64_t at_ns, uint64_t *wire_bytes, uint64_t *packets)
{
    *wire_bytes = link->queue_wire_bytes;
    *packets = link->queue_packets;
    if (link->free_ns < at_ns || !link->params.rate_bps)
        return;
    unsigned __int128 work = (unsigned __int128)(link->free_ns - at_ns) * link->params.rate_bps + link->free_rem;
    uint64_t unsent = (uint64_t)((work + WORK_PER_BYTE - 1) / WORK_PER_BYTE);
    *wire_bytes += unsent;
    if (unsent) {
        uint64_t wire = link->service_wire_bytes;
        *packets += (unsent * link->service_segments + wire - 1) / wire;
    }
}

static int fits(const struct nl_link *link, const struct nl_packet *packet)
{
    const struct nl_params *p = &link->params;
    uint64_t bytes, packets;
    if (!p->queue_bytes && !p->queue_packets)
        return 1;
    nl_link_backlog(link, packet->arrival_ns, &bytes, &packets);
    if (bytes == 0)
        return 1; /* an empty queue takes any packet: a limit below one MTU must not close the link */
    return (!p->queue_bytes || bytes + packet->wire_bytes <= p->queue_bytes)
        && (!p->queue_packets || packets + packet->segments <= p->queue_packets);
}

/* Hand the model a packet whose length, header and gso_size are set. On NL_ACCEPT the model keeps it until
 * nl_link_take returns it. arrival_ns must not run backwards from packet to packet, but it may lie before the time of
 * the last take: news of a packet may come late. */
int nl_link_offer(struct nl_link *link, struct nl_packet *packet, uint64_t arrival_ns)
{
    nl_packet_measure(&link->params, packet);
    packet->arrival_ns = arrival_ns;
    if (!link->params.rate_bps) {
        propagate(link, packet, arrival_ns);
        return NL_ACCEPT;
    }
    serve(link, arrival_ns);
    if (!fits(link, packet))
        return NL_DROP_QUEUE;
    append(&link->queue_head, &link->queue_tail, packet);
    link->queue_wire_bytes += packet->wire_bytes;
    link->queue_packets += packet->segments;
    serve(link, arrival_ns);
    return NL_ACCEPT;
}

/* When the next packet is to be released, as things stand; UINT64_MAX: the model holds none. */
uint64_t nl_link_next(const struct nl_link *link)
{
    if (link->flight_head)
        return link->flight_head->release_ns;
    if (!link->queue_head)
        return UINT64_MAX;
    struct nl_link ahead = *link; /* its turn comes only later: look ahead on a copy */
    struct nl_packet head = *link->queue_head;
    ahead.queue_head = &head;
    start_head(&ahead);
    return head.release_ns;
}

/* The next packet whose release time has come, or NULL. It belongs to the caller again. */
struct nl_packet *nl_link_take(struct nl_link *link, uint64_t now_ns)
{
    if (link->params.rate_bps)
        serve(link, now_ns);
    struct nl_packet *packet = link->flight_head;
    if (!packet || packet->release_ns > now_ns)
        return NULL;
    link->flight_head = packet->next;
    if (packet == link->in_service)
        link->in_service = NULL;
    return packet;
}

/* Without a rate nothing waits: all that does leaves at now_ns. */
static void release_queue(struct nl_link *link, uint64_t now_ns)
{
    while (link->queue_head) {
        struct nl_packet *packet = link->queue_head;
        link->queue_head = packet->next;
        propagate(link, packet, now_ns);
    }
    link->in_service = NULL;
    link->queue_wire_bytes = 0;
    link->queue_packets = 0;
}

/* Take new parameters over at now_ns. What has been sent keeps its release time; what still waits, and the rest of the
 * packet in service, is sent at the new rate. Order is kept: after a cut of delay_ns, later packets are released no
 * earlier than those before them. */
void nl_link_change(struct nl_link *link, const struct nl_params *params, uint64_t now_ns)
{
    if (link->params.rate_bps)
        serve(link, now_ns);
    struct nl_packet *current = link->in_service;
    uint64_t unsent = current ? (link->free_ns - now_ns) * link->params.rate_bps + link->free_rem : 0;
    link->params = *params;
    if (current) {
        link->busy_ns -= link->free_ns - now_ns;
        link->free_ns = now_ns;
        link->free_rem = 0;
        if (params->rate_bps)
            transmit(link, unsent);
        link->busy_ns += link->free_ns - now_ns;
        current->release_ns = max_u64(last_bit_ns(link) + params->delay_ns, link->prior_release_ns);
        link->last_release_ns = current->release_ns;
    } else {
        link->free_ns = last_bit_ns(link); /* the remainder is in units of the old rate */
        link->free_rem = 0;
    }
    if (!params->rate_bps)
        release_queue(link, now_ns);
}
