/* The public calls. Each is checked completely, as far as this rank can, before any of it begins. */
#include "coll/parts.h"
#include "coll/gpu/gpu.h"
#include "coll/point.h"

#include "base/clock.h"
#include "peer/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (UINT64_C(1) << 48)
#define GROUP_MAX 65536u

/* ---- names ---- */

const char *epw_kind_name(uint32_t kind) {
    static const char *const names[] = {"barrier",        "broadcast",  "all_reduce", "reduce",
                                        "reduce_scatter", "all_gather", "all_to_all", "gather",
                                        "scatter",        "send",       "recv"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : "no collective";
}

static bool reduces(uint32_t kind) {
    return kind == EPW_ALL_REDUCE || kind == EPW_REDUCE || kind == EPW_REDUCE_SCATTER;
}

static bool is_point(uint32_t kind) {
    return kind == EPW_SEND || kind == EPW_RECV;
}

/* For example "all_reduce_norm of 8 rows of 7168 bf16, epsilon 1e-06, to fp8 with f32 scales". */
static const char *norm_text(const epw_descriptor *what, char *text) {
    static const char *const payloads[] = {"", ", to fp8 with f32 scales", ", to fp8 with pow2 scales",
                                           ", to fp8 with ue8m0 scales"};
    bool known = what->op < sizeof payloads / sizeof payloads[0];
    float epsilon;
    memcpy(&epsilon, &what->peer, sizeof epsilon);
    snprintf(text, EPW_CALL_TEXT, "all_reduce_norm of %llu rows of %llu %s, epsilon %g%s",
             (unsigned long long)(what->count >> EPW_NORM_HIDDEN_BITS),
             (unsigned long long)(what->count & ((1u << EPW_NORM_HIDDEN_BITS) - 1)),
             epw_type_name(what->type), (double)epsilon,
             known ? payloads[what->op] : ", to an unknown payload");
    return text;
}

const char *epw_descriptor_text(const epw_descriptor *what, char *text) {
    if (what->kind == EPW_ALL_REDUCE_NORM) return norm_text(what, text);
    char op[16] = "", root[24] = "";
    if (is_point(what->kind)) snprintf(root, sizeof root, " with tag %u", what->peer);
    if (reduces(what->kind)) snprintf(op, sizeof op, " (%s)", epw_op_name(what->op));
    if (epw_comm_has_root(what->kind)) snprintf(root, sizeof root, " of root %u", what->peer);
    if (what->kind == EPW_BARRIER) {
        snprintf(text, EPW_CALL_TEXT, "barrier");
    } else {
        snprintf(text, EPW_CALL_TEXT, "%s of %llu %s%s%s%s", epw_kind_name(what->kind),
                 (unsigned long long)what->count, epw_type_name(what->type), op, root,
                 what->uneven ? " for this pair" : "");
    }
    return text;
}

static epw_descriptor descriptor_of_norm(const epw_coll *c) {
    epw_descriptor what = {.kind = EPW_ALL_REDUCE_NORM,
                           .type = (uint8_t)c->type,
                           .op = (uint8_t)c->norm->payload,
                           .count = epw_norm_count(c->norm)};
    memcpy(&what.peer, &c->norm->epsilon, sizeof what.peer);
    return what;
}

epw_descriptor epw_descriptor_of(const epw_coll *c, uint64_t pair_count) {
    if (c->norm != NULL) return descriptor_of_norm(c);
    bool uneven = c->send_counts != NULL || c->recv_counts != NULL;
    bool point = is_point(c->kind);
    return (epw_descriptor){.kind = (uint8_t)(point ? EPW_SEND : c->kind),
                            .type = (uint8_t)(c->kind == EPW_BARRIER ? 0 : c->type),
                            .op = (uint8_t)(reduces(c->kind) ? c->op : 0),
                            .uneven = uneven,
                            .peer = point                        ? c->tag
                                    : epw_comm_has_root(c->kind) ? c->peer
                                                                 : 0,
                            .count = c->kind == EPW_BARRIER ? 0
                                     : uneven               ? pair_count
                                     : c->rows > 1          ? c->rows * c->count
                                                            : c->count};
}

/* ---- checks ---- */

static epw_status wrong(const epw_comm *comm, const epw_coll *c, const char *text) {
    return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, epw_kind_name(c->kind)), "%s", text);
}

