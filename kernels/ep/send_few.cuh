// The sending half of dispatch where blocks have several tokens each, whose rows all lie in the block's tiles at the same time.
// The whole block loads and quantises them, while it counts the tokens before them. Then each warp numbers one token and sends
// its row. With one token to a block, send.cuh takes 0.8 to 1.7 us less (H200).
#pragma once

#include "kernels/ep/send_many.cuh"

namespace epw {

// A block's pass over its tokens, as Sender in send.cuh.
template <typename T, uint32_t Payload> struct FewSender {
    static constexpr bool kQuantise = quantises(Payload);
    static constexpr uint32_t kPermits = kWarps - 1; // the warp that looks at permission
    static constexpr uint32_t kPairs = 3;            // of rows, on their way to a thread's registers, which has a share of each

    const Dispatch &a;
    SendShared &s;
    unsigned char *const memory;
    const Census census;
    const Stretch own;   // the block's tokens
    const uint32_t warp; // it has the block's token of this number, if there is one
    TeamSender<T, Payload> sender;
    Token token;
    Ids ids;
    Permission permission;

    __device__ __forceinline__ FewSender(const Dispatch &a, SendShared &s, unsigned char *memory, uint32_t *counts)
        : a(a), s(s), memory(memory), census{counts, s.ranks}, own(tokens_of_block(a, blockIdx.x)), warp(threadIdx.x / 32),
          sender(a, s, memory, own) {
        census.clear(a);
        s.init_teams();
    }

    __device__ __forceinline__ void begin() {
        ids.load(a, 0, own.begin);
        token.load(a, has() ? own.begin + warp : a.in.tokens);
        if (kQuantise) {
            sender.prefetch(own.begin + warp);
        } else if (threadIdx.x == 0) {
            load_rows();
        }
    }
    __device__ __forceinline__ void look() {
        if (warp == kPermits) permission.look(a);
    }
    __device__ __forceinline__ void run(Operation &o) {
        count_tokens(a, census, ids, 0, own.begin);
        token.look(a);
        names(warp)[threadIdx.x % 32] = token.expert;
        if constexpr (kQuantise) quantise_rows();
        if (warp == kPermits) {
            const bool there = permission.is_there(a);
            if (threadIdx.x % 32 == 0) s.awaits = !there;
        }
        __syncthreads(); // rows are quantised, and tokens counted; and the operation is visible
        if (o.stage != EPW_GPU_FREE) {
            if (has()) sender.await_loaded();
            return;
        }
        const Routed routed = number();
        ptx::fence_shared_before_bulk(); // received rows lie in the memory of the names next
        if (s.awaits) {
            await_permission(o);
            __syncthreads(); // the set of reachable peers is known
        }
        if (has()) {
            const uint32_t t = own.begin + warp;
            sender.send_staged(o, t, routed);
            remember(a, token, routed.row, t);
            if (token.bad) note_bad_id(o, t, threadIdx.x % 32, raw_value(a, token.raw));
        }
        if (blockIdx.x == gridDim.x - 1) {
            __syncthreads(); // all numbers have been read
            count_token(census, token);
            __syncthreads();
            tell_counts(a, o, census);
        }
        tell_rows(a, o);
    }

  private:
    __device__ __forceinline__ bool has() const { return warp < own.count(); }
    // The experts of the block's token of that number, one for each thread of a warp; they lie behind the tiles.
    __device__ __forceinline__ uint32_t *names(uint32_t number) const {
        return reinterpret_cast<uint32_t *>(memory + a.few * a.tiles.bytes) + number * 32;
    }

    // The numbers of this thread's entry: tokens of earlier blocks, and of earlier warps, that have its expert, or its rank.
    __device__ __forceinline__ Routed number() const {
        if (token.expert == kNobody) return {};
        const uint32_t local = a.lane.layout.local_experts, first = token.rank * local; // the rank's first expert
        Routed r = {token.expert, census.experts[token.expert], census.ranks[token.rank], token.weight};
#pragma unroll 1
        for (uint32_t i = 0; i < warp; i++) {
            uint32_t of_rank = 0;
#pragma unroll 1
            for (uint32_t k = 0; k < a.in.topk; k += 4) { // beyond a token's entries there is nobody
                const uint4 four = *reinterpret_cast<const uint4 *>(names(i) + k);
                const uint32_t experts[] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (uint32_t expert : experts) {
                    r.index += expert == token.expert;
                    of_rank |= expert - first < local;
                }
            }
            r.row += of_rank;
        }
        if (token.leads) r.index |= EPW_GPU_LEADS;
        return r;
    }

    __device__ __forceinline__ unsigned char *payload_of(uint32_t row) const {
        return memory + row * a.tiles.bytes + a.tiles.header;
    }
    __device__ __forceinline__ const unsigned char *given(uint32_t row) const {
        return static_cast<const unsigned char *>(a.in.x) + (own.begin + row) * a.in.x_stride;
    }

    // Begins to load rows that are not quantised into their tiles. Called by one thread.
    __device__ __forceinline__ void load_rows() const {
#pragma unroll 1
        for (uint32_t row = 0; row < own.count(); row++) {
            ptx::barrier_expect(&s.teams_loaded[row], a.format.payload_bytes);
            ptx::bulk_load(payload_of(row), given(row), a.format.payload_bytes, &s.teams_loaded[row]);
        }
    }

    // Quantises the rows into their tiles, two at a time. Called by the whole block; the next barrier orders this before the bulk
    // stores.
    __device__ __forceinline__ void quantise_rows() const {
        const uint32_t rows = own.count(), bytes = a.format.payload_bytes, kEach = kQuantised * 8, share = threadIdx.x;
        const bool inside = share * kEach < bytes;
        uint4 held[kPairs][2][kQuantised];
        auto load = [&](uint32_t first, uint4(&pair)[2][kQuantised]) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                if (!inside || first + i >= rows) continue;
#pragma unroll
                for (uint32_t k = 0; k < kQuantised; k++)
                    pair[i][k] = ptx::load_relaxed_gpu_once(given(first + i) + quantised_chunk(share, k) * 16);
            }
        };
        if ((share & ~31u) * kEach >= bytes) return;
#pragma unroll
        for (uint32_t i = 0; i < kPairs; i++) load(2 * i, held[i]);
#pragma unroll 1
        for (uint32_t first = 0; first < rows;) {
#pragma unroll
            for (uint32_t i = 0; i < kPairs; i++, first += 2) {
                if (first >= rows) break;
                const ShareAt to[] = {share_of(first, share), share_of(first + 1, share)};
                quantise_shares<T, 2>(Payload, held[i], share % kBlockThreads == 0, {inside, inside && first + 1 < rows}, to);
                load(first + 2 * kPairs, held[i]);
            }
        }
        ptx::fence_shared_before_bulk();
    }
    __device__ __forceinline__ ShareAt share_of(uint32_t row, uint32_t share) const {
        return {payload_of(row), payload_of(row) + a.format.payload_bytes, share, scale_bytes(Payload)};
    }
};

} // namespace epw
