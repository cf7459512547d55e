// The sending half of dispatch where a block has several tokens. Teams of warps have a token each, as many teams as keep the wire
// busy. A row comes from memory some steps ahead of the warp that works on it, over the ends of rows; it is quantised in registers
// and stored from there, 16 bytes a thread, for each rank that owns one of its experts. What goes in front of it, and its scales,
// leave from the team's desk.
#pragma once

#include "kernels/ep/send.cuh"

namespace epw {

struct ManyShared : SendShared {
    uint64_t numbered; // barriers, of all warps: a round's numbers have been read,
    uint64_t counted;  // and those of the next one are there
};

// Where a team is among the tokens.
struct Turn {
    uint32_t round, t; // the token; beyond the last: there is none
};

// A block's way through its tokens.
template <typename T, uint32_t Payload> struct ManySender {
    static constexpr bool kQuantise = quantises(Payload);
    static constexpr uint32_t kInput = kQuantise ? 2 : 1;               // bytes that come to each that leaves
    static constexpr uint32_t kPermits = 3; // the warp that looks at permission: it has not much else to do

    const Dispatch &a;
    ManyShared &s;
    unsigned char *memory;
    Census census;
    const uint32_t team, member; // of this warp; it may have none
    const uint32_t chunks;       // of a row, as it comes
    const uint32_t steps;        // of each member of a team to a row
    Turn ahead;                             // whose row is on its way
    uint32_t step = 0, asked = 0, read = 0; // of that row; of the desk: the places that are filled and read next
    Token token, next;                      // of this round; of the one after it
    Tally tally;                            // of the tokens in between
    Permission permission;

    // How far a warp is with the numbers of the next round. It goes on with them beside the rows.
    enum { kWaits, kCounts, kJoined } progress = kJoined;

    // A part of a row, as it leaves.
    struct Step {
        uint4 out[kStepGroups * 2 / kInput];
        uint32_t scale[kStepGroups];
    };

    // Before earlier kernels have ended: reads nothing that they write. `counts`: a number for each expert, in shared memory.
    // The caller's barrier comes next.
    __device__ __forceinline__ ManySender(const Dispatch &a, ManyShared &s, unsigned char *memory, uint32_t *counts)
        : a(a), s(s), memory(memory), census{counts, s.ranks}, team(threadIdx.x / 32 / a.rounds.size),
          member(threadIdx.x / 32 % a.rounds.size), chunks(a.format.payload_bytes / 16 * kInput),
          steps(((chunks + kGroupChunks - 1) / kGroupChunks + kStepGroups * a.rounds.size - 1) / (kStepGroups * a.rounds.size)) {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < a.experts; i += kThreads) counts[i] = 0;
        if (threadIdx.x < a.lane.layout.ranks) s.ranks[threadIdx.x] = 0;
        ahead = turn_of(0);
    }

    // What comes from memory first is on its way when this returns.
    __device__ __forceinline__ void begin() {
        token.load(a, ahead.t);
        tally.begin(a, 0, first_of(0));
#pragma unroll 1
        for (uint32_t i = 0; i < kSteps - 1; i++) ask();
    }
    // A look at permission, while the operation is on its way.
    __device__ __forceinline__ void look() {
        if (threadIdx.x / 32 == kPermits) permission.look(a);
    }
    // Sends the tokens. The operation is there after the next barrier.
    __device__ __forceinline__ void run(Operation &o);

  private:
    // The block's first token of a round.
    __device__ __forceinline__ uint32_t first_of(uint32_t round) const {
        const uint32_t own = round + 1 < a.rounds.count ? a.rounds.teams : a.rounds.last;
        return min(round * a.rounds.teams * gridDim.x + blockIdx.x * own, a.in.tokens);
    }
    __device__ __forceinline__ uint32_t end_of(uint32_t round) const {
        const uint32_t own = round + 1 < a.rounds.count ? a.rounds.teams : a.rounds.last;
        return min(first_of(round) + own, a.in.tokens);
    }
    __device__ __forceinline__ Turn turn_of(uint32_t round) const {
        const uint32_t t = round < a.rounds.count ? first_of(round) + team : kNobody;
        return {round, round < a.rounds.count && t < end_of(round) ? t : kNobody};
    }
    __device__ __forceinline__ unsigned char *desk(uint32_t warp) const { return memory + warp * a.desks.bytes; }
    __device__ __forceinline__ unsigned char *place_at(uint32_t n) const {
        return desk(threadIdx.x / 32) + a.desks.bytes - kSteps * kStepBytes + n * kStepBytes + threadIdx.x % 32 * 16;
    }
    // This thread's chunk k of a group of 64.
    static __device__ __forceinline__ uint32_t chunk_of(uint32_t k) {
        return kQuantise ? quantised_chunk(threadIdx.x % 32, k) : threadIdx.x % 32 + 32 * k;
    }
    // The first chunk of group i of the team's step `n`.
    __device__ __forceinline__ uint32_t group_at(uint32_t n, uint32_t i) const {
        return ((n * kStepGroups + i) * a.rounds.size + member) * kGroupChunks;
    }

