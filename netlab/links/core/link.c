/* The model of one direction of a link. Pure: packet and clock in, verdict and release time out.
 *
 * The way of a packet (docs/explanation/link-model.md): a link that is down drops it; it may be doubled (nl_link_copies,
 * the caller makes the copy), then lost, then damaged; it waits in a tail-drop queue, which CoDel may manage, for the
 * transmitter, which sends at rate_bps; then it travels for delay_ns and its jitter, in order, or overtakes.
 *
 * Serialization is assigned lazily, when the transmitter becomes free and not when the packet arrives, so that a change
 * of rate acts on everything that still waits.
 *
 * Arithmetic is exact. The moment at which the transmitter is free is kept as free_ns + free_rem / rate_bps, the work
 * of a packet in units of bits x 1e9 ("bit-nanoseconds per second"), so nothing is rounded from packet to packet and a
 * year of back-to-back packets has no drift. Only a release time is rounded, upwards: never early.
 *
 * No overflow: a unit has at most 2^29 wire bytes (nl_packet_measure sees to it), so its work is at most
 * 2^29 * 8 * 1e9 = 4.3e18, and with a remainder below 1e12 the sum stays under 2^63.
 */
#include "abi.h"
#include "chain.h"
#include "codel.h"
#include "jitter.h"
#include "order.h"

#define WORK_PER_BYTE 8000000000u
#define RATE_MAX 1000000000000u

_Static_assert((uint64_t)NL_WIRE_BYTES_MAX * WORK_PER_BYTE + RATE_MAX < (uint64_t)1 << 63, "work of one unit fits");

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void nl_link_init(struct nl_link *link, const struct nl_params *params, const int64_t *jitter)
{
    *link = (struct nl_link){.params = *params};
    if (params->jitter)
        nl_jitter_shape(&link->jitter, jitter);
}

/* ---- travelling ---- */

static void append(struct nl_packet **head, struct nl_packet **tail, struct nl_packet *packet)
{
    packet->next = NULL;
    if (*head)
        (*tail)->next = packet;
    else
        *head = packet;
    *tail = packet;
}

/* Whether the packet is one that overtakes. */
static int overtakes(struct nl_link *link)
{
    const struct nl_params *p = &link->params;
    if (!p->reorder.states || ++link->since_overtaking < p->reorder_gap)
        return 0;
    if (!nl_chain_next(&p->reorder, &link->reorder, p->seed, NL_STREAM_REORDER))
        return 0;
    link->since_overtaking = 0;
    return 1;
}

/* How long the packet travels whose last bit leaves at sent_ns. */
static uint64_t travel_ns(struct nl_link *link, uint64_t sent_ns)
{
    const struct nl_params *p = &link->params;
    if (!p->jitter)
        return p->delay_ns;
    int64_t deviation = nl_jitter_next(&link->jitter, p->seed, sent_ns, p->jitter_correlation, !p->jitter_reorder);
    int64_t travel = (int64_t)p->delay_ns + deviation;
    return travel > 0 ? (uint64_t)travel : 0;
}

/* Let a packet travel whose last bit leaves at sent_ns. */
static void propagate(struct nl_link *link, struct nl_packet *packet, uint64_t sent_ns)
{
    packet->sequence = link->sequence++;
    packet->overtakes = (uint32_t)overtakes(link);
    if (packet->overtakes) {
        packet->release_ns = sent_ns;
        link->loose = nl_order_put(link->loose, packet);
        return;
    }
    packet->release_ns = sent_ns + travel_ns(link, sent_ns);
    if (link->params.jitter_reorder) {
        link->last_release_ns = max_u64(packet->release_ns, link->last_release_ns);
        link->loose = nl_order_put(link->loose, packet);
        return;
    }
    packet->release_ns = max_u64(packet->release_ns, link->last_release_ns); /* in order, whatever delay_ns was before */
    link->last_release_ns = packet->release_ns;
    append(&link->flight_head, &link->flight_tail, packet);
}

/* ---- the transmitter ---- */

/* Move the transmitter's free moment past so much work. */
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

static struct nl_packet *leave_queue(struct nl_link *link)
{
    struct nl_packet *packet = link->queue_head;
    link->queue_head = packet->next;
    link->queue_wire_bytes -= packet->wire_bytes;
    link->queue_packets -= packet->segments;
    return packet;
}