static bool counts_of_send(uint32_t kind) {
    return kind == EPW_REDUCE_SCATTER || kind == EPW_SCATTER || kind == EPW_ALL_TO_ALL;
}
static bool counts_of_recv(uint32_t kind) {
    return kind == EPW_ALL_GATHER || kind == EPW_GATHER || kind == EPW_ALL_TO_ALL;
}

/* All blocks of one direction must fit into an address space. */
static epw_status check_blocks(const epw_comm *comm, const epw_coll *c, const char *name,
                               const uint64_t *counts, const uint64_t *offsets) {
    uint64_t most = BYTES_MAX / epw_type_bytes(c->type), rows = c->rows > 0 ? c->rows : 1;
    for (uint32_t r = 0; r < comm->layout.ranks; r++) {
        uint64_t count = counts != NULL ? counts[r] : c->count, offset = offsets != NULL ? offsets[r] : 0;
        if (count <= most / rows && offset <= most) continue;
        if (counts == NULL && offset <= most)
            return epw_fail(EPW_ERR_LIMIT, epw_comm_where(comm, epw_kind_name(c->kind)),
                            "rows is %llu and count %llu: these are more than %llu elements",
                            (unsigned long long)rows, (unsigned long long)count, (unsigned long long)most);
        return epw_fail(EPW_ERR_LIMIT, epw_comm_where(comm, epw_kind_name(c->kind)),
                        "%s: %llu elements at offset %llu for rank %u, both must be at most %llu", name,
                        (unsigned long long)count, (unsigned long long)offset, r, (unsigned long long)most);
    }
    return EPW_OK;
}

static epw_status check_shape(const epw_comm *comm, const epw_coll *c) {
    epw_where where = epw_comm_where(comm, epw_kind_name(c->kind));
    uint64_t most = BYTES_MAX / epw_type_bytes(c->type);
    if (c->count > most)
        return epw_fail(EPW_ERR_LIMIT, where, "count is %llu, must be at most %llu",
                        (unsigned long long)c->count, (unsigned long long)most);
    if ((c->send_counts != NULL || c->send_offsets != NULL) && !counts_of_send(c->kind))
        return wrong(comm, c,
                     "only reduce_scatter, scatter and all_to_all take send_counts and send_offsets");
    if ((c->recv_counts != NULL || c->recv_offsets != NULL) && !counts_of_recv(c->kind))
        return wrong(comm, c, "only all_gather, gather and all_to_all take recv_counts and recv_offsets");
    bool one_buffer = c->kind == EPW_ALL_TO_ALL && c->send == c->recv && c->send_counts == NULL;
    if (c->kind == EPW_ALL_TO_ALL && (c->send_counts != NULL) != (c->recv_counts != NULL) && !one_buffer)
        return wrong(comm, c,
                     "give both send_counts and recv_counts, or neither; in place recv_counts are enough");
    if ((c->rows > 1 || c->send_pitch != 0 || c->recv_pitch != 0) && c->kind != EPW_ALL_GATHER &&
        c->kind != EPW_REDUCE_SCATTER)
        return wrong(comm, c, "only all_gather and reduce_scatter take rows and pitches");
    if (c->rows > most || c->send_pitch > most || c->recv_pitch > most ||
        (c->rows > 0 && (c->send_pitch > most / c->rows || c->recv_pitch > most / c->rows)))
        return epw_fail(EPW_ERR_LIMIT, where,
                        "rows is %llu with pitches of %llu and %llu: these are more than %llu elements",
                        (unsigned long long)c->rows, (unsigned long long)c->send_pitch,
                        (unsigned long long)c->recv_pitch, (unsigned long long)most);
    epw_status status = check_blocks(comm, c, "send_counts", c->send_counts, c->send_offsets);
    if (status == EPW_OK) status = check_blocks(comm, c, "recv_counts", c->recv_counts, c->recv_offsets);
    return status;
}

/* A pitch must be at least as long as the rows: those of the block, and those of all blocks together or, if
 * the caller says where they begin, of the widest. */
