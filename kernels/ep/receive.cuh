// The receiving half of dispatch: waits for every source's rows, then lists where they lie (rank-major) or copies them to the
// experts' lists (expert-major).
#pragma once

#include "kernels/ep/lane.cuh"
#include "kernels/ep/shape.cuh"
#include "kernels/ptx/bulk.cuh"

namespace epw {

struct __align__(16) ReceiveShared {
    uint32_t rows[EPW_GPU_MAX_RANKS]; // rows received from each source; 0 beyond the last rank
    uint64_t loaded[kMaxTiles];       // barriers: a tile's row is loaded
};

// A block's share of the work. If peers turn out to be missing, the closing block does all the work again, alone.
struct Share {
    uint32_t block, blocks;
};

// The slot in which the source has written the row.
__device__ __forceinline__ const unsigned char *slot_of(const Dispatch &a, const Operation &o, uint32_t source, uint32_t row) {
    return written_by(o, source) + epw_slot_offset(&a.lane.layout, a.lane.index, source, row);
}

// Copies from the inbox to this rank's window, once, what all blocks read of a source behind a queue: its counts and the header
// of its first row. The first block to arrive copies; the others wait until it has finished, which is bounded because the copy
// waits for nothing.
__device__ __noinline__ inline void land_head(const Dispatch &a, const Operation &o, uint32_t source) {
    const epw_layout &l = a.lane.layout;
    const uint64_t begun = epw_word(o.epoch, o.op, 1), done = epw_word(o.epoch, o.op, 2);
    uint64_t *landed = &o.state->landed[source];
    uint64_t seen = ptx::load_acquire_gpu(landed);
    while (seen != done && (seen == begun || !ptx::compare_swap_acq_rel_gpu(landed, seen, begun)))
        seen = ptx::load_acquire_gpu(landed);
    if (seen == done) return;
    const uint64_t counts = epw_expert_counts_offset(&l, a.lane.index, source);
    const uint64_t first = epw_slot_offset(&l, a.lane.index, source, 0);
    unsigned char *own = const_cast<unsigned char *>(o.own);
#pragma unroll 8
    for (uint32_t at = 0; at < l.local_experts * sizeof(uint32_t); at += sizeof(uint4))
        ptx::store(own + counts + at, ptx::load_relaxed_gpu_once(o.inbox + counts + at));
    ptx::store(own + first, ptx::load_relaxed_gpu_once(o.inbox + first));
    // Writer: this thread. Reader: the loop above, in other blocks.
    ptx::store_release_gpu(landed, done);
}

// Accepts `rows` as the number of rows received, if a source can have sent that many. Returns the format named by the first row:
// all blocks read that one, and so all refuse a source that sends rows of another format.
__device__ __forceinline__ uint32_t take_rows(const Dispatch &a, Operation &o, ReceiveShared &s, uint32_t source, uint32_t rows) {
    const bool possible = rows <= a.lane.layout.max_tokens;
    if (!possible) refuse_peer(o, source);
    s.rows[source] = possible ? rows : 0;
    if (rows == 0) return a.format.hash;
    if (o.lands && has(o.queued, source)) land_head(a, o, source);
    const unsigned char *first = o.own + epw_slot_offset(&a.lane.layout, a.lane.index, source, 0);
    return ptx::load_relaxed_gpu(&reinterpret_cast<const epw_slot_header *>(first)->format);
}

// Waits for the rows of every peer, one thread per peer. Returns the format of the rows of this thread's source; its load may
// still be in flight.
__device__ inline uint32_t await_rows(const Dispatch &a, Operation &o, ReceiveShared &s) {
    static_assert(EPW_GPU_MAX_RANKS <= kThreads);
    uint32_t source = threadIdx.x, format = a.format.hash;
    if (source < EPW_GPU_MAX_RANKS) {
        uint32_t rows = 0;
        if (source < o.ranks && has(o.reachable, source)) {
            Arrival got = await(o, awaited_rows(o), EPW_PHASE_DISPATCH_RECEIVE, source, a.out.wait_ns != nullptr);
            if (!got.arrived) leave_out(o, source);
            rows = got.value;
        }
        format = take_rows(a, o, s, source, rows);
    }
    __syncthreads();
    return format;
}

__device__ __noinline__ inline void keep_who_sent(const Dispatch &a, Operation &o, ReceiveShared &s) {
    keep_arrived(o, awaited_rows(o), [&](uint32_t peer, uint32_t rows) {
        if (take_rows(a, o, s, peer, rows) != a.format.hash) refuse_peer(o, peer);
    });
}

// An entry of a received row.
struct Received {
    uint32_t token, format, expert, weight, index;
};

__device__ __forceinline__ Received read_entry(const Dispatch &a, const unsigned char *slot, uint32_t j) {
    const uint32_t *entry = reinterpret_cast<const uint32_t *>(slot + sizeof(epw_slot_header) + j * sizeof(epw_entry));
    Received r;
    uint64_t header = ptx::load_relaxed_gpu(reinterpret_cast<const uint64_t *>(slot));
    r.token = uint32_t(header);
    r.format = uint32_t(header >> 32);
    r.expert = ptx::load_relaxed_gpu(entry);
    r.weight = ptx::load_relaxed_gpu(entry + 1);
    r.index = ptx::load_relaxed_gpu(reinterpret_cast<const uint32_t *>(slot + epw_indices_offset(&a.lane.layout)) + j);
    return r;
}

// One of the counts with which a source says how many rows it has sent to each expert. Its address is known before it arrives.
struct Count {
    uint32_t n; // index in the order of sources, then of their experts
    uint32_t source, value;
    const uint32_t *at = nullptr;

