// Where rows go: the registrar reads how many rows each source has for each expert, and computes places; movers clear the places
// of nobody.
#pragma once

#include "kernels/prefill/scales.cuh"

namespace epw {

__device__ __forceinline__ bool by_expert(uint32_t layout) { return layout == EPW_EXPERT_MAJOR || layout == EPW_PACKED; }

// Place of number `number` among the rows of local expert e, or of the source's rows.
__device__ __forceinline__ uint32_t expert_place(const epw_prefill_output &out, const epw_prefill_gpu_routing &r, uint32_t e,
                                                 uint32_t number) {
    if (out.layout == EPW_EXPERT_MAJOR) return number < out.capacity ? uint32_t(e * out.capacity + number) : EPW_PREFILL_NO_PLACE;
    const uint64_t place = uint64_t(r.offsets[e]) + number;
    return place < out.capacity ? uint32_t(place) : EPW_PREFILL_NO_PLACE;
}
__device__ __forceinline__ uint64_t first_of_source(uint32_t layout, const epw_prefill_gpu_routing &r, uint32_t max_tokens,
                                                    uint32_t source) {
    return layout == EPW_RANK_MAJOR ? uint64_t(source) * max_tokens : r.row_first[source];
}

// Place of the first row of an expert, or of a source.
__device__ __forceinline__ uint64_t first_of_list(const epw_prefill_dispatch_args &a, uint32_t list) {
    const epw_prefill_gpu_routing &r = a.call.routing;
    return by_expert(a.out.layout) ? r.offsets[list] : first_of_source(a.out.layout, r, a.call.lane.max_tokens, list);
}

// Tells the caller of the rows of each source for each expert, if the source has sent any. A share: that of `thread` of
// `threads`.
__device__ __noinline__ inline void tell_ranges(const epw_prefill_dispatch_args &a, const Prefill &o, uint32_t thread,
                                                uint32_t threads) {
    const epw_prefill_gpu_routing &r = a.call.routing;
    const uint32_t local = o.layout().local_experts;
    for (uint32_t e = thread; e < local; e += threads) {
#pragma unroll 4
        for (uint32_t source = 0; source < o.ranks; source++) {
            const uint64_t first = r.base[size_t(source) * local + e];
            const uint32_t rows = r.received[source] > 0 ? r.counts[size_t(source) * local + e] : 0;
            a.out.ranges[size_t(e) * o.ranks + source] = first << 32 | rows;
        }
    }
}

// ---- the registrar, a warp of the first block ----

template <bool Queues> struct Registrar {
    const epw_prefill_dispatch_args &a;
    Prefill &o;
    const epw_prefill_gpu_routing &r;
    const uint32_t local;

    __device__ __forceinline__ Registrar(const epw_prefill_dispatch_args &a, Prefill &o)
        : a(a), o(o), r(a.call.routing), local(o.layout().local_experts) {}

    static __device__ __forceinline__ uint64_t sum(uint64_t n) {
#pragma unroll
        for (uint32_t step = 16; step > 0; step /= 2) n += __shfl_xor_sync(0xffffffffu, n, step);
        return n;
    }

    // Reads the counts of a source that has told them. A source whose counts cannot be those of so many rows is refused.
    __device__ __forceinline__ void read_counts(uint32_t source) {
        const uint32_t laneid = threadIdx.x % 32;
        uint32_t *to = r.counts + size_t(source) * local, rows = r.announced[source];
        const bool own = source == o.rank;
        const uint32_t *from = r.sent_counts + size_t(source) * local;
        if (own) rows = r.sent_first[source + 1] - r.sent_first[source];
        if (!own && rows > 0) {
            const unsigned char *slot = slot_here<Queues>(o, source, o.in_first[source]);
            from = reinterpret_cast<const uint32_t *>(slot + sizeof(epw_row_head) + sizeof(epw_opening));
        }
        uint64_t entries = 0;
        bool good = true;
        constexpr uint32_t kAtOnce = 4; // loads in flight
#pragma unroll 1
        for (uint32_t e = laneid; e < local; e += 32 * kAtOnce) {
            uint32_t n[kAtOnce];
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) n[k] = rows > 0 && e + 32 * k < local ? read_once(&from[e + 32 * k]) : 0;
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) {
                if (e + 32 * k < local) to[e + 32 * k] = n[k];
                good &= n[k] <= rows;
                entries += n[k];
            }
        }
        entries = sum(entries);
        good = __all_sync(0xffffffffu, good) && entries >= rows && entries <= uint64_t(rows) * o.layout().topk;
        __syncwarp();
        if (!good) {
            for (uint32_t e = laneid; e < local; e += 32) to[e] = 0;
            rows = 0;
        }
        if (laneid == 0) {
            r.announced[source] = rows;
            if (!good) {
                insert(o.discards, source);
                miss(o, EPW_PHASE_DISPATCH_RECEIVE, source, EPW_CAUSE_FORMAT);
            }
        }
        __syncwarp();
    }

    // Rows from place `offset` on that pass the capacity.
    __device__ __forceinline__ uint64_t passing(uint64_t offset, uint64_t rows) const {
        if (a.out.layout == EPW_EXPERT_MAJOR) offset = 0;
        if (offset >= a.out.capacity) return rows;
        return offset + rows > a.out.capacity ? offset + rows - a.out.capacity : 0;
    }

    // An expert for each lane at a time. Returns the rows of all of them. `groups`: scales of rows are grouped.
    __device__ __forceinline__ uint64_t place_experts(bool groups, uint64_t &overflow) {
        const uint32_t laneid = threadIdx.x % 32, alignment = a.out.alignment;
        uint64_t end = 0, all = 0, over = 0;
#pragma unroll 1
        for (uint32_t first = 0; first < local; first += 32) {
            const uint32_t e = first + laneid;
            uint32_t rows = 0;
            constexpr uint32_t kAtOnce = 8; // loads in flight
#pragma unroll 1
            for (uint32_t source = 0; e < local && source < o.ranks; source += kAtOnce) {
                uint32_t n[kAtOnce];
#pragma unroll
                for (uint32_t k = 0; k < kAtOnce; k++) n[k] = source + k < o.ranks ? r.counts[size_t(source + k) * local + e] : 0;
#pragma unroll
                for (uint32_t k = 0; k < kAtOnce; k++) {
                    if (source + k < o.ranks) r.base[size_t(source + k) * local + e] = rows;
                    rows += n[k];
                }
            }
            const uint64_t takes = (uint64_t(rows) + alignment - 1) / alignment * alignment;
            uint64_t behind = takes; // of this lane's expert and those before
#pragma unroll
            for (uint32_t step = 1; step < 32; step *= 2) {
                const uint64_t other = __shfl_up_sync(0xffffffffu, behind, step);
                if (laneid >= step) behind += other;
            }
            const uint64_t offset = a.out.layout == EPW_EXPERT_MAJOR ? e * a.out.capacity : end + behind - takes;
            if (e < local) {
                const uint64_t passes = by_expert(a.out.layout) ? passing(offset, rows) : 0;
                r.expert_rows[e] = rows;
                r.offsets[e] = offset < ~0u ? uint32_t(offset) : ~0u;
                r.told[o.ranks + e] = rows;
                if (groups && by_expert(a.out.layout)) a.call.lane.grouped[e] = rows - uint32_t(passes);
                if (a.out.counts) a.out.counts[e] = rows;
                if (a.out.offsets) a.out.offsets[e] = r.offsets[e];
                if (a.out.overflow && by_expert(a.out.layout)) a.out.overflow[e] = uint32_t(passes);
                over += passes;
                all += rows;
            }
            end += __shfl_sync(0xffffffffu, behind, 31);
        }
        overflow = sum(over);
        return sum(all);
    }

    // Called by one lane. Returns the rows of all sources.
    __device__ __forceinline__ uint64_t place_sources(bool groups) {
        uint32_t before = 0;
        for (uint32_t source = 0; source < o.ranks; source++) {
            r.row_first[source] = before;
            r.told[source] = r.announced[source];
            if (!by_expert(a.out.layout)) {
                const uint32_t rows = r.announced[source];
                const uint32_t passes = a.out.layout == EPW_DENSE ? uint32_t(passing(before, rows)) : 0;
                if (a.out.overflow) a.out.overflow[source] = passes;
                if (groups) a.call.lane.grouped[source] = rows - passes;
            }
            before += r.announced[source];
            if (a.out.source_offsets) {
                a.out.source_offsets[source] = uint32_t(first_of_source(a.out.layout, r, a.call.lane.max_tokens, source));
            }
        }
        return before;
    }

    // Whether scales of rows are grouped; if not, rows are in no group.
    __device__ __forceinline__ bool group() const {
        const uint32_t laneid = threadIdx.x % 32;
        if (!ScaleShape::of(a).may_group) return false; // nobody asks
        uint64_t rows = 0;
        for (uint32_t source = laneid; source < o.ranks; source += 32) rows += r.announced[source];
        const bool groups = sum(rows) >= kGroupedRows * o.blocks;
        for (uint32_t list = laneid; !groups && list < max(local, o.ranks); list += 32) a.call.lane.grouped[list] = 0;
        if (laneid == 0) o.state->groups = groups;
        return groups;
    }

    __device__ __forceinline__ void place() {
        epw_prefill_gpu_state *s = o.state;
        uint64_t overflow = 0;
        const bool groups = group();
        const uint64_t of_experts = place_experts(groups, overflow);
        if (threadIdx.x % 32 == 0) {
            const uint64_t of_sources = place_sources(groups);
            const bool experts = by_expert(a.out.layout);
            s->rows = experts ? of_experts : of_sources;
            s->overflow = experts ? overflow : a.out.layout == EPW_RANK_MAJOR ? 0 : passing(0, of_sources);
        }
    }

    // Tells the caller what comes, as if nothing were lost: see tell_losses().
    __device__ __forceinline__ void tell_received() const {
        const uint32_t laneid = threadIdx.x % 32;
        for (uint32_t source = laneid; source < o.ranks; source += 32) {
            const uint32_t rows = r.announced[source];
            r.received[source] = rows;
            if (!a.again) r.complete[source] = 1;
            if (a.out.source_counts) a.out.source_counts[source] = rows;
        }
        __syncwarp();
        if (a.out.ranges) tell_ranges(a, o, laneid, 32);
    }

    // Writer: this warp, of places, through __syncwarp. Readers: attendants, and by them, or by these words, movers.
    __device__ __forceinline__ void run() {
        const uint32_t laneid = threadIdx.x % 32;
        if (o.does(EPW_PREFILL_COUNTS)) {
            if (!a.again) read_counts(o.rank);
            while (ptx::load_acquire_block(&o.settled) < o.attended) { // bounded: attendants' waits are
            }
            __syncwarp();
            for (uint32_t source = 0; !a.again && source < o.ranks; source++) {
                if (source != o.rank) read_counts(source);
            }
            if (laneid == 0) ptx::set_bits_release_block(&o.counted, 1);
        }
        if (o.does(EPW_PREFILL_RECEIVES)) {
            place();
            __syncwarp();
            if (laneid == 0) {
                ptx::set_bits_release_block(&o.placed, 1);
                ptx::store_release_gpu(&o.state->placed, 1u);
            }
            tell_received();
        } else if (o.does(EPW_PREFILL_COUNTS)) {
            tell_counts();
        }
    }

    // For the host, which asks before it allocates the output.
    __device__ __forceinline__ void tell_counts() {
        const uint32_t laneid = threadIdx.x % 32;
        for (uint32_t source = laneid; source < o.ranks; source += 32) r.told[source] = r.announced[source];
        for (uint32_t e = laneid; e < local; e += 32) {
            uint32_t rows = 0;
            for (uint32_t source = 0; source < o.ranks; source++) rows += r.counts[size_t(source) * local + e];
            r.told[o.ranks + e] = rows;
        }
    }
};