/* Whether CoDel lets the packet pass whose turn comes when the transmitter is free. */
static int managed(struct nl_link *link, struct nl_packet *packet)
{
    uint64_t start_ns = last_bit_ns(link);
    if (!link->params.codel_interval_ns)
        return 1;
    enum nl_codel_verdict verdict = nl_codel_judge(&link->params, &link->codel, start_ns, start_ns - packet->arrival_ns,
                                                   link->queue_wire_bytes, packet->ecn_capable != 0);
    packet->marked = verdict == NL_CODEL_MARK;
    return verdict != NL_CODEL_DROP;
}

/* The packet whose turn it is begins to be sent, unless CoDel drops it. */
static void start_head(struct nl_link *link)
{
    struct nl_packet *packet = leave_queue(link);
    if (link->free_ns < packet->arrival_ns) {
        link->free_ns = packet->arrival_ns;
        link->free_rem = 0;
    }
    if (!managed(link, packet)) {
        append(&link->dropped_head, &link->dropped_tail, packet);
        return;
    }
    uint64_t start_ns = link->free_ns;
    transmit(link, packet->wire_bytes * (uint64_t)WORK_PER_BYTE);
    link->busy_ns += link->free_ns - start_ns;
    link->in_service = packet;
    link->service_wire_bytes = packet->wire_bytes;
    link->service_segments = packet->segments;
}