    __device__ __forceinline__ Count(const Dispatch &a, const Operation &o, uint32_t n) : n(n), source(a.per_rank.divide(n)) {
        if (n >= a.experts) return;
        const unsigned char *counts = o.own + epw_expert_counts_offset(&a.lane.layout, a.lane.index, source);
        at = reinterpret_cast<const uint32_t *>(counts) + (n - source * a.lane.layout.local_experts);
    }
    __device__ __forceinline__ void load(const Dispatch &a) {
        if (n < a.experts) value = ptx::load_relaxed_gpu(at);
    }
};

// Fills the table of counts, [ranks][local_experts] in shared memory: how many rows each source has sent to each expert. `count`:
// this thread's first, loaded; `format`: that of its source's rows, see take_rows. Ends with a barrier.
__device__ __forceinline__ void take_counts(const Dispatch &a, Operation &o, ReceiveShared &s, Count count, uint32_t format,
                                            uint32_t *table) {
    while (count.n < a.experts) {
        uint32_t rows = s.rows[count.source], value = rows == 0 ? 0 : count.value;
        if (value > rows) {
            refuse_peer(o, count.source);
            value = 0;
        }
        table[count.n] = value;
        if (count.n + kThreads >= a.experts) break;
        count = Count(a, o, count.n + kThreads);
        if (s.rows[count.source] > 0) count.load(a); // skips the load for sources without rows
    }
    if (format != a.format.hash) refuse_peer(o, threadIdx.x);
    __syncthreads();
}

// Counts what has arrived from the thread's source.
__device__ __noinline__ inline void count_received(const Dispatch &a, const Operation &o, const ReceiveShared &s, bool again) {
    const uint32_t source = threadIdx.x, rows = s.rows[source];
    epw_gpu_traffic &traffic = a.lane.state->traffic;
    add_once(o, traffic.rows_received[source], rows, 1, again);
    add_once(o, traffic.bytes_received[source], rows, epw_format_bytes(&a.format), again);
    if (source == 0) add_once(o, traffic.dispatches, 1, 1, again);
}

// Notes how many answers the thread's source gets, for a combine that counts them, whether or not this dispatch is counted.
__device__ __noinline__ inline void note_owed(const Dispatch &a, const uint32_t *table) {
    const uint32_t source = threadIdx.x, local = a.lane.layout.local_experts;
    uint32_t owed = 0;
#pragma unroll 1
    for (uint32_t e = 0; e < local; e++) owed += table[source * local + e];
    a.lane.state->owed[source] = owed;
}

__device__ __forceinline__ bool wants_totals(const Dispatch &a) { return a.out.expert_totals || a.out.expert_totals_i32; }

// Adds to the caller's sums for a local expert, which lanes and buffers may share. `n` may have wrapped around.
__device__ __forceinline__ void put_total(const Dispatch &a, uint32_t e, uint64_t n) {
    if (a.out.expert_totals) ptx::reduce_relaxed_gpu(&a.out.expert_totals[e], n);
    if (a.out.expert_totals_i32) atomicAdd(reinterpret_cast<uint32_t *>(&a.out.expert_totals_i32[e]), uint32_t(n));
}

// Writes the totals of all rows for the caller and for combine, and `adds` them to the caller's sums: early, so that the stores
// are done when the block ends, which orders them before the closing block; see correct_totals(). Called by one block.
__device__ inline void write_counts(const Dispatch &a, const Operation &o, const ReceiveShared &s, const uint32_t *table,
                                    bool adds, bool again) {
    const epw_layout &l = a.lane.layout;
    if (adds && threadIdx.x == 0) o.state->added_at = o.out_before + gridDim.x;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < l.local_experts; e += kThreads) {
        uint32_t fill = 0;
#pragma unroll 1
        for (uint32_t source = 0; source < l.ranks; source++) {
            const bool told = a.out.ranges || a.out.packed_ranges;
            if (!told && s.rows[source] == 0) continue; // its first_row is never read
            uint32_t count = table[source * l.local_experts + e];
            a.lane.arrays.first_row[source * l.local_experts + e] = fill;
            if (a.out.ranges) {
                uint32_t *range = a.out.ranges + 2 * (size_t(e) * l.ranks + source);
                range[0] = fill;
                range[1] = count;
            }
            if (a.out.packed_ranges) a.out.packed_ranges[size_t(e) * l.ranks + source] = uint64_t(fill) << 32 | count;
            fill += count;
        }
        if (a.out.counts) a.out.counts[e] = fill;
        if (adds) {
            a.lane.arrays.added[e] = fill;
            put_total(a, e, fill);
        }
    }
    if (threadIdx.x < l.ranks) {
        uint32_t end = 0;
#pragma unroll 1
        for (uint32_t place = 0; place <= threadIdx.x; place++) end += s.rows[source_at(a.lane.rank, l.ranks, place)];
        a.lane.state->ends[threadIdx.x] = end;
        a.lane.state->received[threadIdx.x] = s.rows[threadIdx.x];
        if (a.out.source_counts) a.out.source_counts[threadIdx.x] = s.rows[threadIdx.x];
        if (a.lane.counts) count_received(a, o, s, again);
        if (l.answers > 1) note_owed(a, table);
    }
}