// ---- places of nobody ----

// Indices become -1, weights 0.
__device__ __forceinline__ void clear_place(const epw_prefill_output &out, uint32_t topk, uint64_t place) {
    if (out.row_expert) out.row_expert[place] = -1;
    if (out.row_source) out.row_source[place] = -1;
    if (out.row_token) out.row_token[place] = -1;
    if (out.row_position) out.row_position[place] = -1;
    if (out.row_weight) out.row_weight[place] = 0.0f;
    for (uint32_t j = 0; j < topk && out.row_experts; j++) out.row_experts[place * topk + j] = -1;
    for (uint32_t j = 0; j < topk && out.row_weights; j++) out.row_weights[place * topk + j] = 0.0f;
}

// A share of places [first, end), below the capacity; `zeroes`: their rows too. `number` of `threads`.
__device__ __forceinline__ void clear_places(const epw_prefill_dispatch_args &a, uint64_t first, uint64_t end, bool zeroes,
                                             uint32_t number, uint32_t threads) {
    const uint32_t cells = a.format.payload_bytes / 16, topk = a.call.lane.layout.topk;
#pragma unroll 1
    for (uint64_t place = first + number; place < end; place += threads) clear_place(a.out, topk, place);
    if (!zeroes || a.out.rows == nullptr || first >= end) return;
    auto *rows = static_cast<unsigned char *>(a.out.rows) + first * a.format.payload_bytes;
#pragma unroll 1
    for (uint64_t cell = number; cell < (end - first) * cells; cell += threads) ptx::store(rows + cell * 16, uint4{});
}

