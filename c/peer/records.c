/* See records.h. */
#include "peer/records.h"

epw_status epw_records_check(const epw_error_record *records, size_t record_size, const uint32_t *count,
                             epw_where where) {
    if (records == NULL || count == NULL)
        return epw_fail(EPW_ERR_INVALID, where, "%s is NULL", records == NULL ? "records" : "count");
    if (record_size == sizeof *records) return EPW_OK;
    return epw_fail(EPW_ERR_INVALID, where,
                    "record_size is %zu, this library's is %zu: give sizeof(epw_error_record)", record_size,
                    sizeof *records);
}

#ifdef EPW_CUDA
#include <stdatomic.h>
#include <string.h>

void epw_records_open(epw_record_reader *reader) {
    pthread_mutex_init(&reader->lock, NULL);
}

void epw_records_close(epw_record_reader *reader) {
    pthread_mutex_destroy(&reader->lock);
}

/* Reads record number n, if its slot holds it. Writer: a kernel, at any time. The sequence number is read
 * before and after the record: if both are equal, the record is whole. Returns the first: n + 1 and *whole if
 * the record is there; less if it has not been written completely yet; more if a later one has taken its
 * slot. */
static uint64_t read_record(const epw_gpu_ring *ring, uint64_t n, epw_error_record *record, bool *whole) {
    const _Atomic uint64_t *sequence = (const _Atomic uint64_t *)&ring->slots[n % EPW_GPU_RECORDS].sequence;
    uint64_t before = atomic_load_explicit(sequence, memory_order_acquire);
    *whole = false;
    if (before != n + 1) return before;
    memcpy(record, &ring->slots[n % EPW_GPU_RECORDS].record, sizeof *record);
    atomic_thread_fence(memory_order_acquire); /* copy before the second read */
    *whole = atomic_load_explicit(sequence, memory_order_relaxed) == before;
    return before;
}

/* For both lanes. Writer of each: the closing block of the lane's kernel. */
static uint64_t count_unrecorded(const epw_gpu_ring *ring) {
    const _Atomic uint64_t *counts = (const _Atomic uint64_t *)ring->unrecorded;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < EPW_MAX_LANES; i++) {
        sum += atomic_load_explicit(&counts[i], memory_order_relaxed);
    }
    return sum;
}

void epw_records_take(epw_record_reader *reader, const epw_gpu_ring *ring, epw_error_record *records,
                      uint32_t capacity, uint32_t *count, uint64_t *lost) {
    uint64_t overwritten = 0;
    *count = 0;
    pthread_mutex_lock(&reader->lock);
    while (*count < capacity) { /* ends: each turn takes a record, or passes some */
        bool whole;
        uint64_t sequence = read_record(ring, reader->taken, &records[*count], &whole);
        if (whole) {
            ++*count;
            ++reader->taken;
        } else if (sequence > reader->taken + 1) {
            /* Of the records up to `sequence`, about the last EPW_GPU_RECORDS are still there. */
            overwritten += sequence - EPW_GPU_RECORDS - reader->taken;
            reader->taken = sequence - EPW_GPU_RECORDS;
        } else if (sequence != reader->taken + 1) {
            break;
        }
    }
    uint64_t unrecorded = count_unrecorded(ring);
    overwritten += unrecorded - reader->unrecorded_told;
    reader->unrecorded_told = unrecorded;
    pthread_mutex_unlock(&reader->lock);
    if (lost != NULL) *lost = overwritten;
}
#endif