// The row of expert list `local` at which an entry lies, after the rows of earlier sources; kNowhere if its source has announced
// fewer rows.
constexpr uint64_t kNowhere = ~0ull;
__device__ __forceinline__ uint64_t place_of(const Dispatch &a, const uint32_t *table, uint32_t source, uint32_t local,
                                             uint32_t index) {
    const uint32_t *counts = table + local;
    uint64_t at = index;
#pragma unroll 1
    for (uint32_t s = 0; s < source; s++, counts += a.lane.layout.local_experts) at += *counts;
    return index < *counts ? at : kNowhere;
}

// Rank-major: ids, weights and the experts' row lists, with one thread per entry and neighbouring threads on the same row. A
// thread knows which rows are its own before they arrive, and reads those that do; it loads its entries before the table of
// counts is built, because both arrive one latency after the words.
struct ListEntry {
    uint32_t n; // index in the order of rows, alternating between the sources
    uint32_t source, row, j;
    uint32_t *token; // destinations of what the entry says
    int32_t *expert;
    float *weight;

    __device__ __forceinline__ ListEntry(const Dispatch &a, Share share)
        : n((threadIdx.x >> a.entry_shift) * share.blocks + share.block), j(threadIdx.x & ((1u << a.entry_shift) - 1)) {
        locate(a);
    }
    __device__ __forceinline__ void locate(const Dispatch &a) {
        row = a.sources.divide(n);
        source = n - row * a.lane.layout.ranks;
        uint32_t at = place(a);
        size_t entry = size_t(at) * a.lane.layout.topk + j;
        token = a.out.source_token && j == 0 ? a.out.source_token + at : nullptr;
        expert = a.out.row_experts ? a.out.row_experts + entry : nullptr;
        weight = a.out.row_weights ? a.out.row_weights + entry : nullptr;
    }
    __device__ __forceinline__ uint32_t place(const Dispatch &a) const { return source * a.lane.layout.max_tokens + row; }
    // Moves to this thread's next entry; returns false if there is none.
    __device__ __forceinline__ bool go_on(const Dispatch &a, Share share) {
        n += (kThreads >> a.entry_shift) * share.blocks;
        if (n >= uint32_t(a.lane.layout.rows)) return false;
        locate(a);
        return true;
    }
    __device__ __forceinline__ bool inside(const Dispatch &a) const {
        return row < a.lane.layout.max_tokens && j < a.lane.layout.topk;
    }
    __device__ __forceinline__ bool came(const Dispatch &a, const ReceiveShared &s) const {
        return inside(a) && row < s.rows[source];
    }
};

