/* Error records: what a caller gives for them, and how those that kernels have put into a ring of mapped host
 * memory (kernels/peer/context.h) are taken out of it. */
#ifndef EPW_PEER_RECORDS_H
#define EPW_PEER_RECORDS_H

#include "base/status.h"

/* Refuses arguments of epw_take_errors and epw_prefill_take_errors. */
epw_status epw_records_check(const epw_error_record *records, size_t record_size, const uint32_t *count,
                             epw_where where);

#ifdef EPW_CUDA

#include "kernels/peer/context.h"

#include <pthread.h>

/* The one who takes the records of a ring. */
typedef struct epw_record_reader {
    pthread_mutex_t lock;
    uint64_t taken;           /* number of the next record to be given out */
    uint64_t unrecorded_told; /* bad ids without a record that have already been reported as lost */
} epw_record_reader;

void epw_records_open(epw_record_reader *reader);
void epw_records_close(epw_record_reader *reader);

/* See epw_take_errors. Any thread; kernels may write meanwhile. lost: NULL if it is not wanted. */
void epw_records_take(epw_record_reader *reader, const epw_gpu_ring *ring, epw_error_record *records,
                      uint32_t capacity, uint32_t *count, uint64_t *lost);

#endif

#endif
