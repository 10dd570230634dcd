/* Whether a device hands over single packets or units of many. */
#ifndef NETLAB_OFFLOAD_H
#define NETLAB_OFFLOAD_H

#include "abi.h"

/* Ask the device for it. 0, or -1 with errno set. What is already queued in the device stays as it is. */
int nl_offload_set(int device_fd, enum nl_offload offload);

#endif