__device__ __forceinline__ void list_entry(const Dispatch &a, Operation &o, const uint32_t *table, const Received &r,
                                           const ListEntry &e) {
    const epw_layout &l = a.lane.layout;
    uint32_t local = r.expert - o.rank * l.local_experts;
    bool ours = static_cast<int32_t>(r.expert) >= 0 && local < l.local_experts;
    uint64_t place = ours ? place_of(a, table, e.source, local, r.index) : 0;
    if (r.format != a.format.hash || r.token >= l.max_tokens || place == kNowhere) {
        spoil_peer(o, e.source);
        return;
    }
    if (e.token) *e.token = r.token;
    if (e.expert) *e.expert = ours ? static_cast<int32_t>(local) : -1;
    if (e.weight) *e.weight = ours ? __uint_as_float(r.weight) : 0.0f;
    if (ours && a.out.expert_rows) a.out.expert_rows[local * l.rows + place] = e.place(a);
}

// Writes the scales of one row, or zeros, to its places. Called by one warp: the threads divide the scales among them, and each
// thread that is `mine` also holds a place, row `row` of list `list`.
template <bool Zeros = false>
__device__ __forceinline__ void put_scales(const Dispatch &a, const unsigned char *scales, bool mine, uint64_t list,
                                           uint64_t row) {
    const uint32_t all = 0xffffffffu, count = a.format.scale_count;
    const bool packs = a.in.payload == EPW_PAYLOAD_FP8_UE8M0 && a.out.scale_order == 0; // packs four in a word
    const uint32_t units = packs ? (count + 3) / 4 : count, bytes = packs ? 4 : a.format.scale_bytes;
    const uint64_t rows = a.lane.layout.rows, begin = a.out.scale_order ? (list * rows + row) * units : list * units * rows + row;
    const uint64_t stride = a.out.scale_order ? 1 : rows;
    const uint32_t places = __ballot_sync(all, mine);
    unsigned char *out = static_cast<unsigned char *>(a.out.scales);
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32, first = 0; first < units; i += 32, first += 32) {
        const bool inside = i < units;
        uint32_t word = 0;
        if (Zeros) {
        } else if (inside && packs) {
#pragma unroll 1
            for (uint32_t k = 0; k < 4 && i * 4 + k < count; k++) word |= uint32_t(scales[i * 4 + k]) << (8 * k);
        } else if (inside && bytes == 4) {
            word = reinterpret_cast<const uint32_t *>(scales)[i];
        }
#pragma unroll 1
        for (uint32_t rest = places; rest != 0; rest &= rest - 1) {
            const uint64_t to = __shfl_sync(all, begin, __ffs(rest) - 1) + i * stride;
            if (inside && bytes == 4) reinterpret_cast<uint32_t *>(out)[to] = word;
#pragma unroll 1
            for (uint32_t k = 0; inside && bytes != 4 && k < bytes; k++) out[to * bytes + k] = Zeros ? 0 : scales[i * bytes + k];
        }
    }
}

// Copies a piece of `bytes` bytes of a row that came to the inbox to where the source would have written it if it were mapped:
// combine reads the header there and, for rank-major rows, the caller reads the rest. Called by one warp, from the row's tile.
__device__ __noinline__ inline void land(const Dispatch &a, const Operation &o, uint32_t source, uint32_t row, uint32_t piece,
                                         uint32_t bytes, const unsigned char *tile) {
    const epw_layout &l = a.lane.layout;
    const uint32_t laneid = threadIdx.x % 32;
    const bool by_rank = a.in.layout == EPW_RANK_MAJOR;
    unsigned char *slot = a.lane.window + epw_slot_offset(&l, a.lane.index, source, row), *payload = slot + l.header_bytes;
    if (laneid == 0) {
        if (piece == 0) ptx::bulk_store(slot, tile, a.tiles.header);
        if (by_rank) ptx::bulk_store(payload + uint64_t(piece) * kPieceBytes, tile + a.tiles.header, bytes);
        ptx::bulk_commit();
    }
    if (!by_rank || piece != 0 || bytes > a.format.payload_bytes) return; // there are no scales, or they were in the tile
    const unsigned char *scales = slot_of(a, o, source, row) + l.header_bytes + a.format.payload_bytes;
#pragma unroll 1
    for (uint32_t i = laneid * 16; i < a.scales_size; i += 32 * 16) {
        *reinterpret_cast<uint4 *>(payload + a.format.payload_bytes + i) = ptx::load_relaxed_gpu_once(scales + i);
    }
}