// A share of all places that no source has: that of warp `warp` of `warps`. Places must be known.
__device__ __noinline__ inline void clear_rest(const epw_prefill_dispatch_args &a, const Prefill &o, uint32_t warp,
                                               uint32_t warps) {
    const uint32_t laneid = threadIdx.x % 32, number = warp * 32 + laneid, threads = warps * 32;
    const epw_prefill_gpu_routing &r = a.call.routing;
    const epw_prefill_output &out = a.out;
    const uint64_t capacity = out.capacity;
    uint64_t end = 0; // behind the last place that somebody has
    if (by_expert(out.layout)) {
        const uint32_t local = o.layout().local_experts;
        const auto padded = [&](uint32_t e) {
            return r.offsets[e] + (uint64_t(r.expert_rows[e]) + out.alignment - 1) / out.alignment * out.alignment;
        };
        if (out.layout == EPW_EXPERT_MAJOR) {
            for (uint32_t e = 0; e < local; e++) {
                const uint64_t rows = r.expert_rows[e];
                clear_places(a, e * capacity + min(rows, capacity), (e + 1) * capacity, false, number, threads);
            }
            return;
        }
        for (uint32_t e = warp; e < local; e += warps) { // the padding of one expert is little
            clear_places(a, uint64_t(r.offsets[e]) + r.expert_rows[e], min(padded(e), capacity), out.zero_padding, laneid, 32);
        }
        end = padded(local - 1);
    } else {
        for (uint32_t source = 0; source < o.ranks; source++) {
            const uint64_t first = first_of_source(out.layout, r, a.call.lane.max_tokens, source);
            end = first + r.announced[source];
            if (out.layout != EPW_RANK_MAJOR) continue;
            const uint64_t next = first + a.call.lane.max_tokens;
            clear_places(a, end, next, false, number, threads);
            end = next;
        }
    }
    clear_places(a, end, capacity, false, number, threads);
}

