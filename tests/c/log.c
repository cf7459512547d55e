/* The log: which listener gets which lines, and that a refused setting changes nothing. */
#include "base/log.h"
#include "group.h"

#include <errno.h>
#include <unistd.h>

typedef struct heard {
    int count;
    uint32_t level;
    int32_t rank, peer;
    char subsystem[16], text[512];
} heard;

static void hear(void *context, const epw_log_record *record) {
    heard *h = context;
    h->count++;
    h->level = record->level;
    h->rank = record->rank;
    h->peer = record->peer;
    CHECK(record->size == sizeof *record && record->time_ns > UINT64_C(1600000000) * 1000000000u);
    snprintf(h->subsystem, sizeof h->subsystem, "%s", record->subsystem);
    snprintf(h->text, sizeof h->text, "%s", record->text);
}

static void levels_are_named_and_others_refused(void) {
    heard h = {0};
    static const char *const wrong[] = {"",      "loud",      "info,",      ",info",    "path",
                                        "path=", "path=loud", "paths=info", "info=path"};
    CHECK_OK(epw_log_set("path=info,wait=trace", hear, &h));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_MSG(epw_log_set(wrong[i], hear, NULL) == EPW_ERR_INVALID, "\"%s\"", wrong[i]);
        CHECK_MSG(strstr(epw_last_error(), "give off, warn, info or trace") != NULL, "%s", epw_last_error());
    }
    CHECK(epw_log_set(NULL, hear, NULL) == EPW_ERR_INVALID);
    epw_where where = {"test", 3, 5};
    epw_log(EPW_LOG_PLAN, EPW_LOG_WARN, where, "nobody listens");
    epw_log(EPW_LOG_PATH, EPW_LOG_TRACE, where, "nobody listens");
    CHECK(h.count == 0);
    errno = 7;
    epw_log(EPW_LOG_PATH, EPW_LOG_INFO, where, "by %s", "queue");
    CHECK(errno == 7 && h.count == 1 && h.level == EPW_LOG_INFO && h.rank == 3 && h.peer == 5);
    CHECK(strcmp(h.subsystem, "path") == 0 && strcmp(h.text, "by queue") == 0);
    epw_log(EPW_LOG_WAIT, EPW_LOG_TRACE, where, "%d", 1);
    CHECK(h.count == 2);
    CHECK_OK(epw_log_set("path=trace,off", hear, &h)); /* the later setting wins */
    CHECK(!epw_log_on(EPW_LOG_PATH, EPW_LOG_WARN));
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
    epw_log(EPW_LOG_WAIT, EPW_LOG_WARN, where, "nobody listens");
    CHECK(h.count == 2);
}

/* The lines of two ranks, from their creation to the loss of one that never calls. */
static void a_group_says_sizes_paths_and_who_is_lost(void) {
    heard plan = {0}, member = {0}, path = {0}, wait = {0};
    CHECK_OK(epw_log_set("plan=info", hear, &plan));
    group g = make_group(2, longer * 100 * MS);
    CHECK(plan.count == 2);
    CHECK_MSG(strstr(plan.text, "buffer of 2 ranks on the host: up to 16 tokens of hidden 256") != NULL, "%s",
              plan.text);

    CHECK_OK(epw_log_set("path=trace", hear, &path));
    CHECK_OK(connect_to(g.of[0], 0, g.of[1], 1));
    if (path_of_test() == EPW_PATH_QUEUE) {
        CHECK(path.count == 0); /* none: it is connected by these very queues */
    } else {
        CHECK(path.count == 1 && path.rank == 0 && path.peer == 1);
        CHECK_MSG(strstr(path.text, " by thread. thread: possible; shared memory: ") != NULL, "%s",
                  path.text);
    }

    CHECK_OK(epw_log_set("member=info", hear, &member));
    activate(&g, 1);
    CHECK_MSG(member.count == 2 && strstr(member.text, "buffer: epoch 1 from step 0: members 0-1; ") != NULL,
              "%s", member.text);

    /* Whoever asks for paths alone gets them when the next epoch begins. */
    heard paths = {0};
    CHECK_OK(epw_log_set("path=info", hear, &paths));
    activate(&g, 2);
    CHECK_MSG(paths.count == 2 && strcmp(paths.subsystem, "path") == 0 && paths.rank == 1 &&
                  strncmp(paths.text, "buffer; ", 8) == 0 && strstr(paths.text, " to 0") != NULL,
              "%s", paths.text);

    static batch made;
    epw_handle handle;
    epw_outcome outcome = EPW_OUTCOME_INIT;
    epw_dispatch_output nothing = EPW_DISPATCH_OUTPUT_INIT;
    epw_dispatch_input in = make_batch(&made, 0);
    in.layout = EPW_RANK_MAJOR;
    CHECK_OK(epw_log_set("wait=warn", hear, &wait));
    CHECK_OK(epw_dispatch(g.of[0], &in, &nothing, &handle, &outcome));
    CHECK(outcome.degraded && wait.count == 1 && wait.level == EPW_LOG_WARN && wait.rank == 0 &&
          wait.peer == 1);
    CHECK_MSG(strstr(wait.text, "given up: it was silent for a deadline; waited for ") != NULL, "%s",
              wait.text);
    CHECK_OK(epw_release(g.of[0], handle));
    activate(&g, 3); /* from here on rank 1 is a member again */
    destroy(&g);
    CHECK(wait.count == 1); /* destroying buffers is not logged as a loss */
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
}