// Copies rows from their slots through shared memory to their destinations: to the list of each local expert or, rank-major, to
// one dense array; and rows that came to the inbox also into the window, where later steps look for them. A team of warps takes
// one row at a time through a tile of its own and divides the row's destinations among its warps; the fewer rows a block has, the
// larger the teams.
struct Spread {
    uint32_t size, teams, team, member; // warps of a team; teams of a block; this warp's team and its number in it
    uint32_t n, step, source, row, piece;
    uint32_t uses; // uses of the tile in this kernel

    // Chooses the team size by the number of rows received and of blocks that share them.
    __device__ __forceinline__ Spread(const Dispatch &a, const ReceiveShared &s, uint32_t blocks, bool needed) : uses(0) {
        if (!needed) return;
        static_assert(kWarps == 14);
        uint32_t warp = threadIdx.x / 32, rows = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < a.lane.layout.ranks; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4 *>(&s.rows[i]);
            rows += four.x + four.y + four.z + four.w;
        }
        if (rows <= 4 * blocks && a.tiles.count >= 4) {
            size = 3, teams = 4, team = warp / 3, member = warp % 3;
        } else if (rows <= 7 * blocks && a.tiles.count >= 7) {
            size = 2, teams = 7, team = warp / 2, member = warp % 2;
        } else {
            size = 1, teams = min(a.tiles.count, kWarps), team = warp, member = 0;
        }
    }

    __device__ __forceinline__ bool works() const { return team < teams; }
    __device__ __forceinline__ bool there(const Dispatch &a) const { return source < a.lane.layout.ranks; }
    __device__ __forceinline__ unsigned char *tile(const Dispatch &a, unsigned char *memory) const {
        return memory + team * a.tiles.bytes;
    }
    __device__ __forceinline__ uint32_t bytes(const Dispatch &a) const {
        return min(kPieceBytes, a.format.payload_bytes - piece * kPieceBytes);
    }
    __device__ __forceinline__ bool lands(const Operation &o) const { return o.lands && has(o.queued, source); }
    // Rows that lie in the window already may be left there.
    __device__ __forceinline__ bool moves(const Dispatch &a, const Operation &o) const { return a.copies_all || lands(o); }
    __device__ __forceinline__ bool whole(const Dispatch &a) const {
        return a.format.payload_bytes <= kPieceBytes && a.scales_size <= kScaleRoom;
    }

    // Starts with the team's first row of this share.
    __device__ __forceinline__ void start(const Dispatch &a, const Operation &o, ReceiveShared &s, unsigned char *memory,
                                          Share share) {
        n = a.copies_all || o.lands ? share.block + team * share.blocks : 0xffffffffu;
        step = teams * share.blocks;
        find(a, s);
        if (works() && there(a)) load(a, o, s, memory);
    }
    __device__ __forceinline__ void find(const Dispatch &a, const ReceiveShared &s) {
        uint32_t end = 0, begin = 0; // rows of the sources up to the current one; rows of those before row n's source
        piece = source = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < a.lane.layout.ranks; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4 *>(&s.rows[i]);
            const uint32_t rows[] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (uint32_t count : rows) {
                end += count;
                if (n < end) continue;
                begin = end;
                source++;
            }
        }
        row = n - begin;
    }
    __device__ __forceinline__ void load(const Dispatch &a, const Operation &o, ReceiveShared &s, unsigned char *memory) {
        if (member != 0 || threadIdx.x % 32 != 0 || !moves(a, o)) return;
        // The rows were acquired by generic loads of the words; now the bulk copy engine reads them.
        if (uses == 0) ptx::fence_global_before_bulk();
        const unsigned char *slot = slot_of(a, o, source, row);
        unsigned char *to = tile(a, memory);
        uint64_t *loaded = &s.loaded[team];
        if (whole(a)) {
            uint32_t all = a.tiles.header + align_16(a.format.payload_bytes + a.scales_size);
            ptx::barrier_expect(loaded, all);
            ptx::bulk_load(to, slot, all, loaded);
        } else {
            ptx::barrier_expect(loaded, a.tiles.header + bytes(a));
            ptx::bulk_load(to, slot, a.tiles.header, loaded);
            ptx::bulk_load(to + a.tiles.header, slot + a.lane.layout.header_bytes + uint64_t(piece) * kPieceBytes, bytes(a),
                           loaded);
        }
    }

    // Copies all rows to their places.
    __device__ void run(const Dispatch &a, Operation &o, ReceiveShared &s, const uint32_t *table, unsigned char *memory) {
        if (!works()) return;
        while (there(a)) {
            if (moves(a, o)) {
                while (!ptx::barrier_try_wait(&s.loaded[team], uses & 1)) {
                }
                uses++;
                put(a, o, s, table, tile(a, memory));
            }
            if (uint64_t(++piece) * kPieceBytes >= a.format.payload_bytes) {
                n += step;
                find(a, s);
            }
            if (!there(a)) break;
            // Waits until the tile has been read, by the bulk stores of every thread and by the team.
            ptx::bulk_wait_read<0>();
            ptx::fence_shared_before_bulk();
            ptx::team_barrier(1 + team, 32 * size);
            load(a, o, s, memory);
        }
        ptx::bulk_wait_all();
    }

  private:
    __device__ __forceinline__ void put(const Dispatch &a, Operation &o, ReceiveShared &s, const uint32_t *table,
                                        unsigned char *tile) const {
        const epw_layout &l = a.lane.layout;
        const uint32_t laneid = threadIdx.x % 32, all = 0xffffffffu;
        const bool lists = a.in.layout == EPW_EXPERT_MAJOR;
        if (lands(o) && member == 0) {
            const uint32_t size = whole(a) ? align_16(a.format.payload_bytes + a.scales_size) : bytes(a);
            land(a, o, source, row, piece, size, tile);
        }
        const epw_slot_header *header = reinterpret_cast<const epw_slot_header *>(tile);
        bool agrees = header->format == a.format.hash && header->token < l.max_tokens, mine = false;
        uint32_t list = 0;
        uint64_t place = uint64_t(source) * l.max_tokens + row;
        if (!lists) {
            mine = laneid == 0;
        } else if (laneid < l.topk) {
            int32_t expert = reinterpret_cast<const epw_entry *>(tile + sizeof(epw_slot_header))[laneid].expert;
            uint32_t index = reinterpret_cast<const uint32_t *>(tile + epw_indices_offset(&l))[laneid];
            list = uint32_t(expert) - o.rank * l.local_experts;
            mine = expert >= 0 && list < l.local_experts;
            place = mine ? place_of(a, table, source, list, index) : 0;
            agrees = agrees && place != kNowhere;
        }
        if (!__all_sync(all, agrees)) {
            if (laneid == 0) spoil_peer(o, source);
            return;
        }
        uint32_t number = __popc(__ballot_sync(all, mine) & ((1u << laneid) - 1)); // the thread's index among the row's places
        mine = mine && (size == 1 || number % (size == 2 ? 2 : 3) == member);
        const uint64_t to = list * l.rows + place;
        const unsigned char *payload = tile + a.tiles.header;
        if (mine && a.out.rows) {
            ptx::bulk_store(static_cast<unsigned char *>(a.out.rows) + to * a.format.payload_bytes +
                                uint64_t(piece) * kPieceBytes,
                            payload, bytes(a));
            ptx::bulk_commit();
        }
        if (piece != 0) return;
        if (mine && lists && a.out.source_token) a.out.source_token[to] = header->token;
        const unsigned char *scales =
            whole(a) ? payload + a.format.payload_bytes : slot_of(a, o, source, row) + l.header_bytes + a.format.payload_bytes;
        if (a.out.scales && a.format.scale_count > 0) put_scales(a, scales, mine, list, place);
        if (!a.out.sideband || a.in.sideband_bytes == 0) return;
#pragma unroll 1
        for (uint32_t rest = __ballot_sync(all, mine); rest != 0; rest &= rest - 1) {
            const uint64_t at = __shfl_sync(all, to, __ffs(rest) - 1);
            unsigned char *out = static_cast<unsigned char *>(a.out.sideband) + at * a.in.sideband_bytes;
#pragma unroll 1
            for (uint32_t i = laneid; i < a.in.sideband_bytes; i += 32) out[i] = tile[epw_sideband_offset(&l) + i];
        }
    }
};