// The places of a source that is missing. Called by the whole first block, at the end.
__device__ __noinline__ inline void forget(const epw_prefill_dispatch_args &a, const Prefill &o, uint32_t source) {
    const epw_prefill_gpu_routing &r = a.call.routing;
    const uint32_t local = o.layout().local_experts;
    const uint64_t capacity = a.out.capacity;
    if (!by_expert(a.out.layout)) {
        const uint64_t first = first_of_source(a.out.layout, r, a.call.lane.max_tokens, source);
        clear_places(a, first, min(first + r.announced[source], capacity), a.out.zero_padding, threadIdx.x, blockDim.x);
        return;
    }
    for (uint32_t e = 0; e < local; e++) {
        const uint64_t base = r.base[size_t(source) * local + e], rows = r.counts[size_t(source) * local + e];
        const bool lists = a.out.layout == EPW_EXPERT_MAJOR;
        const uint64_t first = lists ? e * capacity : r.offsets[e], limit = lists ? first + capacity : capacity;
        clear_places(a, first + base, min(first + base + rows, limit), a.out.zero_padding, threadIdx.x, blockDim.x);
    }
}

// What a thread of the first block knows of the rows that have come.
struct Came {
    uint32_t rows;      // of source number threadIdx.x
    uint64_t of_expert; // of local expert number threadIdx.x
};

