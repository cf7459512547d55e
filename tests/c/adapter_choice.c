/* Which adapters a rank uses: filters in the grammar of NCCL_IB_HCA, distances on the bus, and turns among
 * equally near adapters. */
#include "check.h"
#include "nic/choice.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const epw_where where = {"test", -1, -1};

static void a_filter_lets_through_what_it_says(void) {
    static const struct {
        const char *filter, *name;
        uint32_t port;
        bool wanted;
    } cases[] = {
        {NULL, "mlx5_0", 1, true},
        {"", "mlx5_0", 1, true},
        {"mlx5", "mlx5_0", 1, true},
        {"mlx5", "bnxt_0", 1, false},
        {"mlx5_1", "mlx5_10", 1, true},
        {"=mlx5_1", "mlx5_10", 1, false},
        {"=mlx5_1", "mlx5_1", 2, true},
        {"=mlx5_1:2", "mlx5_1", 2, true},
        {"=mlx5_1:2", "mlx5_1", 1, false},
        {"=mlx5_1:2,mlx5_3", "mlx5_3", 1, true},
        {"=mlx5_1:2,mlx5_3", "mlx5_2", 1, false},
        {"^mlx5_1", "mlx5_10", 1, false},
        {"^mlx5_1", "mlx5_2", 1, true},
        {"^=mlx5_1", "mlx5_10", 1, true},
        {"^=mlx5_1,mlx5_2:1", "mlx5_1", 1, false},
        {"^=mlx5_1,mlx5_2:1", "mlx5_2", 1, false},
        {"^=mlx5_1,mlx5_2:1", "mlx5_2", 2, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(epw_adapter_filter_check(cases[i].filter, "options.adapters", where));
        CHECK_MSG(epw_adapter_wanted(cases[i].filter, cases[i].name, cases[i].port) == cases[i].wanted,
                  "%s of %s:%u", cases[i].filter != NULL ? cases[i].filter : "NULL", cases[i].name,
                  cases[i].port);
    }
}

static void what_is_no_filter_is_refused_with_its_text(void) {
    static const char *const wrong[] = {
        "^",         "=",         "=^mlx5_0",  "mlx5_0,",    ",mlx5_0", "mlx5_0,,mlx5_1",
        "mlx5_0:",   "mlx5_0:x",  "mlx5_0:0",  "mlx5_0:256", ":1",      "mlx5_0:1:2",
        "mlx5_0, b", "mlx5_0,=b", "mlx5_0:-1", "mlx5_0:+1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_MSG(epw_adapter_filter_check(wrong[i], "options.adapters", where) == EPW_ERR_INVALID, "%s",
                  wrong[i]);
        CHECK(strstr(epw_last_error(), "options.adapters is \"") != NULL &&
              strstr(epw_last_error(), wrong[i]) != NULL);
    }
}

static epw_bus_place at(const char *path, int32_t node) {
    epw_bus_place place = {.node = node};
    snprintf(place.path, sizeof place.path, "%s", path);
    return place;
}

static const char gpu_path[] = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0";