    // Asks for the next step of the rows to come. A thread reads only what it has asked for itself.
    __device__ __forceinline__ void ask() {
        if (ahead.t != kNobody) {
            const unsigned char *from = static_cast<const unsigned char *>(a.in.x) + ahead.t * a.in.x_stride;
            unsigned char *to = place_at(asked);
#pragma unroll
            for (uint32_t i = 0; i < kStepGroups * 2; i++) {
                const uint32_t chunk = group_at(step, i / 2) + chunk_of(i % 2);
                const bool inside = chunk < chunks;
                ptx::copy_16(to + i * 512, inside ? from + uint64_t(chunk) * 16 : from, inside);
            }
            asked = asked + 1 < kSteps ? asked + 1 : 0;
            if (++step == steps) {
                step = 0;
                ahead = turn_of(ahead.round + 1);
            }
        }
        ptx::copy_commit(); // none on its way counts too
    }

    // Where this thread's entry sends the row; nullptr: nowhere, or where an earlier one does. When all teams have joined the
    // census.
    __device__ __forceinline__ unsigned char *slot(const Operation &o) const {
        if (!token.leads || !has(o.reachable, token.rank)) return nullptr;
        const uint32_t number = Census::of(census.ranks[token.rank], team);
        return at(o, token.rank, epw_slot_offset(&a.lane.layout, a.lane.index, a.lane.rank, number));
    }

    // The scales of step n's groups, by the threads that begin a block of channels.
    __device__ __forceinline__ void put_scales(unsigned char *scales, uint32_t n, const uint32_t (&scale)[kStepGroups]) const {
#pragma unroll
        for (uint32_t i = 0; i < kStepGroups; i++) {
            const uint32_t first = group_at(n, i) + chunk_of(0);
            if (threadIdx.x % kBlockThreads != 0 || first >= chunks) continue;
            put_scale<Payload>(scales, first / kBlockChunks, scale[i]);
        }
    }

    // Where the team's scales of a round are put together.
    __device__ __forceinline__ unsigned char *scales_of(uint32_t round) const {
        return desk(team * a.rounds.size) + a.desks.header + (round & 1) * a.desks.scales;
    }
    __device__ __forceinline__ bool leads_row() const { return member == a.rounds.size - 1 && team < a.rounds.teams; }

    __device__ __forceinline__ void write_header(uint32_t t, uint32_t index) const;
    __device__ __forceinline__ Step take_step(uint32_t round, uint32_t n);
    __device__ __forceinline__ void number_next(uint32_t round, bool all);
    __device__ __forceinline__ void send_row(uint32_t round, uint32_t t, unsigned char *mine, Step s);
    __device__ __forceinline__ void send_desk(unsigned char *mine, uint32_t leads, const unsigned char *from, uint64_t to,
                                              uint32_t bytes) const;
};

// By the team's last warp: what goes in front of the row, at its desk. `index`: of this thread's entry.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void ManySender<T, Payload>::write_header(uint32_t t, uint32_t index) const {
    const epw_layout &l = a.lane.layout;
    const uint32_t laneid = threadIdx.x % 32;
    unsigned char *header = desk(threadIdx.x / 32);
    if (laneid == 0) *reinterpret_cast<uint4 *>(header) = {t, a.format.hash, 0, 0};
    if (laneid < l.topk) {
        reinterpret_cast<epw_entry *>(header + sizeof(epw_slot_header))[laneid] = {int32_t(token.expert), token.kept_weight()};
        reinterpret_cast<uint32_t *>(header + epw_indices_offset(&l))[laneid] = index;
    }
    const uint32_t sideband = uint32_t(epw_sideband_offset(&l));
    const unsigned char *from = static_cast<const unsigned char *>(a.in.sideband) + size_t(t) * a.in.sideband_bytes;
    // What travels behind it, since it leaves as whole units, is zeros, never what somebody has left in shared memory.