// Of a dispatch of which some source may lack, or of its second half: tells the caller again, without it, and clears its places.
// Called by the whole first block, when all other blocks are out.
__device__ __noinline__ inline Came tell_losses(const epw_prefill_dispatch_args &a, const Prefill &o) {
    const epw_prefill_gpu_routing &r = a.call.routing;
    const uint32_t local = o.layout().local_experts, source = threadIdx.x;
    Came came = {0, 0};
    bool lost = false;
    if (source < o.ranks) {
        const bool present = source == o.rank || (is_prefill_peer(o, source) && !has(o.lacking, source));
        const bool lost_before = !o.does(EPW_PREFILL_OPENS) && has(o.state->missing, source); // in the half before
        const uint32_t announced = r.announced[source];
        came.rows = present && !lost_before ? announced : 0;
        if (!a.again) r.complete[source] = present && !lost_before;
        lost = came.rows < announced;
        r.received[source] = came.rows;
        if (a.out.source_counts) a.out.source_counts[source] = came.rows;
    }
    lost = __syncthreads_or(lost);
    if (lost && a.out.ranges) tell_ranges(a, o, threadIdx.x, blockDim.x);
    for (uint32_t s = 0; lost && s < o.ranks; s++) {
        if (r.received[s] == 0 && r.announced[s] > 0) forget(a, o, s);
    }
    for (uint32_t e = threadIdx.x; e < local; e += blockDim.x) {
        uint32_t rows = 0;
        for (uint32_t s = 0; s < o.ranks; s++) rows += r.received[s] > 0 ? r.counts[size_t(s) * local + e] : 0;
        r.expert_rows[e] = rows;
        if (e == threadIdx.x) came.of_expert = rows;
    }
    return came;
}

// Adds what has come to the caller's sums.
__device__ __forceinline__ void add_totals(const epw_prefill_dispatch_args &a, const Prefill &o, const Came &came) {
    for (uint32_t e = threadIdx.x; e < o.layout().local_experts; e += blockDim.x) {
        const uint64_t total = e == threadIdx.x ? came.of_expert : a.call.routing.expert_rows[e];
        if (a.out.expert_totals) ptx::reduce_relaxed_gpu(&a.out.expert_totals[e], total);
        if (a.out.expert_totals_i32) atomicAdd(reinterpret_cast<uint32_t *>(&a.out.expert_totals_i32[e]), uint32_t(total));
    }
}

} // namespace epw
