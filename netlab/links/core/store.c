/* Memory for packets: see store.h. */
#define _GNU_SOURCE
#include "store.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ALIGNMENT 64
#define SOON_BYTES ((size_t)256 << 10) /* a few units of 64 KB */
#define HEADER_BYTES ((sizeof(struct nl_chunk) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

/* Memory on a boundary of its size, so that one huge page can hold a chunk. */
static char *map_aligned(void)
{
    char *memory = mmap(NULL, 2 * NL_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    size_t before = (NL_CHUNK_BYTES - (uintptr_t)memory % NL_CHUNK_BYTES) % NL_CHUNK_BYTES;
    if (before)
        munmap(memory, before);
    munmap(memory + before + NL_CHUNK_BYTES, NL_CHUNK_BYTES - before);
    return memory + before;
}

/* A chunk whose first bytes are present, and locked where that is allowed. */
static struct nl_chunk *map_chunk(struct nl_store *store, int advice, size_t present)
{
    char *memory = map_aligned();
    if (!memory)
        return NULL;
    madvise(memory, NL_CHUNK_BYTES, advice);
    if (mlock(memory, present) != 0) { /* also makes it present */
        __atomic_store_n(&store->locked, 0, __ATOMIC_RELAXED);
        memset(memory, 0, present);
    }
    struct nl_chunk *chunk = (struct nl_chunk *)(void *)memory;
    chunk->used = HEADER_BYTES;
    return chunk;
}

static void put_spare(struct nl_store *store, struct nl_chunk *chunk)
{
    chunk->used = HEADER_BYTES;
    chunk->next = store->spare;
    store->spare = chunk;
}

/* A chunk that this thread got to know of. */
static void own(struct nl_store *store, struct nl_chunk *chunk)
{
    chunk->mapped_before = store->last_mapped;
    store->last_mapped = chunk;
    put_spare(store, chunk);
}

static int below_cap(const struct nl_store *store)
{
    return store->mapped_bytes + NL_CHUNK_BYTES <= store->cap_bytes;
}

/* By the using thread itself, which cannot wait: small pages, and only the first few now. */
static int map_one(struct nl_store *store)
{
    struct nl_chunk *chunk = map_chunk(store, MADV_NOHUGEPAGE, SOON_BYTES);
    if (!chunk)
        return -1;
    store->mapped_bytes += NL_CHUNK_BYTES;
    own(store, chunk);
    return 0;
}

int nl_store_open(struct nl_store *store, uint64_t cap_bytes, int provider_fd)
{
    *store = (struct nl_store){.cap_bytes = cap_bytes < NL_CHUNK_BYTES ? NL_CHUNK_BYTES : cap_bytes,
                               .locked = 1,
                               .provider_fd = provider_fd};
    return map_one(store);
}

/* ---- what the provider brings ---- */

static void take_over(struct nl_store *store)
{
    struct nl_chunk *chunk = __atomic_exchange_n(&store->brought, NULL, __ATOMIC_ACQUIRE);
    while (chunk) {
        struct nl_chunk *next = chunk->next;
        own(store, chunk);
        chunk = next;
    }
}

static void order(struct nl_store *store)
{
    const uint64_t one = 1;
    store->mapped_bytes += NL_CHUNK_BYTES;
    __atomic_fetch_add(&store->ordered, 1, __ATOMIC_RELEASE);
    ssize_t wrote = write(store->provider_fd, &one, sizeof one);
    (void)wrote; /* an eventfd: it can only be full, which wakes as well */
}

void nl_store_prepare(struct nl_store *store, uint64_t bytes)
{
    while (store->provider_fd >= 0 && store->mapped_bytes < bytes && below_cap(store))
        order(store);
}

int nl_store_provide(struct nl_store *store)
{
    if (!__atomic_load_n(&store->ordered, __ATOMIC_ACQUIRE))
        return 0;
    struct nl_chunk *chunk = map_chunk(store, MADV_HUGEPAGE, NL_CHUNK_BYTES); /* copying through huge pages is faster */
    if (chunk) {
        chunk->next = __atomic_load_n(&store->brought, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&store->brought, &chunk->next, chunk, 1, __ATOMIC_RELEASE,
                                            __ATOMIC_RELAXED))
            ;
    }
    __atomic_fetch_sub(&store->ordered, 1, __ATOMIC_RELEASE); /* done, or given up: then it still counts as mapped */
    return 1;
}

void nl_store_close(struct nl_store *store)
{
    take_over(store);
    struct nl_chunk *chunk = store->last_mapped;
    while (chunk) {
        struct nl_chunk *before = chunk->mapped_before;
        munmap(chunk, NL_CHUNK_BYTES);
        chunk = before;
    }
    *store = (struct nl_store){.provider_fd = -1};
}

/* ---- use ---- */

/* Wait for what is on order. */
static void await_orders(struct nl_store *store)
{
    const struct timespec moment = {.tv_nsec = 50000};
    while (__atomic_load_n(&store->ordered, __ATOMIC_ACQUIRE) && !__atomic_load_n(&store->brought, __ATOMIC_RELAXED))
        nanosleep(&moment, NULL); /* not a spin: the provider may need this very processor */
    take_over(store);
}

/* Make sure that there is a spare chunk. -1: there cannot be. */
static int ensure_spare(struct nl_store *store)
{
    if (!store->spare)
        take_over(store);
    if (!store->spare && below_cap(store))
        return map_one(store);
    if (!store->spare)
        await_orders(store);
    return store->spare ? 0 : -1;
}

void *nl_store_reserve(struct nl_store *store, size_t size)
{
    if (!store->current || store->current->used + size > NL_CHUNK_BYTES) {
        if (ensure_spare(store) != 0)
            return NULL;
        store->current = store->spare; /* the old one comes back as spare when its last packet leaves */
        store->spare = store->spare->next;
        int supplied = store->spare || __atomic_load_n(&store->brought, __ATOMIC_RELAXED)
                    || __atomic_load_n(&store->ordered, __ATOMIC_RELAXED);
        if (!supplied)
            nl_store_prepare(store, store->mapped_bytes + NL_CHUNK_BYTES);
    }
    return (char *)store->current + store->current->used;
}

struct nl_chunk *nl_store_commit(struct nl_store *store, size_t size)
{
    struct nl_chunk *chunk = store->current;
    size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (chunk->live++ == 0)
        store->in_use_bytes += NL_CHUNK_BYTES;
    chunk->used += rounded;
    return chunk;
}

void nl_store_free(struct nl_store *store, struct nl_chunk *chunk)
{
    if (--chunk->live)
        return;
    store->in_use_bytes -= NL_CHUNK_BYTES;
    if (chunk == store->current)
        chunk->used = HEADER_BYTES;
    else
        put_spare(store, chunk);
}
