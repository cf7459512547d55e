// Runs the kernels on N GPUs of one process, one thread each: checks dispatch and combine, then times them by CUDA graphs. Not yet behind the API.
#include "ep/dispatch.h"
extern "C" {
#include "ep/plan.h"
}
#include "ep/rules.h"
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <thread>
#include <barrier>
#include <algorithm>
#include <random>
#define CK(x) do { cudaError_t e_ = (cudaError_t)(x); if (e_ != cudaSuccess) { printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_)); exit(1);} } while (0)
struct Rank {
    epw_gpu_context *ctx; unsigned char *win; void *x, *rows, *scales, *out; int32_t *idx; float *w;
    uint32_t *counts, *source_counts, *ranges, *source_token, *expert_rows; int32_t *row_experts; float *row_weights; uint16_t *contrib;
    uint64_t *suspects; cudaStream_t st;
    std::vector<uint16_t> hx; std::vector<int32_t> hidx; std::vector<float> hw;
};
static float bf(uint16_t b){uint32_t u=(uint32_t)b<<16;float f;memcpy(&f,&u,4);return f;}
static uint16_t tobf(float f){uint32_t u;memcpy(&u,&f,4);u+=0x7fff+((u>>16)&1);return u>>16;}
int main(int argc, char **argv) { setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    int N = argc > 1 ? atoi(argv[1]) : 2; uint32_t n = argc > 2 ? atoi(argv[2]) : 128; uint32_t hidden = argc > 3 ? atoi(argv[3]) : 7168;
    uint32_t blocks = argc > 4 ? atoi(argv[4]) : 128; uint32_t cblocks = argc > 5 ? atoi(argv[5]) : 128;
    uint32_t experts = 256, topk = 8;
    epw_config cfg = EPW_CONFIG_INIT; cfg.ranks = N; cfg.max_tokens = n; cfg.hidden = hidden; cfg.experts = experts; cfg.topk = topk;
    epw_layout L; epw_plan plan = EPW_PLAN_INIT; if (epw_plan_layout("x", &cfg, &L, &plan)) { printf("plan: %s\n", epw_last_error()); return 1; }
    printf("ranks %d tokens %u hidden %u blocks %u/%u window %.1f MiB\n", N, n, hidden, blocks, cblocks, plan.window_bytes / 1048576.0);
    std::vector<Rank> R(N); uint64_t rows = L.rows; uint32_t le = L.local_experts;
    for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); for (int p = 0; p < N; p++) if (p != r) { auto e = cudaDeviceEnablePeerAccess(p, 0); if (e != cudaSuccess) { printf("peer %d->%d: %s\n", r, p, cudaGetErrorString(e)); return 1; } } CK(cudaMalloc(&R[r].win, plan.window_bytes)); CK(cudaMemset(R[r].win, 0, plan.window_bytes)); }
    std::mt19937 g(1);
    for (int r = 0; r < N; r++) { Rank &k = R[r]; CK(cudaSetDevice(r)); CK(cudaStreamCreate(&k.st));
        CK(cudaMalloc(&k.x, n * hidden * 2)); CK(cudaMalloc(&k.idx, n * topk * 4)); CK(cudaMalloc(&k.w, n * topk * 4));
        CK(cudaMalloc(&k.rows, (uint64_t)le * rows * hidden * 2)); CK(cudaMalloc(&k.scales, (uint64_t)le * rows * (hidden / 128) * 4)); CK(cudaMalloc(&k.out, n * hidden * 2));
        CK(cudaMalloc(&k.counts, le * 4)); CK(cudaMalloc(&k.source_counts, N * 4)); CK(cudaMalloc(&k.ranges, le * N * 8)); CK(cudaMalloc(&k.source_token, le * rows * 4));
        CK(cudaMalloc(&k.expert_rows, le * rows * 4)); CK(cudaMalloc(&k.row_experts, rows * topk * 4)); CK(cudaMalloc(&k.row_weights, rows * topk * 4)); CK(cudaMalloc(&k.contrib, n * 4)); CK(cudaMalloc(&k.suspects, 8)); CK(cudaMemset(k.suspects, 0, 8));
        k.hx.resize(n * hidden); for (auto &v : k.hx) v = tobf((int)(g() % 17) - 8); k.hidx.resize(n * topk); k.hw.assign(n * topk, 0.125f);
        for (uint32_t t = 0; t < n; t++) { std::vector<int> perm(experts); for (uint32_t i = 0; i < experts; i++) perm[i] = i; for (uint32_t j = 0; j < topk; j++) { std::swap(perm[j], perm[j + g() % (experts - j)]); k.hidx[t * topk + j] = perm[j]; } }
        CK(cudaMemcpy(k.x, k.hx.data(), n * hidden * 2, cudaMemcpyHostToDevice)); CK(cudaMemcpy(k.idx, k.hidx.data(), n * topk * 4, cudaMemcpyHostToDevice)); CK(cudaMemcpy(k.w, k.hw.data(), n * topk * 4, cudaMemcpyHostToDevice));
        epw_gpu_context c; memset(&c, 0, sizeof c); c.layout = L; c.rank = r; c.ranks = N; c.lane = 0; c.hidden = hidden; c.experts = experts; c.topk = topk;
        for (int p = 0; p < N; p++) c.window[p] = R[p].win;
        c.epoch = 1; c.active = (1ull << N) - 1; c.deadline_ns = 2000000000ull; c.suspects = k.suspects;
        CK(cudaMalloc(&c.first_row, N * le * 4)); CK(cudaMalloc(&c.sent_row, n * topk * 4)); CK(cudaMalloc(&c.ids, n * topk * 4)); CK(cudaMalloc(&c.weights, n * topk * 4));
        CK(cudaMalloc(&k.ctx, sizeof c)); CK(cudaMemcpy(k.ctx, &c, sizeof c, cudaMemcpyHostToDevice));
    }
    for (int r = 0; r < N; r++) for (int p = 0; p < N; p++) { uint64_t w = epw_word(1, 0, 0); CK(cudaMemcpy(R[r].win + epw_line_offset(p) + offsetof(epw_line, epoch), &w, 8, cudaMemcpyHostToDevice)); }
    CK(cudaDeviceSynchronize());
    auto dargs = [&](int r, uint32_t payload, uint32_t layout, uint32_t halves) { Rank &k = R[r]; epw_dispatch_args a; memset(&a, 0, sizeof a); a.context = k.ctx; a.layout = L; a.halves = halves; a.x = k.x; a.x_stride = hidden * 2; a.topk_idx = k.idx; a.topk_weights = k.w; a.tokens = n; a.topk = topk; a.payload = payload; a.payload_bytes = payload ? hidden : hidden * 2; a.scale_count = payload ? hidden / 128 : 0; a.scale_bytes = payload ? 4 : 0; a.format = 77; a.output_layout = layout; a.counts = k.counts; a.source_counts = k.source_counts;
        if (layout == EPW_EXPERT_MAJOR) { a.rows = k.rows; a.out_scales = k.scales; a.ranges = k.ranges; a.source_token = k.source_token; } else { a.row_experts = k.row_experts; a.row_weights = k.row_weights; a.expert_rows = k.expert_rows; } return a; };
    auto cargs = [&](int r, uint32_t layout, uint32_t halves, uint32_t release) { Rank &k = R[r]; epw_combine_args a; memset(&a, 0, sizeof a); a.context = k.ctx; a.layout = L; a.halves = halves; a.dtype = EPW_BF16; a.output_layout = layout; a.tokens = n; a.hidden = hidden; a.release = release; a.expert_out = layout == EPW_EXPERT_MAJOR ? k.rows : nullptr; a.out = k.out; a.contributions = k.contrib; return a; };
    for (int rep = 0; rep < 3; rep++) {
        for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); CK(cudaMemsetAsync(R[r].out, 0xff, n * hidden * 2, R[r].st)); auto a = dargs(r, EPW_PAYLOAD_SAME, EPW_EXPERT_MAJOR, 3); CK(epw_gpu_dispatch(&a, blocks, R[r].st)); auto c = cargs(r, EPW_EXPERT_MAJOR, 3, 0); CK(epw_gpu_combine(&c, cblocks, R[r].st)); }
        long wrong = 0, badc = 0; for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); CK(cudaStreamSynchronize(R[r].st)); std::vector<uint16_t> o(n * hidden); CK(cudaMemcpy(o.data(), R[r].out, n * hidden * 2, cudaMemcpyDeviceToHost)); for (size_t i = 0; i < o.size(); i++) { float want = bf(R[r].hx[i]); if (!(bf(o[i]) == want)) wrong++; } std::vector<uint16_t> k(n * 2); CK(cudaMemcpy(k.data(), R[r].contrib, n * 4, cudaMemcpyDeviceToHost)); for (uint32_t t = 0; t < n; t++) badc += k[2*t] != topk || k[2*t+1] != topk; }
        printf("bf16 expert-major pair rep %d: %ld wrong of %ld, %ld bad contributions\n", rep, wrong, (long)N * n * hidden, badc); fflush(stdout);
    }
    for (int layout = 0; layout < 2; layout++) {
        for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); auto a = dargs(r, EPW_PAYLOAD_FP8_F32, layout, 3); CK(epw_gpu_dispatch(&a, blocks, R[r].st)); }
        for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); CK(cudaStreamSynchronize(R[r].st)); }
        std::vector<std::vector<uint8_t>> q(N); std::vector<std::vector<float>> sc(N); for (int s = 0; s < N; s++) { q[s].resize(n * hidden); sc[s].resize(n * hidden / 128); if (epw_quantize_fp8(EPW_PAYLOAD_FP8_F32, EPW_BF16, n, hidden, R[s].hx.data(), q[s].data(), sc[s].data())) printf("%s\n", epw_last_error()); }
        long wrong = 0, checked = 0;
        for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); std::vector<unsigned char> win(plan.window_bytes); CK(cudaMemcpy(win.data(), R[r].win, plan.window_bytes, cudaMemcpyDeviceToHost));
            std::vector<uint32_t> er(le * rows), cnt(le); CK(cudaMemcpy(cnt.data(), R[r].counts, le * 4, cudaMemcpyDeviceToHost)); if (layout) CK(cudaMemcpy(er.data(), R[r].expert_rows, le * rows * 4, cudaMemcpyDeviceToHost));
            std::vector<uint8_t> out; std::vector<float> osc; if (!layout) { out.resize(le * rows * hidden); osc.resize(le * rows * hidden / 128); CK(cudaMemcpy(out.data(), R[r].rows, out.size(), cudaMemcpyDeviceToHost)); CK(cudaMemcpy(osc.data(), R[r].scales, osc.size() * 4, cudaMemcpyDeviceToHost)); }
            std::vector<uint32_t> fill(le, 0);
            for (int s = 0; s < N; s++) { uint32_t row = 0; for (uint32_t t = 0; t < n; t++) { bool any = false; for (uint32_t j = 0; j < topk; j++) { int e = R[s].hidx[t * topk + j]; if (e / (int)le != r) continue; any = true; uint32_t l = e - r * le; checked++;
                        if (layout) { if (er[l * rows + fill[l]] != s * n + row) wrong++; } else { uint64_t at = l * rows + fill[l]; if (memcmp(&out[at * hidden], &q[s][t * hidden], hidden)) wrong++; for (uint32_t b = 0; b < hidden / 128; b++) if (osc[(l * (hidden / 128) + b) * rows + fill[l]] != sc[s][t * hidden / 128 + b]) { wrong++; break; } }
                        fill[l]++; }
                    if (any) { if (layout) { const unsigned char *slot = win.data() + epw_slot_offset(&L, 0, s, row) + L.header_bytes; if (memcmp(slot, &q[s][t * hidden], hidden) || memcmp(slot + hidden, &sc[s][t * hidden / 128], hidden / 32)) wrong++; } row++; } } }
            for (uint32_t l = 0; l < le; l++) wrong += fill[l] != cnt[l]; }
        printf("fp8 %s: %ld wrong of %ld\n", layout ? "rank-major" : "expert-major", wrong, checked); fflush(stdout);
        for (int r = 0; r < N; r++) { CK(cudaSetDevice(r)); auto c = cargs(r, layout, 1, 1); CK(epw_gpu_combine(&c, 1, R[r].st)); }
    }
    const int OPS = 50; struct Case { const char *name; uint32_t payload, layout; int combine; } cases[] = {{"fp8 dispatch rank-major", 1, 1, 0}, {"fp8 dispatch expert-major", 1, 0, 0}, {"bf16 dispatch rank-major", 0, 1, 0}, {"bf16 dispatch expert-major", 0, 0, 0}, {"fp8 rank-major pair", 1, 1, 1}, {"fp8 expert-major pair", 1, 0, 1}, {"bf16 expert-major pair", 0, 0, 1}};
    for (auto &cs : cases) { std::vector<std::vector<float>> times(N); std::barrier sync(N); std::vector<std::thread> th;
        for (int r = 0; r < N; r++) th.emplace_back([&, r] { CK(cudaSetDevice(r)); Rank &k = R[r]; cudaGraph_t graph; cudaGraphExec_t exec; CK(cudaStreamBeginCapture(k.st, cudaStreamCaptureModeThreadLocal));
                for (int i = 0; i < OPS; i++) { auto a = dargs(r, cs.payload, cs.layout, 3); CK(epw_gpu_dispatch(&a, blocks, k.st)); auto c = cargs(r, cs.layout, cs.combine ? 3 : 1, !cs.combine); CK(epw_gpu_combine(&c, cs.combine ? cblocks : 1, k.st)); }
                CK(cudaStreamEndCapture(k.st, &graph)); CK(cudaGraphInstantiate(&exec, graph, 0)); cudaEvent_t e0, e1; cudaEventCreate(&e0); cudaEventCreate(&e1);
                for (int i = 0; i < 12; i++) { CK(cudaStreamSynchronize(k.st)); sync.arrive_and_wait(); CK(cudaEventRecord(e0, k.st)); CK(cudaGraphLaunch(exec, k.st)); CK(cudaEventRecord(e1, k.st)); CK(cudaStreamSynchronize(k.st)); float ms; CK(cudaEventElapsedTime(&ms, e0, e1)); if (i >= 2) times[r].push_back(ms * 1000 / OPS); } });
        for (auto &t : th) t.join();
        std::vector<float> worst; for (int i = 0; i < 10; i++) { float m = 0; for (int r = 0; r < N; r++) m = std::max(m, times[r][i]); worst.push_back(m); } std::sort(worst.begin(), worst.end());
        uint64_t sus = 0; for (int r = 0; r < N; r++) { uint64_t s; cudaSetDevice(r); cudaMemcpy(&s, R[r].suspects, 8, cudaMemcpyDeviceToHost); sus |= s; }
        printf("%-28s %7.2f us (min %.2f max %.2f) suspects %llx\n", cs.name, worst[5], worst[0], worst[9], (unsigned long long)sus);
#ifdef EPW_STAMPS
        { static epw_gpu_context c; cudaSetDevice(0); cudaMemcpy(&c, R[0].ctx, sizeof c, cudaMemcpyDeviceToHost); for (uint32_t b : {0u, blocks / 2, blocks - 1}) { printf("   block %3u:", b); for (int i = 1; i < 12; i++) printf(" %d:%.2f", i, (c.stamps[b][i] - c.stamps[b][i - 1]) / 1980.0); printf(" total %.2f\n", (c.stamps[b][11] - c.stamps[b][0]) / 1980.0); } }
#endif
        fflush(stdout); }
    return 0;
}