static void distances_are_those_of_the_bus(void) {
    static const struct {
        const char *path;
        int32_t node;
        epw_bus_distance distance;
    } cases[] = {
        {"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", 0, EPW_BUS_SWITCH},
        {"/sys/devices/pci0000:00/0000:00:01.0/0000:05:00.0", 0, EPW_BUS_ROOT_PORT},
        {"/sys/devices/pci0000:00/0000:00:02.0/0000:06:00.0", 0, EPW_BUS_ROOT_COMPLEX},
        {"/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", 0, EPW_BUS_SOCKET},
        {"/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1, EPW_BUS_FAR},
        {"/sys/devices/pci0000:0/0000:00:01.0", 1, EPW_BUS_FAR}, /* a longer name is another bus */
        {"/sys/devices/virtual/net", -1, EPW_BUS_FAR},
        {"", -1, EPW_BUS_FAR},
    };
    epw_bus_place gpu = at(gpu_path, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        epw_bus_place other = at(cases[i].path, cases[i].node);
        CHECK_MSG(epw_bus_distance_of(&gpu, &other) == cases[i].distance, "%s", cases[i].path);
        CHECK(epw_bus_distance_of(&other, &gpu) == cases[i].distance);
    }
    epw_bus_place nowhere = at("", -1);
    CHECK(epw_bus_distance_of(&nowhere, &nowhere) == EPW_BUS_FAR);
}

/* Two GPUs and two adapters behind each of two switches, and one adapter beside the switches. */
enum { COUNT = 5 };
typedef struct host {
    epw_bus_place places[COUNT], gpus[4];
    epw_adapter_listed list[COUNT];
} host;

static void make_host(host *h) {
    static const char first[] =
        "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:0%u.0/0000:03:00.0";
    static const char second[] =
        "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:0%u.0/0000:83:00.0";
    static const char *const names[COUNT] = {"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0"};
    char path[EPW_BUS_PATH_BYTES];
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, i < 2 ? first : second, i % 2);
        h->places[i] = at(path, (int32_t)i / 2);
        snprintf(path, sizeof path, i < 2 ? first : second, 2 + i % 2);
        h->gpus[i] = at(path, (int32_t)i / 2);
    }
    h->places[4] = at("/sys/devices/pci0000:00/0000:00:02.0/0000:09:00.0", 0);
    for (uint32_t i = 0; i < COUNT; i++) h->list[i] = (epw_adapter_listed){names[i], &h->places[i]};
}

static void each_gpu_begins_with_another_of_its_nearest(void) {
    host h;
    make_host(&h);
    static const uint32_t expected[4][2] = {{0, 1}, {1, 0}, {2, 3}, {3, 2}};
    uint32_t order[COUNT];
    for (uint32_t turn = 0; turn < 4; turn++) {
        epw_adapter_wish wish = {.gpu = &h.gpus[turn], .turn = turn};
        CHECK(epw_adapters_order(h.list, COUNT, &wish, order) == COUNT);
        CHECK_MSG(order[0] == expected[turn][0] && order[1] == expected[turn][1], "turn %u: %u %u", turn,
                  order[0], order[1]);
        uint32_t seen = 0;
        for (uint32_t i = 0; i < COUNT; i++) seen |= 1u << order[i];
        CHECK(seen == (1u << COUNT) - 1);
    }
    CHECK(epw_adapters_order(h.list, COUNT, &(epw_adapter_wish){.gpu = &h.gpus[0]}, order) == COUNT);
    CHECK(memcmp(order, (const uint32_t[]){0, 1, 4, 2, 3}, sizeof order) == 0);
    /* Without a GPU all are equally near, and ranks take turns. */
    for (uint32_t turn = 0; turn < 12; turn++) {
        CHECK(epw_adapters_order(h.list, COUNT, &(epw_adapter_wish){.turn = turn}, order) == COUNT);
        CHECK(order[0] == turn % COUNT && order[1] == (turn + 1) % COUNT);
    }
}

/* libibverbs promises no order of what it lists. */
static void it_does_not_matter_in_which_order_adapters_are_listed(void) {
    host h;
    make_host(&h);
    for (uint32_t turn = 0; turn < 4; turn++) {
        epw_adapter_wish wish = {.gpu = &h.gpus[turn], .turn = turn};
        uint32_t order[COUNT], other[COUNT];
        epw_adapter_listed turned[COUNT];
        for (uint32_t i = 0; i < COUNT; i++) turned[i] = h.list[(i * 3 + 2) % COUNT];
        CHECK(epw_adapters_order(h.list, COUNT, &wish, order) == COUNT);
        CHECK(epw_adapters_order(turned, COUNT, &wish, other) == COUNT);
        for (uint32_t i = 0; i < COUNT; i++)
            CHECK_MSG(strcmp(turned[other[i]].name, h.list[order[i]].name) == 0, "turn %u, %u: %s and %s",
                      turn, i, turned[other[i]].name, h.list[order[i]].name);
    }
    static const char *const names[] = {"bnxt_re0", "mlx5_02", "mlx5_2", "mlx5_10", "mlx5_bond_0"};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            int order = epw_adapter_compare(names[i], names[j]);
            CHECK_MSG((order > 0) - (order < 0) == (i > j) - (i < j), "%s, %s", names[i], names[j]);
        }
}