// Writes a row of zeros from token 0 to one place of a list. Called by one warp, from a tile of zeros.
__device__ inline void put_zeros(const Dispatch &a, uint64_t list, uint64_t row, const unsigned char *tile) {
    const uint64_t at = list * a.lane.layout.rows + row;
    const uint32_t laneid = threadIdx.x % 32;
    if (laneid == 0 && a.out.source_token) a.out.source_token[at] = 0;
    if (laneid == 0 && a.out.rows) {
        unsigned char *to = static_cast<unsigned char *>(a.out.rows) + at * a.format.payload_bytes;
        for (uint32_t done = 0; done < a.format.payload_bytes; done += kPieceBytes) {
            ptx::bulk_store(to + done, tile, min(kPieceBytes, a.format.payload_bytes - done));
        }
        ptx::bulk_commit();
    }
    if (a.out.scales && a.format.scale_count > 0) put_scales<true>(a, nullptr, laneid == 0, list, row);
    unsigned char *sideband = static_cast<unsigned char *>(a.out.sideband) + at * a.in.sideband_bytes;
    for (uint32_t i = laneid; a.out.sideband && i < a.in.sideband_bytes; i += 32) sideband[i] = 0;
}

// If some block was in trouble, which the last one may not have known, the closing block makes good in the caller's sums what
// the last one has added. `table`: that of take_counts.
__device__ inline void correct_totals(const Dispatch &a, const Operation &o, const uint32_t *table) {
    const epw_layout &l = a.lane.layout;
    // Writer: write_counts() in the last block. Reader: this one, which has acquired it through out_blocks.
    const uint32_t *added = a.lane.arrays.added;
    const bool corrects = o.state->added_at == o.out_before;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < l.local_experts; e += kThreads) {
        uint32_t n = 0;
#pragma unroll 1
        for (uint32_t source = 0; source < l.ranks; source++) n += table[source * l.local_experts + e];
        const uint64_t before = corrects ? added[e] : 0;
        put_total(a, e, n - before);
    }
}