#pragma unroll 1
    for (uint32_t i = laneid; i < a.desks.header - sideband; i += 32) {
        header[sideband + i] = i < a.in.sideband_bytes ? from[i] : 0;
    }
}

// By one warp of a team: bytes at a desk to each slot.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void ManySender<T, Payload>::send_desk(unsigned char *mine, uint32_t leads, const unsigned char *from, uint64_t to,
                                                              uint32_t bytes) const {
#pragma unroll 1
    for (uint32_t at = threadIdx.x % 32 * 16; __any_sync(0xffffffffu, at < bytes); at += 32 * 16) {
        const bool inside = at < bytes;
        const uint4 unit = inside ? *reinterpret_cast<const uint4 *>(from + at) : uint4{};
#pragma unroll 1
        for (uint32_t rest = leads; rest != 0; rest &= rest - 1) {
            const uint64_t slot = __shfl_sync(0xffffffffu, reinterpret_cast<uint64_t>(mine), __ffs(rest) - 1);
            if (inside) ptx::store(reinterpret_cast<unsigned char *>(slot + to + at), unit);
        }
    }
}

// The next step of the team's row, number n of it, quantised; its scales are at the desk.
template <typename T, uint32_t Payload>
__device__ __forceinline__ typename ManySender<T, Payload>::Step ManySender<T, Payload>::take_step(uint32_t round, uint32_t n) {
    ask(); // into the place that was read the time before
    ptx::copy_wait<kSteps - 1>();
    const uint4 *from = reinterpret_cast<const uint4 *>(place_at(read));
    read = read + 1 < kSteps ? read + 1 : 0;
    Step s = {};
#pragma unroll
    for (uint32_t i = 0; i < kStepGroups; i++) {
        if (group_at(n, i) >= chunks) break;
        const uint4 x[] = {from[i * 64], from[i * 64 + 32]};
        if constexpr (kQuantise) {
            s.out[i] = quantise_pair<T, Payload>(x, s.scale[i]);
        } else {
            s.out[i * 2] = x[0];
            s.out[i * 2 + 1] = x[1];
        }
    }
    if (kQuantise && a.desks.scales > 0) put_scales(scales_of(round), n, s.scale);
    return s;
}

// A part of the work on the next round's numbers, or all that is left of it. No warp counts before all have read this round's, and
// none reads before all have counted, but in between each goes its own way.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void ManySender<T, Payload>::number_next(uint32_t round, bool all) {
    if (progress == kJoined) return;
    if (progress == kWaits) {
        ptx::barrier_wait(&s.numbered, round & 1);
        if (leads_row()) census.settle(token, team);
        progress = kCounts;
    }
    do tally.go_on(a, census);
    while (all && !tally.done(a));
    if (!tally.done(a)) return;
    next.look(a);
    if (leads_row()) census.join(next, team);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&s.counted);
    progress = kJoined;
}