/* Turns are taken among those that the rank may use. */
static void adapters_that_are_not_wanted_take_no_turn(void) {
    host h;
    make_host(&h);
    uint32_t order[COUNT];
    epw_adapter_wish wish = {.filter = "^=mlx5_1", .except = "mlx5_2", .turn = 1};
    CHECK(epw_adapters_order(h.list, COUNT, &wish, order) == 3);
    CHECK(memcmp(order, (const uint32_t[]){3, 4, 0}, 3 * sizeof order[0]) == 0);
    wish = (epw_adapter_wish){.filter = "bnxt"};
    CHECK(epw_adapters_order(h.list, COUNT, &wish, order) == 0);
}

/* ---- sysfs ---- */

static char root[] = "/tmp/epwire-bus-XXXXXX";

static void make_folder(const char *path) {
    char whole[512];
    size_t base = (size_t)snprintf(whole, sizeof whole, "%s", root);
    snprintf(whole + base, sizeof whole - base, "%s", path);
    for (char *slash = whole + base + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    mkdir(whole, 0700);
}

static void make_file(const char *folder, const char *name, const char *text) {
    char path[512];
    make_folder(folder);
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
}

static void make_link(const char *folder, const char *name, const char *target) {
    char path[512];
    make_folder(folder);
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    CHECK(symlink(target, path) == 0);
}

static void places_are_read_below_a_root(void) {
    epw_bus_place place;
    CHECK(mkdtemp(root) != NULL);
    make_file("/sys/devices/pci0000:00/0000:1a:00.0", "numa_node", "1\n");
    make_file("/sys/devices/pci0000:00/0000:1a:00.0", "vendor", "0x10de\n");
    make_file("/sys/devices/pci0000:00/0000:1a:00.0", "class", "0x030200\n");
    make_file("/sys/devices/pci0000:00/0000:1b:00.0", "vendor", "0x10de\n");
    make_file("/sys/devices/pci0000:00/0000:1b:00.0", "class", "0x068000\n"); /* an NVLink switch */
    make_file("/sys/devices/pci0000:00/0000:1c:00.0", "numa_node", "-1\n");
    make_file("/sys/devices/pci0000:00/0000:1c:00.0/infiniband/mlx5_0", "x", "");
    make_link("/sys/class/infiniband/mlx5_0", "device", "../../../devices/pci0000:00/0000:1c:00.0");
    make_link("/sys/class/infiniband/astray", "device", "/");
    for (int i = 0xa; i <= 0xc; i++) {
        char name[32], target[64];
        snprintf(name, sizeof name, "0000:1%x:00.0", i);
        snprintf(target, sizeof target, "../../../devices/pci0000:00/%s", name);
        make_link("/sys/bus/pci/devices", name, target);
    }
    epw_bus_find_function(root, "0000:1A:00.0", &place);
    CHECK_MSG(strcmp(place.path, "/sys/devices/pci0000:00/0000:1a:00.0") == 0 && place.node == 1, "%s",
              place.path);
    epw_bus_find_adapter(root, "mlx5_0", &place);
    CHECK_MSG(strcmp(place.path, "/sys/devices/pci0000:00/0000:1c:00.0") == 0 && place.node == -1, "%s",
              place.path);
    static const char *const unknown[] = {"mlx5_1", "", "..", "../mlx5_0", "astray"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        epw_bus_find_adapter(root, unknown[i], &place);
        CHECK_MSG(place.path[0] == '\0' && place.node == -1, "%s: %s", unknown[i], place.path);
    }
    CHECK(epw_bus_turn_of_gpu(root, "0000:1A:00.0") == 0 && epw_bus_turn_of_gpu(root, "0000:1d:00.0") == 1);
    CHECK(epw_bus_turn_of_gpu("/nonexistent", "0000:1d:00.0") == 0);
    char remove[64];
    snprintf(remove, sizeof remove, "rm -rf %s", root);
    CHECK(system(remove) == 0);
}

int main(void) {
    a_filter_lets_through_what_it_says();
    what_is_no_filter_is_refused_with_its_text();
    distances_are_those_of_the_bus();
    each_gpu_begins_with_another_of_its_nearest();
    it_does_not_matter_in_which_order_adapters_are_listed();
    adapters_that_are_not_wanted_take_no_turn();
    places_are_read_below_a_root();
    return check_result("adapter_choice");
}
