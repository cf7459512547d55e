// Rows that are answered as they are, whole or one for each expert: they pass through a ring of stages untouched, by one thread
// and the bulk copy engine alone.
#pragma once

#include "../ptx/bulk.cuh"
#include "sum.cuh"

namespace epw {

// What is in a stage. In shared memory; the barrier initialised.
struct Stop {
    uint64_t loaded;
    unsigned char *to;
    uint32_t bytes;
};

// The ring and where it stands. By thread 0 alone.
struct Passage {
    __device__ Passage(const Stages &stages, unsigned char *memory, Stop *stops)
        : stages(stages), memory(memory), stops(stops), in(0), out(0), inside(0), phase(0) {}

    // Takes in the parts of `rows` rows; those of a row go one behind the other.
    __device__ void pass(const Batch &batch, uint32_t rows, uint32_t row_bytes) {
        for (uint32_t row = 0; row < rows; row++) {
            unsigned char *to = batch.to[row];
            for (const Part *part = &batch.parts[row * EPW_MAX_TOPK]; part->from != nullptr; part++) {
                for (uint32_t at = 0; at < row_bytes; at += kPieceBytes) {
                    load(to + at, part->from + at, min(kPieceBytes, row_bytes - at));
                }
                to += row_bytes;
                if (part->last) break;
            }
        }
    }

    // Until all that was taken in has arrived.
    __device__ void finish() {
        while (inside > 0) store();
        ptx::bulk_wait_all();
    }

  private:
    __device__ void load(unsigned char *to, const unsigned char *from, uint32_t bytes) {
        if (inside == stages.count - 1) store();
        ptx::bulk_wait_read<1>(); // this stage's store, the last but one, has read it
        Stop &stop = stops[in];
        stop.to = to;
        stop.bytes = bytes;
        ptx::barrier_expect(&stop.loaded, bytes);
        ptx::bulk_load(memory + in * stages.bytes, from, bytes, &stop.loaded);
        if (++in == stages.count) in = 0;
        inside++;
    }

    __device__ void store() {
        Stop &stop = stops[out];
        while (!ptx::barrier_try_wait(&stop.loaded, phase)) {}
        ptx::bulk_store(stop.to, memory + out * stages.bytes, stop.bytes);
        ptx::bulk_commit();
        if (++out == stages.count) {
            out = 0;
            phase ^= 1;
        }
        inside--;
    }

    Stages stages;
    unsigned char *memory;
    Stop *stops;
    uint32_t in, out; // stages: the next to be loaded, and to be stored
    uint32_t inside;  // loads begun and not stored
    uint32_t phase;   // of the barriers, of stage `out`
};

} // namespace epw