// The token's row, by its team. `mine`: the slot of this thread's entry; `s`: the first step.
template <typename T, uint32_t Payload>
__device__ __forceinline__ void ManySender<T, Payload>::send_row(uint32_t round, uint32_t t, unsigned char *mine, Step s) {
    constexpr uint32_t all = 0xffffffffu;
    const epw_layout &l = a.lane.layout;
    const uint32_t leads = __ballot_sync(all, mine != nullptr);
    const bool desks_scales = a.desks.scales > 0;
#pragma unroll 1
    for (uint32_t n = 0; n < steps; n++) {
        if (n > 0 || round > 0) s = take_step(round, n);
#pragma unroll 1
        for (uint32_t rest = leads; rest != 0; rest &= rest - 1) {
            unsigned char *to = reinterpret_cast<unsigned char *>(
                __shfl_sync(all, reinterpret_cast<uint64_t>(mine), __ffs(rest) - 1) + l.header_bytes);
#pragma unroll
            for (uint32_t i = 0; i < kStepGroups * 2 / kInput; i++) {
                const uint32_t group = group_at(n, kQuantise ? i : i / 2);
                const uint32_t first = group + (kQuantise ? quantised_pair() : chunk_of(i % 2));
                if (first < chunks) ptx::store(to + uint64_t(first) * 16 / kInput, s.out[i]);
            }
            if (kQuantise && !desks_scales) put_scales(to + a.format.payload_bytes, n, s.scale);
        }
        if (n == 0 && leads_row()) {
            __syncwarp(); // the header is there
            send_desk(mine, leads, desk(threadIdx.x / 32), 0, a.desks.header);
        }
        if (n > 0) number_next(round, false);
    }
    if (a.scales_size == 0) return;
    // All have put theirs. The first step's of the first round were there before the block's barrier.
    if (kQuantise && desks_scales && (round > 0 || steps > 1)) {
        __syncwarp();
        ptx::team_barrier(1 + team, 32 * a.rounds.size);
    }
    if (member != 0) return;
    unsigned char *scales = scales_of(round);
    if (!kQuantise && desks_scales) copy_scales(a, t, scales, 32);
    if (desks_scales) {
        const uint32_t laneid = threadIdx.x % 32;
        if (laneid < a.desks.scales - a.scales_size) scales[a.scales_size + laneid] = 0;
        __syncwarp();
        send_desk(mine, leads, scales, l.header_bytes + a.format.payload_bytes, a.desks.scales);
        return;
    }
#pragma unroll 1
    for (uint32_t rest = kQuantise ? 0 : leads; rest != 0; rest &= rest - 1) {
        const uint64_t slot = __shfl_sync(all, reinterpret_cast<uint64_t>(mine), __ffs(rest) - 1);
        copy_scales(a, t, reinterpret_cast<unsigned char *>(slot + l.header_bytes + a.format.payload_bytes), 32);
    }
}

template <typename T, uint32_t Payload> __device__ __forceinline__ void ManySender<T, Payload>::run(Operation &o) {
    const uint32_t warp = threadIdx.x / 32;
    if (warp == kPermits) {
        bool there = permission.is_there(a);
        if (threadIdx.x % 32 == 0) s.awaits = !there;
    }
    token.look(a);
    tally.finish(a, census);
    if (leads_row()) census.join(token, team);
    uint32_t t = turn_of(0).t;
    Step first = {};
    if (t != kNobody) first = take_step(0, 0);
    __syncthreads(); // all have counted, and joined; and the operation is there
    if (o.stage != EPW_GPU_FREE) {
        ptx::copy_wait<0>();
        return;
    }
    if (s.awaits) {
        await_permission(o);
        __syncthreads(); // who is reachable is known
    }
    // The first time without a token, if there is none for this block: it may be the last one.
#pragma unroll 1
    for (uint32_t round = 0; true; round++) {
        unsigned char *const mine = t == kNobody ? nullptr : slot(o);
        if (t != kNobody && leads_row()) {
            write_header(t, token.expert == kNobody ? 0 : Census::of(census.experts[token.expert], team));
            remember(a, census, token, t, team);
            if (token.bad) note_bad_id(o, t, threadIdx.x % 32, raw_value(a, token.raw));
        }
        const bool more = round + 1 < a.rounds.count;
        const uint32_t then = more ? turn_of(round + 1).t : kNobody;
        if (more) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&s.numbered);
            progress = kWaits;
            next = Token();
            next.load(a, then);
            tally.begin(a, end_of(round), first_of(round + 1));
        }
        if (t != kNobody) send_row(round, t, mine, first);
        if (!more) break;
        number_next(round, true);
        token = next;
        t = then;
        ptx::barrier_wait(&s.counted, round & 1);
    }
    ptx::copy_wait<0>();
    if (blockIdx.x == gridDim.x - 1) {
        __syncthreads(); // the last tokens' numbers have been read
        if (leads_row()) census.settle(token, team);
        count_at_leisure(a, census, end_of(a.rounds.count - 1), a.in.tokens);
        __syncthreads();
        tell_counts(a, o, census);
    }
    ptx::fence_shared_before_bulk(); // rows that are received will take the desks' place
    post_words(a, o, false);
}

} // namespace epw