static epw_status check_pitch(const epw_comm *comm, const epw_coll *c) {
    if (c->rows <= 1) return EPW_OK;
    bool gathers = c->kind == EPW_ALL_GATHER;
    const uint64_t *counts = gathers ? c->recv_counts : c->send_counts;
    const uint64_t *offsets = gathers ? c->recv_offsets : c->send_offsets;
    uint64_t own = counts != NULL ? counts[comm->config.rank] : c->count, row = 0;
    for (uint32_t r = 0; r < comm->layout.ranks; r++) {
        uint64_t count = counts != NULL ? counts[r] : c->count;
        row = offsets == NULL ? row + count : count > row ? count : row;
    }
    uint64_t single = gathers ? c->send_pitch : c->recv_pitch,
             whole = gathers ? c->recv_pitch : c->send_pitch;
    if ((single == 0 || single >= own) && (whole == 0 || whole >= row)) return EPW_OK;
    return epw_fail(
        EPW_ERR_INVALID, epw_comm_where(comm, epw_kind_name(c->kind)),
        "send_pitch %llu and recv_pitch %llu must be 0 or at least a row: %llu elements of the block, "
        "%llu of the matrix",
        (unsigned long long)c->send_pitch, (unsigned long long)c->recv_pitch, (unsigned long long)own,
        (unsigned long long)row);
}

static bool wants_send(const epw_comm *comm, const epw_coll *c) {
    if (c->kind == EPW_RECV || c->kind == EPW_BARRIER) return false;
    return (c->kind != EPW_BROADCAST && c->kind != EPW_SCATTER) || c->peer == comm->config.rank;
}
static bool wants_recv(const epw_comm *comm, const epw_coll *c) {
    bool root = c->peer == comm->config.rank;
    if (c->kind == EPW_SEND || c->kind == EPW_BARRIER) return false;
    if (c->kind == EPW_BROADCAST) return !root;
    return (c->kind != EPW_REDUCE && c->kind != EPW_GATHER) || root;
}

/* Whether all blocks of `counts` are empty. If only the other side has counts, `others`, this side has one
 * block, this rank's. */
static bool has_nothing(const epw_comm *comm, const epw_coll *c, const uint64_t *counts,
                        const uint64_t *others) {
    if (counts == NULL) return (others != NULL ? others[comm->config.rank] : c->count) == 0;
    uint64_t any = 0;
    for (uint32_t r = 0; r < comm->layout.ranks; r++) any |= counts[r];
    return any == 0;
}
static bool sends_nothing(const epw_comm *comm, const epw_coll *c) {
    bool like_recv = c->kind == EPW_ALL_TO_ALL && c->send_counts == NULL; /* equal blocks, or in place */
    return has_nothing(comm, c, like_recv ? c->recv_counts : c->send_counts, c->recv_counts);
}
static bool receives_nothing(const epw_comm *comm, const epw_coll *c) {
    return has_nothing(comm, c, c->recv_counts, c->send_counts);
}

/* In place, an all-to-all sends what it receives: blocks of the same sizes at the same places. */
static epw_status check_exchange(const epw_comm *comm, const epw_coll *c) {
    const uint64_t *const sent[2] = {c->send_counts, c->send_offsets}, *const received[2] = {c->recv_counts,
                                                                                             c->recv_offsets};
    static const char *const names[2] = {"counts", "offsets"};
    for (int i = 0; i < 2; i++) {
        if (sent[i] == NULL) continue; /* those of recv */
        if (received[i] == NULL)
            return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, epw_kind_name(c->kind)),
                            "in place send_%s is recv_%s, or NULL, but recv_%s is NULL", names[i], names[i],
                            names[i]);
        for (uint32_t r = 0; r < comm->layout.ranks; r++) {
            if (sent[i][r] == received[i][r]) continue;
            return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, epw_kind_name(c->kind)),
                            "send_%s[%u] is %llu, recv_%s[%u] %llu: in place they must be equal", names[i], r,
                            (unsigned long long)sent[i][r], names[i], r, (unsigned long long)received[i][r]);
        }
    }
    return EPW_OK;
}