/* Send what can be sent by now_ns: a packet travels when its last bit has left, and the next one's turn has come. */
static void serve(struct nl_link *link, uint64_t now_ns)
{
    while (last_bit_ns(link) <= now_ns) {
        if (link->in_service)
            propagate(link, link->in_service, last_bit_ns(link));
        link->in_service = NULL;
        if (!link->queue_head)
            return;
        start_head(link);
    }
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

/* ---- arrival ---- */

/* A packet has come: how many of it there are from here on. 0: the link is down; 2: the caller offers a copy too. */
int nl_link_copies(struct nl_link *link)
{
    const struct nl_params *p = &link->params;
    int twice = nl_chain_next(&p->duplicate, &link->duplicate, p->seed, NL_STREAM_DUPLICATE);
    return p->down ? 0 : 1 + twice;
}

/* Whether the packet is lost, and if not, which bit of it is damaged. */
static int lost(struct nl_link *link, struct nl_packet *packet)
{
    const struct nl_params *p = &link->params;
    packet->corrupt_bit = NL_NO_BIT;
    if (nl_chain_next(&p->loss, &link->loss, p->seed, NL_STREAM_LOSS))
        return 1;
    uint64_t n = link->corrupt.count;
    if (nl_chain_next(&p->corrupt, &link->corrupt, p->seed, NL_STREAM_CORRUPT) && packet->length > p->link_header) {
        uint64_t bits = 8 * (uint64_t)(packet->length - p->link_header);
        packet->corrupt_bit = (uint32_t)nl_below(nl_random(p->seed, NL_STREAM_CORRUPT, n, 2), bits);
    }
    return 0;
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

/* Hand the model a packet whose length, header, gso_size and ecn_capable are set. On NL_ACCEPT the model keeps it until
 * nl_link_take or nl_link_take_dropped returns it. arrival_ns must not run backwards from packet to packet, but it may
 * lie before the time of the last take: news of a packet may come late. */
int nl_link_offer(struct nl_link *link, struct nl_packet *packet, uint64_t arrival_ns)
{
    nl_packet_measure(&link->params, packet);
    packet->arrival_ns = arrival_ns;
    packet->marked = 0;
    if (lost(link, packet))
        return NL_DROP_LOSS;
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

/* ---- release ---- */

/* When the transmitter's next packet can be released at the earliest: exact on a plain link, else a time at which more
 * will be known. */
static uint64_t transmitter_release_ns(const struct nl_link *link)
{
    const struct nl_params *p = &link->params;
    uint64_t sent_ns = last_bit_ns(link), rem = link->free_rem, start_ns = link->free_ns;
    if (!link->in_service) {
        const struct nl_packet *head = link->queue_head;
        if (start_ns < head->arrival_ns) {
            start_ns = head->arrival_ns;
            rem = 0;
        }
        uint64_t work = head->wire_bytes * (uint64_t)WORK_PER_BYTE + rem;
        sent_ns = p->codel_interval_ns ? start_ns : start_ns + work / p->rate_bps + (work % p->rate_bps != 0);
    }
    if (p->codel_interval_ns || p->jitter || p->reorder.states)
        return sent_ns;
    return max_u64(sent_ns + p->delay_ns, link->last_release_ns);
}

/* When the next packet may be released, as things stand; UINT64_MAX: the model holds none. */
uint64_t nl_link_next(const struct nl_link *link)
{
    uint64_t next = link->flight_head ? link->flight_head->release_ns : UINT64_MAX;
    if (link->loose && link->loose->release_ns < next)
        next = link->loose->release_ns;
    int ordered = !link->params.reorder.states && !link->params.jitter_reorder;
    if ((!link->in_service && !link->queue_head) || (ordered && next != UINT64_MAX))
        return next;
    uint64_t later = transmitter_release_ns(link);
    return later < next ? later : next;
}

/* How long a packet that is not yet known may travel at least: so much time there is to read it. */
uint64_t nl_link_least_travel_ns(const struct nl_link *link)
{
    const struct nl_params *p = &link->params;
    if (p->reorder.states)
        return 0;
    int64_t shortest = (int64_t)p->delay_ns + (p->jitter ? link->jitter.table[0] : 0);
    return shortest > 0 ? (uint64_t)shortest : 0;
}

static int released_before(const struct nl_packet *a, const struct nl_packet *b)
{
    return a->release_ns < b->release_ns || (a->release_ns == b->release_ns && a->sequence < b->sequence);
}

/* The next packet whose release time has come, or NULL. It belongs to the caller again. */
struct nl_packet *nl_link_take(struct nl_link *link, uint64_t now_ns)
{
    if (link->params.rate_bps)
        serve(link, now_ns);
    struct nl_packet *ordered = link->flight_head, *loose = link->loose;
    struct nl_packet *packet = loose && (!ordered || released_before(loose, ordered)) ? loose : ordered;
    if (!packet || packet->release_ns > now_ns)
        return NULL;
    if (packet == loose)
        link->loose = nl_order_without_first(loose);
    else
        link->flight_head = packet->next;
    return packet;
}

/* A packet that CoDel has dropped, or NULL. It belongs to the caller again. */
struct nl_packet *nl_link_take_dropped(struct nl_link *link)
{
    struct nl_packet *packet = link->dropped_head;
    if (packet)
        link->dropped_head = packet->next;
    return packet;
}

/* ---- change ---- */

/* Without a rate nothing waits: all that does leaves at now_ns. */
static void release_all(struct nl_link *link, uint64_t now_ns)
{
    if (link->in_service)
        propagate(link, link->in_service, now_ns);
    link->in_service = NULL;
    while (link->queue_head)
        propagate(link, leave_queue(link), now_ns);
}

/* The transmitter goes on at the new rate with what is left of the packet in service. */
static void change_rate(struct nl_link *link, uint64_t old_rate_bps, uint64_t now_ns)
{
    if (!link->in_service) {
        link->free_ns = last_bit_ns(link); /* the remainder is in units of the old rate */
        link->free_rem = 0;
        return;
    }
    uint64_t unsent = (link->free_ns - now_ns) * old_rate_bps + link->free_rem;
    link->busy_ns -= link->free_ns - now_ns;
    link->free_ns = now_ns;
    link->free_rem = 0;
    if (link->params.rate_bps)
        transmit(link, unsent);
    link->busy_ns += link->free_ns - now_ns;
}

static void change_chains(const struct nl_params *from, const struct nl_params *to, struct nl_link *link)
{
    nl_chain_change(&from->duplicate, &to->duplicate, &link->duplicate);
    nl_chain_change(&from->loss, &to->loss, &link->loss);
    nl_chain_change(&from->corrupt, &to->corrupt, &link->corrupt);
    nl_chain_change(&from->reorder, &to->reorder, &link->reorder);
}

/* Take new parameters over at now_ns. What has been sent keeps its release time; what still waits, and the rest of the
 * packet in service, is sent at the new rate. Order is kept: after a cut of delay_ns, later packets are released no
 * earlier than those before them. Random sequences go on where they are. */
void nl_link_change(struct nl_link *link, const struct nl_params *params, const int64_t *jitter, uint64_t now_ns)
{
    struct nl_params old = link->params;
    if (old.rate_bps)
        serve(link, now_ns);
    link->params = *params;
    change_chains(&old, params, link);
    if (params->jitter && params->jitter != old.jitter)
        nl_jitter_shape(&link->jitter, jitter);
    change_rate(link, old.rate_bps, now_ns);
    if (!params->rate_bps)
        release_all(link, now_ns);
}
