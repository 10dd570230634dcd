/* One thread that carries one direction of a link: reads packets from a TUN or TAP device, holds each for as long as
 * the model says, writes it to the other device. */
#ifndef NETLAB_PUMP_H
#define NETLAB_PUMP_H

#include "abi.h"

#include <linux/virtio_net.h>

/* Run the direction until shared->stop or until a device goes away. Called in the thread that is to do it. */
void nl_pump_run(struct nl_shared *shared, struct nl_direction *direction);

/* Read the headers of a packet behind a virtio-net header into packet->header and packet->gso_size. length does not
 * count the virtio-net header. 0, or -1 when the packet is shorter than its headers say. */
int nl_headers_parse(const struct virtio_net_hdr *offload, const uint8_t *bytes, struct nl_packet *packet);

#endif