static epw_status check_norm(const epw_comm *comm, const epw_coll *c) {
    const epw_norm *n = c->norm;
    epw_where where = epw_comm_where(comm, epw_kind_name(c->kind));
    if (n == NULL) return EPW_OK;
    if (n->size != sizeof *n)
        return epw_fail(EPW_ERR_INVALID, where, "norm.size is %u, this library's is %zu: use EPW_NORM_INIT",
                        n->size, sizeof *n);
    if (c->kind != EPW_ALL_REDUCE || c->op != EPW_SUM ||
        (c->type != EPW_TYPE_BF16 && c->type != EPW_TYPE_F16))
        return wrong(comm, c, "only all_reduce by EPW_SUM of EPW_TYPE_BF16 or EPW_TYPE_F16 takes norm");
    if (n->payload > EPW_PAYLOAD_FP8_UE8M0)
        return epw_fail(EPW_ERR_INVALID, where, "norm.payload is %u, must be at most %d", n->payload,
                        EPW_PAYLOAD_FP8_UE8M0);
    uint32_t unit = n->payload == EPW_PAYLOAD_SAME ? 8 : EPW_FP8_BLOCK;
    if (n->hidden == 0 || n->hidden > EPW_NORM_HIDDEN_MAX || n->hidden % unit != 0)
        return epw_fail(EPW_ERR_LIMIT, where, "norm.hidden is %u, must be a multiple of %u in [%u, %u]",
                        n->hidden, unit, unit, EPW_NORM_HIDDEN_MAX);
    if (n->rows != c->count / n->hidden || c->count % n->hidden != 0)
        return epw_fail(EPW_ERR_INVALID, where,
                        "norm.rows is %llu and norm.hidden %u, their product must be count, %llu",
                        (unsigned long long)n->rows, n->hidden, (unsigned long long)c->count);
    if (!(n->epsilon >= 0) || n->epsilon > 1e30f)
        return epw_fail(EPW_ERR_INVALID, where, "norm.epsilon is %g, must be in [0, 1e30]",
                        (double)n->epsilon);
    if (n->rows == 0) return EPW_OK;
    if (n->weight == NULL || n->out == NULL) return wrong(comm, c, "norm.weight or norm.out is NULL");
    if ((n->scales != NULL) != (n->payload != EPW_PAYLOAD_SAME))
        return wrong(comm, c, "norm.scales must be given with an FP8 payload, and be NULL otherwise");
    if (n->payload != EPW_PAYLOAD_SAME && (n->out == c->recv || n->out == c->send))
        return wrong(comm, c, "norm.out of an FP8 payload must be neither send nor recv");
    uintptr_t all = (uintptr_t)c->send | (uintptr_t)c->recv | (uintptr_t)n->residual | (uintptr_t)n->weight |
                    (uintptr_t)n->out | (uintptr_t)n->scales;
    if (comm->gpu == NULL || all % 16 == 0) return EPW_OK;
    return wrong(comm, c, "on a GPU send, recv and the memory of norm must be aligned to 16 bytes");
}

/* What a barrier has no use for, and peers would compare with theirs. */
static epw_status check_barrier(const epw_comm *comm, const epw_coll *c) {
    const uint64_t *const arrays[] = {c->send_counts, c->send_offsets, c->recv_counts, c->recv_offsets};
    for (size_t i = 0; i < 4; i++)
        if (arrays[i] != NULL) return wrong(comm, c, "a barrier takes no counts and no offsets");
    if (c->rows > 1) return wrong(comm, c, "a barrier takes no rows");
    return c->norm == NULL ? EPW_OK : wrong(comm, c, "a barrier takes no norm");
}

