/* Memory for packets that the model holds: large chunks filled from the front, freed when their last packet leaves.
 *
 * The device reads straight into a chunk and writes straight from it: no second copy. Packets may leave in any order
 * (each chunk counts its own), but mostly they leave in order, so chunks form a ring in all but name. A chunk that
 * becomes empty while it is being filled starts again at its front: with no delay, one stretch of memory is used over
 * and over and stays in the processor's cache.
 *
 * A fresh chunk takes time (the kernel clears it: 0.3 ms, in a young virtual machine 5 ms), which would make packets
 * late. So the thread that uses a store never waits for one if a provider (provider.c) is there to bring it in advance. */
#ifndef NETLAB_STORE_H
#define NETLAB_STORE_H

#include "abi.h"

#define NL_CHUNK_BYTES ((size_t)2 << 20)

struct nl_chunk {
    struct nl_chunk *next;          /* in the list of spare or of brought ones */
    struct nl_chunk *mapped_before; /* in the list of all, for the end */
    size_t used;                    /* bytes from the start of the chunk, this header included */
    size_t live;                    /* packets in it */
};

struct nl_store {
    struct nl_chunk *current;
    struct nl_chunk *spare; /* empty ones, last used first */
    struct nl_chunk *last_mapped;
    uint64_t cap_bytes;
    uint64_t mapped_bytes; /* those that are on order included */
    uint64_t in_use_bytes;
    int locked;      /* every chunk so far could be locked into memory */
    int provider_fd; /* an eventfd that wakes the provider; -1: there is none */
    /* shared with the provider: */
    struct nl_chunk *brought; /* ready to be taken over */
    uint32_t ordered;         /* to be brought */
};

/* 0 or -1 with errno set. */
int nl_store_open(struct nl_store *store, uint64_t cap_bytes, int provider_fd);
void nl_store_close(struct nl_store *store);

/* Order memory in advance, up to so many bytes in all. */
void nl_store_prepare(struct nl_store *store, uint64_t bytes);

/* For the provider: bring one chunk if one is ordered. 1: brought. */
int nl_store_provide(struct nl_store *store);

/* Room for size bytes (at most NL_CHUNK_BYTES / 2), aligned to 64; the same until committed. NULL: at the cap. */
void *nl_store_reserve(struct nl_store *store, size_t size);

/* Keep the first size bytes of what was reserved. Returns the chunk that nl_store_free wants back. */
struct nl_chunk *nl_store_commit(struct nl_store *store, size_t size);
void nl_store_free(struct nl_store *store, struct nl_chunk *chunk);

#endif
