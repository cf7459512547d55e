/* Where devices are on the PCI bus, as sysfs tells, and how far two of them are apart. */
#ifndef EPW_NIC_BUS_H
#define EPW_NIC_BUS_H

#include <stdint.h>

enum { EPW_BUS_PATH_BYTES = 256 };

typedef struct epw_bus_place {
    char path[EPW_BUS_PATH_BYTES]; /* "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"; "": not known */
    int32_t node;                  /* of memory, that of its socket; -1: not known */
} epw_bus_place;

/* The nearest first. */
typedef enum epw_bus_distance {
    EPW_BUS_SWITCH,       /* they share a switch */
    EPW_BUS_ROOT_PORT,    /* a root port */
    EPW_BUS_ROOT_COMPLEX, /* a root complex */
    EPW_BUS_SOCKET,       /* a socket */
    EPW_BUS_FAR           /* nothing, or nothing is known of one of them */
} epw_bus_distance;

epw_bus_distance epw_bus_distance_of(const epw_bus_place *a, const epw_bus_place *b);

/* "behind the same switch" and so on. */
const char *epw_bus_distance_name(epw_bus_distance distance);

/* The device that a link below `root` leads to. `root`: "" for this machine's /, else a folder that has the
 * like. The path is told as from `root`. */
void epw_bus_find_adapter(const char *root, const char *name, epw_bus_place *out);
void epw_bus_find_function(const char *root, const char *bus, epw_bus_place *out);

/* How many of NVIDIA's GPUs come before the one at `bus`, "0000:1a:00.0", among all of this host, whatever a
 * process sees of them: by this number ranks take turns at what is equally near. */
uint32_t epw_bus_turn_of_gpu(const char *root, const char *bus);

#endif
