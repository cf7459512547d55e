/* Windows that exceed the memory limit of this process: limits are read from imitated cgroups in a folder
 * and, where this test may create one, from a real cgroup. */
#include "imports/end.h"
#include "device/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

/* ---- a made-up machine ---- */

static char root[64];

static void begin_machine(void) {
    snprintf(root, sizeof root, "/tmp/epwire-limit-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *at) {
    (void)stat, (void)kind, (void)at;
    return remove(path);
}

static void end_machine(void) {
    CHECK(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

/* Writes a file, and creates the folders of its path. */
static void put_bytes(const char *path, const void *bytes, size_t length) {
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *at = full + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        CHECK(mkdir(full, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    (void)unlink(full); /* otherwise some file systems flush a file that is truncated and written again */
    FILE *file = fopen(full, "w");
    CHECK(file != NULL);
    if (file == NULL) return;
    CHECK(fwrite(bytes, 1, length, file) == length);
    fclose(file);
}

static void put(const char *path, const char *text) {
    put_bytes(path, text, strlen(text));
}

static void put_mib(const char *folder, const char *name, unsigned long long mib) {
    char path[PATH_MAX], text[32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(text, sizeof text, "%llu\n", mib * MIB);
    put(path, text);
}

static void put_v2(const char *folder, unsigned long long limit_mib, unsigned long long used_mib) {
    put_mib(folder, "memory.max", limit_mib);
    put_mib(folder, "memory.current", used_mib);
}

static void put_v1(const char *folder, unsigned long long limit_mib, unsigned long long used_mib) {
    put_mib(folder, "memory.limit_in_bytes", limit_mib);
    put_mib(folder, "memory.usage_in_bytes", used_mib);
}

static const char v2_mount[] =
    "22 1 0:20 / / rw - ext4 /dev/root rw\n"
    "31 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
static const char v1_mounts[] =
    "30 22 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "31 22 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:4 master:2 - cgroup cgroup rw,memory\n";

static bool limit_is(unsigned long long left_mib, unsigned long long limit_mib, const char *cgroup) {
    epw_memory_limit found = {0};
    bool right = epw_memory_limit_find(root, &found) && found.left == left_mib * MIB &&
                 found.limit == limit_mib * MIB && strcmp(found.cgroup, cgroup) == 0;
    if (!right)
        fprintf(stderr, "left %llu MiB of %llu in \"%s\"\n", (unsigned long long)(found.left / MIB),
                (unsigned long long)(found.limit / MIB), found.cgroup);
    return right;
}

static void the_machine_itself_is_a_limit(void) {
    begin_machine();
    epw_memory_limit found;
    CHECK(!epw_memory_limit_find(root, &found));
    put("/proc/meminfo", "MemTotal:       8000000 kB\nMemFree:   12 kB\nMemAvailable:     204800 kB\n");
    CHECK(limit_is(200, 0, ""));
    CHECK(epw_memory_limit_check(root, "a window", 100 * MIB, here) == EPW_OK);
    CHECK(epw_memory_limit_check(root, "a window", 201 * MIB, here) == EPW_ERR_NO_MEMORY);
    CHECK(error_has("a window of 210763776 bytes, and the machine has 209715200 available"));
    end_machine();
}

static void a_v2_limit_counts_without_the_files_that_are_cached(void) {
    begin_machine();
    put("/proc/meminfo", "MemAvailable:     1048576 kB\n");
    put("/proc/self/cgroup", "0::/job/step\n");
    put("/proc/self/mountinfo", v2_mount);
    put_v2("/sys/fs/cgroup/job/step", 100, 30);
    CHECK(limit_is(70, 100, "/job/step"));
    put("/sys/fs/cgroup/job/step/memory.stat",
        "anon 4096\nfile 20971520\ninactive_file 10485760\nactive_file 5242880\nactive_file_x 1048576\n");
    CHECK(limit_is(85, 100, "/job/step"));
    CHECK(epw_memory_limit_check(root, "a window", 84 * MIB, here) == EPW_OK);
    CHECK(epw_memory_limit_check(root, "a window", 85 * MIB, here) ==
          EPW_ERR_NO_MEMORY); /* including its page tables */
    CHECK(error_has("a window of 89128960 bytes, and cgroup /job/step may take 89128960 more: its limit is "
                    "104857600"));
    CHECK(error_has("raise the limit (memory.max)"));
    /* More is in use than allowed, as after a limit was lowered. */
    put_v2("/sys/fs/cgroup/job/step", 10, 30);
    CHECK(limit_is(0, 10, "/job/step"));
    end_machine();
}

static void the_tightest_of_all_above_counts(void) {
    begin_machine();
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/proc/self/mountinfo", v2_mount);
    put_v2("/sys/fs/cgroup/a/b/c", 1000, 100);
    put_v2("/sys/fs/cgroup/a/b", 500, 450);
    put_v2("/sys/fs/cgroup/a", 2000, 1000);
    CHECK(limit_is(50, 500, "/a/b"));
    put_v2("/sys/fs/cgroup/a/b", 500, 5);
    CHECK(limit_is(495, 500, "/a/b"));
    put_v2("/sys/fs/cgroup/a", 2000, 1999);
    CHECK(limit_is(1, 2000, "/a"));
    put("/proc/meminfo", "MemAvailable:     512 kB\n");
    CHECK(epw_memory_limit_check(root, "a window", MIB, here) == EPW_ERR_NO_MEMORY &&
          error_has("the machine has 524288"));
    end_machine();
}

static void no_limit_is_none(void) {
    begin_machine();
    epw_memory_limit found;
    put("/proc/self/cgroup", "0::/a\n");
    put("/proc/self/mountinfo", v2_mount);
    CHECK(!epw_memory_limit_find(root, &found)); /* files are missing, as at the top of the tree */
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.current", "1048576\n");
    CHECK(!epw_memory_limit_find(root, &found));
    CHECK(epw_memory_limit_check(root, "a window", UINT64_MAX / 4, here) == EPW_OK);
    put("/sys/fs/cgroup/a/memory.max", "99999999999999999999999999\n");
    CHECK(!epw_memory_limit_find(root, &found));
    put("/sys/fs/cgroup/a/memory.max", "1048576\n"); /* without a usage file nothing is in use */
    char current[PATH_MAX];
    snprintf(current, sizeof current, "%s/sys/fs/cgroup/a/memory.current", root);
    CHECK(unlink(current) == 0);
    CHECK(limit_is(1, 1, "/a"));
    end_machine();
}

static void v1_limits_count_up_the_tree_too(void) {
    begin_machine();
    put("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/jobs/7\n1:memoryish:/y\n");
    put("/proc/self/mountinfo", v1_mounts);
    put_v1("/sys/fs/cgroup/memory/jobs/7", 300, 100);
    put_v1("/sys/fs/cgroup/memory/jobs", 1000, 850);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "9223372036854771712\n"); /* v1's notation for "no limit" */
    put_mib("/sys/fs/cgroup/memory", "memory.usage_in_bytes", 5000);
    CHECK(limit_is(150, 1000, "/jobs"));
    put("/sys/fs/cgroup/memory/jobs/memory.stat",
        "cache 1\ninactive_file 1048576000\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n");
    CHECK(limit_is(200, 300, "/jobs/7"));
    CHECK(epw_memory_limit_check(root, "a window", 250 * MIB, here) == EPW_ERR_NO_MEMORY);
    CHECK(error_has("raise the limit (memory.limit_in_bytes)"));
    end_machine();
}

/* Both versions are mounted, with the memory controller in one of them. */
static void hybrid_systems_count_what_has_the_controller(void) {
    begin_machine();
    char mounts[1024];
    snprintf(mounts, sizeof mounts, "%s%s", "29 22 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
             v1_mounts);
    put("/proc/self/cgroup", "4:memory:/jobs/7\n0::/user.slice\n");
    put("/proc/self/mountinfo", mounts);
    put_v1("/sys/fs/cgroup/memory/jobs/7", 300, 100);
    put("/sys/fs/cgroup/unified/user.slice/cgroup.procs", "");
    CHECK(limit_is(200, 300, "/jobs/7"));
    put_v2("/sys/fs/cgroup/unified/user.slice", 40, 1);
    CHECK(limit_is(39, 40, "/user.slice"));
    end_machine();
}

/* In a container only its own part of the tree is mounted, with names from inside or outside. */
static void containers_see_their_part_of_the_tree(void) {
    begin_machine();
    put("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
    put("/proc/self/mountinfo", "31 22 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                                "32 22 0:27 /docker/abcd /other ro - cgroup cgroup rw,memory\n");
    put_v1("/sys/fs/cgroup/memory", 300, 200);
    put_v1("/sys/fs/cgroup/memory/inner", 1000, 100);
    CHECK(limit_is(100, 300, "/docker/abc"));
    put("/proc/self/cgroup", "4:memory:/docker/abc\n");
    CHECK(limit_is(100, 300, "/docker/abc"));

    /* Outside the visible part: the top of that part still limits the process, or is the best that is
     * known. */
    put("/proc/self/cgroup", "0::/../beside\n");
    put("/proc/self/mountinfo", v2_mount);
    put_v2("/sys/fs/cgroup", 70, 1);
    CHECK(limit_is(69, 70, "/sys/fs/cgroup"));

    put("/proc/self/cgroup", "0::/\n");
    CHECK(limit_is(69, 70, "/"));
    end_machine();
}

static void strange_files_limit_nothing_or_what_they_say(void) {
    begin_machine();
    epw_memory_limit found;
    put("/proc/self/cgroup", "0::/a b\n");
    put("/proc/self/mountinfo", "31 22 0:27 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
    put_v2("/my groups/a b", 70, 1);
    CHECK(limit_is(69, 70, "/a b"));

    /* Lines longer than any path, before and after the relevant one; no newline at the end. */
    size_t long_line = 100000;
    char *text = malloc(long_line + 512);
    memset(text, 'x', long_line);
    int rest = snprintf(text + long_line, 512, "\n31 22 0:27 / /my\\040groups rw - cgroup2 cgroup2 rw");
    put_bytes("/proc/self/mountinfo", text, long_line + (size_t)rest);
    CHECK(limit_is(69, 70, "/a b"));
    put_bytes("/proc/self/mountinfo", text, long_line);
    CHECK(!epw_memory_limit_find(root, &found));

    uint64_t seed = 88172645463325252u;
    static const char *const files[] = {"/proc/meminfo", "/proc/self/cgroup", "/proc/self/mountinfo",
                                        "/my groups/a b/memory.max", "/my groups/a b/memory.stat"};
    for (int round = 0; round < 2000; round++) {
        size_t length = 0;
        for (; length < 4000; length++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            static const char alphabet[] = "0123456789/:: \n-cgroup2max\\07\0";
            text[length] = alphabet[seed % sizeof alphabet];
        }
        put_bytes(files[round % 5], text, seed % length);
        (void)epw_memory_limit_find(root, &found);
        if (round % 5 == 2) put("/proc/self/mountinfo", "31 22 0:27 / /my\\040groups rw - cgroup2 x rw\n");
    }
    free(text);
    int before = open_fds();
    (void)epw_memory_limit_find(root, &found);
    CHECK(open_fds() == before);
    end_machine();
}

/* ---- a real cgroup ---- */

enum { LIMIT_MIB = 128 };

static bool write_to(const char *folder, const char *name, const char *text) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return written;
}

/* Creates a cgroup of 128 MiB below this process's own, or at the top of what is mounted. */
static bool make_cgroup(char folder[PATH_MAX]) {
    static const char *const tops[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    static const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};
    char limit[32];
    snprintf(limit, sizeof limit, "%llu", LIMIT_MIB * MIB);
    for (int i = 0; i < 2; i++) {
        snprintf(folder, PATH_MAX, "%s/epwire-test-%d", tops[i], (int)getpid());
        if (mkdir(folder, 0700) != 0) continue;
        if (write_to(folder, limits[i], limit)) return true;
        rmdir(folder);
    }
    return false;
}

/* In the cgroup: 0 if a small window can be created, and a large one fails with an error that names the
 * cgroup. */
static int be_limited(const char *folder) {
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (!write_to(folder, "cgroup.procs", pid)) return 2;
    spec of = spec_of(0);
    epw_window *window = NULL;
    of.bytes = LIMIT_MIB / 4 * MIB;
    if (create_window(&of, &window) != EPW_OK) return 3;
    epw_window_destroy(window);
    of.bytes = 2 * LIMIT_MIB * MIB;
    if (create_window(&of, &window) != EPW_ERR_NO_MEMORY) return 4;
    fprintf(stderr, "%s\n", epw_last_error());
    return error_has("epwire-test-") && error_has("its limit is 134217728") ? 0 : 5;
}

static void a_window_above_a_real_limit_is_an_error(void) {
    char folder[PATH_MAX];
    if (!make_cgroup(folder)) {
        printf("ignored: a_window_above_a_real_limit_is_an_error: no memory cgroup can be made here: %s\n",
               strerror(errno));
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(be_limited(folder));
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s %d", WIFEXITED(status) ? "exit" : "signal",
              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    for (int i = 0; i < 100 && rmdir(folder) != 0; i++)
        usleep(10000); /* the cgroup becomes empty shortly after its last process has ended */
}

int main(void) {
    the_machine_itself_is_a_limit();
    a_v2_limit_counts_without_the_files_that_are_cached();
    the_tightest_of_all_above_counts();
    no_limit_is_none();
    v1_limits_count_up_the_tree_too();
    hybrid_systems_count_what_has_the_controller();
    containers_see_their_part_of_the_tree();
    strange_files_limit_nothing_or_what_they_say();
    a_window_above_a_real_limit_is_an_error();
    return check_result("memory_limit");
}