static epw_status check_op(const epw_comm *comm, const epw_coll *c) {
    if (c->size != sizeof *c)
        return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, "group"),
                        "coll.size is %u, this library's is %zu: use EPW_COLL_INIT", c->size, sizeof *c);
    epw_where where = epw_comm_where(comm, epw_kind_name(c->kind));
    if (c->kind > EPW_RECV)
        return epw_fail(EPW_ERR_INVALID, epw_comm_where(comm, "group"), "kind is %u, must be at most %d",
                        c->kind, EPW_RECV);
    if (c->kind == EPW_BARRIER) return check_barrier(comm, c);
    if (epw_type_bytes(c->type) == 0)
        return epw_fail(EPW_ERR_INVALID, where, "type is %u, must be one of EPW_TYPE_*, at most %d", c->type,
                        EPW_TYPE_F64);
    if (reduces(c->kind) && c->op > EPW_AVERAGE)
        return epw_fail(EPW_ERR_INVALID, where, "op is %u, must be one of EPW_SUM to EPW_AVERAGE, at most %d",
                        c->op, EPW_AVERAGE);
    if ((epw_comm_has_root(c->kind) || is_point(c->kind)) && c->peer >= comm->layout.ranks)
        return epw_fail(EPW_ERR_INVALID, where, "%s is %u, must be below %u",
                        is_point(c->kind) ? "peer" : "root", c->peer, comm->layout.ranks);
    if (is_point(c->kind) && c->tag > EPW_TAG_MAX)
        return epw_fail(EPW_ERR_LIMIT, where, "tag is %u, must be at most %u", c->tag, EPW_TAG_MAX);
    epw_status status = check_shape(comm, c);
    if (status == EPW_OK) status = check_pitch(comm, c);
    if (status == EPW_OK) status = check_norm(comm, c);
    if (status != EPW_OK) return status;
    if (wants_send(comm, c) && c->send == NULL && !sends_nothing(comm, c))
        return wrong(comm, c, "send is NULL");
    if (wants_recv(comm, c) && c->recv == NULL && !receives_nothing(comm, c))
        return wrong(comm, c, "recv is NULL");
    /* Empty buffers may well have the same address. */
    if (c->kind == EPW_ALL_TO_ALL && c->send == c->recv && !sends_nothing(comm, c) &&
        !receives_nothing(comm, c)) {
        status = check_exchange(comm, c);
        if (status != EPW_OK) return status;
    }
    uint32_t me = comm->config.rank;
    if (c->kind == EPW_ALL_TO_ALL && c->send_counts != NULL && c->send_counts[me] != c->recv_counts[me])
        return epw_fail(
            EPW_ERR_INVALID, where,
            "send_counts[%u] is %llu, recv_counts[%u] %llu: they must be equal for the rank itself", me,
            (unsigned long long)c->send_counts[me], me, (unsigned long long)c->recv_counts[me]);
    return EPW_OK;
}

static epw_status check_call(const epw_comm *comm, const epw_call *call, const epw_outcome *outcome) {
    epw_where where = epw_comm_where(comm, "group");
    if (call != NULL && call->size != sizeof *call)
        return epw_fail(EPW_ERR_INVALID, where, "call.size is %u, this library's is %zu: use EPW_CALL_INIT",
                        call->size, sizeof *call);
    if (outcome != NULL && outcome->size != sizeof *outcome)
        return epw_fail(EPW_ERR_INVALID, where,
                        "outcome.size is %u, this library's is %zu: use EPW_OUTCOME_INIT", outcome->size,
                        sizeof *outcome);
    uint64_t deadline = call != NULL ? call->deadline_ns : 0;
    if (deadline != 0 && (deadline < comm->config.deadline_ns || deadline > EPW_MAX_DEADLINE_NS))
        return epw_fail(EPW_ERR_LIMIT, where,
                        "deadline is %llu ns, a call may only lengthen the communicator's %llu, to a day at "
                        "most",
                        (unsigned long long)deadline, (unsigned long long)comm->config.deadline_ns);
    return EPW_OK;
}

/* ---- beginning ---- */

static epw_status no_memory(const epw_comm *comm) {
    return epw_fail(EPW_ERR_NO_MEMORY, epw_comm_where(comm, "group"), "no memory for an operation");
}

/* Copies counts and offsets, since the caller may free them once the call has returned. */
static bool copy_arrays(const epw_comm *comm, epw_op *op) {
    const uint64_t **arrays[] = {&op->call.send_counts, &op->call.send_offsets, &op->call.recv_counts,
                                 &op->call.recv_offsets};
    size_t ranks = comm->layout.ranks, wanted = 0;
    for (size_t i = 0; i < 4; i++) wanted += *arrays[i] != NULL;
    if (wanted == 0) return true;
    uint64_t *to = op->arrays = malloc(wanted * ranks * sizeof *to);
    if (to == NULL) return false;
    for (size_t i = 0; i < 4; i++) {
        if (*arrays[i] == NULL) continue;
        memcpy(to, *arrays[i], ranks * sizeof *to);
        *arrays[i] = to;
        to += ranks;
    }
    return true;
}

void epw_ops_free(epw_op *op) {
    while (op != NULL) {
        epw_op *next = op->next;
        free(op->arrays);
        free(op);
        op = next;
    }
}

/* Makes the collectives of a call, in order; false: no memory. */
static bool make_ops(const epw_comm *comm, const epw_coll *ops, size_t count, epw_job *job, epw_op **first) {
    epw_op **end = first;
    *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (is_point(ops[i].kind)) continue;
        epw_op *op = calloc(1, sizeof *op);
        if (op == NULL) return false;
        *end = op;
        end = &op->next;
        op->call = ops[i];
        if (ops[i].norm != NULL) {
            op->norm = *ops[i].norm;
            op->call.norm = &op->norm;
        }
        op->job = job;
        if (!copy_arrays(comm, op)) return false;
    }
    return true;
}