/* Like a buffer. */
static void communicators_and_prefill_buffers_say_their_sizes(void) {
    heard plan = {0};
    epw_comm *comm = NULL;
    epw_prefill *prefill = NULL;
    epw_comm_config of_comm = EPW_COMM_CONFIG_INIT;
    epw_prefill_config of_prefill = EPW_PREFILL_CONFIG_INIT;
    of_comm.ranks = of_prefill.ep.ranks = 2;
    of_prefill.ep.max_tokens = 100, of_prefill.ep.hidden = 64, of_prefill.ep.experts = 4,
    of_prefill.ep.topk = 2;
    CHECK_OK(epw_log_set("plan=info", hear, &plan));
    CHECK_OK(epw_comm_create(&of_comm, &comm));
    CHECK_MSG(plan.count == 1 && plan.rank == 0 &&
                  strstr(plan.text, "communicator of 2 ranks on the host: ") != NULL,
              "%s", plan.text);
    CHECK_OK(epw_prefill_create(&of_prefill, &prefill));
    CHECK_MSG(plan.count == 2 &&
                  strstr(plan.text, "prefill buffer of 2 ranks on the host: 100 tokens ") != NULL,
              "%s", plan.text);
    epw_prefill_destroy(prefill);
    epw_comm_destroy(comm);
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
}

/* The variables are read once, when the first buffer is created: so this runs before the test of a group. */
static void lines_go_to_the_file_that_is_named(void) {
    char file[64], content[2048] = "";
    snprintf(file, sizeof file, "/tmp/epw_log_test.%d", (int)getpid());
    CHECK(setenv("EPWIRE_LOG", "loud", 1) == 0 && setenv("EPWIRE_LOG_FILE", "/tmp/epw_log_test.%p", 1) == 0);
    epw_where where = {"create", 0, -1};
    CHECK(epw_log_open(where) == EPW_ERR_INVALID &&
          strstr(epw_last_error(), "EPWIRE_LOG is \"loud\"") != NULL);
    CHECK(setenv("EPWIRE_LOG", "warn", 1) == 0);
    CHECK_OK(epw_log_open(where));
    CHECK(epw_log_listens(EPW_LOG_MEMBER, EPW_LOG_WARN) && !epw_log_listens(EPW_LOG_MEMBER, EPW_LOG_INFO));
    epw_log(EPW_LOG_NIC, EPW_LOG_WARN, where, "two\nlines \x7f\xc2\x9b of caf\xc3\xa9");
    epw_log_line(EPW_LOG_MEMBER, EPW_LOG_WARN, 4, "of the crate");
    epw_log_line(EPW_LOG_MEMBER, EPW_LOG_INFO, 4, "nobody listens");
    FILE *read = fopen(file, "r");
    CHECK(read != NULL);
    size_t length = fread(content, 1, sizeof content - 1, read);
    fclose(read);
    unlink(file);
    content[length] = '\0';
    CHECK_MSG(strstr(content, "Z epwire warn nic: rank 0: two lines     of caf\xc3\xa9\n") != NULL, "%s",
              content);
    CHECK_MSG(strstr(content, "Z epwire warn member: rank 4: of the crate\n") != NULL, "%s", content);
    CHECK_MSG(strstr(content, "nobody") == NULL, "%s", content);
}

static void records_have_one_line(void) {
    heard nic = {0};
    CHECK_OK(epw_log_set("nic=warn", hear, &nic));
    epw_log(EPW_LOG_NIC, EPW_LOG_WARN, (epw_where){"create", 0, -1}, "two\nlines\x1b[2J");
    CHECK_MSG(nic.count == 1 && strcmp(nic.text, "two lines [2J") == 0, "%s", nic.text);
    CHECK_OK(epw_log_set(NULL, NULL, NULL));
}

int main(void) {
    unsetenv("EPWIRE_LOG");
    levels_are_named_and_others_refused();
    lines_go_to_the_file_that_is_named();
    records_have_one_line();
    KEEP_TIME(a_group_says_sizes_paths_and_who_is_lost());
    communicators_and_prefill_buffers_say_their_sizes();
    return check_result("log");
}