// Writes rows of zeros, of no expert, to all places of the lists that belong to `sources`: the rows meant for these places were
// malformed, at least in part, and may not have been stored at all. Other blocks may have stored well-formed rows of these
// sources there, unordered with this. Whichever store wins, nobody reads memory that was never written, and the sources are
// reported missing. The rows of other sources stay where they are. Called by the closing block; `tile` is its first tile, and
// free.
__device__ __noinline__ inline void clear_places(const Dispatch &a, const ReceiveShared &s, const uint32_t *table,
                                                 const epw_rank_set &sources, unsigned char *tile) {
    const epw_layout &l = a.lane.layout;
    const bool by_rank = a.in.layout == EPW_RANK_MAJOR;
    const uint32_t laneid = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t i = threadIdx.x; i < a.tiles.bytes / 4; i += kThreads) reinterpret_cast<uint32_t *>(tile)[i] = 0;
    ptx::fence_shared_before_bulk();
    __syncthreads();
#pragma unroll 1
    for (uint32_t source = 0; source < l.ranks; source++) {
        if (!has(sources, source)) continue;
        const uint32_t first = source * l.max_tokens;
#pragma unroll 1
        for (uint32_t list = 0; list < l.local_experts; list++) {
            const uint32_t count = table[source * l.local_experts + list];
            const uint64_t begin = place_of(a, table, source, list, 0);
#pragma unroll 1
            for (uint32_t i = warp; i < count; i += kWarps) {
                if (!by_rank) {
                    put_zeros(a, list, begin + i, tile);
                } else if (laneid == 0 && a.out.expert_rows) {
                    a.out.expert_rows[list * l.rows + begin + i] = first;
                }
            }
        }
#pragma unroll 1
        for (uint32_t i = warp; by_rank && i < s.rows[source]; i += kWarps) {
            put_zeros(a, 0, first + i, tile);
            if (laneid >= l.topk) continue;
            const size_t entry = size_t(first + i) * l.topk + laneid;
            if (a.out.row_experts) a.out.row_experts[entry] = -1;
            if (a.out.row_weights) a.out.row_weights[entry] = 0.0f;
        }
    }
    if (laneid == 0) ptx::bulk_wait_all();
}

// Leaves out the peers that are lost or refused by now: their rows do not count. Returns whether there are more of them than
// before. Called by the whole block, after a barrier.
__device__ __noinline__ inline bool leave_out_more(Operation &o, ReceiveShared &s) {
    const uint32_t source = threadIdx.x;
    const bool out = source < o.ranks && has(o.present, source) && (has(o.lost, source) || has(o.refused, source));
    const bool more = out && !insert(o.left_out, source);
    if (out) s.rows[source] = 0;
    ptx::fence_shared_before_bulk(); // every thread has read its last tile
    ptx::fence_global_before_bulk(); // the stores of other blocks were acquired by a generic load
    return __syncthreads_or(more);
}