/* Begins all operations of the job, with the lock held. */
static void enter(epw_comm *comm, const epw_coll *ops, size_t count, epw_job *job, epw_op *first,
                  uint64_t now) {
    job->next = comm->jobs;
    comm->jobs = job;
    *comm->queue_end = first;
    while (*comm->queue_end != NULL) comm->queue_end = &(*comm->queue_end)->next;
    job->left++; /* keeps the job from ending before all operations were added */
    for (size_t i = 0; i < count; i++) {
        if (!is_point(ops[i].kind) || epw_point_add(comm, &ops[i], job, now)) continue;
        job->left--;
        job->status = EPW_ERR_NO_MEMORY;
        comm->faulted = true;
    }
    job->left--;
}

epw_status epw_group(epw_comm *comm, const epw_coll *ops, size_t count, const epw_call *call,
                     epw_outcome *outcome) {
    if (comm == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"group", -1, -1}, "comm is NULL");
    epw_where where = epw_comm_where(comm, count == 1 && ops != NULL ? epw_kind_name(ops->kind) : "group");
    if (ops == NULL && count > 0) return epw_fail(EPW_ERR_INVALID, where, "ops is NULL");
    if (count > GROUP_MAX)
        return epw_fail(EPW_ERR_LIMIT, where, "a group has %zu operations, at most %u", count, GROUP_MAX);
    epw_status status = check_call(comm, call, outcome);
    for (size_t i = 0; status == EPW_OK && i < count; i++) status = check_op(comm, &ops[i]);
    if (status != EPW_OK) return status;
    if (comm->gpu != NULL) return epw_coll_gpu_group(comm, ops, count, call, outcome);

    epw_job *job = malloc(sizeof *job);
    epw_op *first = NULL;
    if (job == NULL || !make_ops(comm, ops, count, job, &first)) {
        epw_ops_free(first);
        free(job);
        return no_memory(comm);
    }
    *job = (epw_job){.left = (uint32_t)count,
                     .waits = call == NULL || call->work == NULL,
                     .deadline_ns = call != NULL ? call->deadline_ns : 0,
                     .outcome = EPW_OUTCOME_INIT};
    pthread_mutex_lock(&comm->lock);
    if (comm->own_word == 0 || comm->mismatched) {
        status = comm->own_word == 0
                     ? epw_fail(EPW_ERR_STATE, where, "no membership yet: call set_active first")
                     : epw_comm_fail_mismatch(comm, where);
        pthread_mutex_unlock(&comm->lock);
        epw_ops_free(first);
        free(job);
        return status;
    }
    job->id = ++comm->next_work;
    uint64_t now = epw_now_ns(), until;
    enter(comm, ops, count, job, first, now);
    if (job->waits) return epw_comm_wait(comm, job, now, UINT64_MAX, outcome);
    *call->work = job->id;
    epw_comm_step(comm, &now, &until);
    pthread_mutex_unlock(&comm->lock);
    return EPW_OK;
}

/* ---- one at a time ---- */

epw_status epw_barrier(epw_comm *comm, const epw_call *call, epw_outcome *outcome) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_BARRIER;
    return epw_group(comm, &c, 1, call, outcome);
}

static epw_status one(epw_comm *comm, uint32_t kind, const void *send, void *recv, uint64_t count,
                      uint32_t type, uint32_t op, uint32_t peer, uint32_t tag, const epw_call *call,
                      epw_outcome *outcome) {
    epw_coll c = EPW_COLL_INIT;
    c.kind = kind;
    c.send = send;
    c.recv = recv;
    c.count = count;
    c.type = type;
    c.op = op;
    c.peer = peer;
    c.tag = tag;
    return epw_group(comm, &c, 1, call, outcome);
}

epw_status epw_broadcast(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                         uint32_t root, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_BROADCAST, send, recv, count, type, 0, root, 0, call, outcome);
}

epw_status epw_all_reduce(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                          uint32_t op, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_ALL_REDUCE, send, recv, count, type, op, 0, 0, call, outcome);
}