// Decides which peers take part in the end, and whose rows were malformed. Called by the whole block.
__device__ __noinline__ inline void decide_sources(Operation &o) {
    if (threadIdx.x == 0) {
        o.malformed = (o.present & o.malformed) - o.left_out;
        const epw_rank_set bad = o.refused | o.malformed;
        // Peers that have sent what they must not are answered all the same, with no rows. A peer that was given up and has sent
        // since counts as missing too: it may not have been sent to, and as a suspect it gets no answer.
        o.kept = o.present - o.lost;
        o.absent = o.active - (o.kept - (bad | o.given_up));
        if (any(bad)) {
            const uint32_t peer = first_of(bad);
            const uint64_t seen = WordOf(o, awaited_rows(o), peer).look();
            record_loss(o, EPW_PHASE_DISPATCH_RECEIVE, EPW_CAUSE_FORMAT, peer, expected_word(o, awaited_rows(o)), seen, 0, 0);
        }
    }
    __syncthreads();
}

// Lists the thread's entry and those after it.
__device__ __forceinline__ void list_more(const Dispatch &a, Operation &o, const ReceiveShared &s, const uint32_t *table,
                                          ListEntry e, Share share) {
    constexpr uint32_t kAtOnce = 3; // entries of a thread that are on their way together
    bool more = true;
#pragma unroll 1
    while (more) {
        ListEntry places[kAtOnce] = {e, e, e};
        Received entries[kAtOnce] = {};
        bool came[kAtOnce];
#pragma unroll
        for (uint32_t k = 0; k < kAtOnce; k++) {
            places[k] = e;
            came[k] = more && e.came(a, s);
            if (came[k]) entries[k] = read_entry(a, slot_of(a, o, e.source, e.row), e.j);
            more = more && e.go_on(a, share);
        }
#pragma unroll
        for (uint32_t k = 0; k < kAtOnce; k++) {
            if (came[k]) list_entry(a, o, table, entries[k], places[k]);
        }
    }
}

// Waits for the rows and lays them out. After trouble, the closing block decides which peers take part, and does the whole layout
// again, alone, if some do not or if blocks are absent. It repeats this until no further peer drops out; there are fewer each
// time.
template <bool Spreads>
__device__ __forceinline__ void receive_rows(const Dispatch &a, Operation &o, ReceiveShared &s, unsigned char *memory,
                                             uint32_t *table) {
    const bool in_place = !Spreads || a.in.layout == EPW_RANK_MAJOR;
    Share share = {blockIdx.x, gridDim.x};
    ListEntry e(a, share);
    Count count(a, o, threadIdx.x);
    uint32_t format = await_rows(a, o, s);
    ptx::let_next_begin();
    Spread spread(a, s, share.blocks, Spreads);
    bool alone = false;
    while (true) {
        count.load(a);
        bool mine = in_place && e.came(a, s);
        Received entry = {};
        if (mine) entry = read_entry(a, slot_of(a, o, e.source, e.row), e.j);
        if constexpr (Spreads) spread.start(a, o, s, memory, share);
        take_counts(a, o, s, count, format, table);
        format = a.format.hash; // the formats of other sources have been checked
        // By the block with the fewest rows. A single block may be the closing one, which does it again.
        const bool counts = share.block == share.blocks - 1, adds = counts && !alone && wants_totals(a);
        if (counts) write_counts(a, o, s, table, adds, share.blocks == 1);
        if (in_place && mine) list_entry(a, o, table, entry, e);
        if (in_place && __builtin_expect(e.go_on(a, share), 0)) list_more(a, o, s, table, e, share);
        if constexpr (Spreads) spread.run(a, o, s, table, memory);
        if (alone) {
            __syncthreads(); // makes what every thread has refused visible
        } else {
            if (!must_close(o, EPW_GPU_DISPATCHED, a.halves & EPW_GPU_SEND, adds)) return;
            if (o.again && o.unordered) keep_who_sent(a, o, s);
        }
        // Every source that is not left out has sent, as this block has seen, and its row count is within bounds.
        const bool more = leave_out_more(o, s);
        if (alone ? !more : !o.again) break;
        share = {0, 1};
        e = ListEntry(a, share);
        alone = true;
    }
    decide_sources(o);
    if (any(o.malformed)) clear_places(a, s, table, o.malformed, memory);
    if (wants_totals(a)) correct_totals(a, o, table);
    add_waits(o, a.out.wait_ns);
    close(o, EPW_PHASE_DISPATCH_SEND, EPW_GPU_DISPATCHED);
}

} // namespace epw