epw_status epw_all_reduce_norm(epw_comm *comm, const void *send, void *recv, uint32_t type,
                               const epw_norm *norm, const epw_call *call, epw_outcome *outcome) {
    if (norm == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){"all_reduce", -1, -1}, "norm is NULL");
    epw_coll c = EPW_COLL_INIT;
    c.kind = EPW_ALL_REDUCE;
    c.type = type;
    c.send = send;
    c.recv = recv;
    if (norm->size == sizeof *norm) c.count = norm->rows * norm->hidden; /* else it is refused, unread */
    c.norm = norm;
    return epw_group(comm, &c, 1, call, outcome);
}

epw_status epw_reduce(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                      uint32_t op, uint32_t root, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_REDUCE, send, recv, count, type, op, root, 0, call, outcome);
}

epw_status epw_reduce_scatter(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                              uint32_t op, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_REDUCE_SCATTER, send, recv, count, type, op, 0, 0, call, outcome);
}

epw_status epw_all_gather(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                          const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_ALL_GATHER, send, recv, count, type, 0, 0, 0, call, outcome);
}

epw_status epw_all_to_all(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                          const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_ALL_TO_ALL, send, recv, count, type, 0, 0, 0, call, outcome);
}

epw_status epw_gather(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                      uint32_t root, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_GATHER, send, recv, count, type, 0, root, 0, call, outcome);
}

epw_status epw_scatter(epw_comm *comm, const void *send, void *recv, uint64_t count, uint32_t type,
                       uint32_t root, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_SCATTER, send, recv, count, type, 0, root, 0, call, outcome);
}

epw_status epw_send(epw_comm *comm, const void *send, uint64_t count, uint32_t type, uint32_t peer,
                    uint32_t tag, const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_SEND, send, NULL, count, type, 0, peer, tag, call, outcome);
}

epw_status epw_recv(epw_comm *comm, void *recv, uint64_t count, uint32_t type, uint32_t peer, uint32_t tag,
                    const epw_call *call, epw_outcome *outcome) {
    return one(comm, EPW_RECV, NULL, recv, count, type, 0, peer, tag, call, outcome);
}

/* ---- work ---- */

static epw_status find(epw_comm *comm, const char *name, epw_work work, epw_job **out) {
    if (comm == NULL) return epw_fail(EPW_ERR_INVALID, (epw_where){name, -1, -1}, "comm is NULL");
    pthread_mutex_lock(&comm->lock);
    *out = epw_comm_find(comm, work);
    if (*out != NULL && !(*out)->waits) return EPW_OK;
    pthread_mutex_unlock(&comm->lock);
    return epw_fail(EPW_ERR_STATE, epw_comm_where(comm, name),
                    "the work has been consumed or dropped, or is not one of this communicator");
}

epw_status epw_work_wait(epw_comm *comm, epw_work work, uint64_t timeout_ns, epw_outcome *outcome) {
    epw_job *job = NULL;
    if (comm != NULL && comm->gpu != NULL) {
        epw_status checked = check_call(comm, NULL, outcome);
        return checked == EPW_OK ? epw_coll_gpu_work_wait(comm, work, timeout_ns, outcome) : checked;
    }
    epw_status status = find(comm, "work_wait", work, &job);
    if (status != EPW_OK) return status;
    status = check_call(comm, NULL, outcome);
    if (status == EPW_OK) return epw_comm_wait(comm, job, epw_now_ns(), timeout_ns, outcome);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

epw_status epw_work_poll(epw_comm *comm, epw_work work, epw_outcome *outcome) {
    return epw_work_wait(comm, work, 0, outcome);
}

epw_status epw_work_drop(epw_comm *comm, epw_work work) {
    epw_job *job = NULL;
    if (comm != NULL && comm->gpu != NULL) return epw_coll_gpu_work_drop(comm, work);
    epw_status status = find(comm, "work_drop", work, &job);
    if (status != EPW_OK) return status;
    uint64_t now = epw_now_ns(), until;
    comm->faulted |= job->left > 0; /* now, and not when it ends: that may be in a later step */
    if (comm->running && comm->queue->job == job) epw_comm_take_back(comm, now);
    for (epw_op *op = comm->queue; op != NULL; op = op->next)
        if (op->job == job) op->job = NULL;
    epw_points_drop(comm, job);
    epw_job **at = &comm->jobs;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    free(job);
    epw_comm_step(comm, &now, &until);
    pthread_mutex_unlock(&comm->lock);
    return EPW_OK;
}
